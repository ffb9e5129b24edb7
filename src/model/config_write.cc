// Writes a Geometry as the nested config.json and as the flat inference/config.json, in the order and layout of the
// golden configs. Called by make-model; parse_geometry reads both back to the same value.
#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "base/json_text.h"
#include "model/config_keys.h"
#include "model/geometry.h"

namespace monostep::model {
namespace {

class JsonObject {  // one member a line, one space of indentation a level
 public:
  explicit JsonObject(int depth) : indent_(static_cast<size_t>(depth), ' ') {}

  void add(std::string_view name, std::string_view json) {
    text_ += fmt::format("{}\n{} \"{}\": {}", text_.empty() ? "" : ",", indent_, name, json);
  }
  template <typename Value>
  void add_list(std::string_view name, const std::vector<Value>& values) {
    if (values.empty()) return add(name, "[]");
    const std::string separator = fmt::format(",\n{}  ", indent_);
    add(name, fmt::format("[\n{0}  {1}\n{0} ]", indent_, fmt::join(values, separator)));
  }
  std::string text() const { return fmt::format("{{{}\n{}}}", text_, indent_); }

 private:
  std::string indent_;
  std::string text_;
};

std::string json_number(std::string_view nested_key, double value) {
  const bool rope = nested_key.starts_with("rope_") || nested_key == "compress_rope_theta";
  constexpr double kExact = 1e15;  // integers below are written in full
  if (rope && value == std::trunc(value) && value < kExact) return fmt::format("{}", static_cast<int64_t>(value));
  std::string text;
  append_json_number(text, value);
  return text;
}

// Adds the values of listed keys (by their nested names) to an object, in the spelling of the file.
class KeyWriter {
 public:
  KeyWriter(const Geometry& geometry, Spelling spelling, JsonObject& object)
      : geometry_(geometry), spelling_(spelling), object_(object) {}

  void write(std::string_view nested_key) {
    const auto add = [&](const Key& key, const auto& value) -> Status {
      if (key.nested == nested_key) add_value(key, value);
      return {};
    };
    CHECK(visit_keys(geometry_, add).ok(), "writing a key cannot fail");
  }
  void write_all(const std::vector<std::string_view>& nested_keys) {
    for (const std::string_view key : nested_keys) write(key);
  }

 private:
  std::string_view member_name(const Key& key) const {
    const std::string_view name = key.name(spelling_);
    return name.substr(name.find('.') + 1);  // npos + 1 is 0
  }
  void add_value(const Key& key, double value) { object_.add(member_name(key), json_number(key.nested, value)); }
  void add_value(const Key& key, int value) { object_.add(member_name(key), fmt::format("{}", value)); }
  void add_value(const Key& key, int64_t value) { object_.add(member_name(key), fmt::format("{}", value)); }
  template <typename Integer>
  void add_value(const Key& key, const std::vector<Integer>& values) {
    object_.add_list(member_name(key), values);
  }

