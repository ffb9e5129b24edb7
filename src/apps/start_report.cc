// Forms of a start's report (apps/start_report.h).
#include "apps/start_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/json_text.h"

namespace monostep::apps {
namespace {

const char* programs_from(const StartReport& report) { return report.from_cache() ? "cache" : "compiled"; }

// "filled" for a synthetic shard.
const char* weights_verb(gpu::WeightsFrom from) {
  switch (from) {
    case gpu::WeightsFrom::kSynthetic: return "filled";
    case gpu::WeightsFrom::kCheckpoint: return "packed";
    case gpu::WeightsFrom::kCache: break;
  }
  return "read from the packed file";
}

}  // namespace

bool StartReport::from_cache() const {
  return std::all_of(programs.begin(), programs.end(),
                     [](const gpu::MadeProgram& program) { return program.from_cache; });
}

double StartReport::program_s() const {
  double seconds = 0;
  for (const gpu::MadeProgram& program : programs) seconds += program.seconds;
  return seconds;
}

int64_t StartReport::code_bytes() const {
  int64_t bytes = 0;
  for (const gpu::MadeProgram& program : programs) bytes += program.cubin_bytes;
  return bytes;
}

std::string size_text(int64_t bytes) {
  if (bytes >= int64_t{1} << 30) return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / (1 << 30));
  return fmt::format("{:.2f} MiB", static_cast<double>(bytes) / (1 << 20));
}

std::string start_words(const StartReport& report) {
  return fmt::format("programs {} in {:.2f} s, weights {} in {:.2f} s, Engram {:.2f} s",
                     report.from_cache() ? "read" : "compiled", report.program_s(),
                     weights_verb(report.load.weights.from), report.load.weights_s, report.load.engram_s);
}

std::string memory_words(const StartReport& report) {
  const gpu::MemoryUse& memory = report.memory;
  std::string words = fmt::format("weights {}, tables {}, pools {}, arena {}, code {}, pinned {}",
                                  size_text(memory.weights), size_text(memory.tables), size_text(memory.pools),
                                  size_text(memory.arena), size_text(report.code_bytes()), size_text(memory.pinned));
  if (report.load.weights.file_bytes > 0) words += ", packed file " + size_text(report.load.weights.file_bytes);
  return words;
}

std::string start_json(const StartReport& report) {
  std::string out = fmt::format("{{\"programs\": \"{}\", \"weights\": \"{}\"", programs_from(report),
                                gpu::weights_from_name(report.load.weights.from));
  const std::pair<const char*, double> times[] = {
      {"program_s", report.program_s()}, {"weights_s", report.load.weights_s}, {"engram_s", report.load.engram_s}};
  for (const auto& [name, seconds] : times) {
    out += fmt::format(", \"{}\": ", name);
    append_json_number(out, seconds);
  }
  const std::pair<const char*, int64_t> sizes[] = {{"weight_bytes", report.memory.weights},
                                                   {"table_bytes", report.memory.tables},
                                                   {"pool_bytes", report.memory.pools},
                                                   {"arena_bytes", report.memory.arena},
                                                   {"pinned_bytes", report.memory.pinned},
                                                   {"code_bytes", report.code_bytes()},
                                                   {"packed_file_bytes", report.load.weights.file_bytes}};
  for (const auto& [name, bytes] : sizes) out += fmt::format(", \"{}\": {}", name, bytes);
  return out + "}";
}

}  // namespace monostep::apps
