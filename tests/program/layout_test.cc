// Sizes of tasks and regions.
#include "program/layout.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "cases.h"

namespace monostep::program {
namespace {

TEST(KSplits, slices_are_equal_whole_groups_of_bounded_width) {
  EXPECT_EQ(k_splits(32), 1);
  EXPECT_EQ(k_splits(1280), 1);
  EXPECT_EQ(k_splits(5120), 4);
  EXPECT_EQ(k_splits(6144), 6);  // five slices would not be whole groups
  EXPECT_EQ(k_splits(15360), 12);
  EXPECT_TRUE(rc::check("k_splits", [] {
    const int k = *rc::gen::inRange(1, 1024) * 32;
    const int splits = k_splits(k);
    RC_ASSERT(k % (splits * 32) == 0);
    RC_ASSERT(k / splits <= kMaxKSlice);
  }));
}

TEST(Layout, slices_split_the_hidden_size_evenly) {
  EXPECT_EQ(layout_of("flash", 4).slice_width(), 40);
  EXPECT_EQ(layout_of("flash", 4).num_slices(), 128);
  for_each_layout({8}, [](const std::string& name, const Layout& layout) {
    EXPECT_EQ(layout.slice_width() * layout.num_slices(), layout.geometry().hidden_size) << name;
  });
}

TEST(WindowRing, holds_a_window_and_the_widest_band) { EXPECT_EQ(window_ring_rows(geometry_named("flash")), 175); }

TEST(Layout, an_engram_granule_is_one_record_of_one_row) {
  const Layout layout = layout_of("flash", 4, 16);
  EXPECT_EQ(layout.num_granules(Region::kEngramRowsOut), 16 * 24);
  EXPECT_EQ(layout.region_words(Region::kEngramRowsOut), 16 * 24 * 256);
}

TEST(Layout, a_chunk_of_summed_columns_lies_in_one_output_group) {
  EXPECT_EQ(layout_of("flash", 4).o_chunk_width(), 256);
  EXPECT_EQ(layout_of("flash", 4).o_chunks(), 2 * 4);
  EXPECT_EQ(layout_of("flash", 8).o_chunks(), 4);
  EXPECT_EQ(layout_of("micro", 1).o_chunk_width(), 32);
  for_each_layout({8}, [](const std::string& name, const Layout& layout) {
    const int width = layout.shard().num_o_groups * layout.geometry().o_lora_rank;
    EXPECT_EQ(layout.o_chunks() * layout.o_chunk_width(), width) << name;
    EXPECT_EQ(layout.geometry().o_lora_rank % layout.o_chunk_width(), 0) << name;
    EXPECT_EQ(layout.o_chunk_width() % kTile, 0) << name;
  });
}

TEST(Layout, finished_rows_are_as_wide_as_the_inputs_of_their_linear) {
  const Layout layout = layout_of("flash", 4, 16);
  EXPECT_EQ(layout.num_granules(Region::kQIn), 16);
  EXPECT_EQ(layout.region_words(Region::kQIn), 16 * 1280);
  EXPECT_EQ(layout.num_granules(Region::kOIn), 16 * 8);
  EXPECT_EQ(layout.region_words(Region::kOIn), 16 * 2048);
  EXPECT_EQ(layout.expert_slots(), 6);
  EXPECT_EQ(layout.num_granules(Region::kExpertIn), 16 * 7);
  EXPECT_EQ(layout.region_words(Region::kExpertIn), 16 * 7 * 576);
}

TEST(Layout, expert_slots_hold_the_most_that_any_layer_takes) {
  model::Geometry geometry = geometry_named("micro");
  geometry.num_experts_per_tok = 2;
  geometry.dspark_num_experts_per_tok = 3;
  EXPECT_EQ(Layout(geometry, model::make_shard(geometry, 1).value(), Shape()).expert_slots(), 3);
}

TEST(Layout, rows_hold_the_band_and_the_draft) {
  model::Geometry geometry = geometry_named("flash");
  Shape shape;
  shape.band = 8;
  shape.max_requests = 8;
  EXPECT_EQ(Layout(geometry, model::make_shard(geometry, 1).value(), shape).rows(), 40);
  EXPECT_EQ(layout_of("flash", 1, 48).rows(), 48);
}

TEST(Layout, linears_have_the_widths_of_a_rank) {
  const Layout layout = layout_of("flash", 4);
  const auto expect = [&](Linear linear, int n, int k) {
    EXPECT_EQ(layout.size(linear, 2).n, n) << static_cast<int>(linear);
    EXPECT_EQ(layout.size(linear, 2).k, k) << static_cast<int>(linear);
  };
  expect(Linear::kWqA, 1280, 5120);
  expect(Linear::kWqB, 8192, 1280);
  expect(Linear::kIndexWqB, 4096, 1280);
  expect(Linear::kWoA, 1024, 4096);
  expect(Linear::kWoB, 5120, 2048);
  expect(Linear::kRouter, 384, 5120);
  expect(Linear::kW1, 576, 5120);
  expect(Linear::kW2, 5120, 576);
  expect(Linear::kEngramWkv, 6400, 6144);
  expect(Linear::kHead, 32320, 5120);
  expect(Linear::kMarkovHead, 32320, 256);
  EXPECT_EQ(layout.size(Linear::kRouter, 41).n, 128);
}

TEST(Layout, the_shares_of_all_ranks_make_the_whole) {
  for (const Linear linear : {Linear::kWqB, Linear::kSharedW1, Linear::kW1, Linear::kEngramWkv, Linear::kHead}) {
    for (const int tp : {2, 4, 8}) {
      EXPECT_EQ(layout_of("flash", tp).size(linear, 2).n * tp, layout_of("flash", 1).size(linear, 2).n);
    }
  }
  for (const Linear linear : {Linear::kWoB, Linear::kW2, Linear::kSharedW2}) {
    for (const int tp : {2, 4, 8}) {
      EXPECT_EQ(layout_of("flash", tp).size(linear, 2).k * tp, layout_of("flash", 1).size(linear, 2).k);
    }
  }
}

TEST(Layout, sections_of_a_stage_lie_behind_each_other) {
  const Layout layout = layout_of("flash", 4);
  EXPECT_EQ(layout.first_tile(Stage::kAttnIn, Linear::kWqA, 2), 0);
  EXPECT_EQ(layout.first_tile(Stage::kAttnIn, Linear::kWkv, 2), 80);
  EXPECT_EQ(layout.first_tile(Stage::kAttnIn, Linear::kCompressorWkv, 2), 112);
  EXPECT_EQ(layout.first_tile(Stage::kAttnIn, Linear::kCompressorGate, 2), 144);
  EXPECT_EQ(layout.first_tile(Stage::kAttnIn, Linear::kIndexWeights, 2), 176);
  EXPECT_EQ(layout.first_tile(Stage::kAttnIn, Linear::kIndexWeights, 20), 144);  // ratio 1 has no gate
  EXPECT_EQ(layout.first_tile(Stage::kAttnIn, Linear::kIndexWeights, 24), 112);  // a reindex layer compresses nothing
  EXPECT_EQ(layout.stage_tiles(Stage::kAttnIn, 0), 112);
  EXPECT_EQ(layout.first_tile(Stage::kFfnIn, Linear::kSharedW3, 0), 24 + 36);
  EXPECT_DEATH(layout.first_tile(Stage::kAttnIn, Linear::kIndexWeights, 3), "does not hold");
}

TEST(Layout, experts_of_a_step_are_bounded_by_rows_and_by_experts) {
  EXPECT_EQ(layout_of("flash", 1, 8).max_distinct_experts(0), 48);
  EXPECT_EQ(layout_of("flash", 1, 48).max_distinct_experts(0), 288);
  EXPECT_EQ(layout_of("flash", 1, 48).max_distinct_experts(40), 120);
  EXPECT_EQ(layout_of("micro", 1, 48).max_distinct_experts(0), 8);
}

// Reduction trees must not depend on the band.
TEST(Layout, tiles_and_splits_do_not_depend_on_the_band) {
  for (const std::string& name : model::geometry_names()) {
    const Layout narrow = layout_of(name, 1, 8), wide = layout_of(name, 1, 48);
    for (const Call& call : narrow.program().calls) {
      if (call.stage != Stage::kAttnIn && call.stage != Stage::kWoA && call.stage != Stage::kExpertUp) continue;
      EXPECT_EQ(narrow.stage_tiles(call.stage, call.layer), wide.stage_tiles(call.stage, call.layer));
      EXPECT_EQ(narrow.stage_splits(call.stage, call.layer), wide.stage_splits(call.stage, call.layer));
    }
  }
}

TEST(Layout, every_region_and_every_call_has_a_size) {
  for_each_layout(all_bands(), [](const std::string& name, const Layout& layout) {
    for (int region_idx = 0; region_idx < kNumRegions; ++region_idx) {
      const auto region = static_cast<Region>(region_idx);
      EXPECT_GT(layout.num_granules(region), 0) << name << " " << decl(region).name;
      EXPECT_GE(layout.region_words(region), layout.num_granules(region)) << name << " " << decl(region).name;
      EXPECT_GT(layout.num_copies(region), 0) << name << " " << decl(region).name;
    }
    for (const Call& call : layout.program().calls) {
      EXPECT_GT(layout.num_tasks(call), 0) << name << " " << decl(call.stage).name;
    }
  });
}

TEST(LinearsOf, a_stage_without_linears_is_our_bug) {
  EXPECT_DEATH(linears_of(Stage::kAttend, model::Role()), "without linears");
}

}  // namespace
}  // namespace monostep::program
