// Shared numerics against model.md 3.2-3.4: norms, rotation, the three cache records and the mHC coefficients.
#include "cpu/numerics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/numeric.h"

namespace monostep::cpu {
namespace {

std::vector<float> random_bf16(size_t count, float size, std::mt19937& random) {
  std::vector<float> out(count);
  for (float& value : out) value = round_bf16(size * (static_cast<float>(random() % 20001) / 10000.0f - 1.0f));
  return out;
}

TEST(Numerics, rms_norm_is_rounded_once) {
  std::mt19937 random(1);
  const std::vector<float> x = random_bf16(64, 3, random);
  const std::vector<float> weight = random_bf16(64, 1, random);
  double squares = 0;
  for (const float value : x) squares += double{value} * value;
  std::vector<float> out(64);
  rms_norm(x, weight, 1e-20, out.data());
  for (size_t idx = 0; idx < x.size(); ++idx) {
    const double wanted = double{weight[idx]} * x[idx] / std::sqrt(squares / 64);
    EXPECT_EQ(out[idx], round_bf16(out[idx]));
    EXPECT_LE(std::fabs(out[idx] - wanted),
              std::fabs(round_bf16(static_cast<float>(wanted)) - wanted) + 1e-6 * std::fabs(wanted));
  }
}

TEST(Numerics, rms_norm_of_zeros_is_zero) {
  const std::vector<float> zeros(32, 0.0f);
  const std::vector<float> ones(32, 1.0f);
  std::vector<float> out(32, 5.0f);
  rms_norm(zeros, ones, 1e-20, out.data());
  EXPECT_EQ(out, zeros);
}

TEST(Numerics, rms_norm_adds_its_epsilon) {
  const std::vector<float> x(32, 1e-10f);  // mean of squares 1e-20
  const std::vector<float> ones(32, 1.0f);
  std::vector<float> out(32);
  rms_norm(x, ones, 1e-20, out.data());
  EXPECT_EQ(out[0], round_bf16(std::sqrt(0.5f)));
}

TEST(Numerics, rotation_turns_adjacent_pairs_of_the_last_dimensions) {
  std::vector<float> values = {1, 2, 3, 4, 5, 6};
  const std::vector<model::CosSin> angles = {{0.0f, 1.0f}, {0.6f, 0.8f}};
  rotate(values, angles, false);
  EXPECT_EQ(values,
            (std::vector<float>{1, 2, -4, 3, round_bf16(5 * 0.6f - 6 * 0.8f), round_bf16(5 * 0.8f + 6 * 0.6f)}));
}

TEST(Numerics, the_inverse_rotation_undoes_a_rotation) {
  std::mt19937 random(2);
  const std::vector<float> before = random_bf16(16, 4, random);
  const std::vector<float> frequencies = {1.0f, 0.1f, 0.01f, 0.001f};
  std::vector<float> values = before;
  const auto angles = angles_at(frequencies, 77);
  ASSERT_EQ(angles.size(), 4u);
  EXPECT_NEAR(angles[1].cos, std::cos(7.7), 1e-6);
  rotate(values, angles, false);
  EXPECT_NE(values, before);
  rotate(values, angles, true);
  for (size_t idx = 0; idx < 8; ++idx) EXPECT_EQ(values[idx], before[idx]);  // outside the rotated tail
  for (size_t idx = 8; idx < 16; ++idx) EXPECT_NEAR(values[idx], before[idx], 0.05);
}

// model.md 3.3: check values of QA.
TEST(Numerics, window_records_have_the_documented_scales) {
  const std::vector<std::pair<float, int>> cases = {{448, 0},   {448.5f, 1},  {22.6f, -4}, {7, -6},
                                                    {3.5f, -7}, {1e-4f, -22}, {0, -22}};
  for (const auto& [amax, exponent] : cases) {
    std::vector<float> values(32, 0.0f);
    values[3] = -amax;
    std::vector<uint8_t> record(33, 0xff);
    pack_window(values, record.data());
    EXPECT_EQ(record[32], 127 + exponent) << amax;
  }
}

TEST(Numerics, window_records_hold_what_the_values_became) {
  std::mt19937 random(3);
  for (const float size : {1.0f, 1000.0f, 1e-3f, 1e-6f}) {
    const std::vector<float> before = random_bf16(64, size, random);
    std::vector<float> values = before;
    std::vector<uint8_t> record(66);
    pack_window(values, record.data());
    std::vector<float> read(64);
    unpack_window(record.data(), read);
    for (size_t idx = 0; idx < 64; ++idx) {
      const float scale = std::ldexp(1.0f, record[64 + idx / 32] - 127);
      EXPECT_EQ(std::bit_cast<uint32_t>(read[idx]), std::bit_cast<uint32_t>(values[idx]));
      EXPECT_EQ(values[idx], round_bf16(e4m3_value(e4m3_bits(before[idx] / scale)) * scale));
    }
    std::vector<uint8_t> again(66);
    pack_window(read, again.data());
    unpack_window(again.data(), read);
    EXPECT_EQ(read, values) << "packing twice";
  }
}

TEST(Numerics, all_records_of_zeros_hold_zeros_with_their_signs) {
  std::vector<float> zeros(32, 0.0f);
  zeros[5] = -0.0f;
  const auto expect_zeros = [&](const std::vector<float>& values, const char* what) {
    for (size_t idx = 0; idx < values.size(); ++idx) {
      EXPECT_EQ(values[idx], 0.0f) << what;
      EXPECT_EQ(std::signbit(values[idx]), idx == 5) << what;
    }
  };
  std::vector<uint8_t> record(40, 0xff);
  std::vector<float> values = zeros;
  pack_window(values, record.data());
  expect_zeros(values, "window");
  values = zeros;
  pack_compressed(values, record.data());
  expect_zeros(values, "compressed");
  EXPECT_EQ(record[16], e4m3_bits(0x1p-9f)) << "the floor of QC";
  values = zeros;
  pack_index(values, record.data());
  expect_zeros(values, "index");
  EXPECT_EQ(record[16], 1) << "the floor of QI is 2^-126";
}

TEST(Numerics, compressed_scales_are_e4m3_and_codes_clamp_at_six) {
  // amax / 6 = 1.0625 is a tie between 1 and 1.125: e4m3 takes the even 1, so amax / scale = 6.375 clamps to 6.
  std::vector<float> values(16, 0.0f);
  values[0] = 6.375f;
  values[1] = -6.375f;
  values[2] = 3.0f;
  std::vector<uint8_t> record(9);
  pack_compressed(values, record.data());
  EXPECT_EQ(e4m3_value(record[8]), 1.0f);
  EXPECT_EQ(values[0], 6.0f);
  EXPECT_EQ(values[1], -6.0f);
  EXPECT_EQ(values[2], 3.0f);
  EXPECT_EQ(record[0], 7 | (15 << 4));  // even index in the low nibble
  // A scale that is no power of two, and a true division.
  std::vector<float> other(16, 0.0f);
  other[0] = 9.0f;  // scale 1.5
  other[15] = 2.25f;
  pack_compressed(other, record.data());
  EXPECT_EQ(e4m3_value(record[8]), 1.5f);
  EXPECT_EQ(other[0], 9.0f);
  EXPECT_EQ(other[15], 2.25f);
}

TEST(Numerics, compressed_scales_saturate) {
  std::vector<float> values(16, 1e6f);
  std::vector<uint8_t> record(9);
  pack_compressed(values, record.data());
  EXPECT_EQ(e4m3_value(record[8]), 448.0f);
  EXPECT_EQ(values[0], 6 * 448.0f);
}

TEST(Numerics, index_codes_take_ties_as_documented) {
  // amax 6 keeps the scale at 1: thresholds 0.25 down, 0.75 up, 1.25 down, 1.75 up, 2.5 down, 3.5 up, 5 down.
  std::vector<float> values(32, 0.0f);
  const std::vector<std::pair<float, float>> cases = {{6, 6},    {0.25f, 0}, {0.75f, 1}, {1.25f, 1},  {1.75f, 2},
                                                      {2.5f, 2}, {3.5f, 4},  {5, 4},     {-0.75f, -1}};
  for (size_t idx = 0; idx < cases.size(); ++idx) values[idx] = cases[idx].first;
  std::vector<uint8_t> record(17);
  pack_index(values, record.data());
  EXPECT_EQ(record[16], 127);
  for (size_t idx = 0; idx < cases.size(); ++idx) EXPECT_EQ(values[idx], cases[idx].second) << cases[idx].first;
  std::vector<float> read(32);
  unpack_index(record.data(), read);
  EXPECT_EQ(read, values);
}

TEST(Numerics, compressed_and_index_records_hold_what_the_values_became) {
  std::mt19937 random(4);
  for (int round = 0; round < 50; ++round) {
    std::vector<float> values = random_bf16(32, std::ldexp(1.0f, round % 16 - 8), random);
    std::vector<float> other = values;
    std::vector<float> read(32);
    std::vector<uint8_t> record(20);
    pack_compressed(values, record.data());
    unpack_compressed(record.data(), read);
    EXPECT_EQ(read, values);
    pack_index(other, record.data());
    unpack_index(record.data(), read);
    EXPECT_EQ(read, other);
  }
}

constexpr int kHc = 4;
constexpr size_t kOutputs = (2 + kHc) * kHc;

// The formula of model.md 3.2 in double.
std::vector<double> reference_mix(const std::vector<float>& m, const std::vector<float>& scale,
                                  const std::vector<float>& base) {
  std::vector<double> out(kOutputs);
  const auto logit = [&](size_t idx, size_t part) { return double{m[idx]} * scale[part] + base[idx]; };
  for (size_t idx = 0; idx < kHc; ++idx) out[idx] = 1 / (1 + std::exp(-logit(idx, 0))) + 1e-6;
  for (size_t idx = kHc; idx < 2 * kHc; ++idx) out[idx] = 2 / (1 + std::exp(-logit(idx, 1)));
  double* c = out.data() + 2 * kHc;
  for (size_t row = 0; row < kHc; ++row) {
    double sum = 0;
    for (size_t column = 0; column < kHc; ++column) sum += std::exp(logit(2 * kHc + row * kHc + column, 2));
    for (size_t column = 0; column < kHc; ++column)
      c[row * kHc + column] = std::exp(logit(2 * kHc + row * kHc + column, 2)) / sum + 1e-6;
  }
  for (int step = 1; step < 40; ++step) {  // columns, then 19 times rows and columns
    const bool rows = step % 2 == 0;
    for (size_t outer = 0; outer < kHc; ++outer) {
      double sum = 1e-6;
      for (size_t inner = 0; inner < kHc; ++inner) sum += rows ? c[outer * kHc + inner] : c[inner * kHc + outer];
      for (size_t inner = 0; inner < kHc; ++inner) (rows ? c[outer * kHc + inner] : c[inner * kHc + outer]) /= sum;
    }
  }
  return out;
}

TEST(Numerics, mixing_coefficients_follow_the_formula_and_end_on_columns) {
  std::mt19937 random(5);
  for (int round = 0; round < 20; ++round) {
    const std::vector<float> m = random_bf16(kOutputs, 4, random);
    const std::vector<float> base = random_bf16(kOutputs, 2, random);
    const std::vector<float> scale = random_bf16(3, 2, random);
    std::vector<float> out(kOutputs);
    finish_mix(m, scale, base, {kHc, 20, 1e-6f}, out.data());
    const std::vector<double> wanted = reference_mix(m, scale, base);
    for (size_t idx = 0; idx < kOutputs; ++idx)
      EXPECT_NEAR(out[idx], wanted[idx], 2e-5 * std::max(1.0, wanted[idx])) << idx;
    for (size_t column = 0; column < kHc; ++column) {
      float sum = 0;
      for (size_t row = 0; row < kHc; ++row) sum += out[2 * kHc + row * kHc + column];
      EXPECT_NEAR(sum, 1, 3e-6) << "column " << column;
    }
  }
}

TEST(Numerics, one_iteration_normalises_columns_alone) {
  std::vector<float> m(kOutputs, 0.0f);
  m[2 * kHc] = 3;  // comb[0][0]
  const std::vector<float> zeros(kOutputs, 0.0f);
  const std::vector<float> ones(3, 1.0f);
  std::vector<float> out(kOutputs);
  finish_mix(m, ones, zeros, {kHc, 1, 1e-6f}, out.data());
  const float* comb = out.data() + 2 * kHc;
  float column = 0;
  float row = 0;
  for (int idx = 0; idx < kHc; ++idx) {
    column += comb[idx * kHc];
    row += comb[idx];
  }
  EXPECT_NEAR(column, 1, 3e-6);
  EXPECT_GT(std::fabs(row - 1), 0.01f);
  EXPECT_NE(comb[1], comb[kHc]);  // not symmetric: row 0 holds the softmax
}

}  // namespace
}  // namespace monostep::cpu
