// Many steps on the GPU without the host: 2,000 steps laid out by the device equal those laid out by the host, and
// random delays of every CTA change neither an id nor a byte of the caches.
#include "../gpu/device_rounds.h"
#include "device_fixture.h"

namespace monostep::gpu {
namespace {

// All of a context for each of three requests: 2,000 steps of at most six positions.
constexpr int kPages = kDeviceContext / program::kPageTokens;
constexpr int kRequests = 3;

// False where the programs know no delays. (A template, so that it compiles without them.)
template <typename Options>
bool set_delays(Options& options, uint32_t seed) {
  if constexpr (requires { options.delay_seed = seed; }) {
    options.delay_seed = seed;
    return true;
  }
  return false;
}

class DeviceRoundsOnGpu : public OnDevice {
 protected:
  // Of three requests in band 48.
  static std::unique_ptr<Rank> made_rank(uint32_t delay_seed) {
    RankOptions options = micro_options(kPages);
    set_delays(options, delay_seed);
    return micro_rank(options);
  }
  static cpu::State pools_of(Rank& rank) {
    kv::Pools pools(rank.geometry(), rank.options().num_pages, rank.options().num_slots);
    EXPECT_TRUE(rank.read_pools(pools).ok());
    return {{"pages", cpu::bytes_at(pools.pages.data(), static_cast<int64_t>(pools.pages.size()))},
            {"slots", cpu::bytes_at(pools.slots.data(), static_cast<int64_t>(pools.slots.size()))}};
  }
};

TEST_F(DeviceRoundsOnGpu, two_thousand_steps_laid_out_by_the_device_are_those_of_the_host) {
  const int num_steps = count(2000, 20);
  const auto rank = made_rank(0);
  Rounds rounds(*rank, kRequests, kPages);
  const auto wanted = rounds.by_host(num_steps, 1000);
  const cpu::State state = pools_of(*rank);
  ASSERT_EQ(wanted.size(), static_cast<size_t>(num_steps));
  EXPECT_EQ(first_difference(wanted, rounds.by_device(num_steps, 101000)), "");
  EXPECT_EQ(cpu::first_difference(state, pools_of(*rank)), "");
  int64_t num_accepted = 0;
  for (const program::StepOutputs& outputs : wanted) num_accepted += outputs.requests[2].num_accepted;
  std::printf("%d steps, %.2f drafts of the greedy request accepted a step\n", num_steps,
              static_cast<double>(num_accepted) / num_steps);
}

TEST_F(DeviceRoundsOnGpu, a_join_leave_reorder_or_another_slot_is_refused_behind_many_rounds) {
  const auto rank = made_rank(0);
  Rounds rounds(*rank, kRequests, kPages);
  rounds.by_device(10, 1000);
  EXPECT_EQ(rounds.slots, (std::vector<int>{1, 4, 7}));
  for (const std::vector<int>& slots :
       {std::vector{1, 4, 7, 0}, std::vector{1, 4}, std::vector{4, 1, 7}, std::vector{1, 4, 0}}) {
    const Status refused = rank->continue_step(slots);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, Code::kInvalidArgument);
  }
  EXPECT_TRUE(rank->continue_step(rounds.slots).ok());
}

TEST_F(DeviceRoundsOnGpu, ten_thousand_steps_with_random_delays_give_the_same_bits) {
  RankOptions probe;
  if (!set_delays(probe, 1)) GTEST_SKIP() << "the programs have no delays";
  const int runs = count(5, 1), num_steps = count(2000, 10);
  const auto plain = made_rank(0);
  const auto delayed = made_rank(0x9e3779b9u);
  Rounds rounds(*plain, kRequests, kPages), late(*delayed, kRequests, kPages);
  for (int run = 0; run < runs; ++run) {
    const auto epoch = static_cast<uint32_t>(1000 + 10000 * run);
    EXPECT_EQ(first_difference(rounds.by_device(num_steps, epoch, run), late.by_device(num_steps, epoch, run)), "")
        << "run " << run;
    EXPECT_EQ(cpu::first_difference(pools_of(*plain), pools_of(*delayed)), "") << "run " << run;
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace monostep::gpu
