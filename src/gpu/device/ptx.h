// The machine instructions that stage bodies use, one function each, named after the instruction: thread indices,
// barriers, shuffles, relaxed loads and stores, mbarriers and bulk copies, MMA, conversions, clocks. With
// MONOSTEP_EMULATED the same functions come from the emulator of the tests. Read by every device source.
#pragma once

#include <cstdint>

// Code that is kept apart: what is rarely run, or would be repeated at every use. Arguments by value.
#define MONOSTEP_NOINLINE __attribute__((noinline))

#ifdef MONOSTEP_EMULATED
#include MONOSTEP_EMULATED  // the emulator's header
#else

namespace monostep::gpu {

inline int thread_idx() { return static_cast<int>(threadIdx.x); }
inline int cta_idx() { return static_cast<int>(blockIdx.x); }
inline int cta_count() { return static_cast<int>(gridDim.x); }

// The CTA's dynamic shared memory, 128-byte aligned.
inline char* shared_base() {
  extern __shared__ __align__(128) char shared_bytes[];
  return shared_bytes;
}
inline uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// Barrier `id` of `threads` threads (a multiple of 32), and of one warp.
inline void bar_sync(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
// The same barrier; true in every thread where any thread's predicate is.
inline bool bar_sync_or(int id, int threads, bool predicate) {
  uint32_t any;
  asm volatile("{.reg .pred p, q; setp.ne.u32 p, %3, 0; bar.red.or.pred q, %1, %2, p; selp.u32 %0, 1, 0, q;}"
               : "=r"(any)
               : "r"(id), "r"(threads), "r"(static_cast<uint32_t>(predicate))
               : "memory");
  return any != 0;
}
inline void warp_sync() { asm volatile("bar.warp.sync 0xffffffff;" ::: "memory"); }

inline uint32_t shuffle_xor(uint32_t value, int mask) { return __shfl_xor_sync(0xffffffffu, value, mask); }
inline float shuffle_xor(float value, int mask) { return __shfl_xor_sync(0xffffffffu, value, mask); }
inline double shuffle_xor(double value, int mask) { return __shfl_xor_sync(0xffffffffu, value, mask); }
inline int shuffle_xor(int value, int mask) { return __shfl_xor_sync(0xffffffffu, value, mask); }
inline uint32_t shuffle(uint32_t value, int lane) { return __shfl_sync(0xffffffffu, value, lane); }
inline int shuffle(int value, int lane) { return __shfl_sync(0xffffffffu, value, lane); }
inline float shuffle(float value, int lane) { return __shfl_sync(0xffffffffu, value, lane); }
inline double shuffle(double value, int lane) { return __shfl_sync(0xffffffffu, value, lane); }
// Value of the lane `delta` below; the own value where there is none.
inline uint32_t shuffle_up(uint32_t value, int delta) { return __shfl_up_sync(0xffffffffu, value, delta); }
inline double shuffle_up(double value, int delta) { return __shfl_up_sync(0xffffffffu, value, delta); }
inline uint32_t ballot(bool predicate) { return __ballot_sync(0xffffffffu, predicate); }
inline int popcount(uint32_t value) { return __popc(value); }
inline int find_first(uint32_t value) { return __ffs(static_cast<int>(value)) - 1; }  // lowest set bit, -1: none

// One value+tag pair, or two neighbouring ones (16-byte aligned), as one relaxed access that other SMs (or, sys, other
// GPUs and the host) see whole for each 8 bytes.
inline uint64_t load_relaxed(const uint64_t* p) {
  uint64_t v;
  asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
inline void load_relaxed(const uint64_t* p, uint64_t& a, uint64_t& b) {
  asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];" : "=l"(a), "=l"(b) : "l"(p) : "memory");
}
inline void load_relaxed_sys(const uint64_t* p, uint64_t& a, uint64_t& b) {
  asm volatile("ld.relaxed.sys.global.v2.b64 {%0, %1}, [%2];" : "=l"(a), "=l"(b) : "l"(p) : "memory");
}
inline uint64_t load_relaxed_sys(const uint64_t* p) {
  uint64_t v;
  asm volatile("ld.relaxed.sys.global.b64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
inline void store_relaxed(uint64_t* p, uint64_t v) {
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
inline void store_relaxed(uint64_t* p, uint64_t a, uint64_t b) {
  asm volatile("st.relaxed.gpu.global.v2.b64 [%0], {%1, %2};" ::"l"(p), "l"(a), "l"(b) : "memory");
}
inline void store_relaxed_sys(uint64_t* p, uint64_t v) {
  asm volatile("st.relaxed.sys.global.b64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
inline void store_relaxed_sys(uint64_t* p, uint64_t a, uint64_t b) {
  asm volatile("st.relaxed.sys.global.v2.b64 [%0], {%1, %2};" ::"l"(p), "l"(a), "l"(b) : "memory");
}
// Swaps in `value` where `*p` is `expected`; what was there.
inline uint32_t atomic_cas_sys(uint32_t* p, uint32_t expected, uint32_t value) {
  uint32_t old;
  asm volatile("atom.relaxed.sys.global.cas.b32 %0, [%1], %2, %3;"
               : "=r"(old)
               : "l"(p), "r"(expected), "r"(value)
               : "memory");
  return old;
}

// Read-only global data that no thread writes during the launch (weights, step records).
inline uint32_t load_constant(const uint32_t* p) { return __ldg(p); }
inline uint64_t load_constant(const uint64_t* p) { return __ldg(reinterpret_cast<const unsigned long long*>(p)); }
struct alignas(16) Word4 {
  uint32_t x, y, z, w;
};
inline Word4 load_constant(const Word4* p) {
  Word4 v;
  asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}

inline uint32_t load_constant(const uint8_t* p) { return __ldg(p); }
inline void prefetch_l2(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

inline int atomic_add_shared(int* p, int value) { return atomicAdd(p, value); }
inline void atomic_or_shared(uint32_t* p, uint32_t value) { atomicOr(p, value); }

// mbarriers of shared memory.
inline void mbarrier_init(uint64_t* bar, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(bar)), "r"(arrivals) : "memory");
}
inline void mbarrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
inline void mbarrier_arrive(uint64_t* bar) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(bar)) : "memory");
}
// One try; true when the phase of this parity is complete.
inline bool mbarrier_try_wait(uint64_t* bar, uint32_t parity) {
  uint32_t done;
  asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
               : "=r"(done)
               : "r"(shared_address(bar)), "r"(parity)
               : "memory");
  return done != 0;
}
// Bulk copy global -> shared of `bytes` (a multiple of 16), evict-first in L2; completes on `bar`, whose one arrival of
// this phase it also makes.
inline void bulk_copy(void* dst, const void* src, int bytes, uint64_t* bar) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(bar)), "r"(bytes) : "memory");
  asm volatile(
      "{.reg .b64 p; createpolicy.fractional.L2::evict_first.b64 p, 1.0;\n"
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], p;}" ::
          "r"(shared_address(dst)),
      "l"(src), "r"(bytes), "r"(shared_address(bar))
      : "memory");
}

