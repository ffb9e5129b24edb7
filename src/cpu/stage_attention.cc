// Stages of the attention site but for attention itself (stage_attend.cc): input projections, queries, new cache rows,
// output projections. Tasks: output tiles x K-splits (linears), rows (kQNorm, kKvNew), rows x column chunks (kOSum).
// Formulas: model.md 3.4-3.6.
#include <cmath>

#include "base/math.h"
#include "cpu/stage_common.h"
#include "cpu/stages.h"

namespace monostep::cpu {
namespace {

struct LinearSection {
  const PackedLinear* weights = nullptr;
  int first_tile = 0;
};

// The section that holds a tile of the stage.
const LinearSection& section_at(const std::vector<LinearSection>& sections, int tile) {
  size_t idx = sections.size() - 1;
  while (sections[idx].first_tile > tile) --idx;
  return sections[idx];
}

// Runs this CTA's tile tasks over sections that share K. `inputs_of` gives a section's activations.
template <Region Out, Stage S, typename InputsOf>
void run_tiles(StageContext<S>& ctx, const std::vector<LinearSection>& sections, const InputsOf& inputs_of) {
  const program::Layout& layout = ctx.layout();
  const int splits = layout.stage_splits(S, ctx.layer_idx());
  const std::vector<int> indices = row_indices(ctx.rows());
  float* out = ctx.template write<Out>();
  for (const int task : ctx.tasks()) {
    const program::TileTask part = linear_task(task, splits);
    const LinearSection& section = section_at(sections, part.tile);
    const TileProduct product = slice_of(*section.weights, part.tile - section.first_tile, part.split, splits);
    multiply_tile(*section.weights, product, inputs_of(*section.weights), indices,
                  out + int64_t{task} * layout.rows() * kTile);
    ctx.template put<Out>(task);
  }
}

}  // namespace

template <>
void run_stage(StageContext<Stage::kAttnIn>& ctx) {
  const program::Layout& layout = ctx.layout();
  if (!ctx.poll_range<Region::kAttnU>(0, layout.num_slices())) return;
  RowValues rows = normed_rows(layout, ctx.read<Region::kAttnU>(), ctx.rows(), ctx.layer().attn_norm);
  const Activations quantized = quantize(rows.values, rows.width, row_indices(ctx.rows()));
  const Activations values = plain(std::move(rows.values), rows.width);
  const AttentionWeights& weights = ctx.layer().attn;
  std::vector<LinearSection> sections;
  const auto add = [&](Linear linear, const PackedLinear& packed) {
    if (packed.n > 0) sections.push_back({&packed, layout.first_tile(Stage::kAttnIn, linear, ctx.layer_idx())});
  };
  add(Linear::kWqA, weights.wq_a);
  add(Linear::kWkv, weights.wkv);
  add(Linear::kCompressorWkv, weights.compressor_wkv);
  add(Linear::kCompressorGate, weights.compressor_gate);
  add(Linear::kIndexWeights, weights.index_weights);
  run_tiles<Region::kAttnInPart>(ctx, sections, [&](const PackedLinear& linear) -> const Activations& {
    return linear.kind == Kind::kFp8 ? quantized : values;
  });
}

namespace {

template <Stage S>
bool poll_attn_in(StageContext<S>& ctx) {
  const program::Layout& layout = ctx.layout();
  return ctx.template poll_range<Region::kAttnInPart>(
      0, layout.stage_tiles(Stage::kAttnIn, ctx.layer_idx()) * layout.stage_splits(Stage::kAttnIn, ctx.layer_idx()));
}

template <Stage S>
PartialSums attn_in(const StageContext<S>& ctx, Linear linear) {
  const program::Layout& layout = ctx.layout();
  return {ctx.template read<Region::kAttnInPart>(), layout.rows(),
          layout.first_tile(Stage::kAttnIn, linear, ctx.layer_idx()),
          layout.stage_splits(Stage::kAttnIn, ctx.layer_idx())};
}

}  // namespace

template <>
void run_stage(StageContext<Stage::kQNorm>& ctx) {
  const program::Layout& layout = ctx.layout();
  const int splits = layout.stage_splits(Stage::kAttnIn, ctx.layer_idx());
  const int width = ctx.geometry().q_lora_rank;
  std::vector<float> raw(static_cast<size_t>(width));
  for (const int task : ctx.tasks()) {
    if (live_row(ctx.rows(), task) == nullptr) continue;
    const PartialSums sums = attn_in(ctx, Linear::kWqA);
    if (!ctx.poll_range<Region::kAttnInPart>(sums.first_tile * splits, ceil_div(width, kTile) * splits)) return;
    sum_splits(sums, task, 0, raw);
    round_all(raw);
    rms_norm(raw, ctx.layer().attn.q_norm, ctx.geometry().rms_norm_eps,
             ctx.write<Region::kQIn>() + int64_t{task} * width);
    ctx.put<Region::kQIn>(task);
  }
}

template <>
void run_stage(StageContext<Stage::kQProj>& ctx) {
  const program::Layout& layout = ctx.layout();
  if (!ctx.poll_rows<Region::kQIn>(ctx.rows())) return;
  const RowValues queries = rows_at(ctx.read<Region::kQIn>(), used_rows(ctx.rows()), ctx.geometry().q_lora_rank);
  const Activations inputs = quantize(queries.values, queries.width, row_indices(ctx.rows()));
  std::vector<LinearSection> sections = {{&ctx.layer().attn.wq_b, 0}};
  if (ctx.layer().attn.index_wq_b.n > 0) {
    sections.push_back(
        {&ctx.layer().attn.index_wq_b, layout.first_tile(Stage::kQProj, Linear::kIndexWqB, ctx.layer_idx())});
  }
  run_tiles<Region::kQPart>(ctx, sections, [&](const PackedLinear&) -> const Activations& { return inputs; });
}

namespace {

// Window row of a row of the step: to the ring (target rows) and to the step's region.
void new_window_row(StageContext<Stage::kKvNew>& ctx, const Row& row, float* out) {
  const model::Geometry& g = ctx.geometry();
  std::vector<float> raw(static_cast<size_t>(g.head_dim));
  std::vector<float> values(raw.size());
  sum_splits(attn_in(ctx, Linear::kWkv), row.idx, 0, raw);
  round_all(raw);
  rms_norm(raw, ctx.layer().attn.kv_norm, g.rms_norm_eps, values.data());
  rotate(values, angles_at(ctx.frequencies(), position_of(ctx, row)), false);
  std::vector<uint8_t> record(static_cast<size_t>(model::window_record_bytes(g)));
  pack_window(values, record.data());
  std::copy(values.begin(), values.end(), out + int64_t{row.idx} * g.head_dim);
  if (ctx.draft()) return;  // the draft block's rows are seen in this step alone
  kv::Pools& pools = ctx.pools();
  std::byte* slot = pools.slot(ctx.inputs().requests[static_cast<size_t>(row.request)].state_slot);
  std::memcpy(slot + pools.slot_layout.ring_offset(ctx.layer_idx(), row.position), record.data(), record.size());
}

// (kv, gate) of a position before the step's first row of the request, or of a row of the step: [2][head_dim] fp32.
std::vector<float> pair_part(StageContext<Stage::kKvNew>& ctx, const Row& row, int position) {
  const program::StepRequest& request = ctx.inputs().requests[static_cast<size_t>(row.request)];
  const auto width = static_cast<size_t>(ctx.geometry().head_dim);
  std::vector<float> out(2 * width);
  if (position >= request.first_position) {
    const int row_idx = request.first_row + position - request.first_position;
    sum_splits(attn_in(ctx, Linear::kCompressorWkv), row_idx, 0, std::span(out).first(width));
    sum_splits(attn_in(ctx, Linear::kCompressorGate), row_idx, 0, std::span(out).last(width));
  } else {
    const kv::Pools& pools = ctx.pools();
    std::memcpy(out.data(),
                ctx.pools().slot(request.state_slot) + pools.slot_layout.pending_offset(ctx.role().owner_idx, position),
                out.size() * sizeof(float));
  }
  return out;
}

// The latent of the group that a row closes, before RoPE; empty where it closes none. A ratio-2 row that opens a group
// leaves its projections in the slot.
std::vector<float> closed_latent(StageContext<Stage::kKvNew>& ctx, const Row& row) {
  const model::Geometry& g = ctx.geometry();
  const auto width = static_cast<size_t>(g.head_dim);
  std::vector<float> raw(width);
  if (ctx.role().ratio == 1) {
    sum_splits(attn_in(ctx, Linear::kCompressorWkv), row.idx, 0, raw);
  } else {
    const std::vector<float> own = pair_part(ctx, row, row.position);
    if (row.position % 2 == 0) {
      kv::Pools& pools = ctx.pools();
      std::byte* slot = pools.slot(ctx.inputs().requests[static_cast<size_t>(row.request)].state_slot);
      std::memcpy(slot + pools.slot_layout.pending_offset(ctx.role().owner_idx, row.position), own.data(),
                  own.size() * sizeof(float));
      return {};
    }
    const std::vector<float> other = pair_part(ctx, row, row.position - 1);
    for (size_t idx = 0; idx < width; ++idx) {
      const float most = std::max(own[width + idx], other[width + idx]);
      const float first = exp_f32(other[width + idx] - most);
      const float second = exp_f32(own[width + idx] - most);
      raw[idx] = other[idx] * (first / (first + second)) + own[idx] * (second / (first + second));
    }
  }
  round_all(raw);
  std::vector<float> latent(width);
  rms_norm(raw, ctx.layer().attn.compressor_norm, g.rms_norm_eps, latent.data());
  return latent;
}

void new_compressed_row(StageContext<Stage::kKvNew>& ctx, const Row& row) {
  const model::Geometry& g = ctx.geometry();
  std::vector<float> latent = closed_latent(ctx, row);
  if (latent.empty()) return;
  const int ratio = ctx.role().ratio;
  const int group = row.position / ratio;
  const auto angles = angles_at(ctx.frequencies(), group * ratio);
  kv::Pools& pools = ctx.pools();
  const program::StepRequest& request = ctx.inputs().requests[static_cast<size_t>(row.request)];
  std::byte* page = pools.page(request.pages[static_cast<size_t>(row.position / program::kPageTokens)]);
  const int group_in_page = group % (program::kPageTokens / ratio);

  std::vector<float> product(static_cast<size_t>(ceil_div(g.index_head_dim, kTile) * kTile));
  std::vector<float> key(static_cast<size_t>(g.index_head_dim));
  const Activations inputs = plain(latent, g.head_dim);
  const int first_row[] = {0};
  for (int tile = 0; tile < ctx.layer().attn.index_key.tiles(); ++tile) {
    multiply_tile(ctx.layer().attn.index_key, {tile, 0, g.head_dim}, inputs, first_row, product.data() + tile * kTile);
  }
  product.resize(key.size());
  round_all(product);
  rms_norm(product, ctx.layer().attn.index_key_norm, g.rms_norm_eps, key.data());
  rotate(key, angles, false);
  pack_index(key, record_at(page, pools.page_layout.index_key_offset(ctx.role().owner_idx, group_in_page)));
  std::copy(key.begin(), key.end(), ctx.write<Region::kIndexKeyNew>() + int64_t{row.idx} * g.index_head_dim);

  rotate(latent, angles, false);
  pack_compressed(latent, record_at(page, pools.page_layout.compressed_offset(ctx.role().owner_idx, group_in_page)));
  std::copy(latent.begin(), latent.end(), ctx.write<Region::kCompressedNew>() + int64_t{row.idx} * g.head_dim);
}

}  // namespace

template <>
void run_stage(StageContext<Stage::kKvNew>& ctx) {
  if (!poll_attn_in(ctx) || !poll_verdicts(ctx)) return;
  const bool owner = ctx.role().mode == model::Mode::kFull;
  float* window = ctx.write<Region::kWindowNew>();
  for (const int task : ctx.tasks()) {
    const Row* live = live_row(ctx.rows(), task);
    if (live == nullptr) continue;
    const Row& row = *live;
    new_window_row(ctx, row, window);
    ctx.put<Region::kWindowNew>(row.idx);
    if (!owner) continue;
    new_compressed_row(ctx, row);
    ctx.put<Region::kCompressedNew>(row.idx);
    ctx.put<Region::kIndexKeyNew>(row.idx);
  }
}

template <>
void run_stage(StageContext<Stage::kWoA>& ctx) {
  const program::Layout& layout = ctx.layout();
  const int width = layout.heads_per_group() * ctx.geometry().head_dim;
  const int splits = layout.stage_splits(Stage::kWoA, ctx.layer_idx());
  const int tasks_per_group = layout.stage_tiles(Stage::kWoA, ctx.layer_idx()) * splits;
  const std::vector<int> indices = row_indices(ctx.rows());
  std::vector<Activations> inputs(static_cast<size_t>(layout.shard().num_o_groups));  // [groups], bf16 rows
  float* out = ctx.write<Region::kOaPart>();
  for (const int task : ctx.tasks()) {
    const int group = task / tasks_per_group;
    Activations& values = inputs[static_cast<size_t>(group)];
    if (values.k == 0) {
      const int heads = layout.heads_per_group();
      for (const Row& row : ctx.rows()) {
        if (!ctx.poll_range<Region::kAttnOut>((group * layout.rows() + row.idx) * heads, heads)) return;
      }
      const float* from = ctx.read<Region::kAttnOut>() + int64_t{group} * layout.rows() * width;
      values = plain(std::vector<float>(from, from + int64_t{used_rows(ctx.rows())} * width), width);
    }
    const PackedLinear& weights = ctx.layer().attn.wo_a[static_cast<size_t>(group)];
    const program::TileTask part = linear_task(task % tasks_per_group, splits);
    multiply_tile(weights, slice_of(weights, part.tile, part.split, splits), values, indices,
                  out + int64_t{task} * layout.rows() * kTile);
    ctx.put<Region::kOaPart>(task);
  }
}

template <>
void run_stage(StageContext<Stage::kOSum>& ctx) {
  const program::Layout& layout = ctx.layout();
  const int splits = layout.stage_splits(Stage::kWoA, ctx.layer_idx());
  const int width = layout.o_chunk_width();
  const int tiles = width / kTile;
  for (const int task : ctx.tasks()) {
    const program::ItemTask place = program::item_task(layout, ctx.call(), task);
    if (live_row(ctx.rows(), place.outer) == nullptr) continue;
    const int first_tile = place.inner * tiles;  // the groups' tiles lie behind each other, and so do their chunks
    if (!ctx.poll_range<Region::kOaPart>(first_tile * splits, tiles * splits)) return;
    const std::span<float> sums(ctx.write<Region::kOIn>() + int64_t{task} * width, static_cast<size_t>(width));
    sum_splits({ctx.read<Region::kOaPart>(), layout.rows(), first_tile, splits}, place.outer, 0, sums);
    round_all(sums);
    ctx.put<Region::kOIn>(task);
  }
}

template <>
void run_stage(StageContext<Stage::kWoB>& ctx) {
  const program::Layout& layout = ctx.layout();
  const int chunks = layout.o_chunks();
  for (const Row& row : ctx.rows()) {
    if (!ctx.poll_range<Region::kOIn>(row.idx * chunks, chunks)) return;
  }
  const RowValues rows = rows_at(ctx.read<Region::kOIn>(), used_rows(ctx.rows()), chunks * layout.o_chunk_width());
  const Activations inputs = quantize(rows.values, rows.width, row_indices(ctx.rows()));
  const std::vector<int> indices = row_indices(ctx.rows());
  const int hidden_tiles = layout.stage_tiles(Stage::kWoB, ctx.layer_idx());
  float* out = ctx.write<Region::kAttnExchange>();
  for (const int task : ctx.tasks()) {
    const int granule = ctx.rank() * hidden_tiles + task;
    const PackedLinear& weights = ctx.layer().attn.wo_b;
    multiply_tile(weights, {task, 0, weights.k}, inputs, indices, out + int64_t{granule} * layout.rows() * kTile);
    ctx.put<Region::kAttnExchange>(granule);
  }
}

}  // namespace monostep::cpu
