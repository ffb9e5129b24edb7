// Sizes and index mathematics of tasks and regions (program/layout.h).
#include "program/layout.h"

#include <algorithm>

#include "base/check.h"

namespace monostep::program {
namespace {

constexpr int kGroup = 32;
constexpr int kMaxOChunk = 256;  // columns that a task of kOSum sums
constexpr int kMaxSlice = 40;    // columns of a fold's slice: 128 slices of the released width on 132 SMs

int widest_slice(int hidden_size) {
  for (int width = kMaxSlice; width > 8; width -= 8) {
    if (hidden_size % width == 0) return width;
  }
  return 8;
}

// Sums of these go straight to every rank: one partial sum a rank, so K is not split further. The head needs whole
// logits.
bool never_split(Stage stage) {
  return stage == Stage::kWoB || stage == Stage::kExpertDown || stage == Stage::kHead || stage == Stage::kMarkov;
}

}  // namespace

std::vector<Linear> linears_of(Stage stage, const model::Role& role) {
  const bool full = role.mode == model::Mode::kFull;
  const bool selects = full || role.mode == model::Mode::kReindex;
  std::vector<Linear> out;
  switch (stage) {
    case Stage::kAttnIn:
      out = {Linear::kWqA, Linear::kWkv};
      if (full) out.push_back(Linear::kCompressorWkv);
      if (full && role.ratio == 2) out.push_back(Linear::kCompressorGate);
      if (selects) out.push_back(Linear::kIndexWeights);
      break;
    case Stage::kQProj:
      out = {Linear::kWqB};
      if (selects) out.push_back(Linear::kIndexWqB);
      break;
    case Stage::kWoA: out = {Linear::kWoA}; break;
    case Stage::kWoB: out = {Linear::kWoB}; break;
    case Stage::kFfnIn: out = {Linear::kRouter, Linear::kSharedW1, Linear::kSharedW3}; break;
    case Stage::kExpertUp: out = {Linear::kW1}; break;
    case Stage::kExpertDown: out = {Linear::kW2}; break;
    case Stage::kEngramKv: out = {Linear::kEngramWkv}; break;
    case Stage::kMainProj: out = {Linear::kMainProj}; break;
    case Stage::kContextProj: out = {Linear::kContextWkv}; break;
    case Stage::kHead: out = {Linear::kHead}; break;
    case Stage::kMarkov: out = {Linear::kMarkovHead}; break;
    default: CHECK(false, "a stage without linears");
  }
  return out;
}

int k_splits(int k) {
  if (k == 0) return 1;  // a linear that the geometry does not have
  int splits = ceil_div(k, kMaxKSlice);
  while (k % (splits * kGroup) != 0) ++splits;
  return splits;
}

Layout::Layout(const model::Geometry& geometry, const model::Shard& shard, const Shape& shape)
    : geometry_(geometry), shard_(shard), shape_(shape), program_(build_program(geometry)) {
  rows_ = std::max(shape.band, draft_rows());
  slice_width_ = widest_slice(geometry.hidden_size);
  fill_tables();
}

void Layout::fill_tables() {
  using enum Stage;
  for (const Stage stage : {kAttnIn, kQProj, kWoA, kWoB, kFfnIn, kExpertUp, kExpertDown, kEngramKv, kMainProj,
                            kContextProj, kHead, kMarkov}) {
    StageTable& table = tables_[static_cast<size_t>(stage)];
    for (int layer_idx = 0; layer_idx < geometry_.num_layers(); ++layer_idx) {
      const std::vector<Linear> linears = linears_of(stage, program_.roles[static_cast<size_t>(layer_idx)]);
      int tiles = 0;
      for (const Linear each : linears) tiles += size(each, layer_idx).tiles();
      table.tiles.push_back(tiles);
      table.splits.push_back(never_split(stage) ? 1 : k_splits(size(linears.front(), layer_idx).k));
    }
  }
}

LinearSize Layout::size(Linear linear, int layer_idx) const {
  const model::Geometry& g = geometry_;
  const int group_inputs = heads_per_group() * g.head_dim;
  switch (linear) {
    case Linear::kWqA: return {g.q_lora_rank, g.hidden_size};
    case Linear::kWkv:
    case Linear::kCompressorWkv:
    case Linear::kCompressorGate: return {g.head_dim, g.hidden_size};
    case Linear::kIndexWeights: return {g.index_n_heads, g.hidden_size};
    case Linear::kWqB: return {shard_.num_heads * g.head_dim, g.q_lora_rank};
    case Linear::kIndexWqB: return {g.index_n_heads * g.index_head_dim, g.q_lora_rank};
    case Linear::kWoA: return {g.o_lora_rank, group_inputs};
    case Linear::kWoB: return {g.hidden_size, shard_.num_o_groups * g.o_lora_rank};
    case Linear::kRouter: return {g.num_experts(layer_idx), g.hidden_size};
    case Linear::kSharedW1:
    case Linear::kSharedW3:
    case Linear::kW1:
    case Linear::kW3: return {shard_.expert_width, g.hidden_size};
    case Linear::kW2:
    case Linear::kSharedW2: return {g.hidden_size, shard_.expert_width};
    case Linear::kEngramWkv: return {shard_.engram_rows, g.num_engram_columns() * g.engram_head_dim};
    case Linear::kMainProj: return {g.hidden_size, g.num_taps() * g.hidden_size};
    case Linear::kContextWkv: return {g.head_dim, g.hidden_size};
    case Linear::kHead: return {shard_.vocab_rows, g.hidden_size};
    case Linear::kMarkovHead: return {shard_.vocab_rows, g.dspark_markov_rank};
    case Linear::kIndexKey: return {g.index_head_dim, g.head_dim};
    case Linear::kHyperAttn:
    case Linear::kHyperFfn: return {mix_outputs(), g.hc_mult * g.hidden_size};
  }
  return {};
}

int Layout::first_tile(Stage stage, Linear linear, int layer_idx) const {
  int tile = 0;
  for (const Linear each : linears_of(stage, program_.roles[static_cast<size_t>(layer_idx)])) {
    if (each == linear) return tile;
    tile += size(each, layer_idx).tiles();
  }
  CHECK(false, "a linear that the stage does not hold in this layer");
  return 0;
}

int Layout::max_distinct_experts(int layer_idx) const {
  const int rows = geometry_.is_draft(layer_idx) ? draft_rows() : shape_.band;
  return std::min(geometry_.num_experts(layer_idx), rows * geometry_.experts_per_token(layer_idx));
}

int Layout::o_chunk_width() const {
  int width = kMaxOChunk;
  while (geometry_.o_lora_rank % width != 0) width /= 2;
  return width;
}

int Layout::score_chunks(int layer_idx) const {
  return ceil_div(max_groups(program_.roles[static_cast<size_t>(layer_idx)].ratio), kScoreChunk);
}

int Layout::list_parts(int layer_idx) const {
  const int ratio = program_.roles[static_cast<size_t>(layer_idx)].ratio;
  const int behind_window = geometry_.is_draft(layer_idx)
                                ? geometry_.dspark_block_size
                                : selected_groups(geometry_.index_topk, ratio, shape_.max_context - 1);
  return parts_of_list(geometry_.sliding_window + behind_window);
}

int Layout::max_list_parts() const {
  int most = 0;
  for (int layer_idx = 0; layer_idx < geometry_.num_layers(); ++layer_idx) most = std::max(most, list_parts(layer_idx));
  return most;
}

int Layout::num_tasks(const Call& call) const {
  const int rows = call.section == Section::kDraft ? draft_rows() : shape_.band;
  switch (call.stage) {
    case Stage::kEngramFold:
    case Stage::kFold:
    case Stage::kFfnFold:
    case Stage::kHeadFold: return num_slices();
    case Stage::kEngramRows: return rows * geometry_.num_engram_columns();
    case Stage::kAttnMix:
    case Stage::kFfnMix:
    case Stage::kQNorm:
    case Stage::kKvNew:
    case Stage::kIndexSelect:
    case Stage::kSample: return rows;
    case Stage::kIndexScore: return shape_.max_requests * score_chunks(call.layer);
    case Stage::kAttend: return rows * shard_.num_o_groups * list_parts(call.layer);
    case Stage::kAttnMerge: return rows * shard_.num_heads;
    case Stage::kWoA:
      return shard_.num_o_groups * stage_tiles(call.stage, call.layer) * stage_splits(call.stage, call.layer);
    case Stage::kExpertUp:
      return max_distinct_experts(call.layer) * stage_tiles(call.stage, call.layer) *
             stage_splits(call.stage, call.layer);
    case Stage::kOSum: return rows * o_chunks();
    case Stage::kExpertAct: return rows * (expert_slots() + 1);
    case Stage::kVerdict:
    case Stage::kDraftOut: return shape_.max_requests;
    case Stage::kContextProj:
      return geometry_.num_nextn_predict_layers * stage_tiles(call.stage, -1) * stage_splits(call.stage, -1);
    case Stage::kContextNew: return geometry_.num_nextn_predict_layers * rows;
    case Stage::kMarkov: return stage_tiles(call.stage, -1);
    default: return stage_tiles(call.stage, call.layer) * stage_splits(call.stage, call.layer);
  }
}

namespace {

int max_over_layers(int num_layers, auto&& value) {
  int most = 0;
  for (int layer_idx = 0; layer_idx < num_layers; ++layer_idx) most = std::max(most, value(layer_idx));
  return most;
}

}  // namespace

int Layout::num_granules(Region region) const {
  const model::Geometry& g = geometry_;
  const int layers = g.num_layers();
  const auto tiles_and_splits = [&](Stage stage) {
    return max_over_layers(layers, [&](int l) { return stage_tiles(stage, l) * stage_splits(stage, l); });
  };
  switch (region) {
    case Region::kEngramRowsOut: return rows_ * g.num_engram_columns();
    case Region::kEngramKvOut:
      return shard_.tp * stage_tiles(Stage::kEngramKv, -1) * stage_splits(Stage::kEngramKv, -1);
    case Region::kEngramStreams:
    case Region::kEngramDots:
    case Region::kStreams:
    case Region::kAttnU:
    case Region::kAttnMixPart:
    case Region::kFfnStreams:
    case Region::kFfnU:
    case Region::kFfnMixPart:
    case Region::kHeadU: return num_slices();
    case Region::kTaps: return g.num_taps() * num_slices();
    case Region::kAttnMixOut:
    case Region::kFfnMixOut:
    case Region::kQIn:
    case Region::kWindowNew:
    case Region::kCompressedNew:
    case Region::kIndexKeyNew:
    case Region::kTopk:
    case Region::kCandidates:
    case Region::kSampled: return rows_;
    case Region::kScores: return shape_.max_requests * ceil_div(max_groups(1), kScoreChunk);
    case Region::kAttnInPart: return tiles_and_splits(Stage::kAttnIn);
    case Region::kQPart: return tiles_and_splits(Stage::kQProj);
    case Region::kAttnPart: return max_list_parts() * shard_.num_o_groups * rows_;
    case Region::kAttnOut: return rows_ * shard_.num_heads;
    case Region::kOaPart: return shard_.num_o_groups * stage_tiles(Stage::kWoA, 0) * stage_splits(Stage::kWoA, 0);
    case Region::kOIn: return rows_ * o_chunks();
    case Region::kAttnExchange: return shard_.tp * stage_tiles(Stage::kWoB, 0);
    case Region::kFfnInPart: return tiles_and_splits(Stage::kFfnIn);
    case Region::kExpertPart:
      return max_over_layers(layers, [&](int l) { return max_distinct_experts(l); }) *
             tiles_and_splits(Stage::kExpertUp);
    case Region::kExpertIn: return rows_ * (expert_slots() + 1);
    case Region::kFfnExchange: return shard_.tp * stage_tiles(Stage::kExpertDown, 0);
    case Region::kLogits: return shard_.tp * stage_tiles(Stage::kHead, 0);
    case Region::kVerdictOut:
    case Region::kDraft: return shape_.max_requests;
    case Region::kMainPart: return stage_tiles(Stage::kMainProj, 0) * stage_splits(Stage::kMainProj, 0);
    case Region::kContextPart:
      return g.num_nextn_predict_layers * stage_tiles(Stage::kContextProj, 0) * stage_splits(Stage::kContextProj, 0);
    case Region::kContextNewOut: return g.num_nextn_predict_layers * rows_;
    case Region::kDraftLogits: return stage_tiles(Stage::kMarkov, 0);
    case Region::kMarkovTop: return shard_.tp * stage_tiles(Stage::kMarkov, 0);
  }
  return 0;
}

int64_t Layout::region_words(Region region) const {
  const model::Geometry& g = geometry_;
  const int64_t rows = rows_;
  const int64_t granules = num_granules(region);
  switch (region) {
    case Region::kEngramRowsOut: return granules * g.engram_head_dim;
    case Region::kEngramStreams:
    case Region::kStreams:
    case Region::kFfnStreams: return rows * g.hc_mult * g.hidden_size;
    case Region::kEngramDots: return granules * rows * g.hc_mult * 3;
    case Region::kAttnU:
    case Region::kFfnU:
    case Region::kHeadU: return rows * g.hidden_size;
    case Region::kTaps: return rows * g.num_taps() * g.hidden_size;
    case Region::kAttnMixPart:
    case Region::kFfnMixPart: return granules * rows * (mix_outputs() + 1);
    case Region::kAttnMixOut:
    case Region::kFfnMixOut: return rows * mix_outputs();
    case Region::kQIn: return rows * g.q_lora_rank;
    case Region::kWindowNew:
    case Region::kCompressedNew: return rows * g.head_dim;
    case Region::kIndexKeyNew: return rows * g.index_head_dim;
    case Region::kScores: return rows * max_groups(1);
    case Region::kTopk: return rows * g.index_topk;
    case Region::kCandidates: return rows * std::max(g.candidate_topk_blocks, 1);
    case Region::kAttnPart: return granules * heads_per_group() * (g.head_dim + 2);
    case Region::kAttnOut: return rows * shard_.num_heads * g.head_dim;
    case Region::kOIn: return granules * o_chunk_width();
    case Region::kExpertPart: {
      const int tiles = stage_tiles(Stage::kExpertUp, 0) * stage_splits(Stage::kExpertUp, 0);
      return int64_t{2} * tiles * rows * expert_slots() * kTile;
    }
    case Region::kExpertIn: return granules * shard_.expert_width;
    case Region::kSampled: return rows;
    case Region::kVerdictOut: return granules * (g.dspark_block_size + 4);
    case Region::kContextNewOut: return granules * g.head_dim;
    case Region::kDraftLogits: return granules * shape_.max_requests * kTile;
    case Region::kMarkovTop: return granules * shape_.max_requests * 2;
    case Region::kDraft: return granules * 2 * g.dspark_block_size;
    default: return granules * rows * kTile;  // regions of partial sums: [section][tile][split][row][kTile]
  }
}

int Layout::num_copies(Region region) const {
  switch (decl(region).copies) {
    case Copies::kOne: return 1;
    case Copies::kParity:
    case Copies::kSection: return 2;
    case Copies::kOwner: return static_cast<int>(geometry_.kv_source_layer_ids.size());
    case Copies::kIndexSource: return static_cast<int>(geometry_.index_source_layer_ids.size());
    case Copies::kEngram: return static_cast<int>(geometry_.engram_layer_ids.size());
    case Copies::kPosition: return geometry_.dspark_block_size;
  }
  return 1;
}

}  // namespace monostep::program
