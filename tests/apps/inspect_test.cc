// Tests of `monostep inspect`: what it prints of a geometry and of a checkpoint, and exit code 3 for a damaged one.
#include <gtest/gtest.h>

#include "program.h"

namespace monostep::apps {
namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Inspect, the_released_geometry_prints_its_published_totals) {
  const ProgramRun run = run_program("inspect --geometry flash");
  EXPECT_EQ(run.code, 0);
  EXPECT_TRUE(has(run.out, "96085        763205315794        510286023000   475.2409\n")) << run.out;
  EXPECT_TRUE(has(run.out, "92160        543581798400        288777830400   268.9453\n"));
  EXPECT_TRUE(has(run.out, "reindex    24, 28, 32, 36\n"));
}

TEST(Inspect, a_number_of_ranks_that_does_not_split_is_given_with_its_reason) {
  const ProgramRun run = run_program("inspect --geometry micro");
  EXPECT_EQ(run.code, 0);
  EXPECT_TRUE(has(run.out, "not possible: o_groups = 2 does not split into 4 ranks")) << run.out;
}

TEST(Inspect, a_whole_checkpoint_is_ok_and_a_damaged_one_ends_with_code_3_and_the_message) {
  const TempDir dir;
  const std::string folder = (dir / "m").string();
  ASSERT_EQ(run_program("make-model --geometry micro --out " + folder).code, 0);
  const ProgramRun whole = run_program("inspect " + folder);
  EXPECT_EQ(whole.code, 0);
  EXPECT_TRUE(has(whole.out, "checkpoint ok: 616 tensors in 5 files, 128 token classes, tokenizer.json absent\n"));
  const std::filesystem::path shard = dir / "m" / "model-00003-of-00005.safetensors";
  std::filesystem::resize_file(shard, std::filesystem::file_size(shard) + 1);
  const ProgramRun damaged = run_program("inspect " + folder);
  EXPECT_EQ(damaged.code, 3);
  EXPECT_TRUE(damaged.err.starts_with("monostep: " + shard.string() + ": expected the file to end")) << damaged.err;
  EXPECT_EQ(std::count(damaged.err.begin(), damaged.err.end(), '\n'), 1);
}

TEST(Inspect, a_missing_folder_is_a_model_error_and_wrong_use_a_usage_error) {
  const TempDir dir;
  EXPECT_EQ(run_program("inspect " + (dir / "none").string()).code, 3);
  EXPECT_EQ(run_program("inspect").code, 2);
  EXPECT_EQ(run_program("inspect --geometry none").code, 2);
  EXPECT_EQ(run_program("inspect --geometry flash " + dir.path().string()).code, 2);
}

}  // namespace
}  // namespace monostep::apps
