// How a row's token is drawn and how drafts are judged: pure functions that the stages of both backends and host
// replays call. Drafts are the draft model's argmax, so its distribution is one-hot: drawing the target's token and
// accepting the draft when they agree accepts with probability p(draft) and leaves the rest of p otherwise
// (model.md 5.2), and the text with speculation equals the text without, draw by draw.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "program/step.h"

namespace monostep::program {

// Uniform in [0, 1) with 24 bits: Philox4x32-10 with key = seed, counter = (index, purpose, 0, 0).
enum class Purpose : uint32_t { kToken = 0, kForcedAcceptance = 1 };
float uniform_noise(uint64_t seed, uint32_t index, Purpose purpose);

// The token of a row: argmax at temperature 0 (ties: lower id); else drawn from softmax(logits / temperature)
// restricted by top_k, then top_p, then min_p (in that order, ties: lower id first), with the noise of (seed,
// position). logits: [vocab] f32, finite. `position` is the position that the token will take.
int32_t sample_token(std::span<const float> logits, const Sampling& sampling, int position);

struct Judgement {
  int num_accepted = 0;  // accepted drafts, before any cut at a stop token
  std::vector<int32_t>
      tokens;  // emitted: accepted drafts, then one token of the target; ends with a stop token if one came
};
// `drafts`: the request's draft ids; `sampled`: the target's ids of the anchor row and of each draft row (drafts.size()
// + 1). With forced acceptance the schedule decides how many drafts are taken, whatever the target says.
Judgement judge(const StepRequest& request, std::span<const int32_t> drafts, std::span<const int32_t> sampled);

// Drafts accepted by the minimum-variance schedule of a mean of `acceptance` tokens a step (1 <= acceptance <=
// num_drafts + 1): floor(acceptance - 1) always, one more with the remaining fraction, never more
// (reference-system.md 1.5).
int forced_accepted(float acceptance, int num_drafts, uint64_t seed, uint32_t step_counter);

}  // namespace monostep::program
