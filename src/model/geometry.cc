// Topology derived from a Geometry: tensor name prefixes and the role of every layer (model.md 1.3). Called wherever
// layers are walked. Parsing is in config_read.cc, the rules in validate.cc, writing in config_write.cc, known sizes in
// named_geometry.cc.
#include "model/geometry.h"

#include <fmt/format.h>

#include <algorithm>

namespace monostep::model {
namespace {

// Position of a layer in an ascending list of layer ids, -1 where it is not in it.
int position_in(const std::vector<int>& ids, int layer_idx) {
  const auto found = std::find(ids.begin(), ids.end(), layer_idx);
  return found == ids.end() ? -1 : static_cast<int>(found - ids.begin());
}

// Position of the latest id at or before a layer, -1 where there is none.
int latest_position(const std::vector<int>& ids, int layer_idx) {
  const auto after = std::upper_bound(ids.begin(), ids.end(), layer_idx);
  return static_cast<int>(after - ids.begin()) - 1;
}

void add_compressed_role(const Geometry& geometry, int layer_idx, Role& role) {
  const std::vector<int>& index_sources = geometry.index_source_layer_ids;
  role.owner_idx = latest_position(geometry.kv_source_layer_ids, layer_idx);
  CHECK(role.owner_idx >= 0, "a compressed layer without a KV source passed validation");
  role.kv_owner = geometry.kv_source_layer_ids[role.owner_idx];
  role.index_source = index_sources[latest_position(index_sources, layer_idx)];
  if (role.kv_owner == layer_idx) {
    role.mode = Mode::kFull;
  } else if (role.index_source == layer_idx) {
    role.mode = Mode::kReindex;
  } else {
    role.mode = Mode::kReuse;
  }
  const int source = geometry.candidate_source_layer_id;
  role.candidate_source = source == layer_idx;
  if (role.mode == Mode::kReindex && source >= 0 && layer_idx > source) role.candidates_from = source;
}

}  // namespace

std::string Geometry::prefix(int layer_idx) const {
  if (is_draft(layer_idx)) return fmt::format("mtp.{}.", layer_idx - num_hidden_layers);
  return fmt::format("layers.{}.", layer_idx);
}

std::string_view mode_name(Mode mode) {
  switch (mode) {
    case Mode::kWindow: return "window";
    case Mode::kFull: return "full";
    case Mode::kReindex: return "reindex";
    case Mode::kReuse: return "reuse";
  }
  return "unknown";
}

std::vector<Role> layer_roles(const Geometry& geometry) {
  std::vector<Role> roles(geometry.num_layers());
  for (int layer_idx = 0; layer_idx < geometry.num_layers(); ++layer_idx) {
    Role& role = roles[layer_idx];
    role.ratio = geometry.compress_ratios[layer_idx];
    role.draft = geometry.is_draft(layer_idx);
    if (role.ratio > 0) add_compressed_role(geometry, layer_idx, role);
    role.engram_idx = position_in(geometry.engram_layer_ids, layer_idx);
    role.tap_idx = position_in(geometry.dspark_target_layer_ids, layer_idx);
  }
  return roles;
}

}  // namespace monostep::model
