// The number formats of the checkpoint and the caches, with the same bits on host and device: bf16, e4m3, e2m1, e8m0,
// and the three activation quantisers' scale rules. Includes nothing but <cstdint>-class headers so that device sources
// can use it. Source: model.md 2.3 and 3.3.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace monostep {

// bf16: the upper half of an fp32. Rounding is to nearest, ties to even; NaN stays NaN.
inline uint16_t bf16_bits(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
inline float bf16_value(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
inline float round_bf16(float value) { return bf16_value(bf16_bits(value)); }

// E8M0: byte b is 2^(b-127). Byte 255 is NaN and is refused at load.
inline float e8m0_value(uint8_t byte) {
  return byte == 0 ? std::bit_cast<float>(0x00400000u) : std::bit_cast<float>(static_cast<uint32_t>(byte) << 23);
}
// The byte of a power of two between 2^-126 and 2^127.
inline uint8_t e8m0_bits(float power_of_two) {
  return static_cast<uint8_t>(std::bit_cast<uint32_t>(power_of_two) >> 23);
}

// E4M3FN: 1 sign, 4 exponent (bias 7), 3 mantissa bits; largest 448, no infinity.
inline float e4m3_value(uint8_t code) {
  const uint32_t magnitude = code & 0x7fu;
  // Exponent and mantissa moved into an fp32 whose exponent is 120 too small: exact, subnormals included.
  const float value = std::bit_cast<float>(magnitude << 20) * 0x1p120f;
  return (code & 0x80u) ? -value : value;
}
// Clamped to +-448, then rounded to nearest, ties to even. The sign of zero is kept.
inline uint8_t e4m3_bits(float value) {
  const uint32_t sign = (std::bit_cast<uint32_t>(value) >> 24) & 0x80u;
  const float magnitude = std::fabs(value) < 448.0f ? std::fabs(value) : 448.0f;
  if (magnitude < 0x1p-6f) {  // subnormal: steps of 2^-9
    // Adding 2^23 leaves the rounded count of steps in the low mantissa bits.
    const uint32_t steps = std::bit_cast<uint32_t>(magnitude * 512.0f + 0x1p23f) & 0xffu;
    return static_cast<uint8_t>(sign | steps);
  }
  const uint32_t bits = std::bit_cast<uint32_t>(magnitude);
  const uint32_t rounded = bits + 0x7ffffu + ((bits >> 20) & 1u);  // to 3 mantissa bits
  return static_cast<uint8_t>(sign | ((rounded >> 20) - (120u << 3)));
}

// The e4m3 value nearest to a value (clamped to +-448): e4m3_value(e4m3_bits(value)) without the code.
inline float round_e4m3(float value) {
  const float magnitude = std::fabs(value) > 448.0f ? 448.0f : std::fabs(value);  // NaN stays NaN
  const uint32_t bits = std::bit_cast<uint32_t>(magnitude);
  const float normal = std::bit_cast<float>((bits + 0x7ffffu + ((bits >> 20) & 1u)) & 0xfff00000u);
  const float subnormal = (magnitude + 0x1p14f) - 0x1p14f;  // multiples of 2^-9
  return std::copysign(magnitude < 0x1p-6f ? subnormal : normal, value);
}

// E2M1: magnitudes 0, .5, 1, 1.5, 2, 3, 4, 6; bit 3 is the sign.
inline float e2m1_value(uint8_t code) {
  const float value = std::bit_cast<float>((code & 7u) << 22) * 0x1p126f;
  return (code & 8u) ? -value : value;
}
// Clamped to +-6, rounded to nearest; a tie goes to the even code (0.25 down, 0.75 up, 1.25 down, 1.75 up, 2.5
// down, 3.5 up, 5 down).
inline uint8_t e2m1_bits(float value) {
  const float magnitude = std::fabs(value);
  const uint8_t code = magnitude <= 0.25f   ? 0
                       : magnitude < 0.75f  ? 1
                       : magnitude <= 1.25f ? 2
                       : magnitude < 1.75f  ? 3
                       : magnitude <= 2.5f  ? 4
                       : magnitude < 3.5f   ? 5
                       : magnitude <= 5.0f  ? 6
                                            : 7;
  return static_cast<uint8_t>(code | (std::signbit(value) ? 8u : 0u));
}

// Eight e2m1 codes as the packed weights hold them: the low half of the word has the codes at even places, the high
// half those at odd ones; in each half the magnitudes of the four codes lie at bits 9, 6, 3 and 0 and their signs at
// bits 15, 12, 14 and 13. So every pair (even place, odd place) becomes two f16 numbers by shifts and masks alone, and
// the first one by a mask (gpu/device/codes.h).
inline constexpr int kSpreadMagnitude[4] = {9, 6, 3, 0};
inline constexpr int kSpreadSign[4] = {15, 12, 14, 13};
// From four bits a code, the first code lowest.
inline uint32_t spread_e2m1x8(uint32_t codes) {
  uint32_t word = 0;
  for (int pair = 0; pair < 4; ++pair) {
    const uint32_t both = (codes >> (8 * pair) & 0xfu) | (codes >> (8 * pair) & 0xf0u) << 12;
    word |= (both & 0x00070007u) << kSpreadMagnitude[pair] | (both & 0x00080008u) << (kSpreadSign[pair] - 3);
  }
  return word;
}

// The smallest power of two that is at least t, for normal t > 0.
inline float pow2ceil(float t) {
  const uint32_t bits = std::bit_cast<uint32_t>(t);
  const uint32_t exponent = (bits >> 23) + ((bits & 0x7fffffu) != 0 ? 1u : 0u);
  return std::bit_cast<float>(exponent << 23);
}

// Scale rules of the quantisers (model.md 3.3), from the largest magnitude of a group.
inline float activation_scale(float amax) {  // QA: e4m3, groups of 32
  return pow2ceil((amax > 1e-4f ? amax : 1e-4f) * std::bit_cast<float>(0x3b124925u));
}
inline float index_scale(float amax) {  // QI: e2m1, groups of 32
  return pow2ceil((amax > 6.0f * 0x1p-126f ? amax : 6.0f * 0x1p-126f) * std::bit_cast<float>(0x3e2aaaabu));
}
inline uint8_t compressed_scale_bits(float amax) {  // QC: e2m1, groups of 16, an E4M3 scale
  return e4m3_bits((amax > 6.0f * 0x1p-9f ? amax : 6.0f * 0x1p-9f) / 6.0f);
}

inline constexpr int kActivationGroup = 32;
inline constexpr int kIndexGroup = 32;
inline constexpr int kCompressedGroup = 16;

}  // namespace monostep
