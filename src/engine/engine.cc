// The step loop (engine/engine.h).
#include "engine/engine.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "engine/step_builder.h"

namespace monostep::engine {
namespace {

// Tokens of a verdict enter the sequence. Drafts that the caches hold beyond a stop token do not count.
void take_tokens(Sequence& sequence, const Choice& choice, const program::RequestOutput& output) {
  const int num_tokens = static_cast<int>(output.tokens.size());
  CHECK(num_tokens >= 1 && num_tokens <= choice.num_drafts + 1 && num_tokens <= sequence.num_remaining(),
        "a verdict gives between one token and one more than the drafts");
  sequence.tokens.insert(sequence.tokens.end(), output.tokens.begin(), output.tokens.end());
  sequence.num_committed += std::min(output.num_accepted, num_tokens - 1);
  for (int draft_idx = 0; draft_idx < choice.num_drafts; ++draft_idx) {
    DraftPosition& position = sequence.draft_positions[static_cast<size_t>(draft_idx)];
    ++position.num_verified;
    if (draft_idx < std::min(output.num_accepted, num_tokens)) ++position.num_accepted;
  }
  ++sequence.num_sampled_steps;
}

std::optional<Finish> finish_of(const Sequence& sequence) {
  const std::vector<int32_t>& stops = sequence.request.stop_tokens;
  if (std::find(stops.begin(), stops.end(), sequence.tokens.back()) != stops.end()) return Finish::kStop;
  if (sequence.num_remaining() == 0) return Finish::kLength;
  return std::nullopt;
}

// What the next step verifies.
void take_drafts(Sequence& sequence, const program::RequestOutput& output) {
  if (sequence.request.draft_source) {
    sequence.drafts = sequence.request.draft_source(sequence.tokens);
    return;
  }
  CHECK(output.drafts.size() == output.confidence.size(), "each draft has a confidence");
  sequence.drafts = output.drafts;
  sequence.confidence = output.confidence;
}

}  // namespace

Engine::Engine(const Limits& limits, program::Backend& backend)
    : limits_(limits), backend_(backend), scheduler_(limits) {}

Status Engine::step() {
  retire_finished();
  const StepDecision decision = scheduler_.pick();
  if (decision.choices.empty()) return {};
  for (const int slot : decision.fresh_slots) backend_.clear_slot(slot);
  // The next step's rows come from this one's verdict, so a step is waited for before the next is laid out.
  TRY_ASSIGN(const program::Ticket ticket, backend_.decode(build_step(decision, epoch_++)));
  TRY_ASSIGN(const program::StepOutputs outputs, backend_.wait(ticket));
  commit(decision, outputs);
  return {};
}

void Engine::commit(const StepDecision& decision, const program::StepOutputs& outputs) {
  CHECK(outputs.requests.size() == decision.choices.size(), "a step gives an output for each of its requests");
  for (size_t choice_idx = 0; choice_idx < decision.choices.size(); ++choice_idx) {
    advance(decision.choices[choice_idx], outputs.requests[choice_idx]);
  }
}

void Engine::advance(const Choice& choice, const program::RequestOutput& output) {
  Sequence& sequence = *choice.sequence;
  if (sequence.finish) return;  // cancelled by a callback of this step
  sequence.num_committed += choice.num_rows - choice.num_drafts;
  if (!choice.sample) return;
  take_tokens(sequence, choice, output);
  sequence.finish = finish_of(sequence);
  if (!sequence.finish) take_drafts(sequence, output);
  if (sequence.request.on_tokens) sequence.request.on_tokens(sequence, output.tokens);
}

Result<uint64_t> Engine::submit(Request request) {
  TRY(check_parameters(request));
  TRY(check_fits(request, limits_));
  auto sequence = std::make_unique<Sequence>();
  sequence->id = next_id_++;
  sequence->tokens = request.prompt;
  sequence->draft_positions.resize(static_cast<size_t>(request.spec));
  sequence->request = std::move(request);
  scheduler_.add(sequence.get());
  const uint64_t id = sequence->id;
  sequences_.emplace(id, std::move(sequence));
  return id;
}

void Engine::cancel(uint64_t id) {
  const auto found = sequences_.find(id);
  if (found != sequences_.end() && !found->second->finish) found->second->finish = Finish::kCancelled;
}

bool Engine::has_work() const {
  return std::any_of(sequences_.begin(), sequences_.end(), [](const auto& entry) { return !entry.second->finish; });
}

const Sequence* Engine::find(uint64_t id) const {
  const auto found = sequences_.find(id);
  return found == sequences_.end() || found->second->finish ? nullptr : found->second.get();
}

void Engine::retire_finished() {
  for (auto entry = sequences_.begin(); entry != sequences_.end();) {
    Sequence* sequence = entry->second.get();
    if (!sequence->finish) {
      ++entry;
      continue;
    }
    scheduler_.remove(sequence);
    entry = sequences_.erase(entry);
  }
}

}  // namespace monostep::engine
