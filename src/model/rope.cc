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

}  // namespace

RopeTables rope_tables(const Geometry& geometry) {
  return {.base = plain_frequencies(geometry.rope_theta, geometry.qk_rope_head_dim),
          .yarn = yarn_frequencies(geometry)};
}

}  // namespace monostep::model
