// The two tables of stages and regions are complete and agree with each other.
#include "program/stage.h"

#include <gtest/gtest.h>

#include <set>
#include <string_view>

namespace monostep::program {
namespace {

TEST(Stages, every_stage_and_region_has_its_own_name) {
  std::set<std::string_view> stages, regions;
  for (const StageDecl& stage : kStages) stages.insert(stage.name);
  for (const RegionDecl& region : kRegions) regions.insert(region.name);
  EXPECT_EQ(stages.size(), static_cast<size_t>(kNumStages));
  EXPECT_EQ(regions.size(), static_cast<size_t>(kNumRegions));
  EXPECT_FALSE(stages.contains("") || regions.contains(""));
}

TEST(Stages, a_region_is_written_by_its_writer_and_by_no_other) {
  for (int region_idx = 0; region_idx < kNumRegions; ++region_idx) {
    const auto region = static_cast<Region>(region_idx);
    for (int stage_idx = 0; stage_idx < kNumStages; ++stage_idx) {
      const auto stage = static_cast<Stage>(stage_idx);
      EXPECT_EQ(may_write(stage, region), decl(region).writer == stage) << decl(region).name << " " << decl(stage).name;
    }
  }
}

TEST(Stages, what_is_polled_whole_is_also_declared_as_read) {
  for (const StageDecl& stage : kStages) EXPECT_EQ(stage.reads_all & ~stage.reads, 0u) << stage.name;
}

// Partial sums that many CTAs need are added up by one stage.
TEST(Stages, sums_of_k_slices_reach_the_wide_linears_as_finished_rows) {
  for (const Stage stage : {Stage::kQProj, Stage::kWoB, Stage::kExpertDown}) {
    for (const Region region : {Region::kAttnInPart, Region::kOaPart, Region::kExpertPart}) {
      EXPECT_FALSE(may_read(stage, region)) << decl(stage).name << " " << decl(region).name;
    }
  }
}

TEST(Stages, may_read_follows_the_table) {
  EXPECT_TRUE(may_read(Stage::kWoB, Region::kOIn));
  EXPECT_FALSE(may_read(Stage::kWoB, Region::kOaPart));
  EXPECT_FALSE(may_read(Stage::kEngramKv, Region::kEngramKvOut));
}

TEST(Stages, selections_ids_and_looked_up_rows_are_compared_bit_for_bit) {
  for (const RegionDecl& region : kRegions) {
    const bool looked_up = region.writer == Stage::kEngramRows;
    EXPECT_EQ(region.compare == Compare::kBits, region.word == Word::kI32 || looked_up) << region.name;
  }
}

}  // namespace
}  // namespace monostep::program
