// A decision's step: the known tokens, then the drafts, at their positions; the request's own values and nothing of
// others.
#include "engine/step_builder.h"

#include <gtest/gtest.h>

namespace monostep::engine {
namespace {

Sequence make_sequence(int slot, std::vector<int32_t> tokens, int num_committed) {
  Sequence sequence;
  sequence.slot = slot;
  sequence.tokens = std::move(tokens);
  sequence.num_committed = num_committed;
  sequence.pages = {slot + 10};
  sequence.drafts = {50, 51, 52};
  sequence.num_sampled_steps = 7;
  sequence.request.sampling = {.temperature = 0.5f, .seed = 9};
  sequence.request.stop_tokens = {1, 2};
  return sequence;
}

TEST(StepBuilder, lays_out_known_tokens_then_drafts) {
  Sequence prompt = make_sequence(3, {20, 21, 22, 23, 24}, 1);
  Sequence decode = make_sequence(0, {30, 31}, 1);
  StepDecision decision;
  decision.choices = {{.sequence = &decode, .num_rows = 3, .num_drafts = 2, .sample = true, .draft = true},
                      {.sequence = &prompt, .num_rows = 3}};
  const program::StepInputs inputs = build_step(decision, 42);
  EXPECT_EQ(inputs.epoch, 42u);
  ASSERT_EQ(inputs.rows.size(), 6u);
  const int32_t tokens[] = {31, 50, 51, 21, 22, 23}, positions[] = {1, 2, 3, 1, 2, 3}, requests[] = {0, 0, 0, 1, 1, 1};
  for (size_t row_idx = 0; row_idx < 6; ++row_idx) {
    EXPECT_EQ(inputs.rows[row_idx].token, tokens[row_idx]);
    EXPECT_EQ(inputs.rows[row_idx].position, positions[row_idx]);
    EXPECT_EQ(inputs.rows[row_idx].request, requests[row_idx]);
    EXPECT_EQ(inputs.rows[row_idx].needs_logits, row_idx < 3);
  }
  ASSERT_EQ(inputs.requests.size(), 2u);
  const program::StepRequest& first = inputs.requests[0];
  EXPECT_EQ(first.state_slot, 0);
  EXPECT_EQ(first.pages[0], 10);
  EXPECT_EQ(first.first_row, 0);
  EXPECT_EQ(first.num_drafts, 2);
  EXPECT_TRUE(first.sample && first.draft);
  EXPECT_EQ(first.sampling.seed, 9u);
  EXPECT_EQ(first.step_counter, 7u);
  EXPECT_EQ(first.stop_tokens, (std::array<int32_t, 4>{1, 2, -1, -1}));
  EXPECT_EQ(first.forced_acceptance, 0);
  EXPECT_EQ(inputs.requests[1].first_row, 3);
  EXPECT_EQ(inputs.requests[1].first_position, 1);
  EXPECT_FALSE(inputs.requests[1].sample);
}

TEST(StepBuilder, only_the_last_row_of_a_finished_prompt_needs_logits) {
  Sequence prompt = make_sequence(0, {20, 21, 22}, 0);
  StepDecision decision;
  decision.choices = {{.sequence = &prompt, .num_rows = 3, .sample = true}};
  const program::StepInputs inputs = build_step(decision, 0);
  EXPECT_FALSE(inputs.rows[0].needs_logits);
  EXPECT_FALSE(inputs.rows[1].needs_logits);
  EXPECT_TRUE(inputs.rows[2].needs_logits);
}

TEST(StepBuilder, a_forced_length_never_exceeds_the_drafts_of_the_step) {
  Sequence decode = make_sequence(0, {30, 31}, 1);
  decode.request.acceptance_length = 3.5f;
  StepDecision decision;
  decision.choices = {{.sequence = &decode, .num_rows = 2, .num_drafts = 1, .sample = true}};
  EXPECT_EQ(build_step(decision, 0).requests[0].forced_acceptance, 2.0f);
  decision.choices[0].num_rows = 4;
  decision.choices[0].num_drafts = 3;
  EXPECT_EQ(build_step(decision, 0).requests[0].forced_acceptance, 3.5f);
}

}  // namespace
}  // namespace monostep::engine
