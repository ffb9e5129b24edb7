// Reads a config text in either spelling into a Geometry: keys and types here, the rules between values in validate.cc.
// Reads config.json or inference/config.json of a checkpoint directory; called by the loader and by every command.
#include <fmt/format.h>
#include <simdjson.h>

#include <cmath>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <utility>

#include "model/config_keys.h"
#include "model/geometry.h"

namespace monostep::model {
namespace {

using simdjson::dom::element;

constexpr int64_t kMaxCount = INT32_MAX;
constexpr size_t kMaxListEntries = 4096;
constexpr size_t kMaxConfigBytes = 16 << 20;

struct FixedKey {  // a key that has one supported value
  std::string_view nested;
  std::string_view flat;   // empty: the spelling does not have it
  std::string_view value;  // JSON
  bool required = true;
};

constexpr FixedKey kFixedKeys[] = {
    {"text_config.model_type", "", "\"deepseek_v41_text\"", false},
    {"quantization_config.quant_method", "", "\"fp8\""},
    {"quantization_config.weight_block_size", "", "[32,32]"},
    {"quantization_config.scale_fmt", "", "\"ue8m0\""},
    {"quantization_config.activation_scheme", "", "\"dynamic\"", false},
    {"quantization_config.expert_dtype", "expert_dtype", "\"fp4\""},
    {"", "dtype", "\"fp8\""},
    {"scoring_func", "score_func", "\"sqrtsoftplus\""},
    {"topk_method", "", "\"noaux_tc\""},
    {"norm_topk_prob", "", "true"},
    {"hidden_act", "", "\"silu\""},
    {"tie_word_embeddings", "", "false"},
    {"attention_bias", "", "false"},
    {"num_key_value_heads", "", "1"},
    {"n_shared_experts", "n_shared_experts", "1"},
    {"gate_temp", "gate_temp", "1.0", false},
};

std::optional<element> at_path(element from, std::string_view path) {
  while (true) {
    const size_t dot = path.find('.');
    element next;
    if (from.at_key(path.substr(0, dot)).get(next) != simdjson::SUCCESS || next.is_null()) return std::nullopt;
    if (dot == std::string_view::npos) return next;
    from = next;
    path.remove_prefix(dot + 1);
  }
}

std::string shown(element value) {
  constexpr size_t kMaxShown = 80;
  std::string text = simdjson::minify(value);
  if (text.size() > kMaxShown) text = text.substr(0, kMaxShown) + "...";
  return text;
}

class ConfigReader {
 public:
  // `text` is the object that holds the text keys; `root` is looked at after it.
  ConfigReader(element root, element text, Spelling spelling, std::string place)
      : root_(root), text_(text), spelling_(spelling), place_(std::move(place)) {}

  Result<Geometry> read() const;

 private:
  Status read_field(const Key& key, const Geometry& geometry, auto& field) const;
  Status read_vision(Geometry& geometry) const;
  Status check_model_type() const;
  Status check_fixed(const FixedKey& key) const;
  Status check_rope_type() const;

  Status read_value(const Key& key, element from, int& value) const;
  Status read_value(const Key& key, element from, int64_t& value) const;
  Status read_value(const Key& key, element from, double& value) const;
  template <typename Integer>
  Status read_value(const Key& key, element from, std::vector<Integer>& values) const;

  std::optional<element> find(std::string_view name) const {
    const std::optional<element> found = at_path(text_, name);
    return found ? found : at_path(root_, name);
  }
  Error refuse(Code code, std::string_view name, std::string_view text) const {
    return Error{code, fmt::format("{}: {}", name, text), place_};
  }
  Error missing(std::string_view name) const { return refuse(Code::kInvalidArgument, name, "the key is missing"); }
  Error wrong_value(const Key& key, std::string_view expected, element found) const {
    return refuse(Code::kInvalidArgument, key.name(spelling_),
                  fmt::format("expected {}, found {}", expected, shown(found)));
  }

