// The words, the JSON object and the sums of a start's report.
#include "apps/start_report.h"

#include <gtest/gtest.h>

#include "apps/gpu_start.h"
#include "gpu/program_cache.h"

namespace monostep::apps {
namespace {

StartReport some_start() {
  StartReport start;
  start.programs = {{.band = 8, .from_cache = true, .seconds = 0.5, .warning = "", .cubin_bytes = 1 << 20},
                    {.band = 48, .from_cache = true, .seconds = 0.25, .warning = "", .cubin_bytes = 2 << 20}};
  start.load.weights.from = gpu::WeightsFrom::kCache;
  start.load.weights.file_bytes = int64_t{73} << 30;
  start.load.weights_s = 20.5;
  start.load.engram_s = 3;
  start.memory = {
      .weights = int64_t{73} << 30, .tables = 1 << 20, .pools = 2 << 20, .arena = 3 << 20, .pinned = 4 << 20};
  return start;
}

TEST(StartReport, a_warm_start_says_what_was_read) {
  EXPECT_EQ(start_words(some_start()),
            "programs read in 0.75 s, weights read from the packed file in 20.50 s, Engram 3.00 s");
  EXPECT_EQ(
      memory_words(some_start()),
      "weights 73.00 GiB, tables 1.00 MiB, pools 2.00 MiB, arena 3.00 MiB, code 3.00 MiB, pinned 4.00 MiB, packed "
      "file 73.00 GiB");
}

TEST(StartReport, a_cold_start_says_what_was_compiled_and_packed) {
  StartReport start = some_start();
  start.programs[1].from_cache = false;
  start.load.weights = {.from = gpu::WeightsFrom::kCheckpoint, .file_bytes = 0, .warning = ""};
  EXPECT_EQ(start_words(start), "programs compiled in 0.75 s, weights packed in 20.50 s, Engram 3.00 s");
  EXPECT_EQ(memory_words(start).find("packed file"), std::string::npos);
  start.load.weights.from = gpu::WeightsFrom::kSynthetic;
  EXPECT_NE(start_words(start).find("weights filled in"), std::string::npos);
}

TEST(StartReport, the_json_object_has_every_time_and_size) {
  EXPECT_EQ(
      start_json(some_start()),
      "{\"programs\": \"cache\", \"weights\": \"cache\", \"program_s\": 0.75, \"weights_s\": 20.5, \"engram_s\": 3.0, "
      "\"weight_bytes\": 78383153152, \"table_bytes\": 1048576, \"pool_bytes\": 2097152, \"arena_bytes\": 3145728, "
      "\"pinned_bytes\": 4194304, \"code_bytes\": 3145728, \"packed_file_bytes\": 78383153152}");
}

TEST(PackedCacheOption, is_a_folder_off_or_beside_the_programs) {
  EXPECT_EQ(packed_cache_dir("off"), "");
  EXPECT_EQ(packed_cache_dir("here"), "here");
  const std::filesystem::path programs = gpu::default_cache_dir();
  EXPECT_EQ(packed_cache_dir(""), programs.empty() ? programs : programs / "packed");
}

}  // namespace
}  // namespace monostep::apps
