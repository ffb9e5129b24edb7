// Loads one rank's weights from a checkpoint (cpu/weights.h).
#include "cpu/weights.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>

#include "base/check.h"
#include "base/numeric.h"
#include "weights/parallel.h"

namespace monostep::cpu {
namespace {

using program::Layout;
using program::Linear;

class Loader {
 public:
  Loader(const weights::Checkpoint& checkpoint, const Layout& layout, int rank)
      : checkpoint_(checkpoint), layout_(layout), geometry_(layout.geometry()), rank_(rank) {}

  RankWeights load();

 private:
  const uint8_t* bytes(const std::string& name) const {
    return reinterpret_cast<const uint8_t*>(checkpoint_.tensor(name).data.data());
  }
  std::vector<float> bf16(const std::string& name) const;
  std::vector<float> f32(const std::string& name, int begin, int count) const;

  // Work items run later on two threads; each writes its own target.
  void later(std::function<void()> item) { items_.push_back(std::move(item)); }
  // Queues the packing of `name`.weight (and .scale), the given part.
  void take(PackedLinear& target, const std::string& name, Kind kind, MatrixPart part, int columns);
  void whole(PackedLinear& target, const std::string& name, Kind kind, int n, int k) {
    take(target, name, kind, {0, n, 0, k}, k);
  }
  void load_hyper(HyperWeights& target, const std::string& prefix);
  void load_attention(AttentionWeights& target, int layer_idx);
  void load_index(AttentionWeights& target, int layer_idx);
  void load_ffn(FfnWeights& target, int layer_idx);
  void load_engram(EngramWeights& target, int layer_idx);
  void load_draft(RankWeights& target);

