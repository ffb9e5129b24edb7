// The rules between the values of a Geometry (model.md 1.1), each refused by the name of its key. Called by
// parse_geometry for every file and by make-model for hand-made geometries. Also bounds what a hostile config could
// make others allocate.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>

#include "model/config_keys.h"
#include "model/engram.h"
#include "model/geometry.h"

namespace monostep::model {
namespace {

constexpr int kGroup = 32;              // K elements of one scale
constexpr int kMaxLayers = 1024;        // backbone and draft together
constexpr int kMaxExperts = 1 << 18;    // experts of all layers together
constexpr int kMaxPositions = 1 << 24;  // positions are exact in fp32 up to here
constexpr int kMaxStreams = 64;         // hc_mult
constexpr int kMaxIterations = 1024;    // Sinkhorn
constexpr int kMaxDraftLength = 1024;   // dspark_block_size
constexpr int kMaxPatch = 1 << 14;      // pixels of a side of a vision patch; patches of a side of an aligner window
constexpr int kMaxPrimes = 1 << 14;     // Engram columns of all layers together

class Rules {
 public:
  Rules(const Geometry& geometry, const std::string& place, Spelling spelling)
      : geometry_(geometry), place_(place), spelling_(spelling) {}

  Status check() const {
    TRY(check_numbers());
    TRY(check_limits());
    TRY(check_widths());
    TRY(check_layers());
    TRY(check_sources());
    TRY(check_candidates());
    TRY(check_tokens());
    if (!geometry_.engram_layer_ids.empty()) TRY(check_engram());
    if (geometry_.num_nextn_predict_layers != 0) TRY(check_draft());
    return check_vision();
  }

 private:
  Status check_numbers() const;
  Status check_limits() const;
  Status check_widths() const;
  Status check_layers() const;
  Status check_owner(int layer_idx) const;
  Status check_sources() const;
  Status check_candidates() const;
  Status check_tokens() const;
  Status check_engram() const;
  Status check_draft() const;
  Status check_vision() const;

  Status positive(const Key& key, int64_t value) const;
  Status positive(const Key& key, double value) const;
  Status at_most(std::string_view key, int64_t value, int64_t limit) const;
  Status product_fits(std::string_view key, int64_t value, int64_t other) const;
  Status multiple_of_group(std::string_view key, int value) const;
  Status token_id(std::string_view key, int value) const;
  Status ascending_layers(std::string_view key, const std::vector<int>& ids) const;

  // `key` in the nested spelling; the error names it as the file does.
  Error refuse(std::string_view key, std::string_view text) const {
    return Error{Code::kInvalidArgument, fmt::format("{}: {}", key_name(key, spelling_), text), place_};
  }
  std::string name(std::string_view key) const { return std::string(key_name(key, spelling_)); }

