// RoPE frequencies bit by bit and angles against the standard library (model.md 3.4).
#include "model/rope.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <random>

namespace monostep::model {
namespace {

std::vector<uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

RopeTables named_tables(std::string_view name) { return rope_tables(named_geometry(name).value()); }

TEST(RopeTables, base_of_flash_has_the_recorded_bits) {
  EXPECT_EQ(bits_of(named_tables("flash").base),
            (std::vector<uint32_t>{0x3f800000, 0x3f3ff911, 0x3f0ff59a, 0x3ed7e89b, 0x3ea1e89b, 0x3e72d423, 0x3e361887,
                                   0x3e088d77, 0x3dcccccd, 0x3d99940d, 0x3d6655c2, 0x3d2cba15, 0x3d0186e3, 0x3cc2434f,
                                   0x3c91ad39, 0x3c5a7bf2, 0x3c23d70a, 0x3bf5b9b0, 0x3bb8449c, 0x3b8a2e77, 0x3b4f3e38,
                                   0x3b1b690d, 0x3ae91528, 0x3aaec98e, 0x3a83126f, 0x3a44948c, 0x3a136a16, 0x39dd1725,
                                   0x39a5cb60, 0x3978a815, 0x393a7753, 0x390bd472}));
}

TEST(RopeTables, yarn_of_flash_has_the_recorded_bits) {
  EXPECT_EQ(bits_of(named_tables("flash").yarn),
            (std::vector<uint32_t>{0x3f800000, 0x3f300a3a, 0x3ef21c1f, 0x3ea67d01, 0x3e64f92e, 0x3e1d7475, 0x3dd88cb4,
                                   0x3d94e963, 0x3d4ccccd, 0x3d0cd4fb, 0x3cc1b019, 0x3c8530ce, 0x3c372dbf, 0x3bfbed88,
                                   0x3bad3d5e, 0x3b6e4237, 0x3b147ae1, 0x3ab714e0, 0x3a5ebdb6, 0x3a0530ce, 0x399bb3af,
                                   0x39305978, 0x38be904d, 0x383e9b5f, 0x37a3d70c, 0x36b443d0, 0x3677eba6, 0x362a7be8,
                                   0x35ea77ff, 0x35a13bdc, 0x355dbf30, 0x35187c4d}));
}

// The ramp of micro goes over pairs 0..2, that of clone40 over 0..4: the lower clamp acts in both.
void expect_ramp(std::string_view name, int high) {
  const Geometry geometry = named_geometry(name).value();
  const std::vector<float> yarn = rope_tables(geometry).yarn;
  ASSERT_EQ(static_cast<int>(yarn.size()), geometry.qk_rope_head_dim / 2);
  for (size_t pair_idx = 0; pair_idx < yarn.size(); ++pair_idx) {
    const double plain =
        std::pow(geometry.compress_rope_theta, -2.0 * static_cast<double>(pair_idx) / geometry.qk_rope_head_dim);
    const double ramp = std::min(1.0, static_cast<double>(pair_idx) / high);
    const double expected = plain * (1 - ramp) + plain / geometry.rope_scaling.factor * ramp;
    EXPECT_NEAR(yarn[pair_idx] / expected, 1, 1e-6) << pair_idx;
  }
}

TEST(RopeTables, the_ramp_of_micro_is_clamped_to_pairs_0_to_2) { expect_ramp("micro", 2); }
TEST(RopeTables, the_ramp_of_clone40_is_clamped_to_pairs_0_to_4) { expect_ramp("clone40", 4); }

TEST(RopeTables, the_upper_clamp_is_the_last_element) {
  Geometry geometry = named_geometry("micro").value();
  geometry.rope_scaling.original_max_position_embeddings = 1 << 30;
  geometry.compress_rope_theta = 2;
  const std::vector<float> yarn = rope_tables(geometry).yarn;
  // All bounds lie above the last pair, so nothing is stretched.
  for (size_t pair_idx = 0; pair_idx < yarn.size(); ++pair_idx) {
    EXPECT_FLOAT_EQ(yarn[pair_idx], std::pow(2.0f, -2.0f * static_cast<float>(pair_idx) / 16)) << pair_idx;
  }
}

TEST(RopeTables, equal_bounds_give_a_step_and_no_division_by_zero) {
  Geometry geometry = named_geometry("micro").value();
  geometry.rope_scaling.original_max_position_embeddings = 1;
  for (const float frequency : rope_tables(geometry).yarn) EXPECT_TRUE(std::isfinite(frequency) && frequency > 0);
}

void expect_exact(int position, float frequency) {
  const double angle = static_cast<float>(position) * frequency;
  const CosSin rotated = rope_angle(position, frequency);
  EXPECT_EQ(rotated.cos, static_cast<float>(std::cos(angle))) << position << " " << frequency;
  EXPECT_EQ(rotated.sin, static_cast<float>(std::sin(angle))) << position << " " << frequency;
}

class Angle : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Pairs, Angle, testing::Range(0, 32));

TEST_P(Angle, is_exact_to_fp32_rounding_up_to_a_million_positions) {
  const RopeTables tables = named_tables("flash");
  const size_t pair_idx = static_cast<size_t>(GetParam());
  for (int position = 0; position <= 1 << 20; position += position < 300 ? 1 : 97) {
    expect_exact(position, tables.base[pair_idx]);
    expect_exact(position, tables.yarn[pair_idx]);
  }
  expect_exact(1 << 20, tables.base[pair_idx]);
}

TEST(RopeAngle, is_exact_at_random_positions_to_2_24) {
  std::mt19937 random(1);
  std::uniform_int_distribution<int> positions(0, 1 << 24);
  std::uniform_real_distribution<float> frequencies(0, 1);
  for (int round = 0; round < 200000; ++round) expect_exact(positions(random), frequencies(random));
  expect_exact(1 << 24, 1.0f);
}

TEST(RopeAngle, is_exact_next_to_multiples_of_a_quarter_turn) {
  for (int quarter = 1; quarter < 200000; ++quarter) {
    const float angle = static_cast<float>(quarter * (std::numbers::pi / 2));
    const int position = 1;
    expect_exact(position, std::nextafter(angle, 0.0f));
    expect_exact(position, angle);
    expect_exact(position, std::nextafter(angle, 1e9f));
  }
}

TEST(RopeAngle, of_position_0_is_the_identity) {
  EXPECT_EQ(rope_angle(0, 1).cos, 1);
  EXPECT_EQ(rope_angle(0, 1).sin, 0);
}

// A control: rotating by the angle formed in double is told apart.
TEST(RopeAngle, differs_from_an_angle_formed_in_double) {
  const float frequency = named_tables("flash").base[1];
  const int position = (1 << 20) - 1;
  const double exact_angle = static_cast<double>(position) * static_cast<double>(frequency);
  EXPECT_NE(rope_angle(position, frequency).cos, static_cast<float>(std::cos(exact_angle)));
}

}  // namespace
}  // namespace monostep::model
