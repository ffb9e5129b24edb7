// Attention over window and selected groups (backbone), or over the draft's context and its own rows. Tasks of kAttend:
// parts of the list x output groups x rows; it leaves each head's running maximum, sum of weights and weighted sum of
// keys over the part. Tasks of kAttnMerge: heads x rows; it adds up a head's parts, ascending, and its sink, divides
// and rotates back. Formulas: model.md 3.5.
#include <cmath>

#include "base/math.h"
#include "cpu/stage_common.h"
#include "cpu/stages.h"
#include "program/attention.h"

namespace monostep::cpu {
namespace {

constexpr int kListChunk = 64;
static_assert(program::kListPart % kListChunk == 0);

// Entries of the first half of a row's list (window, or the draft's context), and of all of it.
struct ListSizes {
  int num_first = 0;
  int num_entries = 0;
  int num_parts() const { return program::parts_of_list(num_entries); }
};
template <Stage S>
ListSizes list_sizes(StageContext<S>& ctx, const Row& row) {
  const model::Geometry& g = ctx.geometry();
  if (!ctx.draft()) {
    return {g.sliding_window,
            g.sliding_window + program::selected_groups(g.index_topk, ctx.role().ratio, row.position)};
  }
  const int last_position =
      verdict_of(ctx.layout(), ctx.template read<Region::kVerdictOut>(), row.request).last_position;
  const int context = program::context_entries(g.sliding_window, last_position);
  return {context, context + g.dspark_block_size};
}

// The keys of a part of a list; an absent entry is all zeros.
struct ListPart {
  std::vector<float> keys;    // [entries][head_dim]
  std::vector<bool> present;  // [entries]
};

class PartBuilder {
 public:
  PartBuilder(StageContext<Stage::kAttend>& ctx, const Row& row, const ListSizes& sizes)
      : ctx_(ctx),
        row_(row),
        request_(ctx.inputs().requests[static_cast<size_t>(row.request)]),
        sizes_(sizes),
        width_(ctx.geometry().head_dim) {}

  ListPart build(int part) {
    const int begin = part * program::kListPart;
    const int end = std::min(begin + program::kListPart, sizes_.num_entries);
    ListPart out;
    out.keys.resize(static_cast<size_t>(end - begin) * static_cast<size_t>(width_));
    for (int entry = begin; entry < end; ++entry) {
      const std::span<float> key = std::span(out.keys).subspan(
          static_cast<size_t>(entry - begin) * static_cast<size_t>(width_), static_cast<size_t>(width_));
      out.present.push_back(fill(entry, key));
    }
    return out;
  }

 private:
  // False: absent.
  bool fill(int entry, std::span<float> key) {
    const bool first = entry < sizes_.num_first;
    if (ctx_.draft()) return first ? context_key(entry, key) : draft_key(entry - sizes_.num_first, key);
    return first ? window_key(entry, key) : selected_key(entry - sizes_.num_first, key);
  }

  bool copy(const float* row, std::span<float> key) const {
    std::copy_n(row, key.size(), key.begin());
    return true;
  }
  bool ring_key(int position, std::span<float> key) const {
    kv::Pools& pools = ctx_.pools();
    const std::byte* slot = pools.slot(request_.state_slot);
    unpack_window(record_at(slot, pools.slot_layout.ring_offset(ctx_.layer_idx(), position)), key);
    return true;
  }
  int step_row(int position) const { return request_.first_row + position - request_.first_position; }

  // Oldest to newest; absent positions first while the window fills.
  bool window_key(int entry, std::span<float> key) const {
    const int position = row_.position - ctx_.geometry().sliding_window + 1 + entry;
    if (position < 0) return false;
    if (position < request_.first_position) return ring_key(position, key);
    return copy(ctx_.read<Region::kWindowNew>() + int64_t{step_row(position)} * width_, key);
  }

