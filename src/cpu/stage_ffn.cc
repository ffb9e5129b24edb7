// Stages of the FFN site: router and shared expert in, routed experts up, activations, all experts down. Tasks: output
// tiles x K-splits (kFfnIn), distinct expert x tile x split (kExpertUp), rows x expert slots (kExpertAct), output tiles
// of all experts (kExpertDown). Formulas: model.md 3.7.
#include <array>
#include <cmath>

#include "base/math.h"
#include "cpu/routing.h"
#include "cpu/stage_common.h"
#include "cpu/stages.h"

namespace monostep::cpu {
namespace {

// Routing of every live row from the polled router sums, and the ascending list of experts that any row takes.
struct StepRouting {
  std::vector<Routing> rows;  // by region row
  std::vector<int> experts;   // distinct, ascending
};

template <Stage S>
bool poll_ffn_in(StageContext<S>& ctx, Linear linear) {
  const program::Layout& layout = ctx.layout();
  const int splits = layout.stage_splits(Stage::kFfnIn, ctx.layer_idx());
  return ctx.template poll_range<Region::kFfnInPart>(layout.first_tile(Stage::kFfnIn, linear, ctx.layer_idx()) * splits,
                                                     layout.size(linear, ctx.layer_idx()).tiles() * splits);
}

template <Stage S>
StepRouting route_rows(const StageContext<S>& ctx) {
  const program::Layout& layout = ctx.layout();
  const int num_experts = ctx.geometry().num_experts(ctx.layer_idx());
  const PartialSums router{ctx.template read<Region::kFfnInPart>(), layout.rows(), 0,
                           layout.stage_splits(Stage::kFfnIn, ctx.layer_idx())};
  StepRouting out;
  out.rows.resize(static_cast<size_t>(layout.rows()));
  std::vector<bool> taken(static_cast<size_t>(num_experts));
  std::vector<float> logits(static_cast<size_t>(num_experts));
  for (const Row& row : ctx.rows()) {
    sum_splits(router, row.idx, 0, logits);
    const FfnWeights& weights = ctx.layer().ffn;
    Routing& routing = out.rows[static_cast<size_t>(row.idx)];
    routing = route(
        logits, row.image ? weights.bias_vl : weights.bias,
        {ctx.geometry().experts_per_token(ctx.layer_idx()), static_cast<float>(ctx.geometry().routed_scaling_factor)});
    for (const int expert : routing.experts) taken[static_cast<size_t>(expert)] = true;
  }
  for (int expert = 0; expert < num_experts; ++expert) {
    if (taken[static_cast<size_t>(expert)]) out.experts.push_back(expert);
  }
  return out;
}

// Place of an expert in a row's ascending list, -1 where the row does not take it.
int slot_of(const Routing& routing, int expert) {
  const auto found = std::find(routing.experts.begin(), routing.experts.end(), expert);
  return found == routing.experts.end() ? -1 : static_cast<int>(found - routing.experts.begin());
}

// Word offset of (which of w1 and w3, tile x splits + split, row, slot) in kExpertPart.
int64_t expert_offset(const program::Layout& layout, int which, int tile_split, int row_slot) {
  const int tiles = layout.stage_tiles(Stage::kExpertUp, 0) * layout.stage_splits(Stage::kExpertUp, 0);
  const int64_t row_slots = int64_t{layout.rows()} * layout.expert_slots();
  return ((int64_t{which} * tiles + tile_split) * row_slots + row_slot) * kTile;
}

// a = bf16(w (silu(min(g, limit)) clamp(u, limit))), g and u rounded to bf16 first; w absent for the shared expert.
void gated(std::span<const float> gate, std::span<const float> up, float weight, float limit, float* out) {
  for (size_t idx = 0; idx < gate.size(); ++idx) {
    const float g = std::min(round_bf16(gate[idx]), limit);
    const float u = std::clamp(round_bf16(up[idx]), -limit, limit);
    out[idx] = round_bf16(weight * (g * sigmoid_f32(g) * u));
  }
}

}  // namespace

Routing route(std::span<const float> logits, std::span<const float> bias, const RoutingRule& rule) {
  std::vector<float> scores;
  std::vector<int> order;
  for (size_t expert = 0; expert < logits.size(); ++expert) {
    scores.push_back(std::sqrt(softplus_f32(logits[expert])));
    order.push_back(static_cast<int>(expert));
  }
  const auto key = [&](int expert) { return scores[static_cast<size_t>(expert)] + bias[static_cast<size_t>(expert)]; };
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return key(a) > key(b); });
  order.resize(static_cast<size_t>(rule.experts_per_token));
  std::sort(order.begin(), order.end());
  Routing out{order, {}};
  float sum = 0;
  for (const int expert : order) sum += scores[static_cast<size_t>(expert)];
  for (const int expert : order)
    out.weights.push_back(scores[static_cast<size_t>(expert)] / (sum + 1e-20f) * rule.scale);
  return out;
}

