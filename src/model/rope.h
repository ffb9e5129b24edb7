// RoPE frequency tables: the base table (ratio-0 and draft layers) and the YaRN table (ratio 1 and 2), model.md 3.4.
#pragma once

#include <vector>

#include "model/geometry.h"

namespace monostep::model {

struct RopeTables {
  std::vector<float> base;  // [qk_rope_head_dim/2], theta = rope_theta
  std::vector<float> yarn;  // [qk_rope_head_dim/2], theta = compress_rope_theta with the YaRN mix
};
RopeTables rope_tables(const Geometry& geometry);

// cos and sin of f32(f32(position) * frequency), fully range-reduced, the same bits on every build. Position up to
// 2^24.
struct CosSin {
  float cos = 1;
  float sin = 0;
};
CosSin rope_angle(int position, float frequency);

}  // namespace monostep::model
