// Stages of the FFN site: router and shared expert in, routed experts up, all experts down. Tasks: output tiles x
// K-splits (kFfnIn), distinct expert x tile x split (kExpertUp), output tiles of all experts (kExpertDown). Formulas:
// model.md 3.7.
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

int most_slots(const model::Geometry& g) { return std::max(g.num_experts_per_tok, g.dspark_num_experts_per_tok); }

// Word offset of (which of w1 and w3, tile x splits + split, row, slot) in kExpertPart.
int64_t expert_offset(const program::Layout& layout, int which, int tile_split, int row_slot) {
  const int tiles = layout.stage_tiles(Stage::kExpertUp, 0) * layout.stage_splits(Stage::kExpertUp, 0);
  const int64_t row_slots = int64_t{layout.rows()} * most_slots(layout.geometry());
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
  const int in_splits = layout.stage_splits(Stage::kFfnIn, ctx.layer_idx());
  const int router_tiles = layout.size(Linear::kRouter, ctx.layer_idx()).tiles();
  if (!ctx.poll_range<Region::kFfnU>(0, layout.num_slices())) return;
  if (!ctx.poll_range<Region::kFfnInPart>(0, router_tiles * in_splits)) return;
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
            row_idx * most_slots(ctx.geometry()) + slot_of(routing.rows[static_cast<size_t>(row_idx)], expert);
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

// Quantised hidden activations of every (row, slot), the shared expert behind the routed ones: [row x (slots + 1) +
// slot][width].
Activations hidden_activations(const StageContext<Stage::kExpertDown>& ctx, const StepRouting& routing) {
  const program::Layout& layout = ctx.layout();
  const int width = layout.shard().expert_width;
  const int slots = most_slots(ctx.geometry());
  const int splits = layout.stage_splits(Stage::kExpertUp, ctx.layer_idx());
  const int in_splits = layout.stage_splits(Stage::kFfnIn, ctx.layer_idx());
  const auto limit = static_cast<float>(ctx.geometry().swiglu_limit);
  const float* expert_words = ctx.read<Region::kExpertPart>();
  const float* in_words = ctx.read<Region::kFfnInPart>();
  const int shared_tiles[] = {layout.first_tile(Stage::kFfnIn, Linear::kSharedW1, ctx.layer_idx()),
                              layout.first_tile(Stage::kFfnIn, Linear::kSharedW3, ctx.layer_idx())};
  RowValues out(used_rows(ctx.rows()) * (slots + 1), width);
  std::vector<int> live;  // (row, slot) in use
  std::vector<float> parts[2] = {std::vector<float>(static_cast<size_t>(width)),
                                 std::vector<float>(static_cast<size_t>(width))};
  for (const Row& row : ctx.rows()) {
    const Routing& choice = routing.rows[static_cast<size_t>(row.idx)];
    for (size_t slot = 0; slot < choice.experts.size(); ++slot) {
      for (int which = 0; which < 2; ++which) {
        sum_expert(layout, expert_words, which, row.idx * slots + static_cast<int>(slot), splits, parts[which]);
      }
      live.push_back(row.idx * (slots + 1) + static_cast<int>(slot));
      gated(parts[0], parts[1], choice.weights[slot], limit, out.row(live.back()).data());
    }
    for (int which = 0; which < 2; ++which)
      sum_splits({in_words, layout.rows(), shared_tiles[which], in_splits}, row.idx, 0, parts[which]);
    live.push_back(row.idx * (slots + 1) + slots);
    gated(parts[0], parts[1], 1.0f, limit, out.row(live.back()).data());
  }
  return quantize(out.values, width, live);
}

}  // namespace

template <>
void run_stage(StageContext<Stage::kExpertDown>& ctx) {
  const program::Layout& layout = ctx.layout();
  const int layer_idx = ctx.layer_idx();
  const int slots = most_slots(ctx.geometry());
  if (!ctx.poll_range<Region::kFfnInPart>(
          0, layout.stage_tiles(Stage::kFfnIn, layer_idx) * layout.stage_splits(Stage::kFfnIn, layer_idx)))
    return;
  const StepRouting routing = route_rows(ctx);
  const int tasks_per_expert =
      layout.stage_tiles(Stage::kExpertUp, layer_idx) * layout.stage_splits(Stage::kExpertUp, layer_idx);
  if (!ctx.poll_range<Region::kExpertPart>(0, static_cast<int>(routing.experts.size()) * tasks_per_expert)) return;
  const Activations hidden = hidden_activations(ctx, routing);
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