template <>
void run_stage(StageContext<Stage::kFfnIn>& ctx) {
  const program::Layout& layout = ctx.layout();
  if (!ctx.poll_range<Region::kFfnU>(0, layout.num_slices())) return;
  RowValues rows = normed_rows(layout, ctx.read<Region::kFfnU>(), ctx.rows(), ctx.layer().ffn_norm);
  const Activations quantized = quantize(rows.values, rows.width, row_indices(ctx.rows()));
  const Activations values = plain(std::move(rows.values), rows.width);
  const FfnWeights& weights = ctx.layer().ffn;
  const int splits = layout.stage_splits(Stage::kFfnIn, ctx.layer_idx());
  const int w1_tile = layout.first_tile(Stage::kFfnIn, Linear::kSharedW1, ctx.layer_idx());
  const int w3_tile = layout.first_tile(Stage::kFfnIn, Linear::kSharedW3, ctx.layer_idx());
  const std::vector<int> indices = row_indices(ctx.rows());
  float* out = ctx.write<Region::kFfnInPart>();
  for (const int task : ctx.tasks()) {
    const program::TileTask part = linear_task(task, splits);
    const bool router = part.tile < w1_tile;
    const PackedLinear& linear = router ? weights.router : part.tile < w3_tile ? weights.shared_w1 : weights.shared_w3;
    const int first_tile = router ? 0 : part.tile < w3_tile ? w1_tile : w3_tile;
    multiply_tile(linear, slice_of(linear, part.tile - first_tile, part.split, splits), router ? values : quantized,
                  indices, out + int64_t{task} * layout.rows() * kTile);
    ctx.put<Region::kFfnInPart>(task);
  }
}

template <>
void run_stage(StageContext<Stage::kExpertUp>& ctx) {
  const program::Layout& layout = ctx.layout();
  if (!ctx.poll_range<Region::kFfnU>(0, layout.num_slices())) return;
  if (!poll_ffn_in(ctx, Linear::kRouter)) return;
  const StepRouting routing = route_rows(ctx);
  const RowValues rows = normed_rows(layout, ctx.read<Region::kFfnU>(), ctx.rows(), ctx.layer().ffn_norm);
  const Activations inputs = quantize(rows.values, rows.width, row_indices(ctx.rows()));
  const int splits = layout.stage_splits(Stage::kExpertUp, ctx.layer_idx());
  const int tasks_per_expert = layout.stage_tiles(Stage::kExpertUp, ctx.layer_idx()) * splits;
  std::vector<float> product(static_cast<size_t>(used_rows(ctx.rows())) * kTile);
  float* out = ctx.write<Region::kExpertPart>();
  for (const int task : ctx.tasks()) {
    const auto place = static_cast<size_t>(task / tasks_per_expert);
    if (place >= routing.experts.size()) continue;
    const int expert = routing.experts[place];
    std::vector<int> indices;
    for (const Row& row : ctx.rows()) {
      if (slot_of(routing.rows[static_cast<size_t>(row.idx)], expert) >= 0) indices.push_back(row.idx);
    }
    const program::TileTask part = linear_task(task % tasks_per_expert, splits);
    for (int which = 0; which < 2; ++which) {
      const PackedLinear& weights = (which == 0 ? ctx.layer().ffn.w1 : ctx.layer().ffn.w3)[static_cast<size_t>(expert)];
      multiply_tile(weights, slice_of(weights, part.tile, part.split, splits), inputs, indices, product.data());
      for (const int row_idx : indices) {
        const int row_slot =
            row_idx * layout.expert_slots() + slot_of(routing.rows[static_cast<size_t>(row_idx)], expert);
        std::memcpy(out + expert_offset(layout, which, task % tasks_per_expert, row_slot),
                    product.data() + row_idx * kTile, kTile * sizeof(float));
      }
    }
    ctx.put<Region::kExpertPart>(task);
  }
}