// D += A B of m16n8k16, fp32 accumulators: c0 (row g, column 2t), c1 (g, 2t + 1), c2 (g + 8, 2t), c3 (g + 8, 2t + 1)
// with g = lane / 4, t = lane % 4.
inline void mma_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
inline void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four e4m3 codes -> two f16 pairs, exact; lower code in the lower half.
inline void e4m3x4_to_f16(uint32_t codes, uint32_t& low, uint32_t& high) {
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.rn.f16x2.e4m3x2 %0, l; cvt.rn.f16x2.e4m3x2 %1, h;}"
      : "=r"(low), "=r"(high)
      : "r"(codes));
}
// Two fp32 -> two e4m3 codes or one bf16 or f16 pair, round to nearest even; e4m3 saturates.
inline uint32_t e4m3x2_of(float low, float high) {
  uint32_t v;
  asm("{.reg .b16 c; cvt.rn.satfinite.e4m3x2.f32 c, %1, %2; cvt.u32.u16 %0, c;}" : "=r"(v) : "f"(high), "f"(low));
  return v;
}
inline uint32_t bf16x2_of(float low, float high) {
  uint32_t v;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
  return v;
}
inline uint32_t f16x2_of(float low, float high) {
  uint32_t v;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
  return v;
}
// The halves of an f16 pair as fp32, exact.
inline void f16x2_to_f32(uint32_t pair, float& low, float& high) {
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
      : "=f"(low), "=f"(high)
      : "r"(pair));
}
// 2^x within 2^-22.
inline float exp2_approx(float x) {
  float v;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(v) : "f"(x));
  return v;
}
// Bytes of {high, low} by a four-nibble selector (prmt).
inline uint32_t permute_bytes(uint32_t low, uint32_t high, uint32_t selector) {
  return __byte_perm(low, high, selector);
}

inline long long clock_cycles() { return clock64(); }
inline uint64_t global_nanoseconds() {
  uint64_t t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}
inline void sleep_nanoseconds(int ns) { asm volatile("nanosleep.u32 %0;" ::"r"(ns)); }

}  // namespace monostep::gpu
#endif
