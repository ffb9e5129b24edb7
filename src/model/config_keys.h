// The keys of a config in both spellings, each with the field of Geometry that it fills: the one table behind parsing,
// validation and writing. Internal to src/model (config_read.cc, config_write.cc, validate.cc).
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "model/geometry.h"

namespace monostep::model {

enum class Spelling { kNested, kFlat };  // config.json of Hugging Face; inference/config.json of the reference

enum class Need {  // when a file must hold the key
  kAlways,
  kNestedOnly,  // the flat spelling has a default
  kWithEngram,  // where engram_layer_ids is not empty
  kWithDraft,   // where num_nextn_predict_layers is not 0
  kOptional,
};

struct Key {
  std::string_view nested;  // a dot enters an object
  std::string_view flat;
  Need need = Need::kAlways;
  bool positive = true;  // integers: at least 1 (where the key is needed)

  std::string_view name(Spelling spelling) const { return spelling == Spelling::kFlat ? flat : nested; }
};

bool is_needed(Need need, const Geometry& geometry, Spelling spelling);

// The name of a key in a spelling, from its nested name.
std::string_view key_name(std::string_view nested, Spelling spelling);

// What a flat file without max_seq_len means: the reference's default, or the length that YaRN stretches to.
int default_max_positions(const RopeScaling& scaling);

// validate() with the names of the spelling that was read.
Status validate_spelled(const Geometry& geometry, const std::string& place, Spelling spelling);

// Calls visit(Key, field) for every key until one fails. Keys that decide whether others are needed come first.
template <typename AnyGeometry, typename Visit>
Status visit_topology_keys(AnyGeometry& g, Visit&& visit) {
  TRY(visit(Key{"num_hidden_layers", "n_layers"}, g.num_hidden_layers));
  TRY(visit(Key{"num_nextn_predict_layers", "n_mtp_layers", Need::kAlways, false}, g.num_nextn_predict_layers));
  TRY(visit(Key{"engram_layer_ids", "engram_layer_ids"}, g.engram_layer_ids));
  TRY(visit(Key{"compress_ratios", "compress_ratios"}, g.compress_ratios));
  TRY(visit(Key{"kv_source_layer_ids", "kv_source_layers"}, g.kv_source_layer_ids));
  TRY(visit(Key{"index_source_layer_ids", "index_source_layers"}, g.index_source_layer_ids));
  TRY(visit(Key{"candidate_source_layer_id", "candidate_source_layer", Need::kOptional, false},
            g.candidate_source_layer_id));
  TRY(visit(Key{"candidate_topk_blocks", "candidate_topk_blocks", Need::kOptional, false}, g.candidate_topk_blocks));
  TRY(visit(Key{"candidate_block_size", "candidate_block_size", Need::kOptional, false}, g.candidate_block_size));
  return {};
}

template <typename AnyGeometry, typename Visit>
Status visit_layer_keys(AnyGeometry& g, Visit&& visit) {
  TRY(visit(Key{"vocab_size", "vocab_size"}, g.vocab_size));
  TRY(visit(Key{"hidden_size", "dim"}, g.hidden_size));
  TRY(visit(Key{"num_attention_heads", "n_heads"}, g.num_attention_heads));
  TRY(visit(Key{"head_dim", "head_dim"}, g.head_dim));
  TRY(visit(Key{"qk_rope_head_dim", "rope_head_dim"}, g.qk_rope_head_dim));
  TRY(visit(Key{"q_lora_rank", "q_lora_rank"}, g.q_lora_rank));
  TRY(visit(Key{"o_lora_rank", "o_lora_rank"}, g.o_lora_rank));
  TRY(visit(Key{"o_groups", "o_groups"}, g.o_groups));
  TRY(visit(Key{"moe_intermediate_size", "moe_inter_dim"}, g.moe_intermediate_size));
  TRY(visit(Key{"n_routed_experts", "n_routed_experts"}, g.n_routed_experts));
  TRY(visit(Key{"num_experts_per_tok", "n_activated_experts"}, g.num_experts_per_tok));
  TRY(visit(Key{"routed_scaling_factor", "route_scale"}, g.routed_scaling_factor));
  TRY(visit(Key{"swiglu_limit", "swiglu_limit"}, g.swiglu_limit));
  TRY(visit(Key{"rms_norm_eps", "norm_eps"}, g.rms_norm_eps));
  TRY(visit(Key{"sliding_window", "window_size"}, g.sliding_window));
  TRY(visit(Key{"index_n_heads", "index_n_heads"}, g.index_n_heads));
  TRY(visit(Key{"index_head_dim", "index_head_dim"}, g.index_head_dim));
  TRY(visit(Key{"index_topk", "index_topk"}, g.index_topk));
  TRY(visit(Key{"hc_mult", "hc_mult"}, g.hc_mult));
  TRY(visit(Key{"hc_sinkhorn_iters", "hc_sinkhorn_iters"}, g.hc_sinkhorn_iters));
  TRY(visit(Key{"hc_eps", "hc_eps"}, g.hc_eps));
  return {};
}

template <typename AnyGeometry, typename Visit>
Status visit_rope_keys(AnyGeometry& g, Visit&& visit) {
  TRY(visit(Key{"rope_theta", "rope_theta"}, g.rope_theta));
  TRY(visit(Key{"compress_rope_theta", "compress_rope_theta"}, g.compress_rope_theta));
  TRY(visit(Key{"rope_scaling.factor", "rope_factor"}, g.rope_scaling.factor));
  TRY(visit(Key{"rope_scaling.beta_fast", "beta_fast"}, g.rope_scaling.beta_fast));
  TRY(visit(Key{"rope_scaling.beta_slow", "beta_slow"}, g.rope_scaling.beta_slow));
  TRY(visit(Key{"rope_scaling.original_max_position_embeddings", "original_seq_len"},
            g.rope_scaling.original_max_position_embeddings));
  TRY(visit(Key{"max_position_embeddings", "max_seq_len", Need::kNestedOnly}, g.max_position_embeddings));
  return {};
}

template <typename AnyGeometry, typename Visit>
Status visit_engram_keys(AnyGeometry& g, Visit&& visit) {
  constexpr Need kNeed = Need::kWithEngram;
  TRY(visit(Key{"engram_num_embeddings", "engram_num_embeddings", kNeed}, g.engram_num_embeddings));
  TRY(visit(Key{"engram_max_ngram_size", "engram_max_ngram_size", kNeed}, g.engram_max_ngram_size));
  TRY(visit(Key{"engram_n_heads", "engram_n_heads", kNeed}, g.engram_n_heads));
  TRY(visit(Key{"engram_head_dim", "engram_head_dim", kNeed}, g.engram_head_dim));
  TRY(visit(Key{"engram_vocab_size", "engram_vocab_size", kNeed}, g.engram_vocab_size));
  TRY(visit(Key{"engram_pad_token_id", "engram_pad_id", kNeed, false}, g.engram_pad_token_id));
  TRY(visit(Key{"engram_compressed_vocab_size", "engram_compressed_vocab_size", kNeed},
            g.engram_compressed_vocab_size));
  return {};
}

template <typename AnyGeometry, typename Visit>
Status visit_draft_keys(AnyGeometry& g, Visit&& visit) {
  constexpr Need kNeed = Need::kWithDraft;
  TRY(visit(Key{"dspark_block_size", "dspark_block_size", kNeed}, g.dspark_block_size));
  TRY(visit(Key{"dspark_noise_token_id", "dspark_noise_token_id", kNeed, false}, g.dspark_noise_token_id));
  TRY(visit(Key{"dspark_target_layer_ids", "dspark_target_layer_ids", kNeed}, g.dspark_target_layer_ids));
  TRY(visit(Key{"dspark_markov_rank", "dspark_markov_rank", kNeed}, g.dspark_markov_rank));
  TRY(visit(Key{"dspark_n_routed_experts", "dspark_n_routed_experts", Need::kOptional}, g.dspark_n_routed_experts));
  TRY(visit(Key{"dspark_num_experts_per_tok", "dspark_n_activated_experts", Need::kOptional},
            g.dspark_num_experts_per_tok));
  return {};
}

template <typename AnyGeometry, typename Visit>
Status visit_keys(AnyGeometry& g, Visit&& visit) {
  TRY(visit_topology_keys(g, visit));
  TRY(visit_layer_keys(g, visit));
  TRY(visit_rope_keys(g, visit));
  TRY(visit_engram_keys(g, visit));
  TRY(visit_draft_keys(g, visit));
  TRY(visit(Key{"bos_token_id", "bos_token_id", Need::kOptional, false}, g.bos_token_id));
  TRY(visit(Key{"eos_token_id", "eos_token_id", Need::kOptional, false}, g.eos_token_id));
  TRY(visit(Key{"image_token_id", "image_token_id", Need::kOptional, false}, g.image_token_id));
  return {};
}

template <typename AnyVision, typename Visit>
Status visit_vision_keys(AnyVision& vision, Visit&& visit) {
  TRY(visit(Key{"vision_config.num_hidden_layers", "vision_n_layers"}, vision.num_layers));
  TRY(visit(Key{"vision_config.hidden_size", "vision_dim"}, vision.hidden_size));
  TRY(visit(Key{"vision_config.intermediate_size", "vision_inter_dim"}, vision.intermediate_size));
  TRY(visit(Key{"vision_config.patch_size", "vision_patch_size"}, vision.patch_size));
  TRY(visit(Key{"vision_config.downsample_ratio", "vision_downsample_ratio", Need::kOptional}, vision.downsample));
  return {};
}

}  // namespace monostep::model