namespace {

// A routed expert's g (which 0) or u (which 1) of a row and slot, summed over the K-splits.
void sum_expert(const program::Layout& layout, const float* words, int which, int row_slot, int splits,
                std::span<float> out) {
  for (size_t begin = 0; begin < out.size(); begin += kTile) {
    const int tile_split = static_cast<int>(begin) / kTile * splits;
    for (int split = 0; split < splits; ++split) {
      const float* part = words + expert_offset(layout, which, tile_split + split, row_slot);
      for (size_t lane = 0; lane < std::min<size_t>(kTile, out.size() - begin); ++lane) {
        out[begin + lane] = split == 0 ? part[lane] : out[begin + lane] + part[lane];
      }
    }
  }
}

// w1's and w3's products of a row: [2][expert width].
using UpProducts = std::array<std::vector<float>, 2>;

// Of the shared expert; false when the step was given up.
bool shared_products(StageContext<Stage::kExpertAct>& ctx, int row_idx, UpProducts& out) {
  const program::Layout& layout = ctx.layout();
  const int splits = layout.stage_splits(Stage::kFfnIn, ctx.layer_idx());
  for (const Linear linear : {Linear::kSharedW1, Linear::kSharedW3}) {
    if (!poll_ffn_in(ctx, linear)) return false;
    const int first_tile = layout.first_tile(Stage::kFfnIn, linear, ctx.layer_idx());
    sum_splits({ctx.read<Region::kFfnInPart>(), layout.rows(), first_tile, splits}, row_idx, 0,
               out[linear == Linear::kSharedW1 ? 0 : 1]);
  }
  return true;
}

// Of the expert in a row's slot; false when the step was given up.
bool routed_products(StageContext<Stage::kExpertAct>& ctx, const StepRouting& routing, const program::ItemTask& place,
                     UpProducts& out) {
  const program::Layout& layout = ctx.layout();
  const int splits = layout.stage_splits(Stage::kExpertUp, ctx.layer_idx());
  const int tasks_per_expert = layout.stage_tiles(Stage::kExpertUp, ctx.layer_idx()) * splits;
  const int expert = routing.rows[static_cast<size_t>(place.outer)].experts[static_cast<size_t>(place.inner)];
  const auto found = std::lower_bound(routing.experts.begin(), routing.experts.end(), expert);
  const int first_task = static_cast<int>(found - routing.experts.begin()) * tasks_per_expert;
  if (!ctx.poll_range<Region::kExpertPart>(first_task, tasks_per_expert)) return false;
  for (int which = 0; which < 2; ++which) {
    sum_expert(layout, ctx.read<Region::kExpertPart>(), which, place.outer * layout.expert_slots() + place.inner,
               splits, out[static_cast<size_t>(which)]);
  }
  return true;
}

// Writes the activations of a task, whose slot is in use: [expert width] bf16. False when the step was given up.
bool activate(StageContext<Stage::kExpertAct>& ctx, const StepRouting& routing, int task) {
  const program::ItemTask place = program::item_task(ctx.layout(), ctx.call(), task);
  const bool shared = place.inner == ctx.layout().expert_slots();
  const auto width = static_cast<size_t>(ctx.layout().shard().expert_width);
  UpProducts products = {std::vector<float>(width), std::vector<float>(width)};
  const bool polled =
      shared ? shared_products(ctx, place.outer, products) : routed_products(ctx, routing, place, products);
  if (!polled) return false;
  const Routing& choice = routing.rows[static_cast<size_t>(place.outer)];
  const float weight = shared ? 1.0f : choice.weights[static_cast<size_t>(place.inner)];
  float* out = ctx.write<Region::kExpertIn>() + int64_t{task} * ctx.layout().shard().expert_width;
  gated(products[0], products[1], weight, static_cast<float>(ctx.geometry().swiglu_limit), out);
  return true;
}

}  // namespace

