// The arithmetic of the emulator: f16 and e4m3 conversions have the bits of the machine instructions, MMA the layout of
// its fragments and exact products.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/numeric.h"
#include "emulator/half.h"
#include "emulator/kernel_case.h"
#include "gpu/device/codes.h"

namespace monostep::gpu {
namespace {

// The f16 nearest to a value by search over all of them; ties to the even code.
uint16_t nearest_f16(float value) {
  uint16_t best = 0;
  double best_distance = std::numeric_limits<double>::infinity();
  for (int code = 0; code <= 0x7c00; ++code) {
    const int exponent = code >> 10, mantissa = code & 0x3ff;
    const double magnitude = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    const double distance = std::fabs(magnitude - std::fabs(static_cast<double>(value)));
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) {
      best = static_cast<uint16_t>(code);
      best_distance = distance;
    }
  }
  return static_cast<uint16_t>(best | (std::signbit(value) ? 0x8000 : 0));
}

TEST(EmulatedNumbers, f16_values_round_to_nearest_even_and_back) {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const float value = emulator::f16_value(static_cast<uint16_t>(code));
    if ((code & 0x7fffu) > 0x7c00u) {
      EXPECT_TRUE(std::isnan(value));
      EXPECT_EQ(emulator::f16_bits(value), 0x7fff);
    } else {
      EXPECT_EQ(emulator::f16_bits(value), code);
    }
  }
  for (const float value :
       {0x1p-25f, 0x1.8p-25f, 0x1.8p-24f, 0x1p-26f, 0x1.ffcp-15f, 0x1.ffep-15f, 0x1.ffdp-15f, 1.00048828125f,
        1.00146484375f, -1.0004883f, 65504.0f, 65519.0f, 65520.0f, -3.14159f, 1e-7f, 0.1f}) {
    EXPECT_EQ(emulator::f16_bits(value), nearest_f16(value)) << value;
  }
  EXPECT_EQ(emulator::f16_bits(1e30f), 0x7c00);
  EXPECT_EQ(emulator::f16_bits(-std::numeric_limits<float>::infinity()), 0xfc00);
}

TEST(EmulatedNumbers, conversions_of_pairs) {
  const uint32_t pair = f16x2_of(1.5f, -2.0f);
  EXPECT_EQ(pair, 0xc0003e00u);
  float low = 0, high = 0;
  f16x2_to_f32(pair, low, high);
  EXPECT_EQ(low, 1.5f);
  EXPECT_EQ(high, -2.0f);
  for (uint32_t code = 0; code < 256; ++code) {
    uint32_t first = 0, second = 0;
    e4m3x4_to_f16(0x38u | code << 8 | (255 - code) << 16 | 0xb8000000u, first, second);
    EXPECT_EQ(first & 0xffffu, 0x3c00u);  // 1
    EXPECT_EQ(second >> 16, 0xbc00u);     // -1
    const float value = emulator::f16_value(static_cast<uint16_t>(first >> 16));
    if ((code & 0x7fu) == 0x7fu) {
      EXPECT_EQ(first >> 16, 0x7fffu);
    } else {
      EXPECT_EQ(std::bit_cast<uint32_t>(value), std::bit_cast<uint32_t>(e4m3_value(static_cast<uint8_t>(code))));
    }
  }
  EXPECT_EQ(permute_bytes(0x33221100u, 0x77665544u, 0x7340u), 0x77334400u);
}

