// The emulator itself: each primitive does what the instruction does, and each rule that it watches has a kernel that
// breaks it. Kernels are plain functions here, as device sources are under MONOSTEP_EMULATED.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "emulator/kernel_case.h"
#include "gpu/device/ptx.h"

namespace monostep::gpu {
namespace {

// ---- threads and warps

TEST(Emulator, every_thread_of_every_cta_runs_once) {
  struct Params {
    int* runs;  // [3][64]
  };
  std::vector<int> runs(3 * 64);
  const auto kernel = [](const void* p) {
    ++static_cast<const Params*>(p)->runs[cta_idx() * 64 + thread_idx()];
    if (cta_count() != 3) ++static_cast<const Params*>(p)->runs[0];
  };
  EXPECT_EQ(failure_of({.num_ctas = 3, .threads = 64}, kernel, Params{runs.data()}), "");
  EXPECT_EQ(runs, std::vector<int>(3 * 64, 1));
}

TEST(Emulator, a_launch_of_broken_warps_is_refused) {
  const auto kernel = [](const void*) {};
  EXPECT_PRED2(contains, failure_of({.threads = 33}, kernel, 0), "whole warps");
  EXPECT_PRED2(contains, failure_of({.num_ctas = 0}, kernel, 0), "0 CTAs");
  EXPECT_PRED2(contains, failure_of({.threads = 2048}, kernel, 0), "at most 1024 threads");
}

TEST(Emulator, shuffles_move_every_type_between_lanes) {
  const auto kernel = [](const void* p) {
    const int lane = thread_idx() % 32;
    for (int mask = 1; mask < 32; ++mask) {
      const int from = lane ^ mask;
      expect_on_device(shuffle_xor(static_cast<uint32_t>(lane) | 0x80000000u, mask) == (from | 0x80000000u), p);
      expect_on_device(shuffle_xor(-lane, mask) == -from, p);
      expect_on_device(shuffle_xor(0.5f * lane, mask) == 0.5f * from, p);
      expect_on_device(shuffle_xor(1e100 * lane, mask) == 1e100 * from, p);
    }
    for (int source = 0; source < 64; ++source) {  // the same lane for all, and lanes of their own; modulo 32
      const int from = (source + lane) % 32;
      expect_on_device(shuffle(static_cast<uint32_t>(lane), source) == static_cast<uint32_t>(source % 32), p);
      expect_on_device(shuffle(-lane, source + lane) == -from, p);
      expect_on_device(shuffle(0.5f * lane, source + lane) == 0.5f * from, p);
      expect_on_device(shuffle(1e100 * lane, source + lane) == 1e100 * from, p);
    }
    for (int delta = 0; delta < 32; ++delta) {
      const int from = lane >= delta ? lane - delta : lane;
      expect_on_device(shuffle_up(static_cast<uint32_t>(lane), delta) == static_cast<uint32_t>(from), p);
      expect_on_device(shuffle_up(1e100 * lane, delta) == 1e100 * from, p);
    }
  };
  int count = 0;
  EXPECT_EQ(failure_in_any_order({.num_ctas = 2, .threads = 64}, kernel, Errors{&count}), "");
  EXPECT_EQ(count, 0);
}

TEST(Emulator, ballot_and_bit_counts) {
  const auto kernel = [](const void* p) {
    const int lane = thread_idx() % 32;
    expect_on_device(ballot(lane % 3 == 0) == 0x49249249u, p);
    expect_on_device(ballot(false) == 0 && ballot(true) == 0xffffffffu, p);
    expect_on_device(popcount(0x49249249u) == 11 && find_first(0x40u) == 6 && find_first(0) == -1, p);
  };
  int count = 0;
  EXPECT_EQ(failure_in_any_order({}, kernel, Errors{&count}), "");
  EXPECT_EQ(count, 0);
}

TEST(Emulator, lanes_in_different_collectives_are_named) {
  const auto kernel = [](const void*) {
    if (thread_idx() == 35) {
      ballot(true);
    } else {
      shuffle_xor(1.0f, 1);
    }
  };
  const std::string text = failure_of({.threads = 64}, kernel, 0);
  EXPECT_PRED2(contains, text, "CTA 0 warp 1 lane 3 calls ballot");
  EXPECT_PRED2(contains, text, "in shuffle_xor(float)");
}

TEST(Emulator, shuffles_of_different_types_do_not_meet) {
  const auto kernel = [](const void*) {
    if (thread_idx() == 0) {
      shuffle(1, 0);
    } else {
      shuffle(1u, 0);
    }
  };
  EXPECT_PRED2(contains, failure_of({}, kernel, 0), "calls shuffle(uint32_t)");
}

TEST(Emulator, a_collective_after_a_lane_has_exited_is_named) {
  const auto exits_first = [](const void*) {
    if (thread_idx() != 0) warp_sync();
  };
  EXPECT_PRED2(contains, failure_of({}, exits_first, 0), "calls warp_sync after 1 lanes of its warp have exited");
  const auto exits_last = [](const void*) {
    if (thread_idx() != 31) warp_sync();
  };
  EXPECT_PRED2(contains, failure_of({}, exits_last, 0),
               "lane 31 exits while other lanes of its warp wait in warp_sync");
}

TEST(Emulator, a_missing_warp_sync_shows_in_some_order) {
  const auto kernel = [](const void* p) {
    auto* cell = reinterpret_cast<volatile int*>(shared_base());
    cell[thread_idx()] = thread_idx();
    expect_on_device(cell[thread_idx() ^ 1] == (thread_idx() ^ 1), p);
  };
  int count = 0;
  EXPECT_EQ(failure_in_any_order({.shared_bytes = 128}, kernel, Errors{&count}), "");
  EXPECT_GT(count, 0);
}

// ---- barriers

TEST(Emulator, bar_sync_orders_the_warps_of_a_cta) {
  const auto kernel = [](const void* p) {
    auto* cell = reinterpret_cast<volatile int*>(shared_base());
    for (int round = 0; round < 20; ++round) {
      cell[thread_idx()] = round;
      bar_sync(0, 128);
      for (int other = 0; other < 128; ++other) expect_on_device(cell[other] == round, p);
      bar_sync(0, 128);
    }
    if (thread_idx() < 64) bar_sync(3, 64);  // a part of the CTA
  };
  int count = 0;
  EXPECT_EQ(failure_in_any_order({.num_ctas = 3, .threads = 128, .shared_bytes = 512}, kernel, Errors{&count}), "");
  EXPECT_EQ(count, 0);
}

TEST(Emulator, bar_sync_or_gives_every_thread_whether_any_predicate_holds) {
  const auto kernel = [](const void* p) {
    for (int round = 0; round < 200; ++round) {
      const bool some = round % 3 == 0;  // one thread says so, another one each time
      expect_on_device(bar_sync_or(1, 96, some && thread_idx() == round % 96) == some, p);
    }
  };
  int count = 0;
  EXPECT_EQ(failure_in_any_order({.num_ctas = 2, .threads = 96}, kernel, Errors{&count}), "");
  EXPECT_EQ(count, 0);
}

TEST(Emulator, barrier_counts_that_differ_are_named) {
  const auto between_warps = [](const void*) { bar_sync(1, thread_idx() < 32 ? 64 : 96); };
  EXPECT_PRED2(contains, failure_of({.threads = 96}, between_warps, 0), "where others wait in bar_sync for");
  const auto between_kinds = [](const void*) {
    if (thread_idx() < 32) {
      bar_sync(1, 64);
    } else {
      bar_sync_or(1, 64, true);
    }
  };
  EXPECT_PRED2(contains, failure_of({.threads = 64}, between_kinds, 0), "where others wait in bar_sync");
  const auto inside_a_warp = [](const void*) { bar_sync(thread_idx() == 7 ? 1 : 2, 32); };
  EXPECT_PRED2(contains, failure_of({}, inside_a_warp, 0), "lane 7 calls bar_sync(1, 32) while lanes");
  const auto not_whole_warps = [](const void*) { bar_sync(1, 48); };
  EXPECT_PRED2(contains, failure_of({.threads = 64}, not_whole_warps, 0), "bar_sync(1, 48)");
  const auto no_such_barrier = [](const void*) { bar_sync(16, 32); };
  EXPECT_PRED2(contains, failure_of({}, no_such_barrier, 0), "an id of 0..15");
}

TEST(Emulator, a_deadlock_is_reported_with_what_the_warps_wait_for) {
  const auto kernel = [](const void*) {
    if (cta_idx() == 1 && thread_idx() >= 32) bar_sync(5, 64);
  };
  EXPECT_PRED2(contains, failure_of({.num_ctas = 2, .threads = 64}, kernel, 0),
               "nothing can proceed: 1 warps wait; CTA 1 warp 1: bar_sync(5, 64), 32 threads there");
}

TEST(Emulator, a_poll_that_never_ends_is_reported_with_its_address) {
  struct Params {
    const uint64_t* flag;
  };
  const uint64_t flag = 0;
  const auto kernel = [](const void* p) {
    if (thread_idx() == 4) {
      while (load_relaxed(static_cast<const Params*>(p)->flag) == 0) continue;
    }
    warp_sync();
  };
  const std::string text = failure_of({.max_turns = 1000}, kernel, Params{&flag});
  EXPECT_PRED2(contains, text, "not done after 1000 turns");
  EXPECT_PRED2(contains, text, "31 lanes in warp_sync, lane 4 load_relaxed of 0x");
}

TEST(Emulator, a_warp_that_only_meets_itself_lets_others_run) {
  const auto kernel = [](const void*) {
    auto* flag = reinterpret_cast<volatile int*>(shared_base());
    if (thread_idx() == 0) *flag = 0;
    bar_sync(0, 64);
    if (thread_idx() >= 32) {
      *flag = 1;
    } else {
      while (ballot(*flag == 0) != 0) continue;
    }
  };
  EXPECT_EQ(failure_in_any_order({.threads = 64, .shared_bytes = 4, .max_turns = 100000}, kernel, 0), "");
}

// ---- shared memory, mbarriers and bulk copies

TEST(Emulator, shared_memory_is_poisoned_and_aligned) {
  const auto kernel = [](const void* p) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(shared_base());
    expect_on_device(reinterpret_cast<uintptr_t>(bytes) % 128 == 0, p);
    for (int byte_idx = 0; byte_idx < 1000; ++byte_idx) expect_on_device(bytes[byte_idx] == 0xee, p);
  };
  int count = 0;
  EXPECT_EQ(failure_of({.num_ctas = 3, .shared_bytes = 1000}, kernel, Errors{&count}), "");
  EXPECT_EQ(count, 0);
}

TEST(Emulator, writes_outside_shared_memory_are_reported) {
  struct Params {
    int offset;
  };
  const auto kernel = [](const void* p) {
    if (cta_idx() == 1 && thread_idx() == 0) shared_base()[static_cast<const Params*>(p)->offset] = 1;
  };
  EXPECT_EQ(failure_of({.num_ctas = 3, .shared_bytes = 1000}, kernel, Params{999}), "");
  EXPECT_PRED2(contains, failure_of({.num_ctas = 3, .shared_bytes = 1000}, kernel, Params{1000}), "CTA 1 wrote above");
  EXPECT_PRED2(contains, failure_of({.num_ctas = 3, .shared_bytes = 1000}, kernel, Params{-1}), "CTA 1 wrote below");
}

TEST(Emulator, shared_atomics_return_what_was_there) {
  const auto kernel = [](const void* p) {
    auto* sum = reinterpret_cast<int*>(shared_base());
    auto* bits = reinterpret_cast<uint32_t*>(shared_base() + 4);
    if (thread_idx() == 0) *sum = 0, *bits = 0;
    bar_sync(0, 64);
    const int before = atomic_add_shared(sum, 1);
    expect_on_device(before >= 0 && before < 64, p);
    atomic_or_shared(bits, 1u << (thread_idx() % 32));
    bar_sync(0, 64);
    expect_on_device(*sum == 64 && *bits == 0xffffffffu, p);
  };
  int count = 0;
  EXPECT_EQ(failure_in_any_order({.threads = 64, .shared_bytes = 8}, kernel, Errors{&count}), "");
  EXPECT_EQ(count, 0);
}

TEST(Emulator, mbarrier_phases_alternate) {
  const auto kernel = [](const void* p) {
    auto* bar = reinterpret_cast<uint64_t*>(shared_base());
    if (thread_idx() == 0) {
      mbarrier_init(bar, 2);
      mbarrier_init_fence();
      expect_on_device(mbarrier_try_wait(bar, 1), p);  // the phase before the first counts as complete
      for (uint32_t phase = 0; phase < 4; ++phase) {
        expect_on_device(!mbarrier_try_wait(bar, phase & 1), p);
        mbarrier_arrive(bar);
        expect_on_device(!mbarrier_try_wait(bar, phase & 1), p);
        mbarrier_arrive(bar);
        expect_on_device(mbarrier_try_wait(bar, phase & 1), p);
        expect_on_device(!mbarrier_try_wait(bar, (phase & 1) ^ 1), p);
      }
    }
  };
  int count = 0;
  EXPECT_EQ(failure_in_any_order({.shared_bytes = 8}, kernel, Errors{&count}), "");
  EXPECT_EQ(count, 0);
}

// A ring of two buffers: one lane of warp 1 copies, warp 0 adds up and frees.
struct RingParams {
  const uint32_t* from;  // [16][32]
  uint32_t* sums;        // [16]
  bool waits_for_full;
};
constexpr int kRingChunks = 16, kRingBuffers = 2, kRingWords = 32;

void fill_ring(const RingParams& params, uint32_t* buffers, uint64_t* full, uint64_t* empty) {
  for (int chunk_idx = 0; chunk_idx < kRingChunks; ++chunk_idx) {
    const int buffer = chunk_idx % kRingBuffers;
    const uint32_t parity = chunk_idx / kRingBuffers % 2;
    while (!mbarrier_try_wait(&empty[buffer], parity ^ 1)) continue;
    bulk_copy(buffers + buffer * kRingWords, params.from + chunk_idx * kRingWords, kRingWords * 4, &full[buffer]);
  }
}

void add_ring(const RingParams& params, const uint32_t* buffers, uint64_t* full, uint64_t* empty) {
  const int lane = thread_idx() % 32;
  for (int chunk_idx = 0; chunk_idx < kRingChunks; ++chunk_idx) {
    const int buffer = chunk_idx % kRingBuffers;
    const uint32_t parity = chunk_idx / kRingBuffers % 2;
    while (params.waits_for_full && !mbarrier_try_wait(&full[buffer], parity)) continue;
    uint32_t sum = buffers[buffer * kRingWords + lane];
    for (int mask = 16; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
    if (lane == 0) {
      params.sums[chunk_idx] = sum;
      mbarrier_arrive(&empty[buffer]);
    }
    warp_sync();
  }
  while (!params.waits_for_full && !mbarrier_try_wait(&full[kRingBuffers - 1], (kRingChunks / kRingBuffers - 1) % 2)) {
    continue;
  }
}

void ring_kernel(const void* p) {
  const auto& params = *static_cast<const RingParams*>(p);
  auto* buffers = reinterpret_cast<uint32_t*>(shared_base());
  auto* full = reinterpret_cast<uint64_t*>(shared_base() + kRingBuffers * kRingWords * 4);
  uint64_t* empty = full + kRingBuffers;
  if (thread_idx() == 0) {
    for (int buffer = 0; buffer < kRingBuffers; ++buffer)
      mbarrier_init(&full[buffer], 1), mbarrier_init(&empty[buffer], 1);
    mbarrier_init_fence();
  }
  bar_sync(0, 64);
  if (thread_idx() < 32) {
    add_ring(params, buffers, full, empty);
  } else if (thread_idx() == 32) {
    fill_ring(params, buffers, full, empty);
  }
}

TEST(Emulator, bulk_copies_fill_a_ring_and_a_read_before_completion_shows) {
  alignas(16) static uint32_t from[kRingChunks * kRingWords];
  std::vector<uint32_t> expected(kRingChunks), sums(kRingChunks);
  for (int word_idx = 0; word_idx < kRingChunks * kRingWords; ++word_idx) {
    from[word_idx] = static_cast<uint32_t>(word_idx * word_idx);
    expected[word_idx / kRingWords] += from[word_idx];
  }
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const EmulatedLaunch launch{.threads = 64, .shared_bytes = 512, .order_seed = seed, .max_turns = 50'000};
    EXPECT_EQ(failure_of(launch, ring_kernel, RingParams{from, sums.data(), true}), "");
    EXPECT_EQ(sums, expected) << "seed " << seed;
    failure_of(launch, ring_kernel, RingParams{from, sums.data(), false});
    EXPECT_NE(sums, expected) << "the control at seed " << seed;
  }
}

struct CopyParams {
  const std::byte* from;
  int to_offset;
  int num_bytes;
  bool initialises;
  bool waits;
};
void copy_kernel(const void* p) {
  const auto& params = *static_cast<const CopyParams*>(p);
  if (thread_idx() != 0) return;
  auto* bar = reinterpret_cast<uint64_t*>(shared_base());
  if (params.initialises) mbarrier_init(bar, 1);
  bulk_copy(shared_base() + params.to_offset, params.from, params.num_bytes, bar);
  while (params.waits && !mbarrier_try_wait(bar, 0)) continue;
}

TEST(Emulator, bulk_copies_that_break_a_rule_are_named) {
  alignas(16) static const std::byte from[256]{};
  const EmulatedLaunch launch{.shared_bytes = 256, .max_turns = 10000};
  const CopyParams good{from, 16, 64, true, true};
  EXPECT_EQ(failure_of(launch, copy_kernel, good), "");
  auto bad = good;
  bad.to_offset = 24;
  EXPECT_PRED2(contains, failure_of(launch, copy_kernel, bad), "bulk_copy at shared offset 24");
  bad = good;
  bad.to_offset = 208;
  EXPECT_PRED2(contains, failure_of(launch, copy_kernel, bad), "expected inside 256 bytes");
  bad = good;
  bad.from = from + 8;
  EXPECT_PRED2(contains, failure_of(launch, copy_kernel, bad), "expected multiples of 16");
  bad = good;
  bad.num_bytes = 40;
  EXPECT_PRED2(contains, failure_of(launch, copy_kernel, bad), "bulk_copy of 40 bytes");
  bad = good;
  bad.initialises = false;
  EXPECT_PRED2(contains, failure_of(launch, copy_kernel, bad), "not initialised");
  bad = good;
  bad.waits = false;
  EXPECT_PRED2(contains, failure_of(launch, copy_kernel, bad), "ends with 1 bulk copies in flight");
}

// ---- global memory

TEST(Emulator, pairs_need_their_alignment) {
  struct Params {
    uint64_t* pairs;
    int what;
  };
  alignas(16) static uint64_t pairs[4] = {1, 2, 3, 4};
  const auto kernel = [](const void* p) {
    const auto& params = *static_cast<const Params*>(p);
    uint64_t a = 0, b = 0;
    if (params.what == 0) load_relaxed(params.pairs, a, b);
    if (params.what == 1) store_relaxed_sys(params.pairs, 7, 8);
    if (params.what == 2) load_constant(reinterpret_cast<const Word4*>(params.pairs));
    if (params.what == 0 && (a != 1 || b != 2)) store_relaxed(params.pairs + 1, 0, 0);
  };
  for (int what = 0; what < 3; ++what) {
    EXPECT_EQ(failure_of({}, kernel, Params{pairs, what}), "");
    EXPECT_PRED2(contains, failure_of({}, kernel, Params{pairs + 1, what}), "not 16-byte aligned");
  }
  EXPECT_EQ(pairs[0], 7u);
  EXPECT_EQ(pairs[1], 8u);
}

TEST(Emulator, compare_and_swap_lets_one_thread_win) {
  struct Params {
    uint32_t* cell;
    int* winners;
  };
  uint32_t cell = 5;
  int winners = 0;
  const auto kernel = [](const void* p) {
    const auto& params = *static_cast<const Params*>(p);
    const uint32_t mine = 100u + static_cast<uint32_t>(cta_idx() * 64 + thread_idx());
    if (atomic_cas_sys(params.cell, 5, mine) == 5) ++*params.winners;
  };
  EXPECT_EQ(failure_of({.num_ctas = 4, .threads = 64, .order_seed = 3}, kernel, Params{&cell, &winners}), "");
  EXPECT_EQ(winners, 1);
  EXPECT_GE(cell, 100u);
}

// Every CTA puts a tagged value for every other one in each round and adds up what it polls.
struct HandOffParams {
  uint64_t* arena;  // [2][num_ctas from][num_ctas to] pairs, by the parity of the round
  uint64_t* sums;   // [num_ctas]
  int num_rounds;
};
void hand_off_kernel(const void* p) {
  const auto& params = *static_cast<const HandOffParams*>(p);
  const int num_ctas = cta_count(), other = thread_idx();
  uint32_t sum = static_cast<uint32_t>(cta_idx());
  for (int round = 1; round <= params.num_rounds; ++round) {
    uint64_t* arena = params.arena + static_cast<int64_t>(round % 2) * num_ctas * num_ctas;
    const uint64_t tag = static_cast<uint64_t>(round) << 32;
    uint32_t value = 0;
    if (other < num_ctas) {
      store_relaxed(&arena[cta_idx() * num_ctas + other], tag | (sum + static_cast<uint32_t>(other)));
      uint64_t pair = 0;
      do {
        pair = load_relaxed(&arena[other * num_ctas + cta_idx()]);
      } while (pair >> 32 != static_cast<uint64_t>(round));
      value = static_cast<uint32_t>(pair);
    }
    for (int mask = 16; mask > 0; mask /= 2) value += shuffle_xor(value, mask);
    sum = value;
  }
  if (thread_idx() == 0) params.sums[cta_idx()] = sum;
}

TEST(Emulator, tagged_hand_offs_between_all_ctas) {
  constexpr int kCtas = 24, kRounds = 30;
  std::vector<uint32_t> sums(kCtas);
  for (uint32_t cta = 0; cta < kCtas; ++cta) sums[cta] = cta;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<uint32_t> next(kCtas);
    for (uint32_t to = 0; to < kCtas; ++to) {
      for (uint32_t from = 0; from < kCtas; ++from) next[to] += sums[from] + to;
    }
    sums = next;
  }
  for (uint64_t seed = 0; seed < 10; ++seed) {
    std::vector<uint64_t> arena(2 * kCtas * kCtas), device_sums(kCtas);
    const HandOffParams params{arena.data(), device_sums.data(), kRounds};
    EXPECT_EQ(failure_of({.num_ctas = kCtas, .order_seed = seed, .max_turns = 1'000'000}, hand_off_kernel, params), "");
    EXPECT_EQ(device_sums, std::vector<uint64_t>(sums.begin(), sums.end())) << "seed " << seed;
  }
}

TEST(Emulator, one_seed_gives_one_order_and_another_seed_another) {
  struct Params {
    std::vector<int>* order;
  };
  const auto kernel = [](const void* p) {
    for (int round = 0; round < 10; ++round) {
      if (thread_idx() == 0) static_cast<const Params*>(p)->order->push_back(cta_idx());
      sleep_nanoseconds(100);
    }
  };
  const auto order_of = [&](uint64_t seed) {
    std::vector<int> order;
    EXPECT_EQ(failure_of({.num_ctas = 8, .order_seed = seed}, kernel, Params{&order}), "");
    return order;
  };
  EXPECT_EQ(order_of(0), order_of(0));
  EXPECT_EQ(order_of(7), order_of(7));
  EXPECT_NE(order_of(7), order_of(8));
  EXPECT_NE(order_of(7), order_of(0));
}

TEST(Emulator, clocks_go_on_while_a_thread_waits) {
  const auto kernel = [](const void* p) {
    const uint64_t begin_ns = global_nanoseconds();
    const long long begin_cycles = clock_cycles();
    while (global_nanoseconds() < begin_ns + 1000) continue;
    expect_on_device(clock_cycles() > begin_cycles, p);
  };
  int count = 0;
  EXPECT_EQ(failure_in_any_order({.num_ctas = 2, .max_turns = 100000}, kernel, Errors{&count}), "");
  EXPECT_EQ(count, 0);
}

}  // namespace
}  // namespace monostep::gpu