  const Geometry& geometry_;
  const std::string& place_;
  Spelling spelling_;
};

bool contains(const std::vector<int>& ids, int id) { return std::find(ids.begin(), ids.end(), id) != ids.end(); }

// The latest id at or before a layer, -1 where there is none.
int latest_at(const std::vector<int>& ids, int layer_idx) {
  const auto after = std::upper_bound(ids.begin(), ids.end(), layer_idx);
  return after == ids.begin() ? -1 : *(after - 1);
}

Status Rules::positive(const Key& key, int64_t value) const {
  if (value >= 1) return {};
  return refuse(key.nested, fmt::format("expected a positive integer below 2^31, found {}", value));
}

Status Rules::positive(const Key& key, double value) const {
  const float rounded = static_cast<float>(value);
  if (rounded > 0 && std::isfinite(rounded)) return {};
  return refuse(key.nested, fmt::format("expected a positive fp32 number, found {}", value));
}

Status Rules::at_most(std::string_view key, int64_t value, int64_t limit) const {
  if (value <= limit) return {};
  return refuse(key, fmt::format("expected at most {}, found {}", limit, value));
}

Status Rules::product_fits(std::string_view key, int64_t value, int64_t other) const {
  if (value * other <= INT32_MAX) return {};
  return refuse(key, fmt::format("{} times {} is not below 2^31", value, other));
}

Status Rules::multiple_of_group(std::string_view key, int value) const {
  if (value % kGroup == 0) return {};
  return refuse(key, fmt::format("expected a multiple of {}, found {}", kGroup, value));
}

Status Rules::token_id(std::string_view key, int value) const {
  if (value >= 0 && value < geometry_.vocab_size) return {};
  return refuse(key,
                fmt::format("expected a token id below the vocabulary's {}, found {}", geometry_.vocab_size, value));
}

Status Rules::ascending_layers(std::string_view key, const std::vector<int>& ids) const {
  int previous = -1;
  for (const int id : ids) {
    if (id < 0 || id >= geometry_.num_hidden_layers) {
      return refuse(key, fmt::format("layer {} is not one of the {} backbone layers", id, geometry_.num_hidden_layers));
    }
    if (id <= previous) {
      return refuse(key, fmt::format("expected ascending layers without repeats, found {} after {}", id, previous));
    }
    previous = id;
  }
  return {};
}

Status Rules::check_numbers() const {
  TRY(visit_keys(geometry_, [&](const Key& key, const auto& value) -> Status {
    using Value = std::remove_cvref_t<decltype(value)>;
    if constexpr (std::is_same_v<Value, double>) return positive(key, value);
    if constexpr (std::is_integral_v<Value>) {
      const bool used = is_needed(key.need, geometry_, Spelling::kNested);
      if (key.positive && used) return positive(key, static_cast<int64_t>(value));
    }
    return {};
  }));
  if (geometry_.num_nextn_predict_layers < 0) {
    return refuse("num_nextn_predict_layers",
                  fmt::format("expected 0 or a positive integer, found {}", geometry_.num_nextn_predict_layers));
  }
  TRY(at_most("num_hidden_layers", geometry_.num_hidden_layers, kMaxLayers));
  return at_most("num_nextn_predict_layers", geometry_.num_nextn_predict_layers,
                 kMaxLayers - geometry_.num_hidden_layers);
}

Status Rules::check_limits() const {
  const Geometry& g = geometry_;
  TRY(at_most("n_routed_experts", g.n_routed_experts, kMaxExperts / g.num_hidden_layers));
  TRY(at_most("num_experts_per_tok", g.num_experts_per_tok, g.n_routed_experts));
  TRY(at_most("max_position_embeddings", g.max_position_embeddings, kMaxPositions));
  TRY(at_most("index_topk", g.index_topk, g.max_position_embeddings));
  TRY(at_most("sliding_window", g.sliding_window, g.max_position_embeddings));
  TRY(at_most("hc_mult", g.hc_mult, kMaxStreams));
  TRY(at_most("hc_sinkhorn_iters", g.hc_sinkhorn_iters, kMaxIterations));
  TRY(product_fits("hidden_size", g.hidden_size, g.hc_mult + 1));
  TRY(product_fits("num_attention_heads", g.num_attention_heads, g.head_dim));
  TRY(product_fits("o_lora_rank", g.o_lora_rank, g.o_groups));
  TRY(product_fits("index_n_heads", g.index_n_heads, g.index_head_dim));
  if (!(g.rope_theta > 1)) return refuse("rope_theta", fmt::format("expected more than 1, found {}", g.rope_theta));
  if (!(g.compress_rope_theta > 1)) {
    return refuse("compress_rope_theta", fmt::format("expected more than 1, found {}", g.compress_rope_theta));
  }
  if (!(g.rope_scaling.factor >= 1)) {
    return refuse("rope_scaling.factor", fmt::format("expected at least 1, found {}", g.rope_scaling.factor));
  }
  return {};
}

Status Rules::check_widths() const {
  const Geometry& g = geometry_;
  TRY(multiple_of_group("hidden_size", g.hidden_size));
  TRY(multiple_of_group("head_dim", g.head_dim));
  TRY(multiple_of_group("q_lora_rank", g.q_lora_rank));
  TRY(multiple_of_group("o_lora_rank", g.o_lora_rank));
  TRY(multiple_of_group("moe_intermediate_size", g.moe_intermediate_size));
  TRY(multiple_of_group("index_head_dim", g.index_head_dim));
  if (g.qk_rope_head_dim % 2 != 0) {
    return refuse("qk_rope_head_dim", fmt::format("expected an even number, found {}", g.qk_rope_head_dim));
  }
  TRY(at_most("qk_rope_head_dim", g.qk_rope_head_dim, g.head_dim));
  if (g.index_head_dim < g.qk_rope_head_dim) {
    return refuse("index_head_dim", fmt::format("expected at least the {} rotated elements, found {}",
                                                g.qk_rope_head_dim, g.index_head_dim));
  }
  if (g.num_attention_heads % g.o_groups != 0) {
    return refuse("o_groups", fmt::format("{} does not divide the {} heads", g.o_groups, g.num_attention_heads));
  }
  return {};
}

Status Rules::check_layers() const {
  const Geometry& g = geometry_;
  const std::string_view key = "compress_ratios";
  if (static_cast<int>(g.compress_ratios.size()) != g.num_layers()) {
    return refuse(key, fmt::format("expected one entry for each of the {} backbone and draft layers, found {}",
                                   g.num_layers(), g.compress_ratios.size()));
  }
  for (int layer_idx = 0; layer_idx < g.num_layers(); ++layer_idx) {
    const int ratio = g.compress_ratios[layer_idx];
    if (ratio < 0 || ratio > 2) {
      return refuse(key, fmt::format("expected 0, 1 or 2 for layer {}, found {}", layer_idx, ratio));
    }
    if (g.is_draft(layer_idx) && ratio != 0) {
      return refuse(key, fmt::format("expected 0 for draft layer {}, found {}", layer_idx, ratio));
    }
  }
  return {};
}

// A compressed layer reads from the latest KV source at or before it, so that source must have its ratio.
Status Rules::check_owner(int layer_idx) const {
  const int ratio = geometry_.compress_ratios[layer_idx];
  if (ratio == 0) return {};
  const int owner = latest_at(geometry_.kv_source_layer_ids, layer_idx);
  const std::string key = name("kv_source_layer_ids");
  if (owner < 0) {
    return refuse("compress_ratios",
                  fmt::format("layer {} has ratio {}, but no layer of {} at or before it", layer_idx, ratio, key));
  }
  if (geometry_.compress_ratios[owner] != ratio) {
    return refuse("compress_ratios",
                  fmt::format("layer {} has ratio {}, but its KV source {} (the latest of {}) has {}", layer_idx, ratio,
                              owner, key, geometry_.compress_ratios[owner]));
  }
  return {};
}

Status Rules::check_sources() const {
  const Geometry& g = geometry_;
  TRY(ascending_layers("kv_source_layer_ids", g.kv_source_layer_ids));
  TRY(ascending_layers("index_source_layer_ids", g.index_source_layer_ids));
  for (const int id : g.kv_source_layer_ids) {
    if (!contains(g.index_source_layer_ids, id)) {
      return refuse("index_source_layer_ids",
                    fmt::format("KV source {} of {} is not in the list", id, name("kv_source_layer_ids")));
    }
    if (g.compress_ratios[id] == 0) {
      return refuse("kv_source_layer_ids", fmt::format("layer {} has ratio 0 in {}", id, name("compress_ratios")));
    }
  }
  for (const int id : g.index_source_layer_ids) {
    if (g.compress_ratios[id] == 0) {
      return refuse("index_source_layer_ids", fmt::format("layer {} has ratio 0 in {}", id, name("compress_ratios")));
    }
  }
  for (int layer_idx = 0; layer_idx < g.num_hidden_layers; ++layer_idx) TRY(check_owner(layer_idx));
  return {};
}

Status Rules::check_candidates() const {
  const Geometry& g = geometry_;
  const int source = g.candidate_source_layer_id;
  if (source == -1) return {};
  const std::string_view key = "candidate_source_layer_id";
  if (!contains(g.index_source_layer_ids, source)) {
    return refuse(key, fmt::format("expected -1 or a layer of {}, found {}", name("index_source_layer_ids"), source));
  }
  for (const int id : g.index_source_layer_ids) {
    const int owner = latest_at(g.kv_source_layer_ids, id);
    const int own = latest_at(g.kv_source_layer_ids, source);
    if (id > source && owner != own) {
      return refuse(key,
                    fmt::format("{} has KV source {}, but the later index source {} has {}", source, own, id, owner));
    }
  }
  TRY(positive(Key{"candidate_topk_blocks", ""}, static_cast<int64_t>(g.candidate_topk_blocks)));
  TRY(positive(Key{"candidate_block_size", ""}, static_cast<int64_t>(g.candidate_block_size)));
  TRY(at_most("candidate_block_size", g.candidate_block_size, g.max_position_embeddings));
  // The last candidate page may hold as little as one visible position.
  const int64_t page = g.candidate_block_size;
  const int64_t certain = g.candidate_topk_blocks * page - (page - 1);
  if (certain >= g.index_topk) return {};
  return refuse("candidate_topk_blocks",
                fmt::format("{} of {} positions may hold only {}, fewer than {} = {}", g.candidate_topk_blocks, page,
                            certain, name("index_topk"), g.index_topk));
}

Status Rules::check_tokens() const {
  TRY(token_id("bos_token_id", geometry_.bos_token_id));
  TRY(token_id("eos_token_id", geometry_.eos_token_id));
  if (geometry_.image_token_id == -1) return {};
  return token_id("image_token_id", geometry_.image_token_id);
}

Status Rules::check_engram() const {
  const Geometry& g = geometry_;
  TRY(ascending_layers("engram_layer_ids", g.engram_layer_ids));
  const int64_t num_tables = static_cast<int64_t>(g.engram_layer_ids.size());
  if (static_cast<int64_t>(g.engram_num_embeddings.size()) != num_tables) {
    return refuse("engram_num_embeddings",
                  fmt::format("expected one entry for each of the {} layers of {}, found {}", num_tables,
                              name("engram_layer_ids"), g.engram_num_embeddings.size()));
  }
  if (g.engram_max_ngram_size < 2) {
    return refuse("engram_max_ngram_size", fmt::format("expected at least 2, found {}", g.engram_max_ngram_size));
  }
  const int64_t max_columns = kMaxPrimes / num_tables;
  TRY(at_most("engram_max_ngram_size", g.engram_max_ngram_size, max_columns));
  TRY(at_most("engram_n_heads", g.engram_n_heads, max_columns / (g.engram_max_ngram_size - 1)));
  TRY(multiple_of_group("engram_head_dim", g.engram_head_dim));
  TRY(product_fits("engram_head_dim", g.engram_head_dim, g.num_engram_columns()));
  TRY(at_most("engram_vocab_size", g.engram_vocab_size, INT32_MAX));
  TRY(at_most("engram_compressed_vocab_size", g.engram_compressed_vocab_size, g.vocab_size));
  TRY(token_id("engram_pad_token_id", g.engram_pad_token_id));
  const std::vector<EngramTable> tables = engram_tables(g);
  for (size_t table_idx = 0; table_idx < tables.size(); ++table_idx) {
    if (tables[table_idx].num_rows == g.engram_num_embeddings[table_idx]) continue;
    return refuse("engram_num_embeddings",
                  fmt::format("the primes of layer {} sum to {} rows, found {}", g.engram_layer_ids[table_idx],
                              tables[table_idx].num_rows, g.engram_num_embeddings[table_idx]));
  }
  return {};
}

Status Rules::check_draft() const {
  const Geometry& g = geometry_;
  TRY(at_most("dspark_block_size", g.dspark_block_size, kMaxDraftLength));
  TRY(token_id("dspark_noise_token_id", g.dspark_noise_token_id));
  TRY(ascending_layers("dspark_target_layer_ids", g.dspark_target_layer_ids));
  if (g.dspark_target_layer_ids.empty())
    return refuse("dspark_target_layer_ids", "expected at least one layer, found []");
  TRY(product_fits("dspark_target_layer_ids", static_cast<int64_t>(g.dspark_target_layer_ids.size()), g.hidden_size));
  TRY(multiple_of_group("dspark_markov_rank", g.dspark_markov_rank));
  TRY(positive(Key{"dspark_n_routed_experts", ""}, static_cast<int64_t>(g.dspark_n_routed_experts)));
  TRY(positive(Key{"dspark_num_experts_per_tok", ""}, static_cast<int64_t>(g.dspark_num_experts_per_tok)));
  TRY(at_most("dspark_n_routed_experts", g.dspark_n_routed_experts, kMaxExperts / g.num_nextn_predict_layers));
  return at_most("dspark_num_experts_per_tok", g.dspark_num_experts_per_tok, g.dspark_n_routed_experts);
}

Status Rules::check_vision() const {
  if (!geometry_.vision) return {};
  const Vision& vision = *geometry_.vision;
  TRY(visit_vision_keys(vision, [&](const Key& key, int value) { return positive(key, static_cast<int64_t>(value)); }));
  TRY(at_most("vision_config.num_hidden_layers", vision.num_layers, kMaxLayers));
  TRY(product_fits("vision_config.intermediate_size", vision.intermediate_size, 2));
  TRY(at_most("vision_config.patch_size", vision.patch_size, kMaxPatch));
  TRY(at_most("vision_config.downsample_ratio", vision.downsample, kMaxPatch));
  TRY(product_fits("vision_config.hidden_size", vision.hidden_size, 3));
  return product_fits("vision_config.hidden_size", vision.hidden_size, int64_t{vision.downsample} * vision.downsample);
}

}  // namespace

Status validate_spelled(const Geometry& geometry, const std::string& place, Spelling spelling) {
  return Rules(geometry, place, spelling).check();
}

Status validate(const Geometry& geometry, const std::string& place) {
  return validate_spelled(geometry, place, Spelling::kNested);
}

}  // namespace monostep::model
