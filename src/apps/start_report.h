// What a start on a GPU took and what it holds: seconds of programs, weights and Engram, bytes by class. Filled where
// the rank is made, printed by `generate` and `bench step`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gpu/kernel_maker.h"
#include "gpu/rank.h"

namespace monostep::apps {

struct StartReport {
  std::vector<gpu::MadeProgram> programs;  // one a band
  gpu::LoadReport load;
  gpu::MemoryUse memory;

  bool from_cache() const;  // all programs: a warm start
  double program_s() const;
  int64_t code_bytes() const;  // of their cubins
};

std::string size_text(int64_t bytes);  // "1.50 GiB", "3.00 MiB"

// "programs compiled in 74.20 s, weights packed in 21.00 s, Engram 3.10 s"
std::string start_words(const StartReport& report);
// "weights 73.00 GiB, tables ..., packed file 73.00 GiB"
std::string memory_words(const StartReport& report);

// {"programs": "compiled", "program_s": 74.2, ..., "code_bytes": 1581928}
std::string start_json(const StartReport& report);

}  // namespace monostep::apps
