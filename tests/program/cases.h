// The geometries, TP sizes and bands that the tests of this module run over.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "model/geometry.h"
#include "program/layout.h"

namespace monostep::program {

inline model::Geometry geometry_named(const std::string& name) { return model::named_geometry(name).value(); }

inline Layout layout_of(const std::string& name, int tp, int band = 8, int context = 4096) {
  const model::Geometry geometry = geometry_named(name);
  Shape shape;
  shape.band = band;
  shape.max_requests = std::max(band / (geometry.dspark_block_size + 1), 1);
  shape.max_context = std::min(context, geometry.max_position_embeddings);
  return Layout(geometry, model::make_shard(geometry, tp).value(), shape);
}

// Calls visit(name, layout) for every known geometry and each TP size that splits it, at each of `bands`.
template <typename Visit>
void for_each_layout(const std::vector<int>& bands, Visit&& visit) {
  for (const std::string& name : model::geometry_names()) {
    const model::Geometry geometry = geometry_named(name);
    for (const int tp : {1, 2, 4, 8}) {
      if (!model::make_shard(geometry, tp).ok()) continue;
      for (const int band : bands) {
        visit(name + " tp " + std::to_string(tp) + " band " + std::to_string(band), layout_of(name, tp, band));
      }
    }
  }
}

inline const std::vector<int>& all_bands() {
  static const std::vector<int> bands(kBands.begin(), kBands.end());
  return bands;
}

}  // namespace monostep::program
