// The number formats against their definitions, code by code: each value by its formula, each rounding by a search over
// all codes for the nearest one (a tie goes to the even code), and the quantisers' scale rules of model.md 3.3.
#include "base/numeric.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace monostep {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// sign * mantissa * 2^exponent by the format's definition.
double defined_e4m3(int code) {
  const int exponent = (code >> 3) & 15, mantissa = code & 7;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

double defined_e2m1(int code) {
  constexpr double kMagnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return (code & 8) != 0 ? -kMagnitudes[code & 7] : kMagnitudes[code & 7];
}

// The nearest of the codes 0 .. last to a magnitude, ties to the even code.
template <typename Defined>
int nearest_code(double magnitude, int last, Defined defined) {
  int best = 0;
  for (int code = 1; code <= last; ++code) {
    const double gap = std::fabs(defined(code) - magnitude), best_gap = std::fabs(defined(best) - magnitude);
    if (gap < best_gap || (gap == best_gap && code % 2 == 0)) best = code;
  }
  return best;
}

// Every code, every midpoint between neighbours and their fp32 neighbours, and random magnitudes.
template <typename Defined>
std::vector<float> probes(int last, Defined defined) {
  std::vector<float> out;
  for (int code = 0; code <= last; ++code) {
    const float value = static_cast<float>(defined(code));
    const float middle = code < last ? static_cast<float>((defined(code) + defined(code + 1)) / 2) : value * 1.5f;
    for (const float probe : {value, middle}) {
      out.insert(out.end(), {probe, std::nextafter(probe, 0.0f), std::nextafter(probe, kInfinity)});
    }
  }
  std::mt19937 random(1);
  std::uniform_real_distribution<float> exponent(-14.0f, 11.0f);
  for (int probe_idx = 0; probe_idx < 20000; ++probe_idx) out.push_back(std::exp2(exponent(random)));
  return out;
}

TEST(Numeric, bf16_rounds_to_nearest_and_ties_to_even) {
  EXPECT_EQ(bf16_bits(1.0f), 0x3f80);
  EXPECT_EQ(bf16_bits(std::bit_cast<float>(0x3f808000u)), 0x3f80);  // a tie, even below
  EXPECT_EQ(bf16_bits(std::bit_cast<float>(0x3f818000u)), 0x3f82);  // a tie, even above
  EXPECT_EQ(bf16_bits(std::bit_cast<float>(0x3f808001u)), 0x3f81);
  EXPECT_EQ(bf16_bits(std::bit_cast<float>(0x3f807fffu)), 0x3f80);
  EXPECT_EQ(bf16_bits(std::bit_cast<float>(0x7f7fffffu)), 0x7f80);  // the largest fp32 rounds to infinity
  EXPECT_EQ(bf16_bits(-0.0f), 0x8000);
  EXPECT_EQ(bf16_bits(-kInfinity), 0xff80);
}

TEST(Numeric, every_bf16_value_survives_and_nan_stays_nan) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = bf16_value(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(round_bf16(value)));
    } else {
      EXPECT_EQ(bf16_bits(value), bits);
    }
  }
  EXPECT_TRUE(std::isnan(round_bf16(std::bit_cast<float>(0x7f800001u))));  // its upper half alone is infinity
}

TEST(Numeric, every_e8m0_byte_is_a_power_of_two) {
  for (int byte = 0; byte < 255; ++byte) {
    EXPECT_EQ(e8m0_value(static_cast<uint8_t>(byte)), std::ldexp(1.0f, byte - 127)) << byte;
    if (byte > 0) {
      EXPECT_EQ(e8m0_bits(std::ldexp(1.0f, byte - 127)), byte);
    }
  }
}

TEST(Numeric, every_e4m3_code_has_its_defined_value) {
  for (int code = 0; code < 256; ++code) {
    if ((code & 0x7f) == 0x7f) continue;  // NaN, refused at load
    EXPECT_EQ(e4m3_value(static_cast<uint8_t>(code)), defined_e4m3(code)) << code;
    EXPECT_EQ(std::signbit(e4m3_value(static_cast<uint8_t>(code))), code >= 128);
  }
}

TEST(Numeric, e4m3_takes_the_nearest_code_with_ties_to_even) {
  for (const float magnitude : probes(0x7e, defined_e4m3)) {
    const int wanted = nearest_code(std::fmin(magnitude, 448.0f), 0x7e, defined_e4m3);
    EXPECT_EQ(e4m3_bits(magnitude), wanted) << magnitude;
    EXPECT_EQ(e4m3_bits(-magnitude), wanted | 0x80) << magnitude;
  }
}