template <>
void run_stage(StageContext<Stage::kExpertAct>& ctx) {
  const program::Layout& layout = ctx.layout();
  if (!poll_ffn_in(ctx, Linear::kRouter)) return;
  const StepRouting routing = route_rows(ctx);
  const int experts_per_token = ctx.geometry().experts_per_token(ctx.layer_idx());
  for (const int task : ctx.tasks()) {
    const program::ItemTask place = program::item_task(layout, ctx.call(), task);
    const bool used = place.inner < experts_per_token || place.inner == layout.expert_slots();
    if (!used || live_row(ctx.rows(), place.outer) == nullptr) continue;
    if (!activate(ctx, routing, task)) return;
    ctx.put<Region::kExpertIn>(task);
  }
}

namespace {

// Granules of kExpertIn in use: each live row's routed slots and its shared one, ascending.
std::vector<int> used_slots(const StageContext<Stage::kExpertDown>& ctx) {
  const int slots = ctx.layout().expert_slots();
  std::vector<int> used;
  for (const Row& row : ctx.rows()) {
    const int first = row.idx * (slots + 1);
    for (int slot = 0; slot < ctx.geometry().experts_per_token(ctx.layer_idx()); ++slot) used.push_back(first + slot);
    used.push_back(first + slots);
  }
  return used;
}

}  // namespace

template <>
void run_stage(StageContext<Stage::kExpertDown>& ctx) {
  const program::Layout& layout = ctx.layout();
  const int layer_idx = ctx.layer_idx();
  const int slots = layout.expert_slots();
  if (!poll_ffn_in(ctx, Linear::kRouter)) return;
  const StepRouting routing = route_rows(ctx);
  const std::vector<int> used = used_slots(ctx);
  for (const int granule : used) {
    if (!ctx.poll<Region::kExpertIn>(granule)) return;
  }
  const RowValues rows =
      rows_at(ctx.read<Region::kExpertIn>(), used_rows(ctx.rows()) * (slots + 1), layout.shard().expert_width);
  const Activations hidden = quantize(rows.values, rows.width, used);
  const int tiles = layout.stage_tiles(Stage::kExpertDown, layer_idx);
  std::vector<float> product(static_cast<size_t>(used_rows(ctx.rows())) * static_cast<size_t>(slots + 1) * kTile);
  float* out = ctx.write<Region::kFfnExchange>();
  for (const int task : ctx.tasks()) {
    const int granule = ctx.rank() * tiles + task;
    float* sums = out + int64_t{granule} * layout.rows() * kTile;
    std::fill_n(sums, used_rows(ctx.rows()) * kTile, 0.0f);
    const auto add = [&](const PackedLinear& weights, const std::vector<int>& inputs) {
      multiply_tile(weights, {task, 0, weights.k}, hidden, inputs, product.data());
      for (const int input : inputs)
        add_scaled(sums + input / (slots + 1) * kTile, product.data() + input * kTile, 1.0f, kTile);
    };
    for (const int expert : routing.experts) {
      std::vector<int> inputs;
      for (const Row& row : ctx.rows()) {
        const int slot = slot_of(routing.rows[static_cast<size_t>(row.idx)], expert);
        if (slot >= 0) inputs.push_back(row.idx * (slots + 1) + slot);
      }
      add(ctx.layer().ffn.w2[static_cast<size_t>(expert)], inputs);
    }
    std::vector<int> shared;
    for (const Row& row : ctx.rows()) shared.push_back(row.idx * (slots + 1) + slots);
    add(ctx.layer().ffn.shared_w2, shared);
    ctx.put<Region::kFfnExchange>(granule);
  }
}

}  // namespace monostep::cpu
