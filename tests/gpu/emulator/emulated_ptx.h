// The functions of gpu/device/ptx.h as device sources see them under MONOSTEP_EMULATED: the same names and signatures,
// on the machine of machine.h. Collectives bring the 32 lanes of a warp together; accesses that may spin pause now and
// then. Included by gpu/device/ptx.h and by the tests of the emulator.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "base/numeric.h"
#include "emulator/half.h"
#include "emulator/machine.h"

namespace monostep::gpu {

namespace emulator {

template <typename T>
uint64_t to_operand(T value) {
  if constexpr (sizeof(T) == 8) {
    return std::bit_cast<uint64_t>(value);
  } else {
    return std::bit_cast<uint32_t>(value);
  }
}
template <typename T>
T from_operand(uint64_t operand) {
  if constexpr (sizeof(T) == 8) {
    return std::bit_cast<T>(operand);
  } else {
    return std::bit_cast<T>(static_cast<uint32_t>(operand));
  }
}

// The value of lane `from`, of this one where there is no such lane.
template <typename T>
T exchange(Collective collective, T value, int from) {
  const int parity = running.machine->rendezvous(collective, to_operand(value));
  const Fiber& self = *running.fiber;
  return from_operand<T>(self.warp->operand[parity][from >= 0 && from < kWarpLanes ? from : self.lane]);
}

inline void check_pair_alignment(const uint64_t* p) {
  if (reinterpret_cast<uintptr_t>(p) % 16 != 0) {
    running.machine->fail("an access of two pairs at an address that is not 16-byte aligned");
  }
}

inline uint64_t load(const uint64_t* p) {
  access(Pause::kLoad, p);
  return __atomic_load_n(p, __ATOMIC_RELAXED);
}
inline void store(uint64_t* p, uint64_t v) {
  access(Pause::kStore, p);
  __atomic_store_n(p, v, __ATOMIC_RELAXED);
}

inline void mma(Collective collective, float (&c)[4], const uint32_t (&a)[4], const std::array<uint32_t, 2>& b) {
  const int lane = running.fiber->lane;
  Warp& warp = *running.fiber->warp;
  for (int register_idx = 0; register_idx < 4; ++register_idx) warp.mma_a[lane][register_idx] = a[register_idx];
  for (int register_idx = 0; register_idx < 2; ++register_idx) warp.mma_b[lane][register_idx] = b[register_idx];
  running.machine->rendezvous(collective, 0);
  for (int register_idx = 0; register_idx < 4; ++register_idx) {
    c[register_idx] = static_cast<float>(c[register_idx] + warp.mma_sum[lane][register_idx]);
  }
}

inline constexpr auto kF16OfE4m3 = [] {
  std::array<uint16_t, 256> table{};
  for (int code = 0; code < 256; ++code) table[code] = f16_of_e4m3(static_cast<uint8_t>(code));
  return table;
}();

}  // namespace emulator

inline int thread_idx() { return emulator::running.fiber->thread_idx; }
inline int cta_idx() { return emulator::running.fiber->warp->cta->cta_idx; }
inline int cta_count() { return emulator::running.machine->num_ctas(); }
inline char* shared_base() { return emulator::running.fiber->warp->cta->shared; }

inline void bar_sync(int id, int threads) {
  emulator::running.machine->bar_sync(emulator::Collective::kBarSync, {id, threads}, false);
}
inline bool bar_sync_or(int id, int threads, bool predicate) {
  return emulator::running.machine->bar_sync(emulator::Collective::kBarSyncOr, {id, threads}, predicate);
}
inline void warp_sync() { emulator::running.machine->rendezvous(emulator::Collective::kWarpSync, 0); }

inline uint32_t shuffle_xor(uint32_t value, int mask) {
  return emulator::exchange(emulator::Collective::kShuffleXorU32, value, emulator::running.fiber->lane ^ mask);
}
inline float shuffle_xor(float value, int mask) {
  return emulator::exchange(emulator::Collective::kShuffleXorFloat, value, emulator::running.fiber->lane ^ mask);
}
inline double shuffle_xor(double value, int mask) {
  return emulator::exchange(emulator::Collective::kShuffleXorDouble, value, emulator::running.fiber->lane ^ mask);
}
inline int shuffle_xor(int value, int mask) {
  return emulator::exchange(emulator::Collective::kShuffleXorInt, value, emulator::running.fiber->lane ^ mask);
}
inline uint32_t shuffle(uint32_t value, int lane) {
  return emulator::exchange(emulator::Collective::kShuffleU32, value, lane & 31);
}
inline int shuffle(int value, int lane) {
  return emulator::exchange(emulator::Collective::kShuffleInt, value, lane & 31);
}
inline float shuffle(float value, int lane) {
  return emulator::exchange(emulator::Collective::kShuffleFloat, value, lane & 31);
}
inline double shuffle(double value, int lane) {
  return emulator::exchange(emulator::Collective::kShuffleDouble, value, lane & 31);
}
inline uint32_t shuffle_up(uint32_t value, int delta) {
  return emulator::exchange(emulator::Collective::kShuffleUpU32, value, emulator::running.fiber->lane - delta);
}
inline double shuffle_up(double value, int delta) {
  return emulator::exchange(emulator::Collective::kShuffleUpDouble, value, emulator::running.fiber->lane - delta);
}
inline uint32_t ballot(bool predicate) {
  const int parity = emulator::running.machine->rendezvous(emulator::Collective::kBallot, predicate ? 1 : 0);
  const uint64_t* operand = emulator::running.fiber->warp->operand[parity];
  uint32_t lanes = 0;
  for (int lane = 0; lane < emulator::kWarpLanes; ++lane) lanes |= static_cast<uint32_t>(operand[lane]) << lane;
  return lanes;
}
inline int popcount(uint32_t value) { return std::popcount(value); }
inline int find_first(uint32_t value) { return value == 0 ? -1 : std::countr_zero(value); }

// Two pairs may be torn between the two, as on the GPU.
inline uint64_t load_relaxed(const uint64_t* p) { return emulator::load(p); }
inline void load_relaxed(const uint64_t* p, uint64_t& a, uint64_t& b) {
  emulator::check_pair_alignment(p);
  a = emulator::load(p);
  b = emulator::load(p + 1);
}
inline uint64_t load_relaxed_sys(const uint64_t* p) { return load_relaxed(p); }
inline void load_relaxed_sys(const uint64_t* p, uint64_t& a, uint64_t& b) { load_relaxed(p, a, b); }
inline void store_relaxed(uint64_t* p, uint64_t v) { emulator::store(p, v); }
inline void store_relaxed(uint64_t* p, uint64_t a, uint64_t b) {
  emulator::check_pair_alignment(p);
  emulator::store(p, a);
  emulator::store(p + 1, b);
}
inline void store_relaxed_sys(uint64_t* p, uint64_t v) { store_relaxed(p, v); }
inline void store_relaxed_sys(uint64_t* p, uint64_t a, uint64_t b) { store_relaxed(p, a, b); }
inline uint32_t atomic_cas_sys(uint32_t* p, uint32_t expected, uint32_t value) {
  emulator::access(emulator::Pause::kAtomic, p);
  __atomic_compare_exchange_n(p, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}

inline uint32_t load_constant(const uint8_t* p) { return *p; }
inline uint32_t load_constant(const uint32_t* p) { return *p; }
inline uint64_t load_constant(const uint64_t* p) { return *p; }
struct alignas(16) Word4 {
  uint32_t x, y, z, w;
};
inline Word4 load_constant(const Word4* p) {
  if (reinterpret_cast<uintptr_t>(p) % alignof(Word4) != 0) {
    emulator::running.machine->fail("load_constant of a Word4 that is not 16-byte aligned");
  }
  return *p;
}

inline int atomic_add_shared(int* p, int value) {
  const int old = *p;
  *p = old + value;
  return old;
}
inline void atomic_or_shared(uint32_t* p, uint32_t value) { *p |= value; }

inline void mbarrier_init(uint64_t* bar, int arrivals) { emulator::running.machine->init_mbarrier(bar, arrivals); }
inline void mbarrier_init_fence() {}
inline void mbarrier_arrive(uint64_t* bar) { emulator::running.machine->arrive_mbarrier(bar); }
inline bool mbarrier_try_wait(uint64_t* bar, uint32_t parity) {
  return emulator::running.machine->try_mbarrier(bar, parity);
}
inline void bulk_copy(void* dst, const void* src, int bytes, uint64_t* bar) {
  emulator::running.machine->start_copy({.to = static_cast<std::byte*>(dst),
                                         .from = static_cast<const std::byte*>(src),
                                         .num_bytes = bytes,
                                         .mbarrier = bar});
}

inline void mma_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulator::mma(emulator::Collective::kMmaF16, c, a, {b0, b1});
}
inline void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulator::mma(emulator::Collective::kMmaBf16, c, a, {b0, b1});
}

