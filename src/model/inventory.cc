// The tensor list of a geometry: names, shapes, storage and classes of model.md 2.2, in the file order of the golden
// recipe.
#include "model/inventory.h"

#include <utility>

#include "base/integer.h"

namespace monostep::model {
namespace {

constexpr int64_t kGroup = 32;  // elements that share one scale, along a row and (FP8 linears) along a column

// Where counts of elements end: more than any disk holds, and bytes of a tensor still fit 63 bits.
constexpr int64_t kMaxElements = int64_t{1} << 60;

// Appends tensors of one layer (or of no layer) to the list.
class Builder {
 public:
  Builder(std::vector<TensorSpec>& list, std::string prefix, int layer_idx)
      : list_(list), prefix_(std::move(prefix)), layer_idx_(layer_idx) {}

  // Everything of a draft layer counts as kDraft.
  void use_class(Class tensor_class) { class_ = draft_ ? Class::kDraft : tensor_class; }
  void set_draft() { draft_ = true; }
  void set_draft_expert(bool draft_expert) { draft_expert_ = draft_expert; }

  void bf16(const std::string& name, std::vector<int64_t> shape) { add(name, Dtype::kBF16, std::move(shape), false); }
  void f32(const std::string& name, std::vector<int64_t> shape) { add(name, Dtype::kF32, std::move(shape), false); }
  void fp8(const std::string& name, int64_t rows, int64_t columns) {
    add(name + ".weight", Dtype::kF8E4M3, {rows, columns}, false);
    add(name + ".scale", Dtype::kF8E8M0, {ceil_div(rows, kGroup), ceil_div(columns, kGroup)}, true);
  }
  void fp8_rows(const std::string& name, int64_t rows, int64_t columns) {
    add(name + ".weight", Dtype::kF8E4M3, {rows, columns}, false);
    add(name + ".scale", Dtype::kF8E8M0, {rows, ceil_div(columns, kGroup)}, true);
  }
  void fp4(const std::string& name, int64_t rows, int64_t columns) {
    add(name + ".weight", Dtype::kI8, {rows, columns / 2}, false);
    add(name + ".scale", Dtype::kF8E8M0, {rows, ceil_div(columns, kGroup)}, true);
  }

 private:
  void add(const std::string& name, Dtype dtype, std::vector<int64_t> shape, bool scale) {
    list_.push_back({prefix_ + name, dtype, std::move(shape), class_, layer_idx_, scale, draft_expert_});
  }

