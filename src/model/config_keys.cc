// Look-ups in the table of config keys. Called by config_read.cc, config_write.cc and validate.cc.
#include "model/config_keys.h"

#include <algorithm>
#include <cstdint>

namespace monostep::model {

bool is_needed(Need need, const Geometry& geometry, Spelling spelling) {
  switch (need) {
    case Need::kAlways: return true;
    case Need::kNestedOnly: return spelling == Spelling::kNested;
    case Need::kWithEngram: return !geometry.engram_layer_ids.empty();
    case Need::kWithDraft: return geometry.num_nextn_predict_layers != 0;
    case Need::kOptional: return false;
  }
  return true;
}

std::string_view key_name(std::string_view nested, Spelling spelling) {
  std::string_view name = nested;
  const auto compare = [&](const Key& key, const auto&) -> Status {
    if (key.nested == nested) name = key.name(spelling);
    return {};
  };
  const Geometry geometry;
  const Vision vision;
  CHECK(visit_keys(geometry, compare).ok() && visit_vision_keys(vision, compare).ok(), "comparing names cannot fail");
  return name;
}

int default_max_positions(const RopeScaling& scaling) {
  constexpr double kReferenceDefault = 4096;
  constexpr double kLimit = INT32_MAX;
  const double stretched = scaling.factor * scaling.original_max_position_embeddings;
  return static_cast<int>(std::min(std::max(kReferenceDefault, stretched), kLimit));
}

}  // namespace monostep::model
