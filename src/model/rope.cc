// RoPE frequencies and the cosine and sine of an angle (model.md 3.4). Called by the engine for the tables, and by the
// CPU stages and the tables' builder for angles.
#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

#include "base/check.h"

namespace monostep::model {
namespace {

// f32(1 / f32(theta^(2i/d))). The power is rounded once to fp32 (long double is exact enough to decide it).
std::vector<float> plain_frequencies(double theta, int rope_dim) {
  std::vector<float> frequencies(static_cast<size_t>(rope_dim) / 2);
  for (size_t pair_idx = 0; pair_idx < frequencies.size(); ++pair_idx) {
    const long double exponent = 2.0L * static_cast<long double>(pair_idx) / rope_dim;
    frequencies[pair_idx] = 1.0f / static_cast<float>(powl(theta, exponent));
  }
  return frequencies;
}

// The (fractional) pair whose wave turns `turns` times within the original context.
long double pair_of_turns(const Geometry& geometry, double turns) {
  const long double length = geometry.rope_scaling.original_max_position_embeddings;
  return geometry.qk_rope_head_dim * logl(length / (turns * 2 * std::numbers::pi_v<long double>)) /
         (2 * logl(geometry.compress_rope_theta));
}

std::vector<float> yarn_frequencies(const Geometry& geometry) {
  const RopeScaling& scaling = geometry.rope_scaling;
  const long double low = std::max(0.0L, floorl(pair_of_turns(geometry, scaling.beta_fast)));
  const long double high =
      std::min<long double>(geometry.qk_rope_head_dim - 1, ceill(pair_of_turns(geometry, scaling.beta_slow)));
  const float low_pair = static_cast<float>(low);
  const float width = static_cast<float>(std::max(high - low, 0.001L));
  const float factor = static_cast<float>(scaling.factor);
  std::vector<float> frequencies = plain_frequencies(geometry.compress_rope_theta, geometry.qk_rope_head_dim);
  for (size_t pair_idx = 0; pair_idx < frequencies.size(); ++pair_idx) {
    const float ramp = std::clamp((static_cast<float>(pair_idx) - low_pair) / width, 0.0f, 1.0f);
    const float smooth = 1.0f - ramp;
    const float plain = frequencies[pair_idx];
    frequencies[pair_idx] = plain / factor * (1.0f - smooth) + plain * smooth;
  }
  return frequencies;
}

// Taylor polynomials on [-pi/4, pi/4]; the first term left out is below 1e-16.
double sin_polynomial(double x) {
  const double square = x * x;
  double sum = -1.0 / 1307674368000.0;
  for (const double term :
       {1.0 / 6227020800.0, -1.0 / 39916800.0, 1.0 / 362880.0, -1.0 / 5040.0, 1.0 / 120.0, -1.0 / 6.0}) {
    sum = sum * square + term;
  }
  return x + x * square * sum;
}

double cos_polynomial(double x) {
  const double square = x * x;
  double sum = 1.0 / 20922789888000.0;
  for (const double term : {-1.0 / 87178291200.0, 1.0 / 479001600.0, -1.0 / 3628800.0, 1.0 / 40320.0, -1.0 / 720.0,
                            1.0 / 24.0, -1.0 / 2.0}) {
    sum = sum * square + term;
  }
  return 1.0 + square * sum;
}

}  // namespace

RopeTables rope_tables(const Geometry& geometry) {
  return {.base = plain_frequencies(geometry.rope_theta, geometry.qk_rope_head_dim),
          .yarn = yarn_frequencies(geometry)};
}

CosSin rope_angle(int position, float frequency) {
  CHECK(position >= 0 && position <= 1 << 24, "a position is exact in fp32");
  // pi/2 in two parts of at most 29 bits and a rest: the products of the parts with a quarter count below 2^24 are
  // exact.
  constexpr double kHalfPiHigh = 0x1.921fb54p+0;
  constexpr double kHalfPiMiddle = 0x1.10b4611p-30;
  constexpr double kHalfPiLow = 0x1.4c4c6628b80dcp-59;
  const double angle = static_cast<float>(position) * frequency;
  const int64_t quarter = static_cast<int64_t>(angle * (2 / std::numbers::pi) + 0.5);
  const double count = static_cast<double>(quarter);
  const double rest = ((angle - count * kHalfPiHigh) - count * kHalfPiMiddle) - count * kHalfPiLow;
  const float cos = static_cast<float>(cos_polynomial(rest));
  const float sin = static_cast<float>(sin_polynomial(rest));
  switch (quarter & 3) {
    case 0: return {cos, sin};
    case 1: return {-sin, cos};
    case 2: return {-cos, -sin};
    default: return {sin, -cos};
  }
}

}  // namespace monostep::model
