// Layout: index mathematics of tasks and regions for one (geometry, shard, shape): the pure functions that two stages,
// or kernel and host, share. Tiles, K-splits and reduction orders depend on geometry and shard alone. Read by both
// backends and the plan.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "base/integer.h"
#include "program/attention.h"
#include "program/program.h"

namespace monostep::program {

inline constexpr int kTile = 16;         // output columns of a linear's task: one MMA tile of weight rows
inline constexpr int kMaxKSlice = 1280;  // K elements that a task reads: 8 rows of bf16 stay below 20 KB
inline constexpr int kScoreChunk = 256;  // groups of an index-score task
inline constexpr int kPageTokens = 64;   // positions of a KV page

// Rows of a window or draft ring: a window behind the widest step's first row, then the step's rows.
inline int window_ring_rows(const model::Geometry& geometry) { return geometry.sliding_window + kMaxBand - 1; }

// Number of equal K slices, each a whole number of 32-groups and at most kMaxKSlice wide.
int k_splits(int k);

enum class Linear : uint8_t {
  kWqA,
  kWkv,
  kCompressorWkv,
  kCompressorGate,
  kIndexWeights,  // kAttnIn, K = hidden
  kWqB,
  kIndexWqB,  // kQProj, K = q_lora_rank
  kWoA,       // kWoA, a group's part
  kWoB,       // kWoB
  kRouter,
  kSharedW1,
  kSharedW3,  // kFfnIn, K = hidden
  kW1,
  kW3,  // kExpertUp, K = hidden
  kW2,
  kSharedW2,  // kExpertDown, K = expert width of the rank
  kEngramWkv,
  kMainProj,
  kContextWkv,
  kHead,
  kMarkovHead,
  kIndexKey,  // indexer.wk, inside kKvNew
  kHyperAttn,
  kHyperFfn,  // hc_*_fn, inside the folds: K = hc_mult x slice
};

// The linears of a stage in the order of their tiles, for a layer's role. The expert stages name one of the linears
// that a task holds (kExpertUp: w1, with w3 beside it; kExpertDown: w2, with the shared w2 behind it). CHECK fails for
// a stage without linears.
std::vector<Linear> linears_of(Stage stage, const model::Role& role);

struct LinearSize {
  int n = 0;  // output rows of a rank (of one group for kWoA)
  int k = 0;  // inputs of a rank
  int tiles() const { return ceil_div(n, kTile); }
};

// A task's place in a stage of linears, and its granule's in the region of partial sums: granule = (tiles of the
// sections before + tile) x splits + split, [row][kTile] inside (program/plan.h).
struct TileTask {
  int section = 0;  // which linear of the stage
  int tile = 0;     // tile inside the section
  int split = 0;
};

class Layout {
 public:
  Layout(const model::Geometry& geometry, const model::Shard& shard, const Shape& shape);

  const model::Geometry& geometry() const { return geometry_; }
  const model::Shard& shard() const { return shard_; }
  const Shape& shape() const { return shape_; }
  const Program& program() const { return program_; }

  // Row capacity of every region: the widest of the band and the draft's rows.
  int rows() const { return rows_; }
  int draft_rows() const { return shape_.max_requests * geometry_.dspark_block_size; }

  LinearSize size(Linear linear, int layer_idx) const;

  // Slices of the hidden dimension that the folds work on.
  int slice_width() const { return slice_width_; }
  int num_slices() const { return geometry_.hidden_size / slice_width_; }
  int mix_outputs() const { return (2 + geometry_.hc_mult) * geometry_.hc_mult; }

  // First tile of a linear in its stage's region, and the tiles of all linears of the stage, for a layer.
  int first_tile(Stage stage, Linear linear, int layer_idx) const;
  // Layer -1 (stages outside a layer) counts as layer 0.
  int stage_tiles(Stage stage, int layer_idx) const {
    return tables_[static_cast<size_t>(stage)].tiles[layer_of(layer_idx)];
  }
  int stage_splits(Stage stage, int layer_idx) const {
    return tables_[static_cast<size_t>(stage)].splits[layer_of(layer_idx)];
  }

  int max_distinct_experts(int layer_idx) const;  // experts that the rows of a step can touch
  // Places of a row's experts in kExpertPart and kExpertIn (the latter holds the shared expert behind them).
  int expert_slots() const { return std::max(geometry_.num_experts_per_tok, geometry_.dspark_num_experts_per_tok); }
  int o_chunk_width() const;  // columns of wo_a's outputs that a task of kOSum sums; a chunk lies in one output group
  int o_chunks() const { return shard_.num_o_groups * (geometry_.o_lora_rank / o_chunk_width()); }  // of a row
  // Parts of the longest list that a row of a layer may have, and of any layer.
  int list_parts(int layer_idx) const;
  int max_list_parts() const;
  int heads_per_group() const { return geometry_.num_attention_heads / geometry_.o_groups; }
  int max_groups(int ratio) const { return shape_.max_context / ratio; }
  int score_chunks(int layer_idx) const;

  // Tasks of a call for the shape (an upper bound: tasks of absent experts, requests and groups do nothing).
  int num_tasks(const Call& call) const;

  // Sizes of one copy of a region, in 32-bit words and granules (the unit of put and poll).
  int64_t region_words(Region region) const;
  int num_granules(Region region) const;
  int num_copies(Region region) const;

 private:
  static size_t layer_of(int layer_idx) { return layer_idx < 0 ? 0 : static_cast<size_t>(layer_idx); }
  void fill_tables();

  model::Geometry geometry_;
  model::Shard shard_;
  Shape shape_;
  Program program_;
  int rows_ = 0;
  int slice_width_ = 0;
  struct StageTable {         // of a stage of linears; empty for the others
    std::vector<int> tiles;   // [num_layers] of all its linears
    std::vector<int> splits;  // [num_layers]
  };
  std::array<StageTable, kNumStages> tables_;
};

}  // namespace monostep::program