  element root_;
  element text_;
  Spelling spelling_;
  std::string place_;
};

void clear_unused(Geometry& geometry) {
  if (geometry.candidate_source_layer_id < 0) geometry.candidate_topk_blocks = geometry.candidate_block_size = 0;
  if (geometry.engram_layer_ids.empty()) {
    geometry.engram_num_embeddings.clear();
    geometry.engram_max_ngram_size = geometry.engram_n_heads = geometry.engram_head_dim = 0;
    geometry.engram_vocab_size = 0;
    geometry.engram_pad_token_id = geometry.engram_compressed_vocab_size = 0;
  }
  if (geometry.num_nextn_predict_layers == 0) {
    geometry.dspark_block_size = geometry.dspark_noise_token_id = geometry.dspark_markov_rank = 0;
    geometry.dspark_target_layer_ids.clear();
    geometry.dspark_n_routed_experts = geometry.dspark_num_experts_per_tok = 0;
  }
  if (geometry.dspark_n_routed_experts == 0) geometry.dspark_n_routed_experts = geometry.n_routed_experts;
  if (geometry.dspark_num_experts_per_tok == 0) geometry.dspark_num_experts_per_tok = geometry.num_experts_per_tok;
}

Result<Geometry> ConfigReader::read() const {
  TRY(check_model_type());
  for (const FixedKey& key : kFixedKeys) TRY(check_fixed(key));
  TRY(check_rope_type());
  Geometry geometry;
  TRY(visit_keys(geometry, [&](const Key& key, auto& field) { return read_field(key, geometry, field); }));
  TRY(read_vision(geometry));
  if (!find(key_name("max_position_embeddings", spelling_))) {
    geometry.max_position_embeddings = default_max_positions(geometry.rope_scaling);
  }
  clear_unused(geometry);
  TRY(validate_spelled(geometry, place_, spelling_));
  return geometry;
}

Status ConfigReader::read_field(const Key& key, const Geometry& geometry, auto& field) const {
  const std::optional<element> found = find(key.name(spelling_));
  if (found) return read_value(key, *found, field);
  if (is_needed(key.need, geometry, spelling_)) return missing(key.name(spelling_));
  return {};
}

// A tower without layers is no tower, whatever else is said about it.
Status ConfigReader::read_vision(Geometry& geometry) const {
  Vision vision;
  vision.downsample = 3;  // the released ratio
  const auto layers = find(key_name("vision_config.num_hidden_layers", spelling_));
  int64_t num_layers = 0;
  if (!layers || (layers->get(num_layers) == simdjson::SUCCESS && num_layers == 0)) return {};
  TRY(visit_vision_keys(vision, [&](const Key& key, int& field) { return read_field(key, geometry, field); }));
  geometry.vision = vision;
  return {};
}

Status ConfigReader::check_model_type() const {
  if (spelling_ == Spelling::kFlat) return {};
  const std::optional<element> found = at_path(root_, "model_type");
  if (!found) return {};
  const std::string type = shown(*found);
  const bool text_at_top = !at_path(root_, "text_config");
  if (type == "\"deepseek_v41\"" || (text_at_top && type == "\"deepseek_v41_text\"")) return {};
  return refuse(Code::kUnsupported, "model_type", fmt::format("expected \"deepseek_v41\", found {}", type));
}

Status ConfigReader::check_fixed(const FixedKey& key) const {
  const std::string_view name = spelling_ == Spelling::kFlat ? key.flat : key.nested;
  if (name.empty()) return {};
  const std::optional<element> found = find(name);
  if (!found && key.required) return missing(name);
  if (!found) return {};
  double wanted = 0;
  double number = 0;
  simdjson::dom::parser parser;
  const bool same_number = parser.parse(key.value.data(), key.value.size()).get(wanted) == simdjson::SUCCESS &&
                           found->get(number) == simdjson::SUCCESS && number == wanted;
  const std::string text = shown(*found);
  if (same_number || text == key.value) return {};
  return refuse(Code::kUnsupported, name, fmt::format("only {} is supported, found {}", key.value, text));
}

Status ConfigReader::check_rope_type() const {
  if (spelling_ == Spelling::kFlat) return {};
  for (const std::string_view name : {"rope_scaling.rope_type", "rope_scaling.type"}) {
    const std::optional<element> found = find(name);
    if (!found) continue;
    if (shown(*found) == "\"yarn\"") return {};
    return refuse(Code::kUnsupported, name, fmt::format("only \"yarn\" is supported, found {}", shown(*found)));
  }
  return missing("rope_scaling.type");
}

Status ConfigReader::read_value(const Key& key, element from, int& value) const {
  int64_t wide = 0;
  if (from.get(wide) != simdjson::SUCCESS || wide > kMaxCount || wide < -kMaxCount) {
    return wrong_value(key, key.positive ? "a positive integer below 2^31" : "an integer below 2^31", from);
  }
  value = static_cast<int>(wide);
  return {};
}

Status ConfigReader::read_value(const Key& key, element from, int64_t& value) const {
  if (from.get(value) != simdjson::SUCCESS) return wrong_value(key, "a positive integer", from);
  return {};
}

Status ConfigReader::read_value(const Key& key, element from, double& value) const {
  if (from.get(value) != simdjson::SUCCESS) return wrong_value(key, "a number", from);
  return {};
}

template <typename Integer>
Status ConfigReader::read_value(const Key& key, element from, std::vector<Integer>& values) const {
  simdjson::dom::array array;
  if (from.get(array) != simdjson::SUCCESS) return wrong_value(key, "a list of integers", from);
  const Key entry_key{key.nested, key.flat, key.need, false};
  for (const element entry : array) {
    if (values.size() == kMaxListEntries) {
      return wrong_value(key, fmt::format("at most {} entries", kMaxListEntries), from);
    }
    Integer value = 0;
    TRY(read_value(entry_key, entry, value));
    values.push_back(value);
  }
  return {};
}

Result<std::string> read_file(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return Error{Code::kNotFound, "cannot be opened", path.string()};
  std::string text(kMaxConfigBytes + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (stream.bad()) return Error{Code::kNotFound, "cannot be read", path.string()};
  text.resize(static_cast<size_t>(stream.gcount()));
  if (text.size() > kMaxConfigBytes) {
    return Error{Code::kCorrupt, fmt::format("a config is at most {} bytes", kMaxConfigBytes), path.string()};
  }
  return text;
}

}  // namespace

Result<Geometry> parse_geometry(std::string_view text, const std::string& place) {
  simdjson::dom::parser parser;
  element root;
  const simdjson::error_code code = parser.parse(text.data(), text.size()).get(root);
  if (code != simdjson::SUCCESS) {
    return Error{Code::kCorrupt, fmt::format("not JSON: {}", simdjson::error_message(code)), place};
  }
  if (!root.is_object()) return Error{Code::kCorrupt, "expected a JSON object, found " + shown(root), place};
  if (const auto nested = at_path(root, "text_config")) {
    if (!nested->is_object()) {
      return Error{Code::kInvalidArgument, "text_config: expected an object, found " + shown(*nested), place};
    }
    return ConfigReader(root, *nested, Spelling::kNested, place).read();
  }
  if (at_path(root, "hidden_size") || at_path(root, "num_hidden_layers")) {
    return ConfigReader(root, root, Spelling::kNested, place).read();
  }
  if (at_path(root, "dim") || at_path(root, "n_layers")) {
    return ConfigReader(root, root, Spelling::kFlat, place).read();
  }
  return Error{Code::kInvalidArgument, "none of the keys text_config, hidden_size or dim is there", place};
}

Result<Geometry> load_geometry(const std::filesystem::path& dir) {
  std::error_code ignored;
  std::filesystem::path path = dir / "config.json";
  const std::filesystem::path flat_path = dir / "inference" / "config.json";
  if (!std::filesystem::exists(path, ignored) && std::filesystem::exists(flat_path, ignored)) path = flat_path;
  TRY_ASSIGN(const std::string text, read_file(path));
  return parse_geometry(text, path.string());
}

}  // namespace monostep::model
