// What must not change the bits of the device program, on the emulator: how many calls a launch holds, the CTA count,
// the order in which CTAs run, the other requests of a step, the band, and the chunks of a prompt.
#include "region_harness.h"

namespace monostep::gpu {
namespace {

using apps::Cut;

Ask rows_of(int slot, int rows, bool sample) {
  Ask ask;
  ask.slot = slot;
  ask.rows = rows;
  ask.sample = ask.draft = sample;
  return ask;
}
Ask drafts_of(int slot, int drafts) {
  Ask ask = rows_of(slot, 1 + drafts, true);
  ask.num_drafts = drafts;
  return ask;
}

// Everything that three steps of two requests leave behind: a prompt, one with a first token, one with drafts.
std::vector<cpu::State> states_of(const HarnessOptions& options) {
  RegionHarness harness(options);
  harness.on_gpu();
  std::vector<cpu::State> states;
  harness.decode({rows_of(1, 6, false), rows_of(6, 3, true)});
  states.push_back(harness.snapshot());
  Ask sampled = drafts_of(6, 5);
  sampled.sampling = {.temperature = 0.9f, .top_p = 0.9f, .seed = 5};
  harness.decode({rows_of(1, 2, true), sampled});
  states.push_back(harness.snapshot());
  return states;
}

const std::vector<cpu::State>& one_launch_a_step() {
  static const std::vector<cpu::State> states = states_of({});
  return states;
}
std::string difference_of(const HarnessOptions& options) {
  return cpu::first_difference(one_launch_a_step(), states_of(options));
}

TEST(ProgramCuts, one_launch_a_layer_and_one_a_call_give_the_bits_of_one_a_step) {
  HarnessOptions options;
  options.cut = Cut::kLayer;
  EXPECT_EQ(difference_of(options), "");
  options.cut = Cut::kStage;
  EXPECT_EQ(difference_of(options), "");
}

TEST(ProgramCuts, every_cta_count_gives_the_same_bits) {
  for (const int num_ctas : {1, 2, 5}) {
    HarnessOptions options;
    options.num_ctas = num_ctas;
    EXPECT_EQ(difference_of(options), "") << num_ctas << " CTAs";
  }
}

// Lists of one and of two parts in one step.
TEST(ProgramCuts, attention_lists_of_several_parts_give_the_same_bits) {
  HarnessOptions options;
  options.checkpoint = &cpu::long_lists();
  const std::vector<cpu::State> wanted = states_of(options);
  options.num_ctas = 7;
  EXPECT_EQ(cpu::first_difference(wanted, states_of(options)), "");
  options.cut = Cut::kStage;
  options.num_ctas = 2;
  EXPECT_EQ(cpu::first_difference(wanted, states_of(options)), "");
}

TEST(ProgramCuts, every_order_of_ctas_gives_the_same_bits) {
  const uint64_t last_seed = long_tests() ? 30 : 3;
  for (uint64_t seed = 1; seed <= last_seed; ++seed) {
    HarnessOptions options;
    options.order_seed = 1000 * seed;
    EXPECT_EQ(difference_of(options), "") << "seed " << options.order_seed;
  }
}

// A state that differs in one bit is seen.
TEST(ProgramCuts, another_token_gives_other_bits) {
  RegionHarness one;
  RegionHarness other;
  one.on_gpu();
  other.on_gpu();
  one.decode({rows_of(1, 2, false)});
  other.decode({rows_of(1, 1, false)});
  EXPECT_NE(cpu::first_difference(one.snapshot(), other.snapshot()), "");
}

// The slot's steps: a prompt of 20 ids, then 3 ids and 2 drafts.
class SameRequest : public testing::Test {
 protected:
  static std::vector<cpu::Part> others(int count) {
    std::vector<cpu::Part> parts;
    for (int idx = 0; idx < count; ++idx) {
      cpu::Part& part = parts.emplace_back(cpu::Part{idx, cpu::prompt(2 + idx % 4, idx)});
      part.num_drafts = idx % 2;
      if (idx % 3 == 1) part.sampling = {.temperature = 1.0f, .top_k = 20, .seed = static_cast<uint64_t>(idx)};
    }
    return parts;
  }
  static void begin(RegionHarness& harness) {
    harness.on_gpu();
    for (int slot = 0; slot < cpu::kSlots; ++slot) harness.backend().clear_slot(slot);
  }
  // The states of slot 7 where it is request `place` among `count` others.
  static cpu::State among(int count, size_t place) {
    RegionHarness harness;
    begin(harness);
    cpu::prefill(harness.backend(), 7, cpu::prompt(20, 4), 8);
    cpu::Part part{7, cpu::prompt(5, 9), 20};
    part.num_drafts = 2;
    part.sampling = {.temperature = 0.7f, .top_p = 0.95f, .seed = 21};
    std::vector<cpu::Part> parts = others(count);
    parts.insert(parts.begin() + static_cast<std::ptrdiff_t>(place), part);
    return cpu::step_states(harness.backend(), parts).at(place);
  }
};

TEST_F(SameRequest, is_bit_for_bit_the_same_alone_and_among_others_in_every_band) {
  const cpu::State alone = among(0, 0);
  EXPECT_EQ(cpu::first_difference(alone, among(1, 0)), "") << "band 16";
  EXPECT_EQ(cpu::first_difference(alone, among(2, 2)), "") << "band 24";
  EXPECT_EQ(cpu::first_difference(alone, among(7, 4)), "") << "band 48";
}

TEST_F(SameRequest, is_bit_for_bit_the_same_for_every_chunking_of_its_prompt) {
  const auto chunked = [](int chunk) {
    RegionHarness harness;
    begin(harness);
    return cpu::prefill(harness.backend(), 3, cpu::prompt(6), chunk);
  };
  const cpu::State whole = chunked(6);
  EXPECT_EQ(cpu::first_difference(whole, chunked(5)), "") << "5 + 1";
  EXPECT_EQ(cpu::first_difference(whole, chunked(1)), "") << "one by one";
}

TEST_F(SameRequest, is_bit_for_bit_the_same_for_chunks_of_different_bands) {
  const auto chunked = [](int chunk) {
    RegionHarness harness;
    begin(harness);
    return cpu::prefill(harness.backend(), 3, cpu::prompt(45), chunk);
  };
  const cpu::State whole = chunked(48);
  EXPECT_EQ(cpu::first_difference(whole, chunked(17)), "");
  EXPECT_EQ(cpu::first_difference(whole, chunked(7)), "");
}

}  // namespace
}  // namespace monostep::gpu
