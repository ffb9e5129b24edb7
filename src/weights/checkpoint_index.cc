// Parses and writes the checkpoint's index file.
#include "weights/checkpoint_index.h"

#include <simdjson.h>

#include "base/json_text.h"
#include "weights/safetensors.h"

namespace monostep::weights {
namespace {

namespace dom = simdjson::dom;

Error corrupt(const std::string& place, std::string text) { return {Code::kCorrupt, std::move(text), place}; }

bool plain_file_name(std::string_view name) {
  if (name.empty() || name.front() == '.') return false;
  for (const char letter : name) {
    if (letter == '/' || letter == '\\' || static_cast<unsigned char>(letter) < 0x20) return false;
  }
  return true;
}

Status parse_weight_map(const dom::object& map, const std::string& place, CheckpointIndex& index) {
  for (const auto field : map) {
    const std::string tensor_place = place + ": " + name_text(field.key);
    std::string_view file;
    if (field.value.get(file)) return corrupt(tensor_place, "expected a string as file name");
    if (!plain_file_name(file)) {
      return corrupt(tensor_place, "expected the name of a file beside the index, found \"" + name_text(file) + "\"");
    }
    if (!index.files.emplace(field.key, file).second) {
      return corrupt(tensor_place, "expected each name once in weight_map, found a second entry");
    }
  }
  return {};
}

}  // namespace

Result<CheckpointIndex> parse_checkpoint_index(std::string_view text, const std::string& place) {
  dom::parser parser;
  dom::element root;
  dom::object map;
  CheckpointIndex index;
  if (parser.parse(text.data(), text.size()).get(root)) return corrupt(place, "the index is not JSON");
  if (root["weight_map"].get(map)) return corrupt(place, "expected an object as weight_map");
  if (root["metadata"]["total_size"].get(index.total_bytes)) {
    return corrupt(place, "expected a non-negative integer as metadata.total_size");
  }
  TRY(parse_weight_map(map, place, index));
  return index;
}

std::string checkpoint_index_json(const CheckpointIndex& index) {
  std::string out = "{\n \"metadata\": {\n  \"total_size\": " + std::to_string(index.total_bytes) + "\n },\n";
  out += " \"weight_map\": {";
  const char* separator = "\n";
  for (const auto& [name, file] : index.files) {
    out += separator;
    out += "  ";
    append_json_string(out, name, true);
    out += ": ";
    append_json_string(out, file, true);
    separator = ",\n";
  }
  return out + "\n }\n}\n";
}

}  // namespace monostep::weights
