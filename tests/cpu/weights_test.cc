// A rank's weights: replicated ones are the checkpoint's bytes, and the ranks' shares put together are the whole
// matrix, row or column wise, at every size.
#include "cpu/weights.h"

#include "dense.h"
#include "tiny_models.h"

namespace monostep::cpu {
namespace {

using program::kTile;

// Value of an element of a packed linear, unpacked here.
double value_of(const PackedLinear& linear, int n, int k) {
  const int64_t tile = n / kTile;
  const int64_t element = (tile * linear.k + k) * kTile + n % kTile;
  const double scale =
      linear.scales.empty()
          ? 1.0
          : std::ldexp(1.0,
                       linear.scales[static_cast<size_t>((tile * (linear.k / 32) + k / 32) * kTile + n % kTile)] - 127);
  const uint8_t* codes = linear.codes.data();
  switch (linear.kind) {
    case Kind::kFp8: return e4m3_value(codes[element]) * scale;
    case Kind::kFp4: {
      const uint8_t byte = codes[(tile * (linear.k / 2) + k / 2) * kTile + n % kTile];
      return e2m1_value(static_cast<uint8_t>(k % 2 == 0 ? byte & 15 : byte >> 4)) * scale;
    }
    case Kind::kBf16: {
      uint16_t bits;
      std::memcpy(&bits, codes + element * 2, sizeof(bits));
      return bf16_value(bits);
    }
    case Kind::kF32: {
      float value;
      std::memcpy(&value, codes + element * 4, sizeof(value));
      return value;
    }
  }
  return 0;
}

// The linear is the given part of the checkpoint's matrix.
void expect_part(const PackedLinear& linear, const Dense& matrix, int row_begin, int k_begin, const std::string& name) {
  for (int n = 0; n < linear.n; ++n) {
    for (int k = 0; k < linear.k; ++k) {
      ASSERT_EQ(value_of(linear, n, k), matrix.row(row_begin + n)[static_cast<size_t>(k_begin + k)])
          << name << " row " << n << " column " << k;
    }
  }
}
void expect_rows(const PackedLinear& linear, const Dense& matrix, int rank, int tp, const std::string& name) {
  ASSERT_EQ(linear.n * tp, matrix.n) << name;
  ASSERT_EQ(linear.k, matrix.k) << name;
  expect_part(linear, matrix, rank * linear.n, 0, name);
}
void expect_columns(const PackedLinear& linear, const Dense& matrix, int rank, int tp, const std::string& name) {
  ASSERT_EQ(linear.n, matrix.n) << name;
  ASSERT_EQ(linear.k * tp, matrix.k) << name;
  expect_part(linear, matrix, 0, rank * linear.k, name);
}

struct Loaded {
  program::Layout layout;
  std::vector<RankWeights> ranks;
};
Loaded loaded(const weights::Checkpoint& checkpoint, int tp) {
  const model::Geometry& g = checkpoint.geometry();
  Loaded out{program::Layout(g, model::make_shard(g, tp).value(), {8, 8, kContext}), {}};
  for (int rank = 0; rank < tp; ++rank) out.ranks.push_back(load_rank(checkpoint, out.layout, rank));
  return out;
}

void expect_shares(const weights::Checkpoint& checkpoint, int tp) {
  const Loaded all = loaded(checkpoint, tp);
  const model::Geometry& g = checkpoint.geometry();
  const auto matrix = [&](const std::string& name) { return dense(checkpoint, name + ".weight"); };
  for (int rank = 0; rank < tp; ++rank) {
    const RankWeights& weights = all.ranks[static_cast<size_t>(rank)];
    expect_rows(weights.head, matrix("head"), rank, tp, "head");
    const std::string last = g.prefix(g.num_layers() - 1);
    expect_rows(weights.markov_head, matrix(last + "markov_head.head"), rank, tp, "markov head");
    const LayerWeights& layer = weights.layers[1];
    expect_rows(layer.attn.wq_b, matrix("layers.1.attn.wq_b"), rank, tp, "wq_b");
    expect_columns(layer.attn.wo_b, matrix("layers.1.attn.wo_b"), rank, tp, "wo_b");
    const Dense wo_a = matrix("layers.1.attn.wo_a");
    const auto groups = static_cast<int>(layer.attn.wo_a.size());
    ASSERT_EQ(groups * tp, g.o_groups);
    for (int group = 0; group < groups; ++group) {
      expect_part(layer.attn.wo_a[static_cast<size_t>(group)], wo_a, (rank * groups + group) * g.o_lora_rank, 0,
                  "wo_a");
    }
    const Dense sink = dense(checkpoint, "layers.1.attn.attn_sink");
    for (size_t head = 0; head < layer.attn.sink.size(); ++head) {
      EXPECT_EQ(layer.attn.sink[head], sink.values[static_cast<size_t>(rank) * layer.attn.sink.size() + head]);
    }
    for (int expert = 0; expert < g.n_routed_experts; ++expert) {
      const std::string name = "layers.1.ffn.experts." + std::to_string(expert) + ".";
      expect_rows(layer.ffn.w1[static_cast<size_t>(expert)], matrix(name + "w1"), rank, tp, name + "w1");
      expect_columns(layer.ffn.w2[static_cast<size_t>(expert)], matrix(name + "w2"), rank, tp, name + "w2");
      expect_rows(layer.ffn.w3[static_cast<size_t>(expert)], matrix(name + "w3"), rank, tp, name + "w3");
    }
    expect_rows(layer.ffn.shared_w1, matrix("layers.1.ffn.shared_experts.w1"), rank, tp, "shared w1");
    expect_columns(layer.ffn.shared_w2, matrix("layers.1.ffn.shared_experts.w2"), rank, tp, "shared w2");
    expect_rows(layer.ffn.shared_w3, matrix("layers.1.ffn.shared_experts.w3"), rank, tp, "shared w3");
    expect_rows(weights.layers[2].engram.wkv, matrix("layers.2.engram.wkv"), rank, tp, "engram wkv");
  }
}

TEST(Weights, shares_of_all_ranks_are_the_whole_matrices) {
  for (const int tp : {1, 2}) expect_shares(micro(), tp);
  expect_shares(eight_ranks(), 8);
}

TEST(Weights, what_is_replicated_is_the_checkpoints_on_every_rank) {
  const Loaded all = loaded(micro(), 2);
  const model::Geometry& g = micro().geometry();
  const auto matrix = [&](const std::string& name) { return dense(micro(), name + ".weight"); };
  const std::string first = g.prefix(g.num_hidden_layers);
  for (const RankWeights& weights : all.ranks) {
    const AttentionWeights& attn = weights.layers[1].attn;
    expect_rows(attn.wq_a, matrix("layers.1.attn.wq_a"), 0, 1, "wq_a");
    expect_rows(attn.wkv, matrix("layers.1.attn.wkv"), 0, 1, "wkv");
    expect_rows(attn.compressor_wkv, matrix("layers.1.attn.compressor.wkv"), 0, 1, "compressor wkv");
    expect_rows(attn.compressor_gate, matrix("layers.1.attn.compressor.wgate"), 0, 1, "compressor gate");
    expect_rows(attn.index_key, matrix("layers.1.attn.indexer.wk"), 0, 1, "indexer wk");
    expect_rows(attn.index_wq_b, matrix("layers.1.attn.indexer.wq_b"), 0, 1, "indexer wq_b");
    expect_rows(attn.index_weights, matrix("layers.1.attn.indexer.weights_proj"), 0, 1, "weights_proj");
    expect_rows(weights.layers[4].ffn.router, matrix("layers.4.ffn.gate"), 0, 1, "router");
    expect_rows(weights.main_proj, matrix(first + "main_proj"), 0, 1, "main_proj");
    EXPECT_EQ(weights.layers[0].attn.compressor_wkv.n, 0);   // a window layer has none
    EXPECT_EQ(weights.layers[2].attn.index_wq_b.n, 0);       // a reuse layer has none
    EXPECT_EQ(weights.layers[3].attn.compressor_gate.n, 0);  // nor a ratio of 1 a gate
    EXPECT_EQ(weights.embed, reinterpret_cast<const uint8_t*>(micro().tensor("embed.weight").data.data()));
  }
}

TEST(Weights, hyper_slices_hold_the_columns_of_their_slice_of_every_stream) {
  const Loaded all = loaded(eight_ranks(), 1);
  const program::Layout& layout = all.layout;
  const Dense fn = dense(eight_ranks(), "layers.3.hc_ffn_fn");
  const HyperWeights& hyper = all.ranks[0].layers[3].hyper_ffn;
  ASSERT_EQ(static_cast<int>(hyper.fn.size()), layout.num_slices());
  const int hidden = layout.geometry().hidden_size;
  const int width = layout.slice_width();
  for (int slice = 0; slice < layout.num_slices(); ++slice) {
    const PackedLinear& part = hyper.fn[static_cast<size_t>(slice)];
    ASSERT_EQ(part.n, layout.mix_outputs());
    ASSERT_EQ(part.k, layout.geometry().hc_mult * width);
    for (int n = 0; n < part.n; ++n) {
      for (int k = 0; k < part.k; ++k) {
        ASSERT_EQ(value_of(part, n, k), fn.row(n)[static_cast<size_t>(k / width * hidden + slice * width + k % width)]);
      }
    }
  }
}

TEST(Weights, gate_weights_are_the_products_of_both_vectors) {
  const Loaded all = loaded(micro(), 1);
  const Dense q = dense(micro(), "layers.0.engram.q_weight");
  const Dense k = dense(micro(), "layers.0.engram.k_weight");
  const std::vector<float>& gate = all.ranks[0].layers[0].engram.gate_weight;
  ASSERT_EQ(gate.size(), q.values.size());
  for (size_t idx = 0; idx < gate.size(); ++idx)
    EXPECT_EQ(gate[idx], static_cast<float>(q.values[idx]) * static_cast<float>(k.values[idx]));
}

TEST(Weights, shared_tables_follow_from_the_geometry) {
  const ModelTables tables = make_tables(micro());
  EXPECT_EQ(tables.engram.size(), 2u);
  EXPECT_EQ(tables.token_classes, micro().token_classes());
  EXPECT_EQ(tables.pad_class, micro().token_classes()[static_cast<size_t>(micro().geometry().engram_pad_token_id)]);
  EXPECT_EQ(tables.rope.base.size(), static_cast<size_t>(micro().geometry().qk_rope_head_dim / 2));
}

}  // namespace
}  // namespace monostep::cpu
