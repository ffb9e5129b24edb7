// Played peers on the emulator: words that come later change no bit, they do come later, and a step whose peers are too
// late is given up by name.
#include "../cpu/tiny_models.h"
#include "device_rounds.h"
#include "emulated_program.h"

namespace monostep::gpu {
namespace {

using program::Region;
using program::Stage;

constexpr int kTp = 2;

struct Setting {
  Push push = Push::kPlayed;
  int delay_ns = 0;
  int rank = 0;
  int num_ctas = 3;
  uint64_t order_seed = 0;
  int poll_limit = 1 << 24;
};

// A rank of two with played peers.
class Played {
 public:
  explicit Played(const Setting& setting)
      : device_({.num_sms = setting.num_ctas,
                 .total_bytes = int64_t{1} << 30,
                 .order_seed = setting.order_seed,
                 .max_turns = 4'000'000'000}) {
    RankOptions options;
    options.tp = kTp;
    options.rank = setting.rank;
    options.num_pages = cpu::small_options().num_pages;
    options.max_context = cpu::kContext;
    options.push = setting.push;
    options.push_delay_ns = setting.delay_ns;
    options.poll_limit = setting.poll_limit;
    rank = Rank::make(device_, cpu::micro(), options, emulated_maker()).value();
  }

  // Everything that a step leaves behind for the others: caches and exchanged regions.
  std::vector<uint64_t> left() {
    std::vector<uint64_t> out;
    kv::Pools pools(cpu::micro_geometry(), rank->options().num_pages, rank->options().num_slots);
    EXPECT_TRUE(rank->read_pools(pools).ok());
    for (const auto& bytes : {pools.pages, pools.slots}) {
      for (const std::byte byte : bytes) out.push_back(static_cast<uint64_t>(byte));
    }
    for (const Region region : {Region::kEngramKvOut, Region::kAttnExchange, Region::kFfnExchange, Region::kLogits,
                                Region::kMarkovTop, Region::kDraft}) {
      for (int copy = 0; copy < rank->band().layout.num_copies(region); ++copy) {
        std::vector<uint64_t> pairs;
        EXPECT_TRUE(rank->read_region(region, copy, pairs).ok());
        out.insert(out.end(), pairs.begin(), pairs.end());
      }
    }
    return out;
  }

 private:
  EmulatedDevice device_;

 public:
  std::unique_ptr<Rank> rank;
};

struct Result3 {
  std::vector<program::StepOutputs> outputs;
  std::vector<uint64_t> left;
};

// Three steps of two requests, of which the second samples.
Result3 three_steps(const Setting& setting) {
  Played played(setting);
  Rounds rounds(*played.rank, 2, 1);
  Result3 out;
  out.outputs = rounds.by_host(3, 1);
  out.left = played.left();
  return out;
}

TEST(Peers, the_delay_changes_no_bit_on_any_rank) {
  for (int rank = 0; rank < kTp; ++rank) {
    const Result3 at_once = three_steps({.push = Push::kSelf, .rank = rank});
    for (const int delay_ns : {0, 2'000, 50'000}) {
      const Result3 later = three_steps({.delay_ns = delay_ns, .rank = rank});
      EXPECT_EQ(first_difference(at_once.outputs, later.outputs), "") << "rank " << rank << ", " << delay_ns << " ns";
      EXPECT_TRUE(at_once.left == later.left) << "rank " << rank << ", " << delay_ns << " ns";
    }
  }
}

TEST(Peers, cta_counts_and_orders_change_no_bit) {
  const Result3 wanted = three_steps({.push = Push::kSelf});
  for (const int num_ctas : {1, 4}) {
    const Result3 got = three_steps({.delay_ns = 3'000, .num_ctas = num_ctas, .order_seed = 77});
    EXPECT_EQ(first_difference(wanted.outputs, got.outputs), "") << num_ctas << " CTAs";
    EXPECT_TRUE(wanted.left == got.left) << num_ctas << " CTAs";
  }
}

TEST(Peers, steps_laid_out_by_the_device_run_with_them) {
  Played played({.delay_ns = 3'000});
  Rounds rounds(*played.rank, 2, 1);
  const auto by_host = rounds.by_host(3, 1);
  EXPECT_EQ(first_difference(by_host, rounds.by_device(3, 11)), "");
}

// Nanoseconds from the latest begin of a writer to the earliest end of its reader, the least of all exchanges of the
// attention and the experts. Every CTA has tasks of both.
double shortest_exchange(const Setting& setting) {
  EmulatedDevice device({.num_sms = 2, .max_turns = 4'000'000'000});
  RankOptions options;
  options.tp = kTp;
  options.num_pages = cpu::small_options().num_pages;
  options.max_context = cpu::kContext;
  options.push = setting.push;
  options.push_delay_ns = setting.delay_ns;
  const auto rank = Rank::make(device, cpu::micro(), options, emulated_maker()).value();
  EXPECT_TRUE(rank->begin_step(cpu::step_of({cpu::Part{1, cpu::prompt(3)}}), 5).ok());
  const auto num_calls = static_cast<size_t>(rank->num_calls());
  const Buffer buffer = Buffer::create(device, static_cast<int64_t>(num_calls * 2 * sizeof(CallClock))).value();
  rank->set_clocks(buffer.ptr());
  EXPECT_TRUE(rank->launch(0, rank->num_calls()).ok());
  const Status done = rank->finish();
  EXPECT_TRUE(done.ok()) << done.error().message();
  std::vector<CallClock> clocks(num_calls * 2);
  EXPECT_TRUE(device.download(clocks.data(), buffer.ptr(), buffer.num_bytes()).ok());
  int64_t shortest = INT64_MAX;
  const auto& calls = rank->band().layout.program().calls;
  for (size_t call = 0; call < num_calls; ++call) {
    if (calls[call].stage != Stage::kWoB && calls[call].stage != Stage::kExpertDown) continue;
    size_t reader = call + 1;
    const auto reads = [](Stage stage) {
      return stage == Stage::kFfnFold || stage == Stage::kFold || stage == Stage::kHeadFold ||
             stage == Stage::kEngramFold;
    };
    while (reader < num_calls && !reads(calls[reader].stage)) ++reader;
    if (reader == num_calls) continue;
    const int64_t begin = std::max(clocks[call * 2].begin, clocks[call * 2 + 1].begin);
    const int64_t end = std::min(clocks[reader * 2].end, clocks[reader * 2 + 1].end);
    shortest = std::min(shortest, end - begin);
  }
  return static_cast<double>(shortest) / 2;  // two cycles a nanosecond
}

TEST(Peers, no_reader_ends_before_the_delay_has_passed) {
  constexpr int kDelay = 400'000;
  EXPECT_GE(shortest_exchange({.delay_ns = kDelay}), kDelay);
  EXPECT_LT(shortest_exchange({.delay_ns = 0}), kDelay);
  EXPECT_LT(shortest_exchange({.push = Push::kSelf}), kDelay);
}

TEST(Peers, that_are_too_late_are_reported_and_nothing_hangs) {
  Played played({.delay_ns = 50'000'000, .poll_limit = 1 << 14});
  ASSERT_TRUE(played.rank->begin_step(cpu::step_of({cpu::Part{1, cpu::prompt(3)}}), 5).ok());
  ASSERT_TRUE(played.rank->launch(0, played.rank->num_calls()).ok());
  const Status done = played.rank->finish();
  ASSERT_FALSE(done.ok());
  EXPECT_NE(done.error().text.find("waits for region"), std::string::npos) << done.error().text;
}

TEST(Peers, a_single_rank_has_none_to_play) {
  EmulatedDevice device({.num_sms = 2, .max_turns = 4'000'000'000});
  RankOptions options;
  options.num_pages = cpu::small_options().num_pages;
  options.max_context = cpu::kContext;
  options.push = Push::kPlayed;
  options.push_delay_ns = 2'000;
  const auto rank = Rank::make(device, cpu::micro(), options, emulated_maker()).value();
  EXPECT_EQ(rank->options().push, Push::kNone);
  ASSERT_TRUE(rank->begin_step(cpu::step_of({cpu::Part{1, cpu::prompt(3)}}), 5).ok());
  ASSERT_TRUE(rank->launch(0, rank->num_calls()).ok());
  EXPECT_TRUE(rank->finish().ok());
}

}  // namespace
}  // namespace monostep::gpu
