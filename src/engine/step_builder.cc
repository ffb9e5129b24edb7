// A step's requests and rows (engine/step_builder.h).
#include "engine/step_builder.h"

#include <algorithm>

#include "base/check.h"

namespace monostep::engine {
namespace {

program::StepRequest build_request(const Choice& choice, int first_row) {
  const Sequence& sequence = *choice.sequence;
  program::StepRequest out;
  out.state_slot = sequence.slot;
  out.pages = sequence.pages;
  out.first_row = first_row;
  out.num_rows = choice.num_rows;
  out.first_position = sequence.num_committed;
  out.num_drafts = choice.num_drafts;
  out.sample = choice.sample;
  out.draft = choice.draft;
  out.sampling = sequence.request.sampling;
  if (sequence.request.acceptance_length) {  // fewer drafts than the schedule wants: all are taken
    out.forced_acceptance = std::min(*sequence.request.acceptance_length, static_cast<float>(choice.num_drafts + 1));
  }
  out.step_counter = sequence.num_sampled_steps;
  std::copy(sequence.request.stop_tokens.begin(), sequence.request.stop_tokens.end(), out.stop_tokens.begin());
  return out;
}

program::StepRow build_row(const Choice& choice, int row_idx, int request_idx) {
  const Sequence& sequence = *choice.sequence;
  const int num_known = choice.num_rows - choice.num_drafts;
  program::StepRow row;
  row.position = sequence.num_committed + row_idx;
  row.token = row_idx < num_known ? sequence.tokens[static_cast<size_t>(row.position)]
                                  : sequence.drafts[static_cast<size_t>(row_idx - num_known)];
  row.request = request_idx;
  row.needs_logits = choice.sample && row_idx >= num_known - 1;
  return row;
}

}  // namespace

program::StepInputs build_step(const StepDecision& decision, uint32_t epoch) {
  program::StepInputs inputs;
  inputs.epoch = epoch;
  for (const Choice& choice : decision.choices) {
    const int request_idx = static_cast<int>(inputs.requests.size());
    inputs.requests.push_back(build_request(choice, static_cast<int>(inputs.rows.size())));
    for (int row_idx = 0; row_idx < choice.num_rows; ++row_idx) {
      inputs.rows.push_back(build_row(choice, row_idx, request_idx));
    }
  }
  CHECK(inputs.requests.size() <= program::kMaxRequests && inputs.rows.size() <= program::kMaxBand,
        "a step is within the widest band");
  return inputs;
}

}  // namespace monostep::engine
