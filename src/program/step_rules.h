// What every backend does with a step besides running it: says whether it can be served, which calls of the program it
// needs, and what the verdict and draft regions say to the engine. Pure functions, called by both backends.
#pragma once

#include <span>
#include <vector>

#include "base/result.h"
#include "program/program.h"
#include "program/step.h"

namespace monostep::program {

struct StepLimits {
  int num_slots = 0;
  int num_pages = 0;
  int max_context = 0;  // positions a request may have
};

// kInvalidArgument, with what is wrong.
Status check_step(const StepInputs& inputs, const model::Geometry& geometry, const StepLimits& limits);

struct CallRange {
  int first = 0;
  int last = 0;  // one past the end
};

bool wants_head(const StepInputs& inputs);

// The calls that a step needs, in order: without wanted logits the head is left out, without a wanted draft or context
// its part.
std::vector<CallRange> needed_calls(const Program& program, const StepInputs& inputs);

// Outputs from copy 0 of kVerdictOut and kDraft, as 32-bit words. A region that no request needs may be empty.
StepOutputs read_outputs(const StepInputs& inputs, int draft_length, std::span<const float> verdict,
                         std::span<const float> draft);

}  // namespace monostep::program