  bool selected_key(int idx, std::span<float> key) const {
    const int group = int_of(ctx_.read<Region::kTopk>()[int64_t{row_.idx} * ctx_.geometry().index_topk + idx]);
    if (group < 0) return false;
    const int ratio = ctx_.role().ratio;
    const int closed_at = group * ratio + ratio - 1;
    if (closed_at >= request_.first_position)
      return copy(ctx_.read<Region::kCompressedNew>() + int64_t{step_row(closed_at)} * width_, key);
    kv::Pools& pools = ctx_.pools();
    const std::byte* page = pools.page(request_.pages[static_cast<size_t>(closed_at / program::kPageTokens)]);
    const int in_page = group % (program::kPageTokens / ratio);
    unpack_compressed(record_at(page, pools.page_layout.compressed_offset(ctx_.role().owner_idx, in_page)), key);
    return true;
  }

  // Draft rows see every context position of the window, in slot order (position mod window).
  bool context_key(int slot, std::span<float> key) const {
    const program::Layout& layout = ctx_.layout();
    const int last = verdict_of(layout, ctx_.read<Region::kVerdictOut>(), row_.request).last_position;
    const int position = last - (last - slot) % ctx_.geometry().sliding_window;
    if (position < request_.first_position) return ring_key(position, key);
    const int draft_idx = ctx_.layer_idx() - ctx_.geometry().num_hidden_layers;
    const int64_t at = int64_t{draft_idx} * layout.rows() + step_row(position);
    return copy(ctx_.read<Region::kContextNewOut>() + at * width_, key);
  }
  bool draft_key(int idx, std::span<float> key) const {
    const int64_t at = row_.idx - row_.draft_pos + idx;
    return copy(ctx_.read<Region::kWindowNew>() + at * width_, key);
  }

  StageContext<Stage::kAttend>& ctx_;
  const Row& row_;
  const program::StepRequest& request_;
  ListSizes sizes_;
  int width_;
};

// What a head leaves of a part: weighted sum of keys [head_dim], running maximum, sum of weights.
struct PartState {
  std::span<float> values;
  float& most;
  float& sum;
};
PartState part_state(float* words, int head_dim) {
  return {std::span(words, static_cast<size_t>(head_dim)), words[head_dim], words[head_dim + 1]};
}

// One head over a part, in chunks with a running maximum.
void attend_head(const ListPart& list, std::span<const float> query, PartState out) {
  const int width = static_cast<int>(query.size());
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(width)));
  out.most = -1e30f;
  out.sum = 0;
  std::fill(out.values.begin(), out.values.end(), 0.0f);
  for (size_t begin = 0; begin < list.present.size(); begin += kListChunk) {
    const size_t end = std::min(begin + kListChunk, list.present.size());
    float scores[kListChunk];
    float next = out.most;
    for (size_t entry = begin; entry < end; ++entry) {
      if (!list.present[entry]) continue;
      scores[entry - begin] = dot(query.data(), list.keys.data() + entry * query.size(), width) * scale;
      next = std::max(next, scores[entry - begin]);
    }
    const float shrink = exp_f32(out.most - next);
    float chunk_sum = 0;
    for (float& value : out.values) value *= shrink;
    for (size_t entry = begin; entry < end; ++entry) {
      if (!list.present[entry]) continue;
      const float weight = exp_f32(scores[entry - begin] - next);
      chunk_sum += weight;
      add_scaled(out.values.data(), list.keys.data() + entry * query.size(), round_bf16(weight), width);
    }
    out.sum = out.sum * shrink + chunk_sum;
    out.most = next;
  }
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

// All heads of an output group over a part.
void attend_group(StageContext<Stage::kAttend>& ctx, const Row& row, const ListPart& list,
                  const program::ItemTask& place) {
  const program::Layout& layout = ctx.layout();
  const int head_dim = ctx.geometry().head_dim;
  const int heads = layout.heads_per_group();
  const int group = place.outer % layout.shard().num_o_groups;
  const PartialSums queries = {ctx.read<Region::kQPart>(), layout.rows(), 0,
                               layout.stage_splits(Stage::kQProj, ctx.layer_idx())};
  const auto angles = angles_at(ctx.frequencies(), position_of(ctx, row));
  std::vector<float> query(static_cast<size_t>(head_dim));
  const int64_t granule = int64_t{place.outer} * layout.rows() + place.inner;
  float* out = ctx.write<Region::kAttnPart>() + granule * heads * (head_dim + 2);
  for (int head = 0; head < heads; ++head) {
    sum_splits(queries, row.idx, (group * heads + head) * head_dim, query);
    round_all(query);
    rotate(query, angles, false);
    attend_head(list, query, part_state(out + int64_t{head} * (head_dim + 2), head_dim));
  }
  ctx.put<Region::kAttnPart>(static_cast<int>(granule));
}

}  // namespace