TEST(Numeric, e4m3_clamps_and_keeps_the_sign_of_zero) {
  EXPECT_EQ(e4m3_bits(1e30f), 0x7e);
  EXPECT_EQ(e4m3_bits(-kInfinity), 0xfe);
  EXPECT_EQ(e4m3_bits(464.0f), 0x7e);  // the tie above the largest value is clamped before it is rounded
  EXPECT_EQ(e4m3_bits(0.0f), 0x00);
  EXPECT_EQ(e4m3_bits(-0.0f), 0x80);
}

TEST(Numeric, e2m1_takes_the_nearest_code_with_ties_to_even) {
  for (int code = 0; code < 16; ++code) EXPECT_EQ(e2m1_value(static_cast<uint8_t>(code)), defined_e2m1(code)) << code;
  for (const float magnitude : probes(7, defined_e2m1)) {
    const int wanted = nearest_code(magnitude, 7, defined_e2m1);
    EXPECT_EQ(e2m1_bits(magnitude), wanted) << magnitude;
    EXPECT_EQ(e2m1_bits(-magnitude), wanted | 8) << magnitude;
  }
  EXPECT_EQ(e2m1_bits(kInfinity), 7);
}

TEST(Numeric, pow2ceil_is_the_smallest_power_that_is_not_below) {
  for (int exponent = -120; exponent <= 120; ++exponent) {
    const float power = std::ldexp(1.0f, exponent);
    EXPECT_EQ(pow2ceil(power), power);
    EXPECT_EQ(pow2ceil(std::nextafter(power, kInfinity)), 2 * power);
    EXPECT_EQ(pow2ceil(std::nextafter(power, 0.0f)), power);
  }
}

TEST(Numeric, activation_scale_keeps_every_group_within_e4m3) {
  EXPECT_EQ(activation_scale(448.0f), 1.0f);
  EXPECT_EQ(activation_scale(std::nextafter(448.0f, kInfinity)), 2.0f);
  EXPECT_EQ(activation_scale(224.0f), 0.5f);
  EXPECT_EQ(activation_scale(0.0f), activation_scale(1e-4f));
  std::mt19937 random(2);
  std::uniform_real_distribution<float> exponent(-13.0f, 60.0f);
  for (int probe_idx = 0; probe_idx < 20000; ++probe_idx) {
    const float amax = std::exp2(exponent(random));
    const float scale = activation_scale(amax);
    EXPECT_LE(amax / scale, 448.0f) << amax;
    EXPECT_GT(amax / scale, 223.99f) << amax;
  }
}

// The inverse of spread_e2m1x8.
uint32_t gather_e2m1x8(uint32_t word) {
  uint32_t codes = 0;
  for (int pair = 0; pair < 4; ++pair) {
    const uint32_t both =
        (word >> kSpreadMagnitude[pair] & 0x00070007u) | (word >> (kSpreadSign[pair] - 3) & 0x00080008u);
    codes |= ((both & 0xfu) | (both >> 12 & 0xf0u)) << (8 * pair);
  }
  return codes;
}

TEST(Numeric, spread_codes_come_back_and_each_bit_has_its_own_place) {
  uint32_t all = 0;
  for (int bit = 0; bit < 32; ++bit) {
    const uint32_t spread = spread_e2m1x8(1u << bit);
    EXPECT_EQ(gather_e2m1x8(spread), 1u << bit);
    EXPECT_EQ(std::popcount(spread), 1);
    all |= spread;
  }
  EXPECT_EQ(all, ~0u);
  EXPECT_EQ(spread_e2m1x8(0x000000f1u), 0x8e000200u);  // the first pair: one mask from an f16 pair
}

TEST(Numeric, index_scale_keeps_every_group_within_e2m1) {
  EXPECT_EQ(index_scale(6.0f), 1.0f);
  EXPECT_EQ(index_scale(12.0f), 2.0f);
  EXPECT_EQ(index_scale(std::nextafter(6.0f, kInfinity)), 2.0f);
  EXPECT_EQ(index_scale(0.0f), 0x1p-126f);
}

TEST(Numeric, compressed_scale_is_the_e4m3_of_a_sixth) {
  EXPECT_EQ(e4m3_value(compressed_scale_bits(6.0f)), 1.0f);
  EXPECT_EQ(e4m3_value(compressed_scale_bits(0.0f)), 0x1p-9f);  // never zero
  EXPECT_EQ(e4m3_value(compressed_scale_bits(1e9f)), 448.0f);
  EXPECT_EQ(compressed_scale_bits(7.0f), e4m3_bits(7.0f / 6.0f));
}

}  // namespace
}  // namespace monostep
