// What a measured step reads: the distinct experts of a layer, by the routing rule from the router's sums that the GPU
// left, and the bytes of the weight chunks that a rank streams for them. Called by bench_step.cc and bench.cc.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "gpu/rank.h"

namespace monostep::apps {

// Distinct experts that rows [0, num_rows) of a layer take. `pairs`: kFfnInPart of the layer; `bias`: [experts].
int count_experts(const program::Layout& layout, int layer_idx, std::span<const uint64_t> pairs,
                  std::span<const float> bias, int num_rows);

// The router biases of every layer, [num_layers][experts], from the rank's packed weights.
Result<std::vector<std::vector<float>>> router_biases(gpu::Rank& rank);

struct StepBytes {
  int64_t total = 0;
  int64_t draft = 0;  // of `total`: the sections kContext and kDraft
};
// Packed chunks of a step, each call's once; of routed experts those of `distinct_experts` [num_layers].
StepBytes step_bytes(const program::Layout& layout, std::span<const program::ChunkRun> runs,
                     std::span<const double> distinct_experts);

}  // namespace monostep::apps