// Operands and result of one mma, by rows and columns.
struct MmaParams {
  const uint16_t* a;  // [16][16]
  const uint16_t* b;  // [16][8]
  float* c;           // [16][8]
  bool bf16;
};
void mma_kernel(const void* p) {
  const auto& params = *static_cast<const MmaParams*>(p);
  const int g = thread_idx() / 4, t = thread_idx() % 4;
  const auto a_pair = [&](int row, int k) {
    return params.a[row * 16 + k] | uint32_t{params.a[row * 16 + k + 1]} << 16;
  };
  const auto b_pair = [&](int k) { return params.b[k * 8 + g] | uint32_t{params.b[(k + 1) * 8 + g]} << 16; };
  const uint32_t a[4] = {a_pair(g, 2 * t), a_pair(g + 8, 2 * t), a_pair(g, 2 * t + 8), a_pair(g + 8, 2 * t + 8)};
  float* rows[2] = {params.c + g * 8 + 2 * t, params.c + (g + 8) * 8 + 2 * t};
  float c[4] = {rows[0][0], rows[0][1], rows[1][0], rows[1][1]};
  if (params.bf16) {
    mma_bf16(c, a, b_pair(2 * t), b_pair(2 * t + 8));
  } else {
    mma_f16(c, a, b_pair(2 * t), b_pair(2 * t + 8));
  }
  rows[0][0] = c[0], rows[0][1] = c[1], rows[1][0] = c[2], rows[1][1] = c[3];
}

TEST(EmulatedNumbers, pairs_of_bf16_and_e4m3_have_the_bits_of_the_formats) {
  EXPECT_EQ(bf16x2_of(1.0f, -2.5f), 0xc0203f80u);
  EXPECT_EQ(bf16x2_of(0x1.01p0f, 0x1.03p0f), 0x3f823f80u);  // ties to even
  EXPECT_EQ(bf16x2_of(std::nanf(""), 0), 0x7fffu);
  EXPECT_EQ(e4m3x2_of(1.0f, -448.0f), 0xfe38u);
  EXPECT_EQ(e4m3x2_of(1e9f, 0x1p-10f), 0x007eu);  // saturates; a tie goes to zero
  EXPECT_EQ(e4m3x2_of(std::nanf(""), 0x1.8p-9f), 0x027fu);
}

TEST(EmulatedNumbers, codes_of_four_bits_become_exact_f16_pairs_in_both_orders) {
  for (uint32_t code = 0; code < 16; ++code) {
    for (int place = 0; place < 8; ++place) {
      const uint32_t codes = code << (4 * place);
      uint32_t plain[4], spread[4];
      e2m1x8_to_f16(codes, plain);
      spread_e2m1x8_to_f16(spread_e2m1x8(codes), spread);
      for (int pair = 0; pair < 4; ++pair) {
        EXPECT_EQ(plain[pair], spread[pair]);
        const auto half = static_cast<uint16_t>(spread[pair] >> (place % 2 * 16));
        const float wanted = pair == place / 2 ? e2m1_value(static_cast<uint8_t>(code)) * 0x1p-14f : 0.0f;
        EXPECT_EQ(emulator::f16_value(half), wanted) << code << " at " << place;
      }
    }
  }
}

TEST(EmulatedNumbers, mma_multiplies_16_by_16_by_8) {
  for (const bool bf16 : {false, true}) {
    std::vector<uint16_t> a(16 * 16), b(16 * 8);
    std::vector<float> c(16 * 8), expected(16 * 8);
    const auto bits = [&](float value) { return bf16 ? bf16_bits(value) : emulator::f16_bits(value); };
    const auto value = [&](uint16_t code) { return bf16 ? bf16_value(code) : emulator::f16_value(code); };
    for (int idx = 0; idx < 256; ++idx) a[idx] = bits(std::sin(0.7f * static_cast<float>(idx)) * 3);
    for (int idx = 0; idx < 128; ++idx) b[idx] = bits(std::cos(1.3f * static_cast<float>(idx)) * 5);
    for (int idx = 0; idx < 128; ++idx) {
      c[idx] = static_cast<float>(idx) * 0.37f;
      double sum = 0;
      for (int k = 0; k < 16; ++k) sum += double{value(a[idx / 8 * 16 + k])} * double{value(b[k * 8 + idx % 8])};
      expected[idx] = static_cast<float>(c[idx] + sum);
    }
    EXPECT_EQ(failure_of({}, mma_kernel, MmaParams{a.data(), b.data(), c.data(), bf16}), "");
    EXPECT_EQ(c, expected) << (bf16 ? "bf16" : "f16");
  }
}

}  // namespace
}  // namespace monostep::gpu
