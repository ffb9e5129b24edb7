// Launch cuts: every call is in exactly one launch, in order, and a cut is where its name says.
#include "gpu/launch_cuts.h"

#include <gtest/gtest.h>

namespace monostep::gpu {
namespace {

const program::Program& micro_program() {
  static const program::Program program = program::build_program(model::named_geometry("micro").value());
  return program;
}

TEST(LaunchCuts, every_call_is_in_one_launch_in_order) {
  const program::CallRange range = {3, static_cast<int>(micro_program().calls.size()) - 2};
  for (const Cut cut : {Cut::kStep, Cut::kLayer, Cut::kStage}) {
    int next = range.first;
    for (const program::CallRange& launch : cut_calls(micro_program(), range, cut)) {
      EXPECT_EQ(launch.first, next);
      EXPECT_GT(launch.last, launch.first);
      next = launch.last;
    }
    EXPECT_EQ(next, range.last);
  }
}

TEST(LaunchCuts, a_step_is_one_launch_and_a_stage_one_each) {
  const program::CallRange range = {0, static_cast<int>(micro_program().calls.size())};
  EXPECT_EQ(cut_calls(micro_program(), range, Cut::kStep).size(), 1u);
  EXPECT_EQ(cut_calls(micro_program(), range, Cut::kStage).size(), micro_program().calls.size());
  EXPECT_TRUE(cut_calls(micro_program(), {4, 4}, Cut::kStep).empty());
}

TEST(LaunchCuts, a_layer_is_whole_and_alone) {
  const auto& calls = micro_program().calls;
  const std::vector<program::CallRange> launches =
      cut_calls(micro_program(), {0, static_cast<int>(calls.size())}, Cut::kLayer);
  EXPECT_LT(launches.size(), calls.size() / 4);
  for (size_t idx = 0; idx < launches.size(); ++idx) {
    const int layer = calls[static_cast<size_t>(launches[idx].first)].layer;
    for (int call_idx = launches[idx].first; call_idx < launches[idx].last; ++call_idx)
      EXPECT_EQ(calls[static_cast<size_t>(call_idx)].layer, layer);
  }
}

TEST(LaunchCuts, names_are_parsed_and_others_refused) {
  EXPECT_EQ(parse_cut("step").value(), Cut::kStep);
  EXPECT_EQ(parse_cut("layer").value(), Cut::kLayer);
  EXPECT_EQ(parse_cut("stage").value(), Cut::kStage);
  EXPECT_EQ(parse_cut("steps").error().message(), "--cut: \"steps\" is none of step, layer, stage (invalid_argument)");
}

}  // namespace
}  // namespace monostep::gpu
