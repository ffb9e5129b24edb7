// One rank's weights as the CPU stages read them: linears packed and cut to the rank's shard, norms as fp32, and views
// into the checkpoint's memory map for what is looked up by row (embedding, Markov embedding, Engram tables). Made once
// at load.
#pragma once

#include <vector>

#include "cpu/linear.h"
#include "model/engram.h"
#include "model/rope.h"
#include "model/shard.h"
#include "weights/checkpoint.h"

namespace monostep::cpu {

struct HyperWeights {  // one mHC site
  std::vector<PackedLinear>
      fn;  // [slices], each [mix outputs][hc x slice width]: the columns of a fold's slice, stream-major
  std::vector<float> base;   // [mix outputs]
  std::vector<float> scale;  // [3]: pre, post, comb
};

struct AttentionWeights {
  std::vector<float> sink;  // [heads of the rank]
  PackedLinear wq_a, wq_b, wkv;
  std::vector<float> q_norm;       // [q_lora_rank]
  std::vector<float> kv_norm;      // [head_dim]
  std::vector<PackedLinear> wo_a;  // [groups of the rank]
  PackedLinear wo_b;
  PackedLinear compressor_wkv, compressor_gate;  // KV sources (gate: ratio 2)
  std::vector<float> compressor_norm;            // [head_dim]
  PackedLinear index_key;                        // KV sources
  std::vector<float> index_key_norm;             // [index_head_dim]
  PackedLinear index_wq_b, index_weights;        // index sources
};

struct FfnWeights {
  PackedLinear router;
  std::vector<float> bias, bias_vl;      // [experts]
  std::vector<PackedLinear> w1, w2, w3;  // [experts]
  PackedLinear shared_w1, shared_w2, shared_w3;
};

struct EngramWeights {
  PackedLinear wkv;                 // the rank's output rows
  std::vector<float> gate_weight;   // [hc][hidden]: q_weight x k_weight
  const uint8_t* codes = nullptr;   // [rows][engram_head_dim] e4m3
  const uint8_t* scales = nullptr;  // [rows][engram_head_dim / 32] E8M0
};

struct LayerWeights {
  HyperWeights hyper_attn, hyper_ffn;
  std::vector<float> attn_norm, ffn_norm;  // [hidden]
  AttentionWeights attn;
  FfnWeights ffn;
  EngramWeights engram;  // Engram layers only
};

struct RankWeights {
  std::vector<LayerWeights> layers;       // backbone, then draft
  const uint8_t* embed = nullptr;         // [vocab][hidden] bf16, unaligned
  PackedLinear head;                      // the rank's vocabulary rows
  std::vector<float> norm;                // [hidden]
  PackedLinear main_proj;                 // draft: [hidden][taps x hidden]
  std::vector<float> main_norm;           // [hidden]
  std::vector<float> draft_norm;          // [hidden]
  const uint8_t* markov_embed = nullptr;  // [vocab][rank] bf16, unaligned
  PackedLinear markov_head;
  std::vector<float> confidence;  // [hidden + rank]
};

// What every rank shares: tables that follow from the geometry, and the token classes.
struct ModelTables {
  model::RopeTables rope;
  std::vector<model::EngramTable> engram;
  std::vector<int32_t> token_classes;  // [vocab]
  int pad_class = 0;
};
ModelTables make_tables(const weights::Checkpoint& checkpoint);

// Packs with two threads. The checkpoint must outlive the result.
RankWeights load_rank(const weights::Checkpoint& checkpoint, const program::Layout& layout, int rank);

}  // namespace monostep::cpu
