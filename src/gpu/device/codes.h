// Codes of quantised values as pairs that MMA takes, exactly: e4m3 as bf16, e2m1 as f16 in both orders in which four
// bits a code are stored. Read by linear.h and by the stages that read cache records.
#pragma once

#include <bit>

#include "gpu/device/ptx.h"

namespace monostep::gpu {

// e4m3 codes as bf16 pairs, exact.
inline void e4m3x4_to_bf16(uint32_t codes, uint32_t& low, uint32_t& high) {
  uint32_t pairs[2];
  e4m3x4_to_f16(codes, pairs[0], pairs[1]);
  float a, b;
  f16x2_to_f32(pairs[0], a, b);
  low = permute_bytes(std::bit_cast<uint32_t>(a), std::bit_cast<uint32_t>(b), 0x7632);
  f16x2_to_f32(pairs[1], a, b);
  high = permute_bytes(std::bit_cast<uint32_t>(a), std::bit_cast<uint32_t>(b), 0x7632);
}

// Eight e2m1 codes, four bits each, as f16 pairs times 2^-14, exact: a code's three magnitude bits are the exponent's
// low two and the mantissa's highest.
inline void e2m1x8_to_f16(uint32_t codes, uint32_t (&pairs)[4]) {
  const uint32_t even = ((codes << 4) & 0x80808080u) | ((codes << 1) & 0x0e0e0e0eu);
  const uint32_t odd = (codes & 0x80808080u) | ((codes >> 3) & 0x0e0e0e0eu);
  for (int i = 0; i < 4; ++i) {
    // Bytes: even's byte i high in the low half, odd's byte i high in the high half, zeros below.
    const uint32_t both = permute_bytes(even, odd, static_cast<uint32_t>(i | ((4 + i) << 4)));
    pairs[i] = permute_bytes(both, 0, 0x1404);
  }
}

// The same of spread codes (base/numeric.h), in fewer instructions.
inline void spread_e2m1x8_to_f16(uint32_t word, uint32_t (&pairs)[4]) {
  constexpr uint32_t kMagnitudes = 0x0e000e00u;
  constexpr uint32_t kSigns = 0x80008000u;
  pairs[0] = word & (kMagnitudes | kSigns);
  pairs[1] = (word << 3) & (kMagnitudes | kSigns);
  pairs[2] = ((word << 6) & kMagnitudes) | ((word << 1) & kSigns);
  pairs[3] = ((word << 9) & kMagnitudes) | ((word << 2) & kSigns);
}

}  // namespace monostep::gpu