  const weights::Checkpoint& checkpoint_;
  const Layout& layout_;
  const model::Geometry& geometry_;
  int rank_;
  std::vector<std::function<void()>> items_;
};

std::vector<float> Loader::bf16(const std::string& name) const {
  const weights::Tensor tensor = checkpoint_.tensor(name);
  std::vector<float> out(tensor.data.size() / 2);
  for (size_t idx = 0; idx < out.size(); ++idx) {
    uint16_t bits;
    std::memcpy(&bits, tensor.data.data() + idx * 2, sizeof(bits));
    out[idx] = bf16_value(bits);
  }
  return out;
}

std::vector<float> Loader::f32(const std::string& name, int begin, int count) const {
  std::vector<float> out(static_cast<size_t>(count));
  std::memcpy(out.data(), bytes(name) + int64_t{begin} * 4, out.size() * sizeof(float));
  return out;
}

void Loader::take(PackedLinear& target, const std::string& name, Kind kind, MatrixPart part, int columns) {
  MatrixView view{kind, nullptr, nullptr, columns};
  view.codes = bytes(name + ".weight");
  if (kind == Kind::kFp8 || kind == Kind::kFp4) view.scales = bytes(name + ".scale");
  later([&target, view, part] { target = pack(view, part); });
}

// hc_*_fn cut into the columns of each fold's slice.
void Loader::load_hyper(HyperWeights& target, const std::string& prefix) {
  const int outputs = layout_.mix_outputs();
  target.base = f32(prefix + "base", 0, outputs);
  target.scale = f32(prefix + "scale", 0, 3);
  target.fn.resize(static_cast<size_t>(layout_.num_slices()));
  const std::string name = prefix + "fn";
  later([this, &target, name, outputs] {
    const int hidden = geometry_.hidden_size;
    const int width = layout_.slice_width();
    const int columns = geometry_.hc_mult * width;
    const std::vector<float> source = f32(name, 0, outputs * geometry_.hc_mult * hidden);
    std::vector<float> part(static_cast<size_t>(outputs * columns));
    for (int slice = 0; slice < layout_.num_slices(); ++slice) {
      for (int row = 0; row < outputs * geometry_.hc_mult; ++row) {  // (output, stream)
        const auto from = source.begin() + int64_t{row} * hidden + slice * width;
        std::copy(from, from + width, part.begin() + row * width);
      }
      const auto* codes = reinterpret_cast<const uint8_t*>(part.data());
      target.fn[static_cast<size_t>(slice)] = pack({Kind::kF32, codes, nullptr, columns}, {0, outputs, 0, columns});
    }
  });
}

void Loader::load_attention(AttentionWeights& target, int layer_idx) {
  const model::Geometry& g = geometry_;
  const model::Shard& shard = layout_.shard();
  const std::string prefix = g.prefix(layer_idx) + "attn.";
  target.sink = f32(prefix + "attn_sink", rank_ * shard.num_heads, shard.num_heads);
  whole(target.wq_a, prefix + "wq_a", Kind::kFp8, g.q_lora_rank, g.hidden_size);
  target.q_norm = bf16(prefix + "q_norm.weight");
  const int q_rows = shard.num_heads * g.head_dim;
  take(target.wq_b, prefix + "wq_b", Kind::kFp8, {rank_ * q_rows, q_rows, 0, g.q_lora_rank}, g.q_lora_rank);
  whole(target.wkv, prefix + "wkv", Kind::kFp8, g.head_dim, g.hidden_size);
  target.kv_norm = bf16(prefix + "kv_norm.weight");
  const int group_inputs = layout_.heads_per_group() * g.head_dim;
  target.wo_a.resize(static_cast<size_t>(shard.num_o_groups));
  for (int group = 0; group < shard.num_o_groups; ++group) {
    const int first_row = (rank_ * shard.num_o_groups + group) * g.o_lora_rank;
    take(target.wo_a[static_cast<size_t>(group)], prefix + "wo_a", Kind::kFp8,
         {first_row, g.o_lora_rank, 0, group_inputs}, group_inputs);
  }
  const int o_columns = shard.num_o_groups * g.o_lora_rank;
  take(target.wo_b, prefix + "wo_b", Kind::kFp8, {0, g.hidden_size, rank_ * o_columns, o_columns},
       g.o_groups * g.o_lora_rank);
  load_index(target, layer_idx);
}

void Loader::load_index(AttentionWeights& target, int layer_idx) {
  const model::Geometry& g = geometry_;
  const model::Role& role = layout_.program().roles[static_cast<size_t>(layer_idx)];
  const std::string prefix = g.prefix(layer_idx) + "attn.";
  if (role.mode == model::Mode::kFull) {
    whole(target.compressor_wkv, prefix + "compressor.wkv", Kind::kBf16, g.head_dim, g.hidden_size);
    if (role.ratio == 2)
      whole(target.compressor_gate, prefix + "compressor.wgate", Kind::kBf16, g.head_dim, g.hidden_size);
    target.compressor_norm = bf16(prefix + "compressor.norm.weight");
    whole(target.index_key, prefix + "indexer.wk", Kind::kBf16, g.index_head_dim, g.head_dim);
    target.index_key_norm = bf16(prefix + "indexer.k_norm.weight");
  }
  if (role.mode == model::Mode::kFull || role.mode == model::Mode::kReindex) {
    whole(target.index_wq_b, prefix + "indexer.wq_b", Kind::kFp8, g.index_n_heads * g.index_head_dim, g.q_lora_rank);
    whole(target.index_weights, prefix + "indexer.weights_proj", Kind::kBf16, g.index_n_heads, g.hidden_size);
  }
}

void Loader::load_ffn(FfnWeights& target, int layer_idx) {
  const model::Geometry& g = geometry_;
  const std::string prefix = g.prefix(layer_idx) + "ffn.";
  const int experts = g.num_experts(layer_idx);
  const int width = layout_.shard().expert_width;
  whole(target.router, prefix + "gate", Kind::kBf16, experts, g.hidden_size);
  target.bias = f32(prefix + "gate.bias", 0, experts);
  target.bias_vl = f32(prefix + "gate.bias_vl", 0, experts);
  const MatrixPart up{rank_ * width, width, 0, g.hidden_size};
  const MatrixPart down{0, g.hidden_size, rank_ * width, width};
  for (std::vector<PackedLinear>* list : {&target.w1, &target.w2, &target.w3})
    list->resize(static_cast<size_t>(experts));
  for (int expert = 0; expert < experts; ++expert) {
    const std::string name = prefix + "experts." + std::to_string(expert) + ".";
    take(target.w1[static_cast<size_t>(expert)], name + "w1", Kind::kFp4, up, g.hidden_size);
    take(target.w2[static_cast<size_t>(expert)], name + "w2", Kind::kFp4, down, g.moe_intermediate_size);
    take(target.w3[static_cast<size_t>(expert)], name + "w3", Kind::kFp4, up, g.hidden_size);
  }
  take(target.shared_w1, prefix + "shared_experts.w1", Kind::kFp8, up, g.hidden_size);
  take(target.shared_w2, prefix + "shared_experts.w2", Kind::kFp8, down, g.moe_intermediate_size);
  take(target.shared_w3, prefix + "shared_experts.w3", Kind::kFp8, up, g.hidden_size);
}

void Loader::load_engram(EngramWeights& target, int layer_idx) {
  const std::string prefix = geometry_.prefix(layer_idx) + "engram.";
  const program::LinearSize size = layout_.size(Linear::kEngramWkv, layer_idx);
  take(target.wkv, prefix + "wkv", Kind::kFp8, {rank_ * size.n, size.n, 0, size.k}, size.k);
  target.gate_weight = bf16(prefix + "q_weight");
  const std::vector<float> key_weight = bf16(prefix + "k_weight");
  for (size_t idx = 0; idx < key_weight.size(); ++idx) target.gate_weight[idx] *= key_weight[idx];
  target.codes = bytes(prefix + "embed.weight");
  target.scales = bytes(prefix + "embed.scale");
}

void Loader::load_draft(RankWeights& target) {
  const model::Geometry& g = geometry_;
  const std::string first = g.prefix(g.num_hidden_layers);
  const std::string last = g.prefix(g.num_layers() - 1);
  whole(target.main_proj, first + "main_proj", Kind::kFp8, g.hidden_size, g.num_taps() * g.hidden_size);
  target.main_norm = bf16(first + "main_norm.weight");
  target.draft_norm = bf16(last + "norm.weight");
  target.markov_embed = bytes(last + "markov_head.embed.weight");
  const int rows = layout_.shard().vocab_rows;
  take(target.markov_head, last + "markov_head.head", Kind::kBf16, {rank_ * rows, rows, 0, g.dspark_markov_rank},
       g.dspark_markov_rank);
  target.confidence = bf16(last + "confidence_head.proj.weight");
}

RankWeights Loader::load() {
  RankWeights out;
  const model::Geometry& g = geometry_;
  out.layers.resize(static_cast<size_t>(g.num_layers()));
  for (int layer_idx = 0; layer_idx < g.num_layers(); ++layer_idx) {
    LayerWeights& layer = out.layers[static_cast<size_t>(layer_idx)];
    const std::string prefix = g.prefix(layer_idx);
    load_hyper(layer.hyper_attn, prefix + "hc_attn_");
    load_hyper(layer.hyper_ffn, prefix + "hc_ffn_");
    layer.attn_norm = bf16(prefix + "attn_norm.weight");
    layer.ffn_norm = bf16(prefix + "ffn_norm.weight");
    load_attention(layer.attn, layer_idx);
    load_ffn(layer.ffn, layer_idx);
    if (layout_.program().roles[static_cast<size_t>(layer_idx)].engram_idx >= 0) load_engram(layer.engram, layer_idx);
  }
  out.embed = bytes("embed.weight");
  const int rows = layout_.shard().vocab_rows;
  take(out.head, "head", Kind::kBf16, {rank_ * rows, rows, 0, g.hidden_size}, g.hidden_size);
  out.norm = bf16("norm.weight");
  if (g.num_nextn_predict_layers > 0) load_draft(out);

  weights::parallel_for(items_.size(), [&](size_t item) { items_[item](); });
  return out;
}

}  // namespace

ModelTables make_tables(const weights::Checkpoint& checkpoint) {
  ModelTables out;
  const model::Geometry& geometry = checkpoint.geometry();
  out.rope = model::rope_tables(geometry);
  out.engram = model::engram_tables(geometry);
  out.token_classes = checkpoint.token_classes();
  if (!out.token_classes.empty()) out.pad_class = out.token_classes[static_cast<size_t>(geometry.engram_pad_token_id)];
  return out;
}

RankWeights load_rank(const weights::Checkpoint& checkpoint, const Layout& layout, int rank) {
  return Loader(checkpoint, layout, rank).load();
}

}  // namespace monostep::cpu
