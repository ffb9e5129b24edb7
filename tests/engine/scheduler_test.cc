// The routing decision: who runs, with how many rows and drafts, and who waits or makes way when memory runs out.
#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <memory>

#include "program/layout.h"

namespace monostep::engine {
namespace {

constexpr int kPage = program::kPageTokens;
const Limits kRoomy = {.vocab_size = 100, .max_context = 4096, .max_spec = 5, .num_slots = 8, .num_pages = 64};

class Sequences {
 public:
  Sequence* add(Scheduler& scheduler, int prompt_tokens, int max_tokens = 50) {
    auto sequence = std::make_unique<Sequence>();
    sequence->request.prompt.assign(static_cast<size_t>(prompt_tokens), 1);
    sequence->request.max_tokens = max_tokens;
    sequence->request.spec = 5;
    sequence->tokens = sequence->request.prompt;
    scheduler.add(sequence.get());
    list_.push_back(std::move(sequence));
    return list_.back().get();
  }

 private:
  std::vector<std::unique_ptr<Sequence>> list_;
};

// What a step does to a sequence: the known rows are committed, and a sampled one gains a token and five drafts.
void apply(const StepDecision& decision) {
  for (const Choice& choice : decision.choices) {
    choice.sequence->num_committed += choice.num_rows - choice.num_drafts;
    if (!choice.sample) continue;
    choice.sequence->tokens.push_back(1);
    choice.sequence->drafts.assign(5, 1);
    choice.sequence->confidence.assign(5, 0.0f);
  }
}

const Choice* choice_of(const StepDecision& decision, const Sequence* sequence) {
  for (const Choice& choice : decision.choices) {
    if (choice.sequence == sequence) return &choice;
  }
  return nullptr;
}

int total_rows(const StepDecision& decision) {
  int sum = 0;
  for (const Choice& choice : decision.choices) sum += choice.num_rows;
  return sum;
}

TEST(Scheduler, a_prompt_runs_in_chunks_and_only_the_last_one_samples) {
  Limits limits = kRoomy;
  limits.chunk = 16;
  Scheduler scheduler(limits);
  Sequences sequences;
  sequences.add(scheduler, 40);
  for (const int num_rows : {16, 16, 8}) {
    const StepDecision decision = scheduler.pick();
    ASSERT_EQ(decision.choices.size(), 1u);
    EXPECT_EQ(decision.choices[0].num_rows, num_rows);
    EXPECT_EQ(decision.choices[0].sample, num_rows == 8);
    EXPECT_EQ(decision.choices[0].draft, num_rows == 8);
    apply(decision);
  }
  const StepDecision decode = scheduler.pick();
  EXPECT_EQ(decode.choices[0].num_rows, 6);
  EXPECT_EQ(decode.choices[0].num_drafts, 5);
}

TEST(Scheduler, decoding_comes_first_and_prompts_fill_the_band) {
  Scheduler scheduler(kRoomy);
  Sequences sequences;
  const Sequence* first = sequences.add(scheduler, 10);
  apply(scheduler.pick());
  const Sequence* second = sequences.add(scheduler, 100);
  const StepDecision decision = scheduler.pick();
  ASSERT_EQ(decision.choices.size(), 2u);
  EXPECT_EQ(decision.choices[0].sequence, first);
  EXPECT_EQ(choice_of(decision, first)->num_rows, 6);
  EXPECT_EQ(choice_of(decision, second)->num_rows, program::kMaxBand - 6);
}

TEST(Scheduler, eight_decoding_requests_fill_the_widest_band) {
  Scheduler scheduler(kRoomy);
  Sequences sequences;
  for (int count = 0; count < 9; ++count) sequences.add(scheduler, 3);
  StepDecision decision = scheduler.pick();
  EXPECT_EQ(decision.choices.size(), 8u);  // the ninth waits
  apply(decision);
  decision = scheduler.pick();
  EXPECT_EQ(decision.choices.size(), 8u);
  EXPECT_EQ(total_rows(decision), program::kMaxBand);
}

TEST(Scheduler, every_decoding_request_keeps_its_anchor_when_drafts_are_long) {
  Limits limits = kRoomy;
  limits.max_spec = 12;
  Scheduler scheduler(limits);
  Sequences sequences;
  for (int count = 0; count < 8; ++count) sequences.add(scheduler, 3)->request.spec = 12;
  StepDecision decision = scheduler.pick();
  apply(decision);
  for (const Choice& choice : decision.choices) choice.sequence->drafts.assign(12, 1);
  for (const Choice& choice : decision.choices) choice.sequence->confidence.assign(12, 0);
  decision = scheduler.pick();
  EXPECT_EQ(decision.choices.size(), 8u);
  EXPECT_LE(total_rows(decision), program::kMaxBand);
}

TEST(Scheduler, a_slot_is_fresh_once_and_returns_with_its_sequence) {
  Limits limits = kRoomy;
  limits.num_slots = 1;
  Scheduler scheduler(limits);
  Sequences sequences;
  Sequence* first = sequences.add(scheduler, 3);
  Sequence* second = sequences.add(scheduler, 3);
  StepDecision decision = scheduler.pick();
  EXPECT_EQ(decision.fresh_slots, std::vector<int>{0});
  EXPECT_EQ(choice_of(decision, second), nullptr);
  apply(decision);
  EXPECT_TRUE(scheduler.pick().fresh_slots.empty());
  scheduler.remove(first);
  EXPECT_EQ(first->slot, -1);
  EXPECT_TRUE(first->pages.empty());
  decision = scheduler.pick();
  EXPECT_EQ(decision.fresh_slots, std::vector<int>{0});
  EXPECT_NE(choice_of(decision, second), nullptr);
}

TEST(Scheduler, a_waiting_sequence_waits_for_pages) {
  Limits limits = kRoomy;
  limits.num_pages = 2;
  Scheduler scheduler(limits);
  Sequences sequences;
  Sequence* first = sequences.add(scheduler, kPage + 10);
  for (int step = 0; step < 2; ++step) apply(scheduler.pick());
  Sequence* second = sequences.add(scheduler, 3);
  EXPECT_EQ(choice_of(scheduler.pick(), second), nullptr);
  scheduler.remove(first);
  EXPECT_NE(choice_of(scheduler.pick(), second), nullptr);
}

TEST(Scheduler, the_youngest_makes_way_and_starts_again_from_its_tokens) {
  Limits limits = kRoomy;
  limits.num_pages = 2;
  Scheduler scheduler(limits);
  Sequences sequences;
  Sequence* oldest = sequences.add(scheduler, kPage - 8, 90);
  Sequence* youngest = sequences.add(scheduler, 5, 50);
  for (int step = 0; step < 3; ++step) apply(scheduler.pick());
  ASSERT_GE(youngest->slot, 0);
  const size_t known = youngest->tokens.size();
  ASSERT_GT(known, 5u);
  while (youngest->slot >= 0) apply(scheduler.pick());  // the oldest reaches its second page
  EXPECT_EQ(youngest->num_committed, 0);
  EXPECT_TRUE(youngest->pages.empty());
  EXPECT_TRUE(youngest->drafts.empty());
  EXPECT_EQ(oldest->pages.size(), 2u);
  scheduler.remove(oldest);
  const StepDecision decision = scheduler.pick();
  ASSERT_NE(choice_of(decision, youngest), nullptr);
  EXPECT_EQ(choice_of(decision, youngest)->num_rows, static_cast<int>(youngest->tokens.size()));
  EXPECT_TRUE(choice_of(decision, youngest)->sample);
}

TEST(Scheduler, nothing_queued_gives_an_empty_decision) {
  Scheduler scheduler(kRoomy);
  EXPECT_TRUE(scheduler.pick().choices.empty());
}

Sequence with_drafts(std::vector<float> confidence, float threshold, int num_remaining) {
  Sequence sequence;
  sequence.request.max_tokens = num_remaining;
  sequence.request.spec = 5;
  sequence.request.confidence_threshold = threshold;
  sequence.drafts.assign(5, 1);
  sequence.confidence = std::move(confidence);
  return sequence;
}

TEST(CountDrafts, takes_the_leading_drafts_at_or_above_the_threshold) {
  const std::vector<float> confidence = {3, 0, -1, 3, 3};         // sigmoid .95 .5 .27 .95 .95
  EXPECT_EQ(count_drafts(with_drafts(confidence, 0, 50)), 5);     // off
  EXPECT_EQ(count_drafts(with_drafts(confidence, 0.5f, 50)), 2);  // .5 itself counts
  EXPECT_EQ(count_drafts(with_drafts(confidence, 0.51f, 50)), 1);
  EXPECT_EQ(count_drafts(with_drafts(confidence, 0.2f, 50)), 5);
  EXPECT_EQ(count_drafts(with_drafts(confidence, 1, 50)), 0);
  EXPECT_EQ(count_drafts(with_drafts({}, 0.9f, 50)), 5);  // drafts from outside have none
}

TEST(CountDrafts, stays_below_the_tokens_still_wanted) {
  const std::vector<float> confidence(5, 0.0f);
  EXPECT_EQ(count_drafts(with_drafts(confidence, 0, 4)), 3);
  EXPECT_EQ(count_drafts(with_drafts(confidence, 0, 1)), 0);
  Sequence sequence = with_drafts(confidence, 0, 50);
  sequence.request.spec = 2;
  EXPECT_EQ(count_drafts(sequence), 2);
}

}  // namespace
}  // namespace monostep::engine