  std::vector<TensorSpec>& list_;
  std::string prefix_;
  int layer_idx_;
  Class class_ = Class::kEmbed;
  bool draft_ = false;
  bool draft_expert_ = false;
};

void add_top(std::vector<TensorSpec>& list, const Geometry& g) {
  Builder top(list, "", -1);
  top.use_class(Class::kEmbed);
  top.bf16("embed.weight", {g.vocab_size, g.hidden_size});
  top.use_class(Class::kHead);
  top.bf16("head.weight", {g.vocab_size, g.hidden_size});
  top.use_class(Class::kNorms);
  top.bf16("norm.weight", {g.hidden_size});
}

void add_hyper(Builder& layer, const Geometry& g) {
  const int64_t num_mixes = int64_t{2 + g.hc_mult} * g.hc_mult;
  layer.use_class(Class::kHyper);
  for (const std::string site : {"hc_attn", "hc_ffn"}) {
    layer.f32(site + "_fn", {num_mixes, int64_t{g.hc_mult} * g.hidden_size});
    layer.f32(site + "_base", {num_mixes});
    layer.f32(site + "_scale", {3});
  }
}

void add_attention(Builder& layer, const Geometry& g) {
  const int64_t query_width = int64_t{g.num_attention_heads} * g.head_dim;
  const int64_t output_width = int64_t{g.o_groups} * g.o_lora_rank;
  layer.use_class(Class::kNorms);
  layer.bf16("attn_norm.weight", {g.hidden_size});
  layer.bf16("ffn_norm.weight", {g.hidden_size});
  layer.use_class(Class::kAttention);
  layer.f32("attn.attn_sink", {g.num_attention_heads});
  layer.fp8("attn.wq_a", g.q_lora_rank, g.hidden_size);
  layer.use_class(Class::kNorms);
  layer.bf16("attn.q_norm.weight", {g.q_lora_rank});
  layer.use_class(Class::kAttention);
  layer.fp8("attn.wq_b", query_width, g.q_lora_rank);
  layer.fp8("attn.wkv", g.head_dim, g.hidden_size);
  layer.use_class(Class::kNorms);
  layer.bf16("attn.kv_norm.weight", {g.head_dim});
  layer.use_class(Class::kAttention);
  layer.fp8("attn.wo_a", output_width, query_width / g.o_groups);
  layer.fp8("attn.wo_b", g.hidden_size, output_width);
}

void add_compressor(Builder& layer, const Geometry& g, int ratio) {
  layer.use_class(Class::kCompressors);
  layer.bf16("attn.compressor.wkv.weight", {g.head_dim, g.hidden_size});
  if (ratio == 2) layer.bf16("attn.compressor.wgate.weight", {g.head_dim, g.hidden_size});
  layer.bf16("attn.compressor.norm.weight", {g.head_dim});
  layer.use_class(Class::kIndexers);
  layer.bf16("attn.indexer.wk.weight", {g.index_head_dim, g.head_dim});
  layer.bf16("attn.indexer.k_norm.weight", {g.index_head_dim});
}

void add_index_queries(Builder& layer, const Geometry& g) {
  layer.use_class(Class::kIndexers);
  layer.fp8("attn.indexer.wq_b", int64_t{g.index_n_heads} * g.index_head_dim, g.q_lora_rank);
  layer.bf16("attn.indexer.weights_proj.weight", {g.index_n_heads, g.hidden_size});
}

void add_experts(Builder& layer, const Geometry& g, int layer_idx) {
  const int num_experts = g.num_experts(layer_idx);
  layer.use_class(Class::kRouter);
  layer.bf16("ffn.gate.weight", {num_experts, g.hidden_size});
  layer.f32("ffn.gate.bias", {num_experts});
  layer.f32("ffn.gate.bias_vl", {num_experts});
  layer.use_class(Class::kRoutedExperts);
  layer.set_draft_expert(g.is_draft(layer_idx));
  for (int expert_idx = 0; expert_idx < num_experts; ++expert_idx) {
    const std::string expert = "ffn.experts." + std::to_string(expert_idx) + ".";
    layer.fp4(expert + "w1", g.moe_intermediate_size, g.hidden_size);
    layer.fp4(expert + "w2", g.hidden_size, g.moe_intermediate_size);
    layer.fp4(expert + "w3", g.moe_intermediate_size, g.hidden_size);
  }
  layer.set_draft_expert(false);
  layer.use_class(Class::kSharedExperts);
  layer.fp8("ffn.shared_experts.w1", g.moe_intermediate_size, g.hidden_size);
  layer.fp8("ffn.shared_experts.w2", g.hidden_size, g.moe_intermediate_size);
  layer.fp8("ffn.shared_experts.w3", g.moe_intermediate_size, g.hidden_size);
}

void add_engram_linear(Builder& layer, const Geometry& g) {
  layer.use_class(Class::kEngramLinear);
  layer.fp8("engram.wkv", int64_t{g.hc_mult + 1} * g.hidden_size, int64_t{g.num_engram_columns()} * g.engram_head_dim);
  layer.bf16("engram.q_weight", {g.hc_mult, g.hidden_size});
  layer.bf16("engram.k_weight", {g.hc_mult, g.hidden_size});
}

void add_draft_ends(Builder& layer, const Geometry& g, int layer_idx) {
  layer.use_class(Class::kDraft);
  if (layer_idx == g.num_hidden_layers) {
    layer.fp8("main_proj", g.hidden_size, int64_t{g.num_taps()} * g.hidden_size);
    layer.bf16("main_norm.weight", {g.hidden_size});
  }
  if (layer_idx == g.num_layers() - 1) {
    layer.bf16("norm.weight", {g.hidden_size});
    layer.bf16("markov_head.embed.weight", {g.vocab_size, g.dspark_markov_rank});
    layer.bf16("markov_head.head.weight", {g.vocab_size, g.dspark_markov_rank});
    layer.bf16("confidence_head.proj.weight", {1, int64_t{g.hidden_size} + g.dspark_markov_rank});
  }
}

void add_layer(std::vector<TensorSpec>& list, const Geometry& g, const Role& role, int layer_idx) {
  Builder layer(list, g.prefix(layer_idx), layer_idx);
  if (role.draft) layer.set_draft();
  add_hyper(layer, g);
  add_attention(layer, g);
  if (role.mode == Mode::kFull) add_compressor(layer, g, role.ratio);
  if (role.mode == Mode::kFull || role.mode == Mode::kReindex) add_index_queries(layer, g);
  add_experts(layer, g, layer_idx);
  if (role.engram_idx >= 0) add_engram_linear(layer, g);
  if (role.draft) add_draft_ends(layer, g, layer_idx);
}

void add_engram_tables(std::vector<TensorSpec>& list, const Geometry& g) {
  for (size_t table_idx = 0; table_idx < g.engram_layer_ids.size(); ++table_idx) {
    const int layer_idx = g.engram_layer_ids[table_idx];
    Builder layer(list, g.prefix(layer_idx), layer_idx);
    layer.use_class(Class::kEngramTables);
    layer.fp8_rows("engram.embed", g.engram_num_embeddings[table_idx], g.engram_head_dim);
  }
}

void add_vision(std::vector<TensorSpec>& list, const Geometry& g, const Vision& vision) {
  const int64_t width = vision.hidden_size, inner = vision.intermediate_size, hidden = g.hidden_size;
  Builder top(list, "", -1);
  top.use_class(Class::kVision);
  for (const char* name : {"image_start", "image_end", "image_newline"}) top.bf16(name, {hidden});
  top.bf16("aligner.w1.weight", {hidden, width * vision.downsample * vision.downsample});
  top.bf16("aligner.w1.bias", {hidden});
  top.bf16("aligner.w2.weight", {hidden, hidden});
  top.bf16("aligner.w2.bias", {hidden});
  top.bf16("vision.patch_embed.proj.weight", {width, int64_t{3} * vision.patch_size * vision.patch_size});
  top.bf16("vision.patch_embed.proj.bias", {width});
  for (int layer_idx = 0; layer_idx < vision.num_layers; ++layer_idx) {
    const std::string layer = "vision.blocks." + std::to_string(layer_idx) + ".";
    top.bf16(layer + "norm1.weight", {width});
    top.bf16(layer + "norm2.weight", {width});
    top.bf16(layer + "attn.wqkv.weight", {3 * width, width});
    top.bf16(layer + "attn.wqkv.bias", {3 * width});
    top.bf16(layer + "attn.wo.weight", {width, width});
    top.bf16(layer + "attn.wo.bias", {width});
    top.bf16(layer + "mlp.w1.weight", {2 * inner, width});
    top.bf16(layer + "mlp.w2.weight", {width, inner});
  }
  top.bf16("vision.norm.weight", {width});
}

}  // namespace

std::vector<TensorSpec> tensor_inventory(const Geometry& geometry) {
  const std::vector<Role> roles = layer_roles(geometry);
  std::vector<TensorSpec> list;
  add_top(list, geometry);
  for (int layer_idx = 0; layer_idx < geometry.num_layers(); ++layer_idx) {
    add_layer(list, geometry, roles[static_cast<size_t>(layer_idx)], layer_idx);
  }
  add_engram_tables(list, geometry);
  if (geometry.vision) add_vision(list, geometry, *geometry.vision);
  return list;
}

std::string_view dtype_tag(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF8E4M3: return "F8_E4M3";
    case Dtype::kF8E8M0: return "F8_E8M0";
    case Dtype::kI8: return "I8";
    case Dtype::kBF16: return "BF16";
    case Dtype::kF32: return "F32";
  }
  CHECK(false, "a dtype outside the list");
  return {};
}

