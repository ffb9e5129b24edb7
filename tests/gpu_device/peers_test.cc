// Played peers and packed weights on the GPU: a delay changes no id and no byte, and every exchange takes at least that
// long; a rank that starts from a packed file holds the bytes of one that packed.
#include "../gpu/device_rounds.h"
#include "device_fixture.h"

namespace monostep::gpu {
namespace {

using program::Stage;

class PeersOnGpu : public OnDevice {
 protected:
  static std::unique_ptr<Rank> played_rank(Push push, int delay_ns) {
    RankOptions options = micro_options();
    options.tp = 2;
    options.rank = 1;
    options.push = push;
    options.push_delay_ns = delay_ns;
    return micro_rank(options);
  }
  static std::vector<std::byte> pages_of(Rank& rank) {
    kv::Pools pools(rank.geometry(), rank.options().num_pages, rank.options().num_slots);
    EXPECT_TRUE(rank.read_pools(pools).ok());
    return {pools.pages.begin(), pools.pages.end()};
  }
};

TEST_F(PeersOnGpu, the_delay_changes_no_id_and_no_byte) {
  const int num_steps = count(50, 3);
  const auto at_once = played_rank(Push::kSelf, 0);
  const auto wanted = Rounds(*at_once, 3, 2).by_host(num_steps, 1000);
  for (const int delay_ns : {0, 2'000, 50'000}) {
    const auto later = played_rank(Push::kPlayed, delay_ns);
    EXPECT_EQ(first_difference(wanted, Rounds(*later, 3, 2).by_host(num_steps, 1000)), "") << delay_ns << " ns";
    EXPECT_TRUE(pages_of(*at_once) == pages_of(*later)) << delay_ns << " ns";
  }
}

TEST_F(PeersOnGpu, every_exchange_takes_the_delay) {
  if (emulated()) GTEST_SKIP() << "the emulator's events are not of its clock";
  std::vector<double> times;
  int num_exchanges = 0;
  for (const int delay_ns : {0, 2'000, 50'000}) {
    const auto rank = played_rank(Push::kPlayed, delay_ns);
    num_exchanges = 0;
    for (const program::Call& call : rank->band().layout.program().calls)
      num_exchanges += call.stage == Stage::kWoB || call.stage == Stage::kExpertDown ? 1 : 0;
    double least = 1e9;
    for (uint32_t epoch = 1; epoch <= 20; ++epoch) {
      ASSERT_TRUE(rank->begin_step(cpu::step_of({cpu::Part{1, cpu::prompt(3)}}), epoch).ok());
      ASSERT_TRUE(device().record(0).ok());
      ASSERT_TRUE(rank->launch(0, rank->num_calls()).ok());
      ASSERT_TRUE(device().record(1).ok());
      ASSERT_TRUE(rank->finish().ok());
      least = std::min(least, static_cast<double>(device().elapsed_ms(0, 1).value()));
    }
    times.push_back(least);
    std::printf("delay %5.1f us: %.4f ms a step, %d exchanges of a layer\n", delay_ns / 1e3, least, num_exchanges);
    EXPECT_GE(least, num_exchanges * delay_ns / 1e6);
  }
  // No more than the delay and the reading of it: 50 us cost an exchange less than 60.
  EXPECT_LT(times[2] - times[0], (num_exchanges + 20) * 60e-3);
}

TEST_F(PeersOnGpu, a_rank_started_from_a_packed_file_holds_the_same_bytes) {
  const TempDir dir;
  ASSERT_TRUE(weights::write_checkpoint(cpu::micro_geometry(), 3, dir / "model").ok());
  const weights::Checkpoint checkpoint = weights::Checkpoint::open(dir / "model").value();
  RankOptions options = micro_options();
  options.packed_cache = dir / "packed";
  std::vector<std::byte> bytes[2];
  for (int start = 0; start < 2; ++start) {
    const auto rank = Rank::make(device(), checkpoint, options, maker()).value();
    EXPECT_EQ(rank->load_report().weights.from, start == 0 ? WeightsFrom::kCheckpoint : WeightsFrom::kCache);
    EXPECT_EQ(rank->load_report().weights.warning, "");
    bytes[start].resize(static_cast<size_t>(rank->memory().weights));
    ASSERT_TRUE(rank->read_weights(0, bytes[start]).ok());
  }
  EXPECT_TRUE(bytes[0] == bytes[1]);
}

}  // namespace
}  // namespace monostep::gpu