  const Geometry& geometry_;
  Spelling spelling_;
  JsonObject& object_;
};

std::string quantization_json() {
  JsonObject object(1);
  object.add("quant_method", "\"fp8\"");
  object.add("activation_scheme", "\"dynamic\"");
  object.add_list("weight_block_size", std::vector<int>{32, 32});
  object.add("scale_fmt", "\"ue8m0\"");
  object.add("expert_dtype", "\"fp4\"");
  return object.text();
}

std::string rope_scaling_json(const Geometry& geometry) {
  JsonObject object(2);
  object.add("type", "\"yarn\"");
  KeyWriter(geometry, Spelling::kNested, object)
      .write_all({"rope_scaling.factor", "rope_scaling.beta_fast", "rope_scaling.beta_slow",
                  "rope_scaling.original_max_position_embeddings"});
  return object.text();
}

void write_text_constants(const Geometry& geometry, JsonObject& object) {
  object.add("model_type", "\"deepseek_v41_text\"");
  object.add("num_key_value_heads", "1");
  object.add("topk_method", "\"noaux_tc\"");
  object.add("norm_topk_prob", "true");
  object.add("hidden_act", "\"silu\"");
  KeyWriter(geometry, Spelling::kNested, object).write("max_position_embeddings");
  object.add("attention_bias", "false");
  object.add("attention_dropout", "0.0");
  object.add("tie_word_embeddings", "false");
  object.add("use_cache", "true");
  object.add("rope_scaling", rope_scaling_json(geometry));
}

std::string text_config_json(const Geometry& geometry) {
  JsonObject object(1);
  write_text_constants(geometry, object);
  KeyWriter writer(geometry, Spelling::kNested, object);
  writer.write_all({"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "head_dim",
                    "qk_rope_head_dim", "q_lora_rank", "o_lora_rank", "o_groups", "moe_intermediate_size",
                    "n_routed_experts", "num_experts_per_tok"});
  object.add("n_shared_experts", "1");
  object.add("scoring_func", "\"sqrtsoftplus\"");
  writer.write_all({"routed_scaling_factor",
                    "swiglu_limit",
                    "rms_norm_eps",
                    "rope_theta",
                    "compress_rope_theta",
                    "sliding_window",
                    "compress_ratios",
                    "kv_source_layer_ids",
                    "index_source_layer_ids",
                    "index_n_heads",
                    "index_head_dim",
                    "index_topk",
                    "candidate_source_layer_id",
                    "candidate_topk_blocks",
                    "candidate_block_size",
                    "hc_mult",
                    "hc_sinkhorn_iters",
                    "hc_eps",
                    "engram_layer_ids",
                    "engram_num_embeddings",
                    "engram_max_ngram_size",
                    "engram_n_heads",
                    "engram_head_dim",
                    "engram_vocab_size",
                    "engram_pad_token_id",
                    "engram_compressed_vocab_size",
                    "num_nextn_predict_layers",
                    "dspark_block_size",
                    "dspark_noise_token_id",
                    "dspark_target_layer_ids",
                    "dspark_markov_rank",
                    "dspark_n_routed_experts",
                    "dspark_num_experts_per_tok"});
  return object.text();
}

void write_vision(const Vision& vision, Spelling spelling, JsonObject& object) {
  const auto add = [&](const Key& key, int value) -> Status {
    const std::string_view name = key.name(spelling);
    object.add(name.substr(name.find('.') + 1), fmt::format("{}", value));
    return {};
  };
  CHECK(visit_vision_keys(vision, add).ok(), "writing a key cannot fail");
}

// Keys that the reference's file does not have, written where a reader's default would be another value.
void write_flat_extras(const Geometry& geometry, JsonObject& object) {
  KeyWriter writer(geometry, Spelling::kFlat, object);
  const Geometry defaults;
  if (geometry.max_position_embeddings != default_max_positions(geometry.rope_scaling)) {
    writer.write("max_position_embeddings");
  }
  if (geometry.bos_token_id != defaults.bos_token_id) writer.write("bos_token_id");
  if (geometry.eos_token_id != defaults.eos_token_id) writer.write("eos_token_id");
  if (geometry.image_token_id != defaults.image_token_id) writer.write("image_token_id");
}

}  // namespace

std::string nested_config_json(const Geometry& geometry) {
  JsonObject object(0);
  object.add_list("architectures", std::vector<std::string>{"\"DeepseekV41ForCausalLM\""});
  object.add("model_type", "\"deepseek_v41\"");
  object.add("dtype", "\"bfloat16\"");
  KeyWriter writer(geometry, Spelling::kNested, object);
  writer.write_all({"bos_token_id", "eos_token_id"});
  if (geometry.image_token_id != -1) writer.write("image_token_id");
  object.add("quantization_config", quantization_json());
  object.add("text_config", text_config_json(geometry));
  if (geometry.vision) {
    JsonObject vision(1);
    write_vision(*geometry.vision, Spelling::kNested, vision);
    object.add("vision_config", vision.text());
  }
  return object.text() + "\n";
}

std::string flat_config_json(const Geometry& geometry) {
  JsonObject object(0);
  KeyWriter writer(geometry, Spelling::kFlat, object);
  object.add("score_func", "\"sqrtsoftplus\"");
  writer.write_all({"routed_scaling_factor", "swiglu_limit", "rms_norm_eps", "hc_mult", "hc_sinkhorn_iters", "hc_eps"});
  object.add("n_shared_experts", "1");
  writer.write_all({"engram_max_ngram_size", "engram_pad_token_id", "rope_theta", "compress_rope_theta",
                    "rope_scaling.beta_fast", "rope_scaling.beta_slow"});
  object.add("dtype", "\"fp8\"");
  object.add("expert_dtype", "\"fp4\"");
  if (geometry.vision) {
    write_vision(*geometry.vision, Spelling::kFlat, object);
  } else {
    object.add("vision_n_layers", "0");
  }
  writer.write_all({"dspark_block_size",
                    "dspark_noise_token_id",
                    "vocab_size",
                    "engram_compressed_vocab_size",
                    "hidden_size",
                    "num_hidden_layers",
                    "num_nextn_predict_layers",
                    "compress_ratios",
                    "kv_source_layer_ids",
                    "index_source_layer_ids",
                    "candidate_source_layer_id",
                    "num_attention_heads",
                    "head_dim",
                    "qk_rope_head_dim",
                    "q_lora_rank",
                    "o_groups",
                    "o_lora_rank",
                    "index_n_heads",
                    "index_head_dim",
                    "index_topk",
                    "candidate_topk_blocks",
                    "candidate_block_size",
                    "sliding_window",
                    "n_routed_experts",
                    "num_experts_per_tok",
                    "moe_intermediate_size",
                    "dspark_n_routed_experts",
                    "dspark_num_experts_per_tok",
                    "dspark_markov_rank",
                    "dspark_target_layer_ids",
                    "engram_layer_ids",
                    "engram_n_heads",
                    "engram_head_dim",
                    "engram_vocab_size",
                    "engram_num_embeddings",
                    "rope_scaling.original_max_position_embeddings",
                    "rope_scaling.factor"});
  write_flat_extras(geometry, object);
  return object.text() + "\n";
}

}  // namespace monostep::model
