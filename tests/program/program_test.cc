// The flattened program: its order, its sections, and where each call takes its content from.
#include "program/program.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "cases.h"

namespace monostep::program {
namespace {

int count(const Program& program, Stage stage) {
  return static_cast<int>(
      std::count_if(program.calls.begin(), program.calls.end(), [&](const Call& call) { return call.stage == stage; }));
}

// Where the call reads the region from; -1: nowhere.
int source(const model::Geometry& geometry, const Program& program, Region region, Stage reader, int layer) {
  return writer_of(program, geometry, region, program.find(reader, layer));
}

TEST(Band, the_smallest_that_holds_the_rows) {
  EXPECT_EQ(band_of(1), 8);
  EXPECT_EQ(band_of(8), 8);
  EXPECT_EQ(band_of(9), 16);
  EXPECT_EQ(band_of(17), 24);
  EXPECT_EQ(band_of(25), 48);
  EXPECT_EQ(band_of(48), 48);
  EXPECT_DEATH(band_of(49), "widest band");
}

TEST(ShapeFor, the_smallest_band_that_holds_rows_and_requests) {
  const model::Geometry flash = geometry_named("flash");  // 5 draft positions: 6 rows a request
  const auto expect = [](const model::Geometry& geometry, int num_rows, int num_requests, int band, int requests) {
    const Shape shape = shape_for(geometry, num_rows, num_requests, 4096);
    EXPECT_EQ(shape.band, band) << num_rows << " rows of " << num_requests;
    EXPECT_EQ(shape.max_requests, requests) << num_rows << " rows of " << num_requests;
    EXPECT_EQ(shape.max_context, 4096);
  };
  expect(flash, 1, 1, 8, 1);
  expect(flash, 8, 1, 8, 1);
  expect(flash, 9, 1, 16, 2);
  expect(flash, 2, 2, 16, 2);  // two drafts of 5 rows need more than a band of 8
  expect(flash, 16, 2, 16, 2);
  expect(flash, 17, 2, 24, 4);
  expect(flash, 3, 3, 24, 4);
  expect(flash, 24, 4, 24, 4);
  expect(flash, 25, 1, 48, 8);
  expect(flash, 5, 5, 48, 8);
  expect(flash, 48, 8, 48, 8);
}

TEST(ShapeFor, the_requests_of_a_band_follow_the_draft_length) {
  model::Geometry geometry = geometry_named("flash");
  const auto requests = [&](int draft_length, int num_rows) {
    geometry.dspark_block_size = draft_length;
    return shape_for(geometry, num_rows, 1, 4096).max_requests;
  };
  EXPECT_EQ(requests(0, 8), 8);  // one row a request
  EXPECT_EQ(requests(0, 16), 8);
  EXPECT_EQ(requests(2, 8), 2);
  EXPECT_EQ(requests(2, 16), 5);
  EXPECT_EQ(requests(15, 8), 1);
  EXPECT_EQ(requests(15, 24), 1);
  EXPECT_EQ(requests(15, 48), 8);  // the widest band takes all that a step may hold
}

TEST(ShapeFor, a_step_beyond_the_widest_band_is_our_bug) {
  const model::Geometry geometry = geometry_named("flash");
  EXPECT_DEATH(shape_for(geometry, 49, 1, 4096), "widest band");
  EXPECT_DEATH(shape_for(geometry, 9, 9, 4096), "widest band");
}

TEST(Program, flash_holds_each_layer_head_verdict_and_draft_once) {
  const model::Geometry geometry = geometry_named("flash");
  const Program program = build_program(geometry);
  for (const Stage stage : {Stage::kFold, Stage::kAttnMix, Stage::kAttnIn, Stage::kQNorm, Stage::kQProj, Stage::kKvNew,
                            Stage::kAttend, Stage::kAttnMerge, Stage::kWoA, Stage::kOSum, Stage::kWoB, Stage::kFfnFold,
                            Stage::kFfnMix, Stage::kFfnIn, Stage::kExpertUp, Stage::kExpertAct, Stage::kExpertDown}) {
    EXPECT_EQ(count(program, stage), 43) << decl(stage).name;
  }
  EXPECT_EQ(count(program, Stage::kEngramRows), 2);
  EXPECT_EQ(count(program, Stage::kEngramKv), 2);
  EXPECT_EQ(count(program, Stage::kEngramFold), 2);
  EXPECT_EQ(count(program, Stage::kIndexScore), 8);
  EXPECT_EQ(count(program, Stage::kIndexSelect), 8);
  EXPECT_EQ(count(program, Stage::kHeadFold), 2);
  EXPECT_EQ(count(program, Stage::kHead), 2);
  EXPECT_EQ(count(program, Stage::kSample), 1);
  EXPECT_EQ(count(program, Stage::kVerdict), 1);
  EXPECT_EQ(count(program, Stage::kMarkov), 5);
  EXPECT_EQ(count(program, Stage::kDraftOut), 1);
  EXPECT_EQ(program.calls.size(), 768u);
}

TEST(Program, every_engram_look_up_is_asked_for_before_the_first_is_awaited) {
  for (const std::string& name : model::geometry_names()) {
    const model::Geometry geometry = geometry_named(name);
    const Program program = build_program(geometry);
    const size_t num_tables = geometry.engram_layer_ids.size();
    for (size_t idx = 0; idx < num_tables; ++idx) {
      EXPECT_EQ(program.find(Stage::kEngramRows, geometry.engram_layer_ids[idx]), static_cast<int>(idx)) << name;
      EXPECT_EQ(program.find(Stage::kEngramKv, geometry.engram_layer_ids[idx]), static_cast<int>(num_tables + idx))
          << name;
    }
  }
}

TEST(Program, sections_follow_each_other_without_gaps) {
  for (const std::string& name : model::geometry_names()) {
    const Program program = build_program(geometry_named(name));
    const auto less = [](const Call& a, const Call& b) { return a.section < b.section; };
    EXPECT_TRUE(std::is_sorted(program.calls.begin(), program.calls.end(), less)) << name;
    EXPECT_EQ(program.section_begin(Section::kTarget), 0);
    EXPECT_EQ(program.section_begin(Section::kHead), program.find(Stage::kHeadFold, -1));
    EXPECT_EQ(program.section_begin(Section::kContext), program.find(Stage::kMainProj, -1));
    EXPECT_EQ(program.section_begin(Section::kDraft),
              program.find(Stage::kFold, geometry_named(name).num_hidden_layers));
    EXPECT_EQ(program.calls.back().stage, Stage::kDraftOut);
  }
}

TEST(Program, without_draft_layers_the_step_ends_with_the_verdict) {
  model::Geometry geometry = geometry_named("micro");
  geometry.compress_ratios.resize(static_cast<size_t>(geometry.num_hidden_layers));
  geometry.num_nextn_predict_layers = 0;
  geometry.dspark_target_layer_ids.clear();
  const Program program = build_program(geometry);
  EXPECT_EQ(program.calls.back().stage, Stage::kVerdict);
  EXPECT_EQ(program.section_begin(Section::kDraft), static_cast<int>(program.calls.size()));
  for (const Call& call : program.calls) EXPECT_EQ(call.writes & bit(Region::kTaps), 0u);
}

TEST(Program, a_call_reads_and_writes_within_its_stage) {
  for (const std::string& name : model::geometry_names()) {
    for (const Call& call : build_program(geometry_named(name)).calls) {
      EXPECT_EQ(call.reads & ~decl(call.stage).reads, 0u) << name << " " << decl(call.stage).name;
      EXPECT_EQ(call.writes & ~decl(call.stage).writes, 0u) << name << " " << decl(call.stage).name;
    }
  }
}

TEST(Program, only_the_layers_that_own_keys_write_them) {
  const model::Geometry geometry = geometry_named("flash");
  const Program program = build_program(geometry);
  for (int layer_idx = 0; layer_idx < geometry.num_layers(); ++layer_idx) {
    const Call& call = program.calls[static_cast<size_t>(program.find(Stage::kKvNew, layer_idx))];
    const auto& owners = geometry.kv_source_layer_ids;
    const bool owner = std::find(owners.begin(), owners.end(), layer_idx) != owners.end();
    EXPECT_EQ((call.writes & bit(Region::kCompressedNew)) != 0, owner) << layer_idx;
    EXPECT_EQ((call.writes & bit(Region::kIndexKeyNew)) != 0, owner) << layer_idx;
  }
}

TEST(WriterOf, keys_come_from_the_owner_and_the_selection_from_the_index_source) {
  const model::Geometry geometry = geometry_named("flash");
  const Program program = build_program(geometry);
  EXPECT_EQ(source(geometry, program, Region::kCompressedNew, Stage::kAttend, 39), program.find(Stage::kKvNew, 20));
  EXPECT_EQ(source(geometry, program, Region::kTopk, Stage::kAttend, 39), program.find(Stage::kIndexSelect, 36));
  EXPECT_EQ(source(geometry, program, Region::kTopk, Stage::kAttend, 7), program.find(Stage::kIndexSelect, 2));
  EXPECT_EQ(source(geometry, program, Region::kIndexKeyNew, Stage::kIndexScore, 36), program.find(Stage::kKvNew, 20));
  EXPECT_EQ(source(geometry, program, Region::kCandidates, Stage::kIndexScore, 36),
            program.find(Stage::kIndexSelect, 20));
  EXPECT_EQ(source(geometry, program, Region::kWindowNew, Stage::kAttend, 39), program.find(Stage::kKvNew, 39));
}

TEST(WriterOf, a_fold_takes_the_layer_before_and_the_first_one_nothing) {
  const model::Geometry geometry = geometry_named("flash");
  const Program program = build_program(geometry);
  EXPECT_EQ(source(geometry, program, Region::kFfnExchange, Stage::kFold, 5), program.find(Stage::kExpertDown, 4));
  EXPECT_EQ(source(geometry, program, Region::kEngramRowsOut, Stage::kEngramKv, 1),
            program.find(Stage::kEngramRows, 1));
  EXPECT_EQ(source(geometry, program, Region::kEngramKvOut, Stage::kFold, 14), program.find(Stage::kEngramKv, 14));
  EXPECT_EQ(program.calls[static_cast<size_t>(program.find(Stage::kFold, 0))].reads, 0u);
  EXPECT_EQ(source(geometry, program, Region::kFfnExchange, Stage::kFold, 0), -1);
  EXPECT_EQ(program.calls[static_cast<size_t>(program.find(Stage::kFold, 40))].reads, bit(Region::kVerdictOut));
}

TEST(CopyOf, follows_the_rule_of_the_region) {
  const model::Geometry geometry = geometry_named("flash");
  const Program program = build_program(geometry);
  const auto copy = [&](Region region, Stage writer, int layer) {
    return copy_of(program, geometry, region, program.calls[static_cast<size_t>(program.find(writer, layer))]);
  };
  EXPECT_EQ(copy(Region::kStreams, Stage::kFold, 6), 0);
  EXPECT_EQ(copy(Region::kStreams, Stage::kFold, 7), 1);
  EXPECT_EQ(copy(Region::kCompressedNew, Stage::kKvNew, 14), 2);
  EXPECT_EQ(copy(Region::kTopk, Stage::kIndexSelect, 24), 4);
  EXPECT_EQ(copy(Region::kEngramRowsOut, Stage::kEngramRows, 14), 1);
  EXPECT_EQ(copy(Region::kEngramKvOut, Stage::kEngramKv, 14), 1);
  EXPECT_EQ(copy(Region::kMarkovTop, Stage::kMarkov, 3), 3);
  EXPECT_EQ(copy(Region::kTaps, Stage::kFold, 38), 0);
  EXPECT_EQ(copy_of(program, geometry, Region::kLogits,
                    program.calls.at(static_cast<size_t>(program.find(Stage::kHead, -1)))),
            0);
  Call draft_head = program.calls.at(static_cast<size_t>(program.find(Stage::kHead, -1)));
  draft_head.section = Section::kDraft;
  EXPECT_EQ(copy_of(program, geometry, Region::kLogits, draft_head), 1);
}

TEST(CopyOf, never_leaves_the_copies_that_the_layout_holds) {
  for_each_layout({8}, [](const std::string& name, const Layout& layout) {
    for (const Call& call : layout.program().calls) {
      for (int region_idx = 0; region_idx < kNumRegions; ++region_idx) {
        const auto region = static_cast<Region>(region_idx);
        if ((call.writes & bit(region)) == 0) continue;
        const int copy = copy_of(layout.program(), layout.geometry(), region, call);
        EXPECT_TRUE(copy >= 0 && copy < layout.num_copies(region)) << name << " " << decl(region).name;
      }
    }
  });
}

TEST(Find, a_call_that_is_not_there_is_our_bug) {
  const Program program = build_program(geometry_named("micro"));
  EXPECT_DEATH(program.find(Stage::kIndexScore, 0), "does not have");
}

}  // namespace
}  // namespace monostep::program