inline void e4m3x4_to_f16(uint32_t codes, uint32_t& low, uint32_t& high) {
  const auto& table = emulator::kF16OfE4m3;
  low = table[codes & 0xffu] | static_cast<uint32_t>(table[(codes >> 8) & 0xffu]) << 16;
  high = table[(codes >> 16) & 0xffu] | static_cast<uint32_t>(table[codes >> 24]) << 16;
}
inline uint32_t e4m3x2_of(float low, float high) {
  const auto code = [](float value) { return std::isnan(value) ? uint32_t{0x7f} : uint32_t{e4m3_bits(value)}; };
  return code(low) | code(high) << 8;
}
inline uint32_t bf16x2_of(float low, float high) {
  const auto bits = [](float value) { return std::isnan(value) ? uint32_t{0x7fff} : uint32_t{bf16_bits(value)}; };
  return bits(low) | bits(high) << 16;
}
inline uint32_t f16x2_of(float low, float high) {
  return emulator::f16_bits(low) | static_cast<uint32_t>(emulator::f16_bits(high)) << 16;
}
inline void f16x2_to_f32(uint32_t pair, float& low, float& high) {
  low = emulator::f16_value(static_cast<uint16_t>(pair));
  high = emulator::f16_value(static_cast<uint16_t>(pair >> 16));
}
inline float exp2_approx(float x) { return std::exp2(x); }
// Only the three low bits of each selector nibble are defined.
inline uint32_t permute_bytes(uint32_t low, uint32_t high, uint32_t selector) {
  const uint64_t bytes = static_cast<uint64_t>(high) << 32 | low;
  uint32_t result = 0;
  for (int byte_idx = 0; byte_idx < 4; ++byte_idx) {
    const uint32_t from = (selector >> (4 * byte_idx)) & 7u;
    result |= static_cast<uint32_t>((bytes >> (8 * from)) & 0xffu) << (8 * byte_idx);
  }
  return result;
}

// Time goes on with the turns of warps, 10 ns each, and a little at each reading; 2 cycles a nanosecond.
inline uint64_t global_nanoseconds() {
  emulator::access(emulator::Pause::kClock, nullptr);
  return static_cast<uint64_t>(emulator::running.machine->emulated_nanoseconds());
}
inline long long clock_cycles() { return static_cast<long long>(2 * global_nanoseconds()); }
inline void prefetch_l2(const void*) {}
inline void sleep_nanoseconds(int) { emulator::running.machine->pause(emulator::Pause::kSleep, nullptr); }

}  // namespace monostep::gpu
