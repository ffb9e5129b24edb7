// f16 conversions of the emulator, with the bits of the machine instructions: subnormals exact, rounding to nearest
// even, overflow to infinity, NaN canonical. Used by emulated_ptx.h and multiply.cc.
#pragma once

#include <bit>
#include <cstdint>

namespace monostep::gpu::emulator {

constexpr float f16_value(uint16_t half) {
  const uint32_t magnitude = half & 0x7fffu;
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  // Moved into an fp32 whose exponent is 112 too small: exact, subnormals included.
  const uint32_t finite = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude << 13) * 0x1p112f);
  const uint32_t bits = magnitude >= 0x7c00u ? (magnitude << 13) | 0x7f800000u : finite;
  return std::bit_cast<float>(bits | sign);
}

constexpr uint16_t f16_bits(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t sign = (bits >> 16) & 0x8000u;
  if (magnitude > 0x7f800000u) return 0x7fff;
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65520, half way to 65536, and above
  if (magnitude < 0x38800000u) {                                               // below 2^-14: multiples of 2^-24
    const float moved = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(moved) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded >> 13) - (112u << 10)));
}

// e4m3 is f16 with the exponent 8 too small and 7 bits cut off; NaN is canonical.
constexpr uint16_t f16_of_e4m3(uint8_t code) {
  if ((code & 0x7fu) == 0x7fu) return 0x7fff;
  return f16_bits(f16_value(static_cast<uint16_t>((code & 0x80u) << 8 | (code & 0x7fu) << 7)) * 256.0f);
}

}  // namespace monostep::gpu::emulator
