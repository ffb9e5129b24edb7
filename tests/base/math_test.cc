// exp, log and their kin against long double, within a few ulp, over their whole domains and at the edges.
#include "base/math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace monostep {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double ulp_of(double value) {
  const double magnitude = std::fabs(value);
  return std::nextafter(magnitude, kInfinity) - magnitude;
}

double ulps_off(double got, long double wanted) {
  return static_cast<double>(std::fabs(static_cast<long double>(got) - wanted)) / ulp_of(static_cast<double>(wanted));
}

TEST(Math, exp_is_within_an_ulp_and_a_quarter) {
  std::mt19937_64 random(3);
  double worst = 0;
  for (const double range : {1e-3, 1.0, 30.0, 700.0}) {
    std::uniform_real_distribution<double> argument(-range, range);
    for (int probe_idx = 0; probe_idx < 50000; ++probe_idx) {
      const double x = argument(random);
      worst = std::fmax(worst, ulps_off(exact_exp(x), std::exp(static_cast<long double>(x))));
    }
  }
  EXPECT_LE(worst, 1.25);
}

TEST(Math, exp_meets_its_edges) {
  EXPECT_EQ(exact_exp(0.0), 1.0);
  EXPECT_EQ(exact_exp(-kInfinity), 0.0);
  EXPECT_EQ(exact_exp(-745.0), 0.0);
  EXPECT_EQ(exact_exp(kInfinity), kInfinity);
  EXPECT_EQ(exact_exp(709.79), kInfinity);
  EXPECT_TRUE(std::isfinite(exact_exp(709.78)));
  EXPECT_LE(ulps_off(exact_exp(709.7), std::exp(static_cast<long double>(709.7))), 1.25);
  EXPECT_LE(ulps_off(exact_exp(-740.0), std::exp(static_cast<long double>(-740.0))), 1.25);  // subnormal
  EXPECT_LE(ulps_off(exact_exp(-708.5), std::exp(static_cast<long double>(-708.5))), 1.25);
  EXPECT_TRUE(std::isnan(exact_exp(std::numeric_limits<double>::quiet_NaN())));
}

TEST(Math, exp_never_decreases) {
  double before = 0;
  for (double x = -50; x < 50; x += 0x1p-8) {
    const double now = exact_exp(x);
    EXPECT_GT(now, before) << x;
    before = now;
  }
}

TEST(Math, log_is_within_two_ulp_of_double) {
  std::mt19937_64 random(4);
  std::uniform_real_distribution<double> exponent(-1000.0, 1000.0);
  for (int probe_idx = 0; probe_idx < 50000; ++probe_idx) {
    const double x = std::exp2(exponent(random));
    EXPECT_LE(ulps_off(exact_log(x), std::log(static_cast<long double>(x))), 2.0) << x;
  }
  EXPECT_EQ(exact_log(1.0), 0.0);
}

TEST(Math, log1p_does_not_cancel_near_zero) {
  std::mt19937_64 random(5);
  std::uniform_real_distribution<double> exponent(-60.0, 20.0);
  for (int probe_idx = 0; probe_idx < 50000; ++probe_idx) {
    const double x = std::exp2(exponent(random));
    EXPECT_LE(ulps_off(exact_log1p(x), std::log1p(static_cast<long double>(x))), 4.0) << x;
  }
  EXPECT_EQ(exact_log1p(0.0), 0.0);
}

TEST(Math, fp32_functions_round_the_exact_value) {
  int num_off = 0;
  for (float x = -87.0f; x < 88.0f; x += 0.0037f) {
    num_off += exp_f32(x) != static_cast<float>(std::exp(static_cast<long double>(x)));
    num_off += sigmoid_f32(x) != static_cast<float>(1.0L / (1.0L + std::exp(-static_cast<long double>(x))));
    const long double softplus =
        x > 20.0f ? static_cast<long double>(x) : std::log1p(std::exp(static_cast<long double>(x)));
    num_off += softplus_f32(x) != static_cast<float>(softplus);
  }
  EXPECT_EQ(num_off, 0);
}

TEST(Math, sigmoid_and_softplus_meet_their_edges) {
  EXPECT_EQ(sigmoid_f32(0.0f), 0.5f);
  EXPECT_EQ(sigmoid_f32(1000.0f), 1.0f);
  EXPECT_EQ(sigmoid_f32(-1000.0f), 0.0f);
  EXPECT_EQ(softplus_f32(20.5f), 20.5f);
  EXPECT_EQ(softplus_f32(-1000.0f), 0.0f);
}

}  // namespace
}  // namespace monostep
