// The parameter of the read kernel (gpu/device/read.cu) and the sizes it is launched with. The same bytes on host and
// device. Filled by gpu/read_bandwidth.
#pragma once

#include <cstdint>

namespace monostep::gpu {

inline constexpr int kReadChunkBytes = 16384;
inline constexpr int kReadSlots = 12;        // chunks in flight a CTA
inline constexpr int kReadStateBytes = 128;  // mbarriers, before the slots
inline constexpr int kReadSharedBytes = kReadStateBytes + kReadSlots * kReadChunkBytes;
inline constexpr int kReadThreads = 32;

struct ReadParams {
  uint64_t from;
  uint64_t sums;  // uint64 [CTAs]: sum of the first words of the chunks that a CTA read
  int64_t num_chunks;
};

}  // namespace monostep::gpu
