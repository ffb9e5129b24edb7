// Stages of DSpark: the context rows of the draft layers, the Markov chain over the draft positions, ids and
// confidences. Tasks: output tiles x K-splits (projections), draft layers x rows (kContextNew), vocabulary tiles
// (kMarkov), requests (kDraftOut). Formulas: model.md 5.1.
#include "cpu/stage_common.h"
#include "cpu/stages.h"

namespace monostep::cpu {
namespace {

// Target rows whose request keeps draft context.
std::vector<Row> context_rows(const ContextBase& ctx) {
  std::vector<Row> out;
  for (const Row& row : ctx.target_rows()) {
    if (ctx.inputs().requests[static_cast<size_t>(row.request)].context) out.push_back(row);
  }
  return out;
}

}  // namespace

template <>
void run_stage(StageContext<Stage::kMainProj>& ctx) {
  const program::Layout& layout = ctx.layout();
  const model::Geometry& g = ctx.geometry();
  const int width = layout.slice_width();
  const int num_granules = g.num_taps() * layout.num_slices();
  for (int granule = 0; granule < num_granules; ++granule) {
    const int tap_layer = g.dspark_target_layer_ids[static_cast<size_t>(granule / layout.num_slices())];
    if (!ctx.poll_from<Region::kTaps>(ctx.program().find(Stage::kFold, tap_layer), granule)) return;
  }
  const std::vector<Row> live = context_rows(ctx);
  RowValues taps(used_rows(live), g.num_taps() * g.hidden_size);
  for (const Row& row : live) {
    for (int granule = 0; granule < num_granules; ++granule) {  // [tap][slice] is the order of the concatenated taps
      const float* from = ctx.read<Region::kTaps>() + (int64_t{granule} * layout.rows() + row.idx) * width;
      std::copy(from, from + width, taps.row(row.idx).begin() + int64_t{granule} * width);
    }
  }
  const std::vector<int> indices = row_indices(live);
  const Activations inputs = quantize(taps.values, taps.width, indices);
  const int splits = layout.stage_splits(Stage::kMainProj, -1);
  const PackedLinear& weights = ctx.weights().main_proj;
  float* out = ctx.write<Region::kMainPart>();
  for (const int task : ctx.tasks()) {
    const program::TileTask part = linear_task(task, splits);
    multiply_tile(weights, slice_of(weights, part.tile, part.split, splits), inputs, indices,
                  out + int64_t{task} * layout.rows() * kTile);
    ctx.put<Region::kMainPart>(task);
  }
}

template <>
void run_stage(StageContext<Stage::kContextProj>& ctx) {
  const program::Layout& layout = ctx.layout();
  const model::Geometry& g = ctx.geometry();
  const int main_splits = layout.stage_splits(Stage::kMainProj, -1);
  if (!ctx.poll_range<Region::kMainPart>(0, layout.stage_tiles(Stage::kMainProj, -1) * main_splits)) return;
  RowValues rows(used_rows(context_rows(ctx)), g.hidden_size);
  std::vector<float> raw(static_cast<size_t>(g.hidden_size));
  const std::vector<Row> live = context_rows(ctx);
  for (const Row& row : live) {
    sum_splits({ctx.read<Region::kMainPart>(), layout.rows(), 0, main_splits}, row.idx, 0, raw);
    round_all(raw);
    rms_norm(raw, ctx.weights().main_norm, g.rms_norm_eps, rows.row(row.idx).data());
  }
  const std::vector<int> indices = row_indices(live);
  const Activations inputs = quantize(rows.values, rows.width, indices);
  const int splits = layout.stage_splits(Stage::kContextProj, -1);
  const int tasks_per_layer = layout.stage_tiles(Stage::kContextProj, -1) * splits;
  float* out = ctx.write<Region::kContextPart>();
  for (const int task : ctx.tasks()) {
    const int layer_idx = g.num_hidden_layers + task / tasks_per_layer;
    const PackedLinear& weights = ctx.weights().layers[static_cast<size_t>(layer_idx)].attn.wkv;
    const program::TileTask part = linear_task(task % tasks_per_layer, splits);
    multiply_tile(weights, slice_of(weights, part.tile, part.split, splits), inputs, indices,
                  out + int64_t{task} * layout.rows() * kTile);
    ctx.put<Region::kContextPart>(task);
  }
}

template <>
void run_stage(StageContext<Stage::kContextNew>& ctx) {
  const program::Layout& layout = ctx.layout();
  const model::Geometry& g = ctx.geometry();
  const int splits = layout.stage_splits(Stage::kContextProj, -1);
  const int tiles = layout.stage_tiles(Stage::kContextProj, -1);
  const int row_tasks = layout.shape().band;
  const std::vector<Row> live = context_rows(ctx);
  std::vector<float> raw(static_cast<size_t>(g.head_dim));
  std::vector<float> values(raw.size());
  std::vector<uint8_t> record(static_cast<size_t>(model::window_record_bytes(g)));
  float* out = ctx.write<Region::kContextNewOut>();
  for (const int task : ctx.tasks()) {
    const int draft_idx = task / row_tasks;
    const Row* row = live_row(live, task % row_tasks);
    if (row == nullptr) continue;
    if (!ctx.poll_range<Region::kContextPart>(draft_idx * tiles * splits, tiles * splits)) return;
    const int layer_idx = g.num_hidden_layers + draft_idx;
    sum_splits({ctx.read<Region::kContextPart>(), layout.rows(), draft_idx * tiles, splits}, row->idx, 0, raw);
    round_all(raw);
    rms_norm(raw, ctx.weights().layers[static_cast<size_t>(layer_idx)].attn.kv_norm, g.rms_norm_eps, values.data());
    rotate(values, angles_at(ctx.tables().rope.base, row->position), false);
    pack_window(values, record.data());
    kv::Pools& pools = ctx.pools();
    std::byte* slot = pools.slot(ctx.inputs().requests[static_cast<size_t>(row->request)].state_slot);
    std::memcpy(slot + pools.slot_layout.ring_offset(layer_idx, row->position), record.data(), record.size());
    const int granule = draft_idx * layout.rows() + row->idx;
    std::copy(values.begin(), values.end(), out + int64_t{granule} * g.head_dim);
    ctx.put<Region::kContextNewOut>(granule);
  }
}

namespace {

// The pick of a draft position from the best of every tile of every rank; ties: lower id.
int pick(const program::Layout& layout, const float* tops, int request) {
  const int granules = layout.num_granules(Region::kMarkovTop);
  const int requests = layout.shape().max_requests;
  int best_id = -1;
  float most = 0;
  for (int granule = 0; granule < granules; ++granule) {
    const float* top = tops + (int64_t{granule} * requests + request) * 2;
    if (best_id < 0 || top[0] > most) {  // granules ascend with the ids
      most = top[0];
      best_id = int_of(top[1]);
    }
  }
  return best_id;
}

std::vector<float> markov_row(const ContextBase& ctx, int token) {
  const int rank = ctx.geometry().dspark_markov_rank;
  std::vector<float> out(static_cast<size_t>(rank));
  for (int idx = 0; idx < rank; ++idx) {
    uint16_t bits;
    std::memcpy(&bits, ctx.weights().markov_embed + (int64_t{token} * rank + idx) * 2, sizeof(bits));
    out[static_cast<size_t>(idx)] = bf16_value(bits);
  }
  return out;
}

// Requests that draft in this step.
std::vector<int> drafting(const ContextBase& ctx) {
  std::vector<int> out;
  for (const Row& row : ctx.rows()) {
    if (row.draft_pos == 0) out.push_back(row.request);
  }
  return out;
}

// The token before draft position `position`: the anchor, or the pick of the position before.
int previous_token(StageContext<Stage::kMarkov>& ctx, int request) {
  if (ctx.call().layer == 0) return verdict_of(ctx.layout(), ctx.read<Region::kVerdictOut>(), request).anchor;
  return pick(ctx.layout(), ctx.read<Region::kMarkovTop>(), request);
}

}  // namespace

template <>
void run_stage(StageContext<Stage::kMarkov>& ctx) {
  const program::Layout& layout = ctx.layout();
  const model::Geometry& g = ctx.geometry();
  const int position = ctx.call().layer;
  const int rank_width = g.dspark_markov_rank;
  const int max_requests = layout.shape().max_requests;
  const std::vector<int> requests = drafting(ctx);
  if (position > 0 && !ctx.poll_range<Region::kMarkovTop>(0, layout.num_granules(Region::kMarkovTop))) return;
  Activations inputs = plain(std::vector<float>(static_cast<size_t>(max_requests * rank_width)), rank_width);
  for (const int request : requests) {
    if (position == 0 && !ctx.poll<Region::kVerdictOut>(request)) return;
    const std::vector<float> embedding = markov_row(ctx, previous_token(ctx, request));
    std::copy(embedding.begin(), embedding.end(), inputs.values.begin() + request * rank_width);
  }
  const PackedLinear& head = ctx.weights().markov_head;
  std::vector<float> product(static_cast<size_t>(max_requests) * kTile);
  float* logits_out = ctx.write<Region::kDraftLogits>();
  float* tops = ctx.write<Region::kMarkovTop>();
  for (const int task : ctx.tasks()) {
    const int granule = ctx.rank() * head.tiles() + task;
    if (!ctx.poll<Region::kLogits>(granule)) return;
    multiply_tile(head, {task, 0, rank_width}, inputs, requests, product.data());
    for (const int request : requests) {
      const int row = request * g.dspark_block_size + position;
      const float* base = ctx.read<Region::kLogits>() + (int64_t{granule} * layout.rows() + row) * kTile;
      float* logits = logits_out + (int64_t{task} * max_requests + request) * kTile;
      float* top = tops + (int64_t{granule} * max_requests + request) * 2;
      int best_lane = 0;
      for (int lane = 0; lane < kTile; ++lane) {
        logits[lane] = base[lane] + product[static_cast<size_t>(request * kTile + lane)];
        if (task * kTile + lane < head.n && logits[lane] > logits[best_lane]) best_lane = lane;
      }
      top[0] = logits[best_lane];
      top[1] = word_of(ctx.rank() * head.n + task * kTile + best_lane);
    }
    ctx.put<Region::kDraftLogits>(task);
    ctx.put<Region::kMarkovTop>(granule);
  }
}

template <>
void run_stage(StageContext<Stage::kDraftOut>& ctx) {
  const program::Layout& layout = ctx.layout();
  const model::Geometry& g = ctx.geometry();
  const int count = g.dspark_block_size;
  if (!ctx.poll_range<Region::kHeadU>(0, layout.num_slices())) return;
  const std::vector<int> requests = drafting(ctx);
  float* out = ctx.write<Region::kDraft>();
  std::vector<float> features(static_cast<size_t>(g.hidden_size + g.dspark_markov_rank));
  for (const int request : ctx.tasks()) {
    if (std::find(requests.begin(), requests.end(), request) == requests.end()) continue;
    if (!ctx.poll<Region::kVerdictOut>(request)) return;
    float* draft = out + int64_t{request} * 2 * count;
    int token = verdict_of(layout, ctx.read<Region::kVerdictOut>(), request).anchor;
    for (int position = 0; position < count; ++position) {
      for (int slice = 0; slice < layout.num_slices(); ++slice) {
        const int row = request * count + position;
        const float* from = ctx.read<Region::kHeadU>() + (int64_t{slice} * layout.rows() + row) * layout.slice_width();
        std::copy(from, from + layout.slice_width(), features.begin() + int64_t{slice} * layout.slice_width());
      }
      const std::vector<float> embedding = markov_row(ctx, token);
      std::copy(embedding.begin(), embedding.end(), features.begin() + g.hidden_size);
      draft[count + position] =
          dot(features.data(), ctx.weights().confidence.data(), static_cast<int>(features.size()));
      const int writer = ctx.program().find(Stage::kMarkov, position);
      for (int granule = 0; granule < layout.num_granules(Region::kMarkovTop); ++granule) {
        if (!ctx.poll_from<Region::kMarkovTop>(writer, granule)) return;
      }
      token = pick(layout, ctx.read_from<Region::kMarkovTop>(writer), request);
      draft[position] = word_of(token);
    }
    ctx.put<Region::kDraft>(request);
  }
}

}  // namespace monostep::cpu
