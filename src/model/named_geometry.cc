// The geometries that are known by name: the released model, the three golden ones, and `demo`, the default model of
// make-model. Called by the commands that take a geometry name and by tests.
#include <fmt/format.h>

#include "model/geometry.h"

namespace monostep::model {
namespace {

void append(std::vector<int>& list, int count, int value) {
  list.insert(list.end(), static_cast<size_t>(count), value);
}

Geometry flash() {
  Geometry g;
  g.vocab_size = 129280;
  g.hidden_size = 5120;
  g.num_hidden_layers = 40;
  g.num_attention_heads = 64;
  g.head_dim = 512;
  g.qk_rope_head_dim = 64;
  g.q_lora_rank = 1280;
  g.o_lora_rank = 1024;
  g.o_groups = 8;
  g.moe_intermediate_size = 2304;
  g.n_routed_experts = 384;
  g.num_experts_per_tok = 6;
  g.routed_scaling_factor = 1.5;
  g.swiglu_limit = 10.0;
  g.rms_norm_eps = 1e-20;
  g.max_position_embeddings = 1048576;
  g.rope_theta = 10000;
  g.compress_rope_theta = 160000;
  g.rope_scaling = {.factor = 16, .beta_fast = 32, .beta_slow = 1, .original_max_position_embeddings = 65536};
  g.sliding_window = 128;
  append(g.compress_ratios, 2, 0);
  append(g.compress_ratios, 18, 2);
  append(g.compress_ratios, 20, 1);
  append(g.compress_ratios, 3, 0);
  g.kv_source_layer_ids = {2, 8, 14, 20};
  g.index_source_layer_ids = {2, 8, 14, 20, 24, 28, 32, 36};
  g.index_n_heads = 32;
  g.index_head_dim = 128;
  g.index_topk = 512;
  g.candidate_source_layer_id = 20;
  g.candidate_topk_blocks = 2048;
  g.candidate_block_size = 8;
  g.hc_mult = 4;
  g.hc_sinkhorn_iters = 20;
  g.hc_eps = 1e-6;
  g.engram_layer_ids = {1, 14};
  g.engram_num_embeddings = {384006168, 384016682};
  g.engram_max_ngram_size = 4;
  g.engram_n_heads = 8;
  g.engram_head_dim = 256;
  g.engram_vocab_size = 16000000;
  g.engram_pad_token_id = 2;
  g.engram_compressed_vocab_size = 99092;
  g.num_nextn_predict_layers = 3;
  g.dspark_block_size = 5;
  g.dspark_noise_token_id = 128799;
  g.dspark_target_layer_ids = {37, 38, 39};
  g.dspark_markov_rank = 256;
  g.dspark_n_routed_experts = 128;
  g.dspark_num_experts_per_tok = 3;
  g.image_token_id = 129264;
  g.vision = {.num_layers = 32, .hidden_size = 1024, .intermediate_size = 2816, .patch_size = 14, .downsample = 3};
  return g;
}

// The released topology without vision at small widths.
Geometry clone40() {
  Geometry g = flash();
  g.image_token_id = -1;
  g.vision.reset();
  g.vocab_size = 512;
  g.hidden_size = 256;
  g.num_attention_heads = 16;
  g.head_dim = 64;
  g.qk_rope_head_dim = 32;
  g.q_lora_rank = 64;
  g.o_lora_rank = 32;
  g.moe_intermediate_size = 256;
  g.n_routed_experts = 16;
  g.max_position_embeddings = 4096;
  g.rope_scaling.original_max_position_embeddings = 64;
  g.sliding_window = 32;
  g.index_n_heads = 8;
  g.index_head_dim = 32;
  g.index_topk = 32;
  g.candidate_topk_blocks = 8;
  g.engram_num_embeddings = {7806, 11350};
  g.engram_head_dim = 32;
  g.engram_vocab_size = 256;
  g.engram_compressed_vocab_size = 331;
  g.dspark_noise_token_id = 3;
  g.dspark_markov_rank = 32;
  g.dspark_n_routed_experts = 8;
  return g;
}

Geometry micro() {
  Geometry g = clone40();
  g.vocab_size = 128;
  g.hidden_size = 128;
  g.num_hidden_layers = 6;
  g.num_attention_heads = 4;
  g.qk_rope_head_dim = 16;
  g.o_groups = 2;
  g.moe_intermediate_size = 64;
  g.n_routed_experts = 8;
  g.num_experts_per_tok = 2;
  g.rope_scaling.factor = 4;
  g.rope_scaling.original_max_position_embeddings = 32;
  g.sliding_window = 16;
  g.compress_ratios = {0, 2, 2, 1, 1, 1, 0, 0};
  g.kv_source_layer_ids = {1, 3};
  g.index_source_layer_ids = {1, 3, 5};
  g.index_n_heads = 4;
  g.index_topk = 8;
  g.candidate_source_layer_id = 3;
  g.candidate_topk_blocks = 4;
  g.candidate_block_size = 4;
  g.engram_layer_ids = {0, 2};
  g.engram_num_embeddings = {462, 630};
  g.engram_n_heads = 2;
  g.engram_vocab_size = 64;
  g.engram_compressed_vocab_size = 97;
  g.num_nextn_predict_layers = 2;
  g.dspark_target_layer_ids = {3, 4, 5};
  g.dspark_n_routed_experts = 4;
  g.dspark_num_experts_per_tok = 2;
  return g;
}

// The released layer sizes with six layers of micro's topology.
Geometry realdims() {
  Geometry g = flash();
  g.image_token_id = -1;
  g.vision.reset();
  g.vocab_size = 4096;
  g.num_hidden_layers = 6;
  g.n_routed_experts = 16;
  g.max_position_embeddings = 4096;
  g.compress_ratios = {0, 2, 2, 1, 1, 1, 0};
  g.kv_source_layer_ids = {1, 3};
  g.index_source_layer_ids = {1, 3, 5};
  g.index_topk = 64;
  g.candidate_source_layer_id = 3;
  g.candidate_topk_blocks = 16;
  g.engram_layer_ids = {0, 2};
  g.engram_num_embeddings = {100776, 105808};
  g.engram_vocab_size = 4096;
  g.engram_compressed_vocab_size = 997;
  g.num_nextn_predict_layers = 1;
  g.dspark_noise_token_id = 3;
  g.dspark_target_layer_ids = {3, 4, 5};
  g.dspark_n_routed_experts = 8;
  return g;
}

// Every mechanism at the smallest sizes that split over four ranks; 320 ids hold the 256 bytes and the special tokens.
Geometry demo() {
  Geometry g = micro();
  g.vocab_size = 320;
  g.num_hidden_layers = 8;
  g.qk_rope_head_dim = 32;
  g.o_groups = 4;
  g.moe_intermediate_size = 128;
  g.rope_scaling = {.factor = 16, .beta_fast = 32, .beta_slow = 1, .original_max_position_embeddings = 256};
  g.sliding_window = 32;
  g.compress_ratios = {0, 0, 2, 2, 1, 1, 1, 1, 0, 0};
  g.kv_source_layer_ids = {2, 4};
  g.index_source_layer_ids = {2, 4, 6};
  g.index_topk = 16;
  g.candidate_source_layer_id = 4;
  g.candidate_topk_blocks = 8;
  g.engram_layer_ids = {1, 3};
  g.engram_num_embeddings = {12764, 13780};
  g.engram_n_heads = 4;
  g.engram_vocab_size = 1024;
  g.engram_compressed_vocab_size = 291;
  g.dspark_target_layer_ids = {5, 6, 7};
  return g;
}

}  // namespace

const std::vector<std::string>& geometry_names() {
  static const std::vector<std::string> names = {"flash", "micro", "clone40", "realdims", "demo"};
  return names;
}

Result<Geometry> named_geometry(std::string_view name) {
  if (name == "flash") return flash();
  if (name == "micro") return micro();
  if (name == "clone40") return clone40();
  if (name == "realdims") return realdims();
  if (name == "demo") return demo();
  return Error{Code::kNotFound,
               fmt::format("no geometry is named \"{}\"; the names are {}", name, fmt::join(geometry_names(), ", ")),
               "geometry"};
}

}  // namespace monostep::model
