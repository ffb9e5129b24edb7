// The device program against the CPU reference, call by call from the reference's inputs: every region that a call
// writes within its compare rule (region_compare.h), the whole pools byte for byte. Runs on the emulator.
// MONOSTEP_LONG_TESTS=1 adds the geometries and sweeps that take minutes.
#include "region_harness.h"

namespace monostep::gpu {
namespace {

using program::Sampling;

Ask prompt_of(int slot, int rows) {
  Ask ask;
  ask.slot = slot;
  ask.rows = rows;
  ask.sample = ask.draft = false;
  return ask;
}
// The last id and `drafts` drafts.
Ask decode_of(int slot, int drafts) {
  Ask ask;
  ask.slot = slot;
  ask.rows = 1 + drafts;
  ask.num_drafts = drafts;
  return ask;
}
Ask sampled_of(int slot, int drafts, const Sampling& sampling) {
  Ask ask = decode_of(slot, drafts);
  ask.sampling = sampling;
  return ask;
}
constexpr Sampling kTopK = {.temperature = 0.8f, .top_k = 40, .seed = 77};
constexpr Sampling kTopP = {.temperature = 1.1f, .top_p = 0.9f, .seed = 0x1234567890abcdefull};
constexpr Sampling kMinP = {.temperature = 1.7f, .min_p = 0.02f, .seed = 3};
constexpr Sampling kAll = {.temperature = 0.6f, .top_k = 25, .top_p = 0.95f, .min_p = 0.001f, .seed = 9};

class Regions : public testing::Test {
 protected:
  // The table of a long run: region, words, words that differ, worst error over its bound.
  static void print(const RegionHarness& harness) {
    if (!long_tests()) return;
    for (const auto& [name, worst] : harness.worst())
      std::printf("%-16s %10ld %8ld %.3f\n", name.c_str(), static_cast<long>(worst.live),
                  static_cast<long>(worst.differing), worst.ratio);
  }
};

TEST_F(Regions, one_request_in_band_8_agrees_from_its_first_prompt_row_on) {
  RegionHarness harness;
  harness.step({prompt_of(1, 5)});
  Ask last = decode_of(1, 0);
  last.rows = 4;
  harness.step({last});
  harness.step({decode_of(1, 5)});
  harness.step({decode_of(1, 2)});
  harness.step({decode_of(1, 0)});
  EXPECT_EQ(harness.machine().layout().shape().band, 8);
  print(harness);
}

TEST_F(Regions, a_prompt_chunk_of_8_rows_and_a_single_first_row_agree) {
  RegionHarness harness;
  harness.step({prompt_of(2, 8)});
  harness.step({prompt_of(3, 1)});
  Ask only = decode_of(4, 0);  // a prompt of one row, sampled at once
  harness.step({only});
  print(harness);
}

TEST_F(Regions, requests_with_different_numbers_of_rows_agree_in_band_16) {
  RegionHarness harness;
  harness.step({prompt_of(1, 6), prompt_of(6, 3)});
  harness.step({decode_of(6, 5), decode_of(1, 1)});
  harness.step({sampled_of(6, 3, kTopK), decode_of(1, 4)});
  EXPECT_EQ(harness.machine().layout().shape().band, 16);
  print(harness);
}

TEST_F(Regions, requests_without_draft_context_or_samples_agree_in_band_24) {
  RegionHarness harness;
  harness.fill(5, 20);
  harness.fill(0, 31);
  Ask plain = decode_of(0, 0);  // samples, never drafts
  plain.draft = plain.context = false;
  Ask kept = decode_of(3, 0);  // samples and keeps context, but makes no draft this time
  kept.rows = 5;
  kept.draft = false;
  harness.step({prompt_of(7, 7), plain, decode_of(5, 5), kept});
  harness.step({plain, decode_of(5, 3), prompt_of(7, 2)});
  EXPECT_EQ(harness.machine().layout().shape().band, 24);
  harness.step({prompt_of(7, 3), plain});  // nobody drafts
  Ask silent = prompt_of(2, 4);
  silent.context = false;
  harness.step({silent});  // ends before the draft context
  print(harness);
}

TEST_F(Regions, eight_requests_of_every_sampling_agree_in_band_48) {
  RegionHarness harness;
  for (int slot = 0; slot < 8; ++slot) harness.fill(slot, 9 + 7 * slot);
  harness.step({decode_of(7, 5), sampled_of(6, 5, kTopK), sampled_of(5, 4, kTopP), sampled_of(4, 5, kMinP),
                sampled_of(3, 5, kAll), decode_of(2, 0), sampled_of(1, 3, kTopK), decode_of(0, 5)});
  harness.step({sampled_of(0, 5, kAll), decode_of(1, 5), prompt_of(2, 6), sampled_of(3, 5, kMinP), decode_of(4, 1),
                sampled_of(5, 5, kTopP), decode_of(6, 5), sampled_of(7, 5, kTopP)});
  EXPECT_EQ(harness.machine().layout().shape().band, 48);
  print(harness);
}

TEST_F(Regions, one_wide_prompt_agrees_in_band_48) {
  RegionHarness harness;
  harness.step({prompt_of(3, 48)});
  Ask last = decode_of(3, 0);
  last.rows = 31;
  harness.step({last});
  print(harness);
}

// Rings of micro hold 16 + 47 positions.
TEST_F(Regions, rings_wrap_at_odd_and_even_positions) {
  RegionHarness harness;
  harness.fill(1, 61);
  harness.fill(2, 58);
  EXPECT_EQ(harness.machine().ranks[0].pools->slot_layout.ring_rows(), 63);
  harness.step({decode_of(1, 5), prompt_of(2, 6)});
  harness.step({decode_of(1, 2), prompt_of(2, 1)});
  harness.step({decode_of(1, 3), decode_of(2, 2)});
  harness.fill(1, 120 - harness.end_of(1));
  harness.step({decode_of(1, 5), decode_of(2, 1)});
  EXPECT_GT(harness.end_of(1), 120);
  EXPECT_GT(harness.end_of(2), 64);
  print(harness);
}

// Three chunks of scores, a selection of 8 groups out of hundreds and 16 candidates of them.
TEST_F(Regions, contexts_past_topk_and_candidates_agree_over_several_score_chunks) {
  HarnessOptions options;
  options.max_context = 640;
  RegionHarness harness(options);
  const model::Geometry& g = harness.geometry();
  harness.fill(1, 600);
  harness.fill(4, 300);
  EXPECT_GT(300, 2 * std::max(g.index_topk, g.candidate_topk_blocks * g.candidate_block_size));
  harness.step({decode_of(1, 5), decode_of(4, 4)});
  harness.step({decode_of(1, 4), prompt_of(4, 3)});
  harness.step({prompt_of(4, 2), prompt_of(5, 7)});  // a fresh request beside it
  print(harness);
}

// Up to three parts in the backbone, two in the draft.
TEST_F(Regions, attention_lists_of_several_parts_agree) {
  HarnessOptions options;
  options.checkpoint = &cpu::long_lists();
  options.max_context = 192;
  RegionHarness harness(options);
  harness.step({prompt_of(1, 6)});  // lists of 127 to 132 entries
  harness.fill(1, 141);
  harness.step({decode_of(1, 5), prompt_of(2, 2)});
  harness.step({decode_of(1, 3), prompt_of(2, 3)});
  EXPECT_EQ(harness.machine().layout().max_list_parts(), 3);
  print(harness);
}

TEST_F(Regions, image_rows_agree) {
  RegionHarness harness;
  Ask first = prompt_of(1, 6);
  first.image_rows = {0, 1, 4};
  Ask second = prompt_of(2, 5);
  second.image_rows = {3, 4};
  harness.step({first, second});
  Ask last = decode_of(1, 0);
  last.rows = 6;
  last.image_rows = {0, 1, 2, 3};
  harness.step({last, prompt_of(2, 4)});
  harness.step({decode_of(1, 5)});
  print(harness);
}

TEST_F(Regions, forced_acceptance_and_stop_tokens_agree) {
  RegionHarness harness;
  harness.fill(1, 18);
  harness.fill(2, 9);
  harness.step({decode_of(1, 0), decode_of(2, 0)});
  Ask forced = decode_of(1, 5);
  forced.forced_acceptance = 5.5f;
  Ask stopped = decode_of(2, 5);
  stopped.forced_acceptance = 6;
  stopped.stop_at_draft = true;
  harness.step({forced, stopped});
  EXPECT_GE(harness.outputs().requests[0].num_accepted, 4);
  EXPECT_EQ(harness.outputs().requests[1].tokens.size(), 2u) << "the stop token ends the list";
  forced.forced_acceptance = 1.25f;
  for (int step = 0; step < 2; ++step) harness.step({forced, decode_of(2, 3)});
  print(harness);
}

TEST_F(Regions, both_ranks_of_micro_agree) {
  HarnessOptions options;
  options.tp = 2;
  RegionHarness harness(options);
  harness.fill(1, 60);
  harness.step({prompt_of(6, 5), decode_of(1, 4)});
  harness.step({sampled_of(6, 5, kAll), decode_of(1, 5)});
  print(harness);
}

class EightRankRegions : public Regions, public testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Tp, EightRankRegions, testing::Values(4, 8), testing::PrintToStringParamName());

TEST_P(EightRankRegions, every_rank_agrees) {
  HarnessOptions options;
  options.checkpoint = &cpu::eight_ranks();
  options.tp = GetParam();
  options.num_ctas = 2;
  RegionHarness harness(options);
  harness.fill(1, 25);
  harness.step({decode_of(1, 5), prompt_of(6, 3)});
  if (long_tests()) harness.step({sampled_of(1, 3, kTopP), decode_of(6, 5)});
  print(harness);
}

// Other draft parts: one layer that drafts three tokens; three layers; none, and no Engram either.
model::Geometry with_drafts(int layers, int count) {
  model::Geometry g = cpu::micro_geometry();
  g.num_nextn_predict_layers = layers;
  g.dspark_block_size = count;
  g.compress_ratios.resize(static_cast<size_t>(g.num_hidden_layers + layers), 0);
  return g;
}

TEST_F(Regions, one_draft_layer_of_three_tokens_agrees) {
  const weights::Checkpoint checkpoint = cpu::made_checkpoint(with_drafts(1, 3), 5);
  HarnessOptions options;
  options.checkpoint = &checkpoint;
  RegionHarness harness(options);
  harness.fill(1, 30);
  harness.step({decode_of(1, 0)});
  harness.step({decode_of(1, 3)});
  print(harness);
}

TEST_F(Regions, three_draft_layers_agree) {
  const weights::Checkpoint checkpoint = cpu::made_checkpoint(with_drafts(3, 5), 6);
  HarnessOptions options;
  options.checkpoint = &checkpoint;
  RegionHarness harness(options);
  harness.fill(1, 30);
  harness.step({decode_of(1, 0)});
  harness.step({decode_of(1, 5)});
  print(harness);
}

struct Sweep {
  const char* geometry;
  int max_context;
  int filled;
};
class LongSweep : public Regions, public testing::WithParamInterface<Sweep> {};
INSTANTIATE_TEST_SUITE_P(Geometry, LongSweep,
                         testing::Values(Sweep{"demo", 1024, 700}, Sweep{"clone40", 512, 300},
                                         Sweep{"realdims", 256, 100}),
                         [](const auto& test) { return std::string(test.param.geometry); });

TEST_P(LongSweep, agrees_in_every_band) {
  if (!long_tests()) GTEST_SKIP() << "MONOSTEP_LONG_TESTS is not set";
  const weights::Checkpoint checkpoint = cpu::made_checkpoint(model::named_geometry(GetParam().geometry).value(), 4);
  HarnessOptions options;
  options.checkpoint = &checkpoint;
  options.max_context = GetParam().max_context;
  RegionHarness harness(options);
  for (int slot = 0; slot < 8; ++slot) harness.fill(slot, slot == 1 ? GetParam().filled : 10 + 3 * slot);
  const int most = harness.geometry().dspark_block_size;
  for (const int requests : {1, 2, 3, 8}) {
    std::vector<Ask> asks;
    for (int idx = 0; idx < requests; ++idx) {
      asks.push_back(decode_of((1 + idx) % 8, std::max(0, most - idx)));
      if (idx % 2 == 1) asks.back().sampling = kAll;
    }
    harness.step(asks);
  }
  print(harness);
}

// A sweep over positions: every phase of rings, groups and pending rows.
TEST_F(Regions, every_position_up_to_the_context_agrees) {
  if (!long_tests()) GTEST_SKIP() << "MONOSTEP_LONG_TESTS is not set";
  RegionHarness harness;
  int step = 0;
  while (harness.end_of(1) + 6 <= cpu::kContext) {
    harness.step({decode_of(1, std::min(5, step % 7))});
    ++step;
  }
  print(harness);
}

// The comparison itself refuses what is wrong.
class RegionComparison : public testing::Test {
 protected:
  RegionComparison() : layout_(cpu::micro_geometry(), model::make_shard(cpu::micro_geometry(), 1).value(), {}) {}
  std::string of(Region region, const std::vector<float>& wanted, const std::vector<float>& found) const {
    return compare_region(layout_, region, wanted, found).text;
  }
  program::Layout layout_;
};

TEST_F(RegionComparison, fp32_words_beyond_the_bound_are_refused_with_region_and_word) {
  const std::vector<float> words(100, 1.0f);
  std::vector<float> close(100, 1.0f + 9e-6f);
  EXPECT_EQ(of(Region::kLogits, words, close), "");
  close[7] += 3e-2f;
  EXPECT_NE(of(Region::kLogits, words, close).find("region logits: 100 of 100 words differ; the worst is word 7"),
            std::string::npos);
}

TEST_F(RegionComparison, fp32_words_behind_a_rounding_may_be_few) {
  const std::vector<float> words(300, 1.0f);
  std::vector<float> found = words;
  for (size_t idx = 0; idx < 3; ++idx) found[idx] += 1e-3f;
  EXPECT_EQ(of(Region::kLogits, words, found), "");
  found[3] += 1e-3f;
  EXPECT_NE(of(Region::kLogits, words, found), "");
}

TEST_F(RegionComparison, bf16_words_may_be_one_unit_off_but_not_two_and_not_many) {
  std::vector<float> words(1000, 1.0f);
  std::vector<float> found = words;
  for (size_t idx = 0; idx < 10; ++idx) found[idx] += 0x1p-7f;
  EXPECT_EQ(of(Region::kStreams, words, found), "");
  found[10] += 0x1p-7f;
  EXPECT_NE(of(Region::kStreams, words, found), "") << "more than one word of a hundred";
  found = words;
  found[0] += 0x1p-6f;
  EXPECT_NE(of(Region::kStreams, words, found), "") << "two units";
}

TEST_F(RegionComparison, a_unit_of_the_larger_value_of_a_rotated_pair_may_reach_both) {
  std::vector<float> words(1000, 1.0f);
  words[1] = 0x1p-6f;
  std::vector<float> found = words;
  found[1] += 0x1p-8f;
  EXPECT_EQ(of(Region::kAttnOut, words, found), "");
  EXPECT_NE(of(Region::kStreams, words, found), "") << "no pairs";
  found[1] += 0x1p-7f;
  EXPECT_NE(of(Region::kAttnOut, words, found), "") << "more than a unit of the larger";
}

TEST_F(RegionComparison, words_of_kBits_regions_are_equal_bit_for_bit) {
  EXPECT_EQ(of(Region::kTopk, {0.0f, -1.0f}, {0.0f, -1.0f}), "");
  EXPECT_NE(of(Region::kTopk, {0.0f, -1.0f}, {-0.0f, -1.0f}), "");
}

TEST_F(RegionComparison, a_word_that_one_side_did_not_put_is_refused) {
  EXPECT_NE(of(Region::kLogits, {1.0f, 2.0f}, {1.0f, kPoison}), "") << "missing";
  EXPECT_NE(of(Region::kLogits, {1.0f, kPoison}, {1.0f, 2.0f}), "") << "too many";
}

TEST_F(RegionComparison, ids_beside_values_are_equal_bit_for_bit) {
  const auto id = [](int value) { return std::bit_cast<float>(value); };
  EXPECT_EQ(of(Region::kMarkovTop, {1.0f, id(5)}, {1.000001f, id(5)}), "");
  EXPECT_NE(of(Region::kMarkovTop, {1.0f, id(5)}, {1.0f, id(6)}), "");
}

}  // namespace
}  // namespace monostep::gpu
