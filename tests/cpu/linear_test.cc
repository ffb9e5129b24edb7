// Linears of the CPU reference against a scalar reference in the same order (bits) and in double (bound): every kind,
// every code, the ends of the scale range, tails, parts, K slices and subsets of rows.
#include "cpu/linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "base/integer.h"
#include "base/numeric.h"

namespace monostep::cpu {
namespace {

using program::kTile;

constexpr float kUntouched = -12345.0f;

struct Matrix {  // as in a checkpoint
  Kind kind = Kind::kBf16;
  int n = 0;
  int k = 0;
  std::vector<uint8_t> codes;
  std::vector<uint8_t> scales;
  MatrixView view() const { return {kind, codes.data(), scales.empty() ? nullptr : scales.data(), k}; }

  // Defined here once more, from the formats' definitions.
  float code(int row, int column) const {
    const size_t at = static_cast<size_t>(row) * static_cast<size_t>(k) + static_cast<size_t>(column);
    if (kind == Kind::kFp8) {
      const int exponent = (codes[at] >> 3) & 15;
      const double mantissa = (codes[at] & 7) / 8.0;
      const double value = exponent == 0 ? std::ldexp(mantissa, -6) : std::ldexp(1 + mantissa, exponent - 7);
      return static_cast<float>((codes[at] & 0x80) != 0 ? -value : value);
    }
    if (kind == Kind::kFp4) {
      constexpr float kValues[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
      return kValues[column % 2 == 0 ? codes[at / 2] & 15 : codes[at / 2] >> 4];
    }
    uint32_t bits = 0;
    const size_t bytes = kind == Kind::kBf16 ? 2 : 4;
    std::memcpy(reinterpret_cast<uint8_t*>(&bits) + (4 - bytes), codes.data() + at * bytes, bytes);
    return std::bit_cast<float>(bits);
  }
  float scale(int row, int column) const {
    if (scales.empty()) return 1;
    const int scale_row = kind == Kind::kFp8 ? row / 32 : row;
    return std::ldexp(1.0f, scales[static_cast<size_t>(scale_row * (k / 32) + column / 32)] - 127);
  }
};

struct Case {
  Kind kind = Kind::kFp8;
  int n = 32;
  int k = 64;
  int low_scale = 120;
  int high_scale = 134;
};

Matrix random_matrix(const Case& wanted, std::mt19937& random) {
  Matrix out{wanted.kind, wanted.n, wanted.k, {}, {}};
  const size_t elements = static_cast<size_t>(wanted.n) * static_cast<size_t>(wanted.k);
  const auto below = [&](int end) { return static_cast<int>(random() % static_cast<unsigned>(end)); };
  for (size_t idx = 0; idx < elements; ++idx) {
    if (wanted.kind == Kind::kFp8) {
      const auto code = static_cast<uint8_t>(below(256));
      out.codes.push_back((code & 0x7f) == 0x7f ? code & 0x87 : code);  // NaN is refused at load
    }
    if (wanted.kind == Kind::kFp4 && idx % 2 == 0) out.codes.push_back(static_cast<uint8_t>(below(256)));
    if (wanted.kind == Kind::kBf16 || wanted.kind == Kind::kF32) {
      const auto bits = (static_cast<uint32_t>(below(2)) << 31) | (static_cast<uint32_t>(120 + below(14)) << 23) |
                        (random() & 0x7fffffu);
      const auto* bytes = reinterpret_cast<const uint8_t*>(&bits);
      out.codes.insert(out.codes.end(), bytes + (wanted.kind == Kind::kBf16 ? 2 : 0), bytes + 4);
    }
  }
  const int scale_rows = wanted.kind == Kind::kFp8 ? ceil_div(wanted.n, 32) : wanted.kind == Kind::kFp4 ? wanted.n : 0;
  for (int idx = 0; idx < scale_rows * (wanted.k / 32); ++idx) {
    out.scales.push_back(static_cast<uint8_t>(wanted.low_scale + below(wanted.high_scale - wanted.low_scale + 1)));
  }
  return out;
}

std::vector<float> random_values(size_t count, float size, std::mt19937& random) {
  std::vector<float> out(count);
  for (float& value : out) value = round_bf16(size * (static_cast<float>(random() % 20001) / 10000.0f - 1.0f));
  return out;
}

std::vector<int> first_rows(int count) {
  std::vector<int> out;
  for (int row = 0; row < count; ++row) out.push_back(row);
  return out;
}

// Quantised inputs: over k inside a group of 32, then over the groups, in fp32. Plain inputs: over k in double, rounded
// once.
float reference(const Matrix& matrix, int n, const TileProduct& product, const Activations& inputs, int row) {
  float sum = 0;
  double exact = 0;
  for (int begin = product.k_begin; begin < product.k_end; begin += 32) {
    float inner = 0;
    for (int column = begin; column < std::min(begin + 32, product.k_end); ++column) {
      const float value = inputs.row(row)[column];
      inner += value * matrix.code(n, column);
      exact += double{value} * (double{matrix.code(n, column)} * matrix.scale(n, column));
    }
    if (!inputs.scales.empty()) sum += inner * (matrix.scale(n, begin) * inputs.row_scales(row)[begin / 32]);
  }
  return inputs.scales.empty() ? static_cast<float>(exact) : sum;
}

double value_of(const Matrix& matrix, int n, const Activations& inputs, int row) {
  double sum = 0;
  for (int column = 0; column < matrix.k; ++column) {
    const double scale = inputs.scales.empty() ? 1.0 : inputs.row_scales(row)[column / 32];
    sum += double{inputs.row(row)[column]} * scale * matrix.code(n, column) * matrix.scale(n, column);
  }
  return sum;
}

double magnitude(const Matrix& matrix, int n, const Activations& inputs, int row) {
  double sum = 0;
  for (int column = 0; column < matrix.k; ++column) {
    const double scale = inputs.scales.empty() ? 1.0 : inputs.row_scales(row)[column / 32];
    sum += std::fabs(double{inputs.row(row)[column]} * scale * matrix.code(n, column) * matrix.scale(n, column));
  }
  return sum;
}

void expect_products_of_one_version(const Matrix& matrix, const Activations& inputs, int num_rows) {
  const PackedLinear packed = pack(matrix.view(), {0, matrix.n, 0, matrix.k});
  ASSERT_EQ(packed.tiles(), ceil_div(matrix.n, kTile));
  for (int tile = 0; tile < packed.tiles(); ++tile) {
    const TileProduct product{tile, 0, matrix.k};
    std::vector<float> out(static_cast<size_t>(num_rows * kTile), kUntouched);
    multiply_tile(packed, product, inputs, first_rows(num_rows), out.data());
    for (int row = 0; row < num_rows; ++row) {
      for (int lane = 0; lane < kTile; ++lane) {
        const int n = tile * kTile + lane;
        const float got = out[static_cast<size_t>(row * kTile + lane)];
        if (n >= matrix.n) {
          ASSERT_EQ(got, 0.0f) << "a row behind the matrix";
          continue;
        }
        ASSERT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(reference(matrix, n, product, inputs, row)))
            << n;
        ASSERT_NEAR(got, value_of(matrix, n, inputs, row), 1e-5 * magnitude(matrix, n, inputs, row)) << n;
      }
    }
  }
}

// Both versions of the tile product give the reference's bits.
void expect_products(const Matrix& matrix, const Activations& inputs, int num_rows) {
  expect_products_of_one_version(matrix, inputs, num_rows);
  const bool wide = set_wide_vectors(false);
  EXPECT_EQ(set_wide_vectors(false), false);  // the base version is on
  expect_products_of_one_version(matrix, inputs, num_rows);
  set_wide_vectors(wide);
}

Activations inputs_of(const Case& wanted, int num_rows, float size, std::mt19937& random) {
  std::vector<float> values = random_values(static_cast<size_t>(num_rows * wanted.k), size, random);
  if (wanted.kind == Kind::kFp8 || wanted.kind == Kind::kFp4) return quantize(values, wanted.k, first_rows(num_rows));
  return plain(std::move(values), wanted.k);
}

TEST(Linear, every_kind_gives_the_sums_of_the_scalar_reference) {
  std::mt19937 random(1);
  for (const Kind kind : {Kind::kFp8, Kind::kFp4, Kind::kBf16, Kind::kF32}) {
    for (const auto& [n, k] : std::vector<std::pair<int, int>>{{16, 32}, {64, 96}, {40, 128}, {7, 64}}) {
      for (const int num_rows : {1, 2, 5, 48}) {
        const Case wanted{kind, n, k};
        expect_products(random_matrix(wanted, random), inputs_of(wanted, num_rows, 3, random), num_rows);
      }
    }
  }
}

TEST(Linear, quantised_weights_take_plain_inputs) {  // wo_a: FP8 weights, bf16 inputs
  std::mt19937 random(9);
  for (const Kind kind : {Kind::kFp8, Kind::kFp4}) {
    const Case wanted{kind, 40, 96};
    const Matrix matrix = random_matrix(wanted, random);
    expect_products(matrix, plain(random_values(5 * 96, 3, random), 96), 5);
  }
}

TEST(Linear, plain_sums_are_rounded_once) {
  Matrix ones{Kind::kBf16, 16, 64, {}, {}};
  for (int idx = 0; idx < 16 * 64; ++idx) {
    ones.codes.push_back(0x80);
    ones.codes.push_back(0x3f);
  }
  std::vector<float> values(64, 0.5f);
  values[0] = 0x1p24f;  // each further 0.5 would be lost in fp32
  values[63] = -0x1p24f;
  float out[kTile];
  multiply_tile(pack(ones.view(), {0, 16, 0, 64}), {0, 0, 64}, plain(values, 64), first_rows(1), out);
  for (const float sum : out) EXPECT_EQ(sum, 31.0f);
}

TEST(Linear, every_code_has_its_value) {
  for (const Kind kind : {Kind::kFp8, Kind::kFp4}) {
    Matrix matrix{kind, 256, 32, {}, {}};
    for (int row = 0; row < 256; ++row) {
      const bool nan = kind == Kind::kFp8 && (row & 0x7f) == 0x7f;
      const auto code = static_cast<uint8_t>(nan ? 0 : row);
      matrix.codes.insert(matrix.codes.end(), kind == Kind::kFp8 ? 32 : 16, code);
    }
    matrix.scales.assign(kind == Kind::kFp8 ? 8 : 256, 127);
    Activations inputs{32, std::vector<float>(64), std::vector<float>(2, 1.0f)};
    inputs.values[6] = 1;  // row 0 takes an even column, row 1 an odd one
    inputs.values[32 + 9] = 1;
    expect_products(matrix, inputs, 2);
  }
}

TEST(Linear, the_ends_of_the_scale_range_are_exact) {
  std::mt19937 random(2);
  for (const Kind kind : {Kind::kFp8, Kind::kFp4}) {
    const Case small{kind, 32, 64, 1, 1};
    expect_products(random_matrix(small, random), inputs_of(small, 3, 1000, random), 3);
    const Case large{kind, 32, 64, 254, 254};
    Matrix matrix = random_matrix(large, random);
    if (kind == Kind::kFp8) {
      for (uint8_t& code : matrix.codes) code &= 0x87;  // subnormal weights
    }
    expect_products(matrix, inputs_of(large, 3, 1e-6f, random), 3);
  }
}

TEST(Linear, columns_behind_the_last_whole_group_count) {
  std::mt19937 random(3);
  for (const Kind kind : {Kind::kBf16, Kind::kF32}) {
    for (const int k : {1, 8, 31, 33, 40, 95}) {
      const Case wanted{kind, 24, k};
      expect_products(random_matrix(wanted, random), inputs_of(wanted, 3, 2, random), 3);
    }
  }
}

TEST(Linear, a_part_of_a_matrix_gives_the_sums_of_that_part) {
  std::mt19937 random(4);
  for (const Kind kind : {Kind::kFp8, Kind::kFp4, Kind::kBf16, Kind::kF32}) {
    const Case wanted{kind, 128, 128};
    const Matrix matrix = random_matrix(wanted, random);
    for (const MatrixPart& part :
         {MatrixPart{32, 64, 0, 128}, MatrixPart{0, 128, 64, 32}, MatrixPart{96, 32, 32, 96}}) {
      const PackedLinear packed = pack(matrix.view(), part);
      const Activations whole = inputs_of(wanted, 1, 2, random);
      Activations inputs{part.k, {}, {}};
      inputs.values.assign(whole.values.begin() + part.k_begin, whole.values.begin() + part.k_begin + part.k);
      if (!whole.scales.empty()) {
        inputs.scales.assign(whole.scales.begin() + part.k_begin / 32,
                             whole.scales.begin() + (part.k_begin + part.k) / 32);
      }
      for (int tile = 0; tile < packed.tiles(); ++tile) {
        float out[kTile];
        multiply_tile(packed, {tile, 0, part.k}, inputs, first_rows(1), out);
        for (int lane = 0; lane < kTile; ++lane) {
          const TileProduct product{0, part.k_begin, part.k_begin + part.k};
          EXPECT_EQ(out[lane], reference(matrix, part.row_begin + tile * kTile + lane, product, whole, 0));
        }
      }
    }
  }
}

TEST(Linear, a_slice_of_k_gives_the_sums_of_that_slice) {
  std::mt19937 random(5);
  for (const Kind kind : {Kind::kFp8, Kind::kFp4, Kind::kBf16}) {
    const Case wanted{kind, 32, 128};
    const Matrix matrix = random_matrix(wanted, random);
    const Activations inputs = inputs_of(wanted, 2, 2, random);
    const PackedLinear packed = pack(matrix.view(), {0, 32, 0, 128});
    for (const TileProduct& product : {TileProduct{0, 0, 64}, TileProduct{1, 64, 128}, TileProduct{1, 32, 64}}) {
      float out[2 * kTile];
      multiply_tile(packed, product, inputs, first_rows(2), out);
      for (int idx = 0; idx < 2 * kTile; ++idx) {
        EXPECT_EQ(out[idx], reference(matrix, product.tile * kTile + idx % kTile, product, inputs, idx / kTile));
      }
    }
  }
}

TEST(Linear, rows_that_are_not_listed_stay_and_company_does_not_matter) {
  std::mt19937 random(6);
  const Case wanted{Kind::kFp8, 16, 96};
  const PackedLinear packed = pack(random_matrix(wanted, random).view(), {0, 16, 0, 96});
  const Activations inputs = inputs_of(wanted, 48, 2, random);
  std::vector<float> all(48 * kTile);
  multiply_tile(packed, {0, 0, 96}, inputs, first_rows(48), all.data());
  for (const std::vector<int>& rows : {std::vector<int>{}, {7}, {47, 3}, {5, 6, 7}, {40, 1, 2, 3, 30, 9, 11}}) {
    std::vector<float> out(48 * kTile, kUntouched);
    multiply_tile(packed, {0, 0, 96}, inputs, rows, out.data());
    for (int row = 0; row < 48; ++row) {
      const bool listed = std::find(rows.begin(), rows.end(), row) != rows.end();
      for (int lane = 0; lane < kTile; ++lane) {
        const auto at = static_cast<size_t>(row * kTile + lane);
        EXPECT_EQ(out[at], listed ? all[at] : kUntouched) << "row " << row;
      }
    }
  }
}

TEST(Linear, quantised_rows_are_the_nearest_codes_at_the_scale_of_their_group) {
  std::mt19937 random(7);
  std::vector<float> values = random_values(4 * 64, 50, random);
  std::fill_n(values.begin() + 64, 32, 0.0f);  // an all-zero group
  values[96] = 448.5f;                         // scale 2
  const std::vector<int> rows = {0, 1, 3};
  const Activations out = quantize(values, 64, rows);
  for (const int row : rows) {
    for (int column = 0; column < 64; ++column) {
      float amax = 0;
      for (int idx = 0; idx < 32; ++idx)
        amax = std::max(amax, std::fabs(values[static_cast<size_t>(row * 64 + column / 32 * 32 + idx)]));
      const float scale = activation_scale(amax);
      EXPECT_EQ(out.row_scales(row)[column / 32], scale);
      const float wanted = e4m3_value(e4m3_bits(values[static_cast<size_t>(row * 64 + column)] / scale));
      EXPECT_EQ(std::bit_cast<uint32_t>(out.row(row)[column]), std::bit_cast<uint32_t>(wanted));
    }
  }
  EXPECT_EQ(out.row_scales(1)[0], 0x1p-22f);
  EXPECT_EQ(out.row_scales(1)[1], 2.0f);
  for (int column = 0; column < 64; ++column) EXPECT_EQ(out.row(2)[column], 0.0f) << "a row that is not listed";
}

TEST(Linear, every_bf16_value_is_quantised_as_its_code_says) {
  std::vector<float> values;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = bf16_value(static_cast<uint16_t>(bits));
    if (std::fabs(value) <= 448) values.push_back(value);
  }
  while (values.size() % 31 != 0) values.push_back(0);
  std::vector<float> grouped;  // 448 in every group keeps the scale at 1
  for (size_t begin = 0; begin < values.size(); begin += 31) {
    grouped.push_back(448);
    grouped.insert(grouped.end(), values.begin() + static_cast<int64_t>(begin),
                   values.begin() + static_cast<int64_t>(begin) + 31);
  }
  const Activations out = quantize(grouped, static_cast<int>(grouped.size()), first_rows(1));
  for (size_t idx = 0; idx < grouped.size(); ++idx) {
    ASSERT_EQ(std::bit_cast<uint32_t>(out.values[idx]), std::bit_cast<uint32_t>(e4m3_value(e4m3_bits(grouped[idx]))))
        << grouped[idx];
  }
}

TEST(Linear, dot_adds_in_sixteen_lanes) {
  std::mt19937 random(8);
  for (const int count : {0, 1, 15, 16, 17, 64, 100}) {
    const std::vector<float> a = random_values(static_cast<size_t>(count), 1, random);
    const std::vector<float> b = random_values(static_cast<size_t>(count), 1, random);
    float lanes[16] = {};
    for (int idx = 0; idx < count; ++idx) lanes[idx % 16] += a[static_cast<size_t>(idx)] * b[static_cast<size_t>(idx)];
    float wanted = 0;
    for (const float lane : lanes) wanted += lane;
    EXPECT_EQ(dot(a.data(), b.data(), count), wanted) << count;
  }
}

TEST(Linear, add_scaled_adds_each_value) {
  std::vector<float> acc = {1, 2, 3, 4};
  const std::vector<float> values = {10, 20, 30, 40};
  add_scaled(acc.data(), values.data(), 0.5f, 3);
  EXPECT_EQ(acc, (std::vector<float>{6, 12, 18, 4}));
}

}  // namespace
}  // namespace monostep::cpu
