// Stages of the attention site: input projections, queries, new cache rows, attention over window and selected groups,
// output projections. Tasks: output tiles x K-splits (linears), rows (kQNorm, kKvNew), output groups x rows (kAttend),
// rows x column chunks (kOSum). Formulas: model.md 3.4-3.6.
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

// Position of a row: known for target rows, behind the verdict's last committed position for draft rows.
template <Stage S>
int position_of(StageContext<S>& ctx, const Row& row) {
  if (!ctx.draft()) return row.position;
  return verdict_of(ctx.layout(), ctx.template read<Region::kVerdictOut>(), row.request).last_position + 1 +
         row.draft_pos;
}

template <Stage S>
bool poll_verdicts(StageContext<S>& ctx) {
  for (const Row& row : ctx.rows()) {
    if (ctx.draft() && !ctx.template poll<Region::kVerdictOut>(row.request)) return false;
  }
  return true;
}

const uint8_t* record_at(const std::byte* base, int64_t offset) {
  return reinterpret_cast<const uint8_t*>(base + offset);
}
uint8_t* record_at(std::byte* base, int64_t offset) { return reinterpret_cast<uint8_t*>(base + offset); }

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

namespace {

// The keys that a row attends to, in list order; an absent entry has no data.
struct AttentionList {
  std::vector<float> keys;    // [entries][head_dim]
  std::vector<bool> present;  // [entries]
};

class ListBuilder {
 public:
  ListBuilder(StageContext<Stage::kAttend>& ctx, const Row& row)
      : ctx_(ctx),
        row_(row),
        request_(ctx.inputs().requests[static_cast<size_t>(row.request)]),
        width_(ctx.geometry().head_dim) {}

  AttentionList build() {
    const model::Geometry& g = ctx_.geometry();
    list_.keys.reserve(static_cast<size_t>((g.sliding_window + std::max(g.index_topk, g.dspark_block_size)) * width_));
    if (ctx_.draft()) {
      add_context();
      for (const Row& other : ctx_.rows()) {
        if (other.request == row_.request) add(ctx_.read<Region::kWindowNew>() + int64_t{other.idx} * width_);
      }
    } else {
      add_window();
      if (ctx_.role().ratio > 0) add_selected();
    }
    return std::move(list_);
  }

 private:
  // Room for one more key, to be filled by the caller.
  std::span<float> next(bool present) {
    list_.present.push_back(present);
    list_.keys.resize(list_.keys.size() + static_cast<size_t>(width_));
    return std::span(list_.keys).last(static_cast<size_t>(width_));
  }
  void add(const float* values) { std::copy_n(values, width_, next(true).begin()); }
  void add_ring(int position) {
    kv::Pools& pools = ctx_.pools();
    const std::byte* slot = pools.slot(request_.state_slot);
    unpack_window(record_at(slot, pools.slot_layout.ring_offset(ctx_.layer_idx(), position)), next(true));
  }
  int step_row(int position) const { return request_.first_row + position - request_.first_position; }

  // Oldest to newest; absent positions first while the window fills.
  void add_window() {
    for (int position = row_.position - ctx_.geometry().sliding_window + 1; position <= row_.position; ++position) {
      if (position < 0) {
        next(false);
      } else if (position >= request_.first_position) {
        add(ctx_.read<Region::kWindowNew>() + int64_t{step_row(position)} * width_);
      } else {
        add_ring(position);
      }
    }
  }

  void add_selected() {
    const int32_t topk = ctx_.geometry().index_topk;
    const float* selected = ctx_.read<Region::kTopk>() + int64_t{row_.idx} * topk;
    const int ratio = ctx_.role().ratio;
    for (int idx = 0; idx < topk && int_of(selected[idx]) >= 0; ++idx) {
      const int group = int_of(selected[idx]);
      const int closed_at = group * ratio + ratio - 1;
      if (closed_at >= request_.first_position) {
        add(ctx_.read<Region::kCompressedNew>() + int64_t{step_row(closed_at)} * width_);
        continue;
      }
      kv::Pools& pools = ctx_.pools();
      const std::byte* page = pools.page(request_.pages[static_cast<size_t>(closed_at / program::kPageTokens)]);
      const int in_page = group % (program::kPageTokens / ratio);
      unpack_compressed(record_at(page, pools.page_layout.compressed_offset(ctx_.role().owner_idx, in_page)),
                        next(true));
    }
  }

  // Draft rows see every context position of the window, in slot order (position mod window).
  void add_context() {
    const program::Layout& layout = ctx_.layout();
    const int last = verdict_of(layout, ctx_.read<Region::kVerdictOut>(), row_.request).last_position;
    const int window = ctx_.geometry().sliding_window;
    const int draft_idx = ctx_.layer_idx() - ctx_.geometry().num_hidden_layers;
    for (int slot = 0; slot < std::min(window, last + 1); ++slot) {
      const int position = last - (last - slot) % window;
      if (position >= request_.first_position) {
        const int64_t at = int64_t{draft_idx} * layout.rows() + step_row(position);
        add(ctx_.read<Region::kContextNewOut>() + at * width_);
      } else {
        add_ring(position);
      }
    }
  }

