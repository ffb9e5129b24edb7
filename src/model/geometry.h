// Geometry: the fixed sizes and the topology of one deepseek_v41 checkpoint, as its config says; Role: what each layer
// does. Read from config.json (both spellings) by load_geometry; everything else in the project derives from this
// value. Nothing here assumes the released numbers. Sources: model.md 1.1 (keys, validation), 1.3 (roles).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace monostep::model {

struct RopeScaling {  // YaRN
  double factor = 1;
  double beta_fast = 32;
  double beta_slow = 1;
  int original_max_position_embeddings = 0;
  bool operator==(const RopeScaling&) const = default;
};

struct Vision {  // sizes of the vision tower: only what the checkpoint's tensor list needs (it is not loaded)
  int num_layers = 0;
  int hidden_size = 0;
  int intermediate_size = 0;
  int patch_size = 0;
  int downsample = 0;
  bool operator==(const Vision&) const = default;
};

// The config's keys in the checkpoint's Hugging Face spelling.
struct Geometry {
  int vocab_size = 0;
  int hidden_size = 0;
  int num_hidden_layers = 0;
  int num_attention_heads = 0;
  int head_dim = 0;
  int qk_rope_head_dim = 0;
  int q_lora_rank = 0;
  int o_lora_rank = 0;
  int o_groups = 0;
  int moe_intermediate_size = 0;
  int n_routed_experts = 0;
  int num_experts_per_tok = 0;
  double routed_scaling_factor = 0;
  double swiglu_limit = 0;
  double rms_norm_eps = 0;
  int max_position_embeddings = 0;
  double rope_theta = 0;
  double compress_rope_theta = 0;
  RopeScaling rope_scaling;
  int sliding_window = 0;
  std::vector<int> compress_ratios;         // [num_hidden_layers + num_nextn_predict_layers], each 0, 1 or 2
  std::vector<int> kv_source_layer_ids;     // ascending
  std::vector<int> index_source_layer_ids;  // ascending
  int index_n_heads = 0;
  int index_head_dim = 0;
  int index_topk = 0;
  int candidate_source_layer_id = -1;  // -1: no candidates
  int candidate_topk_blocks = 0;
  int candidate_block_size = 0;
  int hc_mult = 0;
  int hc_sinkhorn_iters = 0;
  double hc_eps = 0;
  std::vector<int> engram_layer_ids;           // ascending
  std::vector<int64_t> engram_num_embeddings;  // rows per Engram layer
  int engram_max_ngram_size = 0;
  int engram_n_heads = 0;
  int engram_head_dim = 0;
  int64_t engram_vocab_size = 0;  // where the search for primes starts
  int engram_pad_token_id = 0;
  int engram_compressed_vocab_size = 0;
  int num_nextn_predict_layers = 0;
  int dspark_block_size = 0;
  int dspark_noise_token_id = 0;
  std::vector<int> dspark_target_layer_ids;  // ascending
  int dspark_markov_rank = 0;
  int dspark_n_routed_experts = 0;     // never 0 here: 0 in the config means the backbone's value
  int dspark_num_experts_per_tok = 0;  // same
  int bos_token_id = 0;
  int eos_token_id = 1;
  int image_token_id = -1;
  std::optional<Vision> vision;

  bool operator==(const Geometry&) const = default;
  int num_layers() const { return num_hidden_layers + num_nextn_predict_layers; }  // backbone then draft
  bool is_draft(int layer_idx) const { return layer_idx >= num_hidden_layers; }
  int num_experts(int layer_idx) const { return is_draft(layer_idx) ? dspark_n_routed_experts : n_routed_experts; }
  int experts_per_token(int layer_idx) const {
    return is_draft(layer_idx) ? dspark_num_experts_per_tok : num_experts_per_tok;
  }
  int num_engram_columns() const { return (engram_max_ngram_size - 1) * engram_n_heads; }
  int num_taps() const { return static_cast<int>(dspark_target_layer_ids.size()); }
  // Tensor name prefix of a layer: "layers.7." or, for draft layers, "mtp.0.".
  std::string prefix(int layer_idx) const;
};

enum class Mode {
  kWindow,   // ratio 0: the window ring alone
  kFull,     // owns compressed KV and index keys, and selects
  kReindex,  // selects with its own queries over its owner's keys
  kReuse,    // takes owner's KV and the selection of the latest index source
};
std::string_view mode_name(Mode mode);

// What one layer does (model.md 1.3). Indices are layer indices unless named otherwise; -1 means none.
struct Role {
  Mode mode = Mode::kWindow;
  int ratio = 0;
  bool draft = false;
  int kv_owner = -1;      // layer whose compressed KV it reads (itself for kFull)
  int owner_idx = -1;     // position of kv_owner in kv_source_layer_ids
  int index_source = -1;  // layer whose selection it attends to (itself for kFull and kReindex)
  bool candidate_source = false;
  int candidates_from =
      -1;               // kReindex behind the candidate source: that layer; its scores are masked to the candidates
  int engram_idx = -1;  // position in engram_layer_ids
  int tap_idx = -1;     // position in dspark_target_layer_ids

  bool operator==(const Role&) const = default;
};

// Roles of all layers, backbone then draft. Precondition: validate(geometry) is ok.
std::vector<Role> layer_roles(const Geometry& geometry);

// Checks every rule of model.md 1.1; the error names the key and the value. `place` is the file's name.
Status validate(const Geometry& geometry, const std::string& place);

// Parses a config text in either spelling: nested (a "text_config" object or the Hugging Face keys at top level) or the
// reference's flat one ("dim", "n_layers", ...). Errors: kCorrupt (not JSON), kInvalidArgument (a key missing, of the
// wrong type or with a refused value), kUnsupported (another model_type, quantisation or activation).
Result<Geometry> parse_geometry(std::string_view text, const std::string& place);

// dir/config.json, or dir/inference/config.json where the former is absent.
Result<Geometry> load_geometry(const std::filesystem::path& dir);

// The nested config.json and the flat inference/config.json of a geometry (make-model writes them; parse_geometry reads
// both back to the same value).
std::string nested_config_json(const Geometry& geometry);
std::string flat_config_json(const Geometry& geometry);

// Geometries known by name: flash (the released model, with its vision part), micro, clone40, realdims, demo.
Result<Geometry> named_geometry(std::string_view name);
const std::vector<std::string>& geometry_names();

}  // namespace monostep::model
