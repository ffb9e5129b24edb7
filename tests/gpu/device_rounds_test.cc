// Device rounds on the emulator: steps laid out by the device give what the same steps laid out by the host give, and a
// round that the device cannot lay out is refused by name.
#include "device_rounds.h"

#include "../cpu/tiny_models.h"
#include "emulated_program.h"

namespace monostep::gpu {
namespace {

constexpr int kPages = cpu::kPagesOfSlot;

class DeviceRounds : public testing::Test {
 protected:
  DeviceRounds() : device_({.num_sms = 3, .total_bytes = int64_t{1} << 30, .max_turns = 4'000'000'000}) {
    RankOptions options;
    options.num_pages = cpu::kSlots * kPages;
    options.max_context = cpu::kContext;
    rank_ = Rank::make(device_, cpu::micro(), options, emulated_maker()).value();
  }
  void begin(const program::StepInputs& inputs) {
    const Status begun = rank_->begin_step(inputs, 1);
    ASSERT_TRUE(begun.ok()) << begun.error().message();
  }
  std::string refusal(const std::vector<int>& slots) {
    const Status status = rank_->continue_step(slots);
    return status.ok() ? "" : status.error().message();
  }

  EmulatedDevice device_;
  std::unique_ptr<Rank> rank_;
};

TEST_F(DeviceRounds, steps_laid_out_by_the_device_are_those_of_the_host) {
  Rounds rounds(*rank_, 2, kPages);
  const auto wanted = rounds.by_host(12, 100);
  EXPECT_EQ(first_difference(wanted, rounds.by_device(12, 900)), "");
  EXPECT_NE(first_difference(wanted, rounds.by_device(12, 900, 1)), "") << "other ids give other steps";
}

TEST_F(DeviceRounds, a_round_without_a_step_before_it_is_refused) {
  EXPECT_EQ(refusal({1}), "device round: no step to continue (invalid_argument)");
}

TEST_F(DeviceRounds, a_join_leave_reorder_or_another_slot_is_refused) {
  Rounds rounds(*rank_, 2, kPages);
  begin(rounds.first_step());
  EXPECT_EQ(rounds.slots, (std::vector<int>{1, 4}));
  EXPECT_EQ(refusal({1, 4, 0}), "device round: 3 requests go on, the last step had 2 (invalid_argument)");
  EXPECT_EQ(refusal({1}), "device round: 1 requests go on, the last step had 2 (invalid_argument)");
  EXPECT_EQ(refusal({4, 1}),
            "device round: request 0 is on state slot 4, the last step had slot 1 there (invalid_argument)");
  EXPECT_EQ(refusal({1, 7}),
            "device round: request 1 is on state slot 7, the last step had slot 4 there (invalid_argument)");
  EXPECT_EQ(refusal({1, 4}), "");
}

TEST_F(DeviceRounds, a_request_that_resumes_without_drafts_is_refused) {
  Rounds rounds(*rank_, 2, kPages);
  program::StepInputs inputs = rounds.first_step();
  inputs.requests[1].draft = false;
  begin(inputs);
  EXPECT_EQ(refusal(rounds.slots), "device round: request 1 made no drafts (invalid_argument)");
}

TEST_F(DeviceRounds, a_request_that_may_run_past_its_pages_is_refused_in_time) {
  Rounds rounds(*rank_, 2, kPages);
  begin(rounds.first_step());
  const int rows = rank_->geometry().dspark_block_size + 1;
  const int most = cpu::kContext / rows - 1;  // steps behind the first that stay inside the pages whatever is accepted
  for (int step = 0; step < most; ++step) ASSERT_EQ(refusal(rounds.slots), "") << "step " << step;
  EXPECT_EQ(refusal(rounds.slots), "device round: request 0 may run past its pages (invalid_argument)");
}

}  // namespace
}  // namespace monostep::gpu