  StageContext<Stage::kAttend>& ctx_;
  const Row& row_;
  const program::StepRequest& request_;
  int width_;
  AttentionList list_;
};

constexpr int kListChunk = 64;

// One head over its list, in chunks with a running maximum; the sink enters the denominator alone. out: [head_dim]
// before rounding.
void attend_head(const AttentionList& list, std::span<const float> query, float sink, std::span<float> out) {
  const int width = static_cast<int>(query.size());
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(width)));
  float most = -1e30f;
  float sum = 0;
  std::fill(out.begin(), out.end(), 0.0f);
  for (size_t begin = 0; begin < list.present.size(); begin += kListChunk) {
    const size_t end = std::min(begin + kListChunk, list.present.size());
    float scores[kListChunk];
    float next = most;
    for (size_t entry = begin; entry < end; ++entry) {
      if (!list.present[entry]) continue;
      scores[entry - begin] = dot(query.data(), list.keys.data() + entry * query.size(), width) * scale;
      next = std::max(next, scores[entry - begin]);
    }
    const float shrink = exp_f32(most - next);
    float chunk_sum = 0;
    for (float& value : out) value *= shrink;
    for (size_t entry = begin; entry < end; ++entry) {
      if (!list.present[entry]) continue;
      const float weight = exp_f32(scores[entry - begin] - next);
      chunk_sum += weight;
      add_scaled(out.data(), list.keys.data() + entry * query.size(), round_bf16(weight), width);
    }
    sum = sum * shrink + chunk_sum;
    most = next;
  }
  sum += exp_f32(sink - most);
  for (float& value : out) value /= sum;
}

bool poll_attend(StageContext<Stage::kAttend>& ctx) {
  const program::Layout& layout = ctx.layout();
  if (!poll_verdicts(ctx) || !ctx.poll_rows<Region::kWindowNew>(ctx.rows())) return false;
  if (ctx.role().ratio > 0 && !ctx.poll_rows<Region::kCompressedNew>(ctx.rows())) return false;
  if (!ctx.draft()) return true;
  const int draft_idx = ctx.layer_idx() - ctx.geometry().num_hidden_layers;
  for (const Row& row : ctx.target_rows()) {
    const bool wanted = ctx.inputs().requests[static_cast<size_t>(row.request)].context;
    if (wanted && !ctx.poll<Region::kContextNewOut>(draft_idx * layout.rows() + row.idx)) return false;
  }
  return true;
}

}  // namespace

template <>
void run_stage(StageContext<Stage::kAttend>& ctx) {
  const program::Layout& layout = ctx.layout();
  const model::Geometry& g = ctx.geometry();
  const int row_tasks = ctx.draft() ? layout.draft_rows() : layout.shape().band;
  const int heads = layout.heads_per_group();
  const int q_splits = layout.stage_splits(Stage::kQProj, ctx.layer_idx());
  if (!poll_attend(ctx)) return;
  std::vector<AttentionList> lists(static_cast<size_t>(layout.rows()));  // built once a row, used by its groups
  std::vector<float> query(static_cast<size_t>(g.head_dim));
  std::vector<float> result(query.size());
  float* out = ctx.write<Region::kAttnOut>();
  for (const int task : ctx.tasks()) {
    const int group = task / row_tasks;
    const Row* live = live_row(ctx.rows(), task % row_tasks);
    if (live == nullptr) continue;
    const Row& row = *live;
    const int first_tile = group * heads * g.head_dim / kTile;
    if (!ctx.poll_range<Region::kQPart>(first_tile * q_splits, heads * g.head_dim / kTile * q_splits)) return;
    if (ctx.role().ratio > 0 && !ctx.poll<Region::kTopk>(row.idx)) return;
    AttentionList& list = lists[static_cast<size_t>(row.idx)];
    if (list.present.empty()) list = ListBuilder(ctx, row).build();
    const auto angles = angles_at(ctx.frequencies(), position_of(ctx, row));
    for (int head = 0; head < heads; ++head) {
      const int head_idx = group * heads + head;
      sum_splits({ctx.read<Region::kQPart>(), layout.rows(), 0, q_splits}, row.idx, head_idx * g.head_dim, query);
      round_all(query);
      rotate(query, angles, false);
      attend_head(list, query, ctx.layer().attn.sink[static_cast<size_t>(head_idx)], result);
      round_all(result);
      rotate(result, angles, true);
      const int64_t at = (int64_t{group} * layout.rows() + row.idx) * heads + head;
      std::copy(result.begin(), result.end(), out + at * g.head_dim);
    }
    ctx.put<Region::kAttnOut>(group * layout.rows() + row.idx);
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
      for (const Row& row : ctx.rows()) {
        if (!ctx.poll<Region::kAttnOut>(group * layout.rows() + row.idx)) return;
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
