// Reads memory once with bulk copies and nothing else: the bandwidth that a step is measured against. Every CTA takes
// every so many-th chunk through a ring in shared memory. Compiled at load by NVRTC, apart from the step kernel.
#include "gpu/device/ptx.h"
#include "gpu/device/read_params.h"

namespace monostep::gpu {

inline void read_kernel(const ReadParams& params) {
  if (thread_idx() != 0) return;
  auto* full = reinterpret_cast<uint64_t*>(shared_base());
  char* slots = shared_base() + kReadStateBytes;
  for (int slot = 0; slot < kReadSlots; ++slot) mbarrier_init(full + slot, 1);
  mbarrier_init_fence();
  const int64_t first = cta_idx();
  const int64_t count = params.num_chunks > first ? (params.num_chunks - first - 1) / cta_count() + 1 : 0;
  uint64_t sum = 0;
  for (int64_t i = 0; i < count + kReadSlots; ++i) {
    const int slot = static_cast<int>(i % kReadSlots);
    if (i >= kReadSlots && i - kReadSlots < count) {
      const auto parity = static_cast<uint32_t>((i / kReadSlots - 1) & 1);
      while (!mbarrier_try_wait(full + slot, parity)) {
      }
      sum += *reinterpret_cast<const volatile uint64_t*>(slots + slot * kReadChunkBytes);
    }
    if (i < count) {
      const auto* from = reinterpret_cast<const char*>(params.from) + (first + i * cta_count()) * kReadChunkBytes;
      bulk_copy(slots + slot * kReadChunkBytes, from, kReadChunkBytes, full + slot);
    }
  }
  reinterpret_cast<uint64_t*>(params.sums)[first] = sum;
}

}  // namespace monostep::gpu

#ifndef MONOSTEP_EMULATED
extern "C" __global__ void __launch_bounds__(monostep::gpu::kReadThreads, 1)
    monostep_read(const __grid_constant__ monostep::gpu::ReadParams params) {
  monostep::gpu::read_kernel(params);
}
#endif
