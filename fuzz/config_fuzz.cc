// Fuzzes the reader of config.json: any text gives a Geometry or an error with words, and an accepted Geometry survives
// both writers and the derivations that trust it. Seeds: the configs of the golden checkpoints in both spellings.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "model/geometry.h"

using monostep::model::Geometry;

namespace {

void check_round_trip(const Geometry& geometry, const std::string& written) {
  const auto again = monostep::model::parse_geometry(written, "written");
  CHECK(again.ok(), "a written config is refused");
  CHECK(monostep::model::nested_config_json(*again) == monostep::model::nested_config_json(geometry),
        "a written config reads as another geometry");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t num_bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes), num_bytes);
  const auto geometry = monostep::model::parse_geometry(text, "fuzz");
  if (!geometry.ok()) {
    CHECK(!geometry.error().text.empty(), "an error without words");
    return 0;
  }
  CHECK(monostep::model::validate(*geometry, "fuzz").ok(), "a parsed geometry is not valid");
  CHECK(monostep::model::layer_roles(*geometry).size() == static_cast<size_t>(geometry->num_layers()),
        "not one role for each layer");
  check_round_trip(*geometry, monostep::model::nested_config_json(*geometry));
  check_round_trip(*geometry, monostep::model::flat_config_json(*geometry));
  return 0;
}