int dtype_bytes(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32: return 4;
    case Dtype::kBF16: return 2;
    default: return 1;
  }
}

std::string_view class_name(Class tensor_class) {
  switch (tensor_class) {
    case Class::kEmbed: return "embed";
    case Class::kHead: return "head";
    case Class::kAttention: return "attention";
    case Class::kRoutedExperts: return "routed experts";
    case Class::kSharedExperts: return "shared experts";
    case Class::kRouter: return "router";
    case Class::kHyper: return "mHC";
    case Class::kCompressors: return "compressors";
    case Class::kIndexers: return "indexers";
    case Class::kNorms: return "norms";
    case Class::kEngramTables: return "Engram tables";
    case Class::kEngramLinear: return "Engram linear";
    case Class::kDraft: return "draft";
    case Class::kVision: return "vision";
  }
  CHECK(false, "a class outside the list");
  return {};
}

int64_t TensorSpec::num_elements() const {
  int64_t count = 1;
  for (const int64_t extent : shape) {
    if (__builtin_mul_overflow(count, extent, &count) || count > kMaxElements) return kMaxElements;
  }
  return count;
}

int64_t TensorSpec::num_parameters() const {
  if (scale) return 0;
  return dtype == Dtype::kI8 ? 2 * num_elements() : num_elements();
}

}  // namespace monostep::model
