// RoPE frequency tables: the base table (ratio-0 and draft layers) and the YaRN table (ratio 1 and 2), model.md 3.4.
#pragma once

#include <vector>

#include "base/math.h"
#include "model/geometry.h"

namespace monostep::model {

struct RopeTables {
  std::vector<float> base;  // [qk_rope_head_dim/2], theta = rope_theta
  std::vector<float> yarn;  // [qk_rope_head_dim/2], theta = compress_rope_theta with the YaRN mix
};
RopeTables rope_tables(const Geometry& geometry);

// Angles: rope_angle of base/math.h.
using monostep::CosSin;
using monostep::rope_angle;

}  // namespace monostep::model
