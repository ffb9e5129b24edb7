// Measuring decode steps of one rank: requests of whole draft blocks at positions from a context on, each step fed with
// the ids of the step before as the engine would. Works on any gpu::Device. Called by bench.cc and by tests.
#pragma once

#include <cstdint>
#include <vector>

#include "gpu/launch_cuts.h"
#include "gpu/rank.h"

namespace monostep::apps {

inline constexpr int kMaxBenchSteps = gpu::Device::kMaxEvents / 2 - 1;  // two events a step, kept to the end

struct BenchShape {
  int requests = 1;
  int context = 4096;
  int span = 1024;  // positions behind the context that a request walks through before it begins at the context again
  float acceptance = 3.51f;
  gpu::Cut cut = gpu::Cut::kStep;
  bool device_rounds = false;  // steps laid out by the device, their ids known one step late; needs Cut::kStep
  double peer_delay_us = 0;    // from a push to the peers' (one rank: none)
  uint64_t seed = 1;
  int steps = 700;
  int warmup = 50;
};

// Positions that a request may have, in whole pages.
int request_context(const BenchShape& shape);
int request_pages(const BenchShape& shape);

struct Spread {
  double median = 0;
  double p90 = 0;  // nearest rank
  double least = 0;
  double most = 0;
};
Spread spread_of(std::vector<double> values);  // of at least one value

struct StepFigures {
  double first_step_ms = 0;              // by the host's clock, upload and read-back included
  Spread step_ms;                        // from before the first launch to behind the last, by device events
  Spread step_to_step_ms;                // from launch to launch, by device events
  Spread target_ms;                      // of steps launched in two parts: through the verdict
  Spread draft_ms;                       // and what follows it
  int launches = 0;                      // a step
  double tokens = 0;                     // emitted a step and request
  std::vector<double> distinct_experts;  // [num_layers], the draft's layers last: mean over some steps
  double backbone_experts = 0;           // mean over the layers
  double draft_experts = 0;
};

// The rank must have request_pages pages and a state slot for each request, and request_context of context.
Result<StepFigures> measure_steps(gpu::Device& device, gpu::Rank& rank, const BenchShape& shape);

}  // namespace monostep::apps