template <>
void run_stage(StageContext<Stage::kAttend>& ctx) {
  const program::Layout& layout = ctx.layout();
  const int groups = layout.shard().num_o_groups;
  const int group_tiles = layout.heads_per_group() * ctx.geometry().head_dim / kTile;
  const int q_splits = layout.stage_splits(Stage::kQProj, ctx.layer_idx());
  if (!poll_attend(ctx)) return;
  // Built once a row and part, used by the row's groups.
  std::vector<ListPart> lists(static_cast<size_t>(layout.rows() * layout.list_parts(ctx.layer_idx())));
  for (const int task : ctx.tasks()) {
    const program::ItemTask place = program::item_task(layout, ctx.call(), task);
    const Row* live = live_row(ctx.rows(), place.inner);
    if (live == nullptr) continue;
    const Row& row = *live;
    const int part = place.outer / groups;
    const ListSizes sizes = list_sizes(ctx, row);
    if (part >= sizes.num_parts()) continue;
    const int first_tile = place.outer % groups * group_tiles;
    if (!ctx.poll_range<Region::kQPart>(first_tile * q_splits, group_tiles * q_splits)) return;
    if (ctx.role().ratio > 0 && !ctx.poll<Region::kTopk>(row.idx)) return;
    ListPart& list = lists[static_cast<size_t>(part * layout.rows() + row.idx)];
    if (list.present.empty()) list = PartBuilder(ctx, row, sizes).build(part);
    attend_group(ctx, row, list, place);
  }
}

template <>
void run_stage(StageContext<Stage::kAttnMerge>& ctx) {
  const program::Layout& layout = ctx.layout();
  const int head_dim = ctx.geometry().head_dim;
  const int heads = layout.heads_per_group();
  const int groups = layout.shard().num_o_groups;
  if (!poll_verdicts(ctx)) return;
  for (const int task : ctx.tasks()) {
    const program::ItemTask place = program::item_task(layout, ctx.call(), task);
    const Row* live = live_row(ctx.rows(), place.inner);
    if (live == nullptr) continue;
    const int num_parts = list_sizes(ctx, *live).num_parts();
    std::vector<const float*> parts;  // [head_dim] values, running maximum, sum of weights
    float most = -1e30f;
    for (int part = 0; part < num_parts; ++part) {
      const int granule = (part * groups + place.outer / heads) * layout.rows() + live->idx;
      if (!ctx.poll<Region::kAttnPart>(granule)) return;
      parts.push_back(ctx.read<Region::kAttnPart>() +
                      (int64_t{granule} * heads + place.outer % heads) * (head_dim + 2));
      most = std::max(most, parts.back()[head_dim]);
    }
    std::vector<float> values(static_cast<size_t>(head_dim), 0.0f);
    float sum = 0;
    for (const float* part : parts) {
      const float share = exp_f32(part[head_dim] - most);
      sum += part[head_dim + 1] * share;
      for (size_t idx = 0; idx < values.size(); ++idx) values[idx] += part[idx] * share;
    }
    // The sink enters the denominator alone.
    sum += exp_f32(ctx.layer().attn.sink[static_cast<size_t>(place.outer)] - most);
    for (float& value : values) value /= sum;
    round_all(values);
    rotate(values, angles_at(ctx.frequencies(), position_of(ctx, *live)), true);
    const int granule = program::granule_of(layout, ctx.call(), Region::kAttnOut, ctx.rank(), task);
    std::copy(values.begin(), values.end(), ctx.write<Region::kAttnOut>() + int64_t{granule} * head_dim);
    ctx.put<Region::kAttnOut>(granule);
  }
}

}  // namespace monostep::cpu
