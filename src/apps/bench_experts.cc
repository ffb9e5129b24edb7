// Counting experts and bytes (apps/bench_experts.h).
#include "apps/bench_experts.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"
#include "cpu/routing.h"

namespace monostep::apps {

using program::Call;
using program::ChunkRun;
using program::kTile;
using program::Layout;
using program::Stage;

namespace {

// The sum of an expert's K slices, ascending. The router's tiles are the first of the region.
float router_logit(const Layout& layout, int layer_idx, std::span<const uint64_t> pairs, int row, int expert) {
  const int splits = layout.stage_splits(Stage::kFfnIn, layer_idx);
  float sum = 0;
  for (int split = 0; split < splits; ++split) {
    const int64_t granule = int64_t{expert / kTile} * splits + split;
    const int64_t at = (granule * layout.rows() + row) * kTile + expert % kTile;
    const auto value = std::bit_cast<float>(static_cast<uint32_t>(pairs[static_cast<size_t>(at)]));
    sum = split == 0 ? value : sum + value;
  }
  return sum;
}

}  // namespace

int count_experts(const Layout& layout, int layer_idx, std::span<const uint64_t> pairs, std::span<const float> bias,
                  int num_rows) {
  const model::Geometry& g = layout.geometry();
  const cpu::RoutingRule rule{g.experts_per_token(layer_idx), static_cast<float>(g.routed_scaling_factor)};
  std::vector<bool> taken(bias.size());
  std::vector<float> logits(bias.size());
  for (int row = 0; row < num_rows; ++row) {
    for (size_t expert = 0; expert < logits.size(); ++expert)
      logits[expert] = router_logit(layout, layer_idx, pairs, row, static_cast<int>(expert));
    for (const int expert : cpu::route(logits, bias, rule).experts) taken[static_cast<size_t>(expert)] = true;
  }
  return static_cast<int>(std::count(taken.begin(), taken.end(), true));
}

Result<std::vector<std::vector<float>>> router_biases(gpu::Rank& rank) {
  const gpu::Rank::Band& band = rank.band();
  const model::Geometry& g = rank.geometry();
  std::vector<std::vector<float>> biases(static_cast<size_t>(g.num_layers()));
  for (const ChunkRun& run : band.plan.chunk_runs()) {
    if (!run.weights.front().name.ends_with("ffn.gate.bias")) continue;
    const int layer_idx = band.layout.program().calls[static_cast<size_t>(run.call_idx)].layer;
    std::vector<float>& bias = biases[static_cast<size_t>(layer_idx)];
    bias.resize(static_cast<size_t>(g.num_experts(layer_idx)));
    TRY(rank.read_weights(run.offset(0, 0), std::as_writable_bytes(std::span(bias))));
  }
  for (const std::vector<float>& bias : biases) CHECK(!bias.empty(), "a router bias in the chunks of every layer");
  return biases;
}

StepBytes step_bytes(const Layout& layout, std::span<const ChunkRun> runs, std::span<const double> distinct_experts) {
  StepBytes bytes;
  for (const ChunkRun& run : runs) {
    const Call& call = layout.program().calls[static_cast<size_t>(run.call_idx)];
    const bool routed = run.weights.front().num_experts > 0;
    const double experts = routed ? distinct_experts[static_cast<size_t>(call.layer)] : 1;
    const int64_t read = std::llround(experts * static_cast<double>(run.expert_stride()));
    bytes.total += read;
    if (call.section == program::Section::kContext || call.section == program::Section::kDraft) bytes.draft += read;
  }
  return bytes;
}

}  // namespace monostep::apps
