// What backends do with a step: the calls that it needs, the outputs that its regions hold, and refusals by name (the
// others are in tests/cpu/backend_test.cc).
#include "program/step_rules.h"

#include <gtest/gtest.h>

#include <bit>

#include "program/layout.h"

namespace monostep::program {
namespace {

model::Geometry micro() { return model::named_geometry("micro").value(); }

// One request of three rows.
StepInputs step() {
  static const std::vector<int32_t> pages = {1};
  StepInputs inputs;
  StepRequest& request = inputs.requests.emplace_back();
  request.state_slot = 0;
  request.pages = pages;
  request.num_rows = 3;
  request.sample = request.draft = true;
  for (int row = 0; row < 3; ++row) inputs.rows.push_back({row, row, 0, false, true});
  return inputs;
}

constexpr StepLimits kLimits = {1, 2, 64};

std::vector<std::pair<int, int>> ranges(const Program& program, const StepInputs& inputs) {
  std::vector<std::pair<int, int>> out;
  for (const CallRange& range : needed_calls(program, inputs)) out.emplace_back(range.first, range.last);
  return out;
}

TEST(StepRules, a_step_that_can_be_served_is_not_refused) {
  const Status status = check_step(step(), micro(), kLimits);
  EXPECT_TRUE(status.ok()) << status.error().message();
}

TEST(StepRules, image_rows_must_have_their_embeddings) {
  StepInputs inputs = step();
  inputs.rows[1].image = true;
  EXPECT_FALSE(check_step(inputs, micro(), kLimits).ok());
  const std::vector<float> embeddings(static_cast<size_t>(micro().hidden_size));
  inputs.image_rows = embeddings;
  EXPECT_TRUE(check_step(inputs, micro(), kLimits).ok());
  inputs.rows[1].image = false;
  EXPECT_FALSE(check_step(inputs, micro(), kLimits).ok());
}

TEST(StepRules, what_no_request_wants_is_left_out) {
  const Program program = build_program(micro());
  const int head = program.section_begin(Section::kHead);
  const int context = program.section_begin(Section::kContext);
  const int draft = program.section_begin(Section::kDraft);
  const int end = static_cast<int>(program.calls.size());
  using Ranges = std::vector<std::pair<int, int>>;
  StepInputs inputs = step();
  EXPECT_EQ(ranges(program, inputs), (Ranges{{0, end}}));
  inputs.requests[0].draft = false;
  EXPECT_EQ(ranges(program, inputs), (Ranges{{0, draft}}));
  inputs.requests[0].context = false;
  EXPECT_EQ(ranges(program, inputs), (Ranges{{0, context}}));
  for (StepRow& row : inputs.rows) row.needs_logits = false;
  EXPECT_EQ(ranges(program, inputs), (Ranges{{0, head}}));
  inputs.requests[0].context = true;
  EXPECT_EQ(ranges(program, inputs), (Ranges{{0, head}, {context, draft}}));
}

TEST(StepRules, outputs_are_what_the_regions_hold_of_each_request) {
  StepInputs inputs = step();
  inputs.requests.resize(3, inputs.requests[0]);
  inputs.requests[1].draft = false;
  inputs.requests[2].sample = inputs.requests[2].draft = false;
  const auto id = [](int32_t value) { return std::bit_cast<float>(value); };
  std::vector<float> verdict(3 * 6, id(-7)), draft(3 * 4, id(-7));  // two drafts a request
  const std::vector<float> first = {id(1), id(2), id(30), id(40), id(41)}, second = {id(0), id(1), id(9), id(77)};
  std::copy(first.begin(), first.end(), verdict.begin());
  std::copy(second.begin(), second.end(), verdict.begin() + 6);
  draft = {id(5), id(6), 0.5f, -0.25f, id(-7), id(-7), 9, 9, id(-7), id(-7), 9, 9};
  const StepOutputs outputs = read_outputs(inputs, 2, verdict, draft);
  ASSERT_EQ(outputs.requests.size(), 3u);
  EXPECT_EQ(outputs.requests[0].num_accepted, 1);
  EXPECT_EQ(outputs.requests[0].tokens, (std::vector<int32_t>{40, 41}));
  EXPECT_EQ(outputs.requests[0].drafts, (std::vector<int32_t>{5, 6}));
  EXPECT_EQ(outputs.requests[0].confidence, (std::vector<float>{0.5f, -0.25f}));
  EXPECT_EQ(outputs.requests[1].tokens, (std::vector<int32_t>{77}));
  EXPECT_TRUE(outputs.requests[1].drafts.empty());
  EXPECT_TRUE(outputs.requests[2].tokens.empty());
}

}  // namespace
}  // namespace monostep::program
