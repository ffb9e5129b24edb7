// What the tests of the emulator share: running a kernel with parameters in one or several orders, and counting what
// does not hold inside it.
#pragma once

#include <cstdint>
#include <string>

#include "emulator/run.h"

namespace monostep::gpu {

// For EXPECT_PRED2, which prints both.
inline bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

// Runs a kernel that takes `T&` in round robin and in some random orders; the text of the first failure, "" if there is
// none.
template <typename T>
std::string failure_of(const EmulatedLaunch& launch, void (*kernel)(const void*), const T& params) {
  const Status status = run_emulated(launch, kernel, &params);
  return status.ok() ? "" : status.error().text;
}
template <typename T>
std::string failure_in_any_order(EmulatedLaunch launch, void (*kernel)(const void*), const T& params) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    launch.order_seed = seed;
    if (std::string text = failure_of(launch, kernel, params); !text.empty()) return text;
  }
  return "";
}

// Parameters of kernels that only check: how many checks failed.
struct Errors {
  int* count;
};
inline void expect_on_device(bool holds, const void* params) {
  if (!holds) ++*static_cast<const Errors*>(params)->count;
}

}  // namespace monostep::gpu
