// The routing decision (engine/scheduler.h).
#include "engine/scheduler.h"

#include <algorithm>

#include "base/check.h"
#include "base/math.h"

namespace monostep::engine {

struct Scheduler::Draw {
  StepDecision decision;
  int rows_left = program::kMaxBand;
  bool short_of_pages = false;

  bool holds(const Sequence* sequence) const {
    return std::any_of(decision.choices.begin(), decision.choices.end(),
                       [&](const Choice& choice) { return choice.sequence == sequence; });
  }
};

Scheduler::Scheduler(const Limits& limits)
    : chunk_(limits.chunk),
      max_live_(static_cast<size_t>(std::min(limits.num_slots, program::kMaxRequests))),
      pages_(limits.num_pages),
      slots_(limits.num_slots) {
  CHECK(chunk_ >= 1 && max_live_ >= 1, "the engine has a slot and takes prompts");
}

StepDecision Scheduler::pick() {
  Draw draw;
  pick_decoding(draw);
  pick_prompts(draw);
  admit(draw);
  CHECK(!draw.decision.choices.empty() || (live_.empty() && waiting_.empty()), "a queued sequence can always move");
  return std::move(draw.decision);
}

void Scheduler::pick_decoding(Draw& draw) {
  for (size_t live_idx = 0; live_idx < live_.size(); ++live_idx) {
    Sequence* sequence = live_[live_idx];
    if (sequence->num_pending() != 1) continue;
    const int anchors_behind =
        static_cast<int>(live_.size() - live_idx) - 1;  // each live sequence keeps a row for its own
    const int num_drafts = std::min(count_drafts(*sequence), draw.rows_left - 1 - anchors_behind);
    if (!make_room(draw, live_idx, sequence->num_committed + 1 + num_drafts)) continue;
    choose(draw, sequence, 1, num_drafts);
  }
}

void Scheduler::pick_prompts(Draw& draw) {
  for (size_t live_idx = 0; live_idx < live_.size() && draw.rows_left > 0; ++live_idx) {
    Sequence* sequence = live_[live_idx];
    if (sequence->num_pending() == 1) continue;
    const int num_rows = std::min({sequence->num_pending(), chunk_, draw.rows_left});
    if (!make_room(draw, live_idx, sequence->num_committed + num_rows)) continue;
    choose(draw, sequence, num_rows, 0);
  }
}

// Takes waiting sequences in, oldest first, as long as slots, rows and free pages last. None comes in while a live one
// is short.
void Scheduler::admit(Draw& draw) {
  while (!waiting_.empty() && live_.size() < max_live_ && draw.rows_left > 0 && !draw.short_of_pages) {
    Sequence* sequence = waiting_.front();
    const int num_rows = std::min({sequence->num_pending(), chunk_, draw.rows_left});
    if (!pages_.cover(sequence->pages, num_rows)) return;
    const std::optional<int> slot = slots_.take();
    CHECK(slot.has_value(), "a live sequence holds one slot, and there are as many");
    waiting_.pop_front();
    live_.push_back(sequence);
    sequence->slot = *slot;
    draw.decision.fresh_slots.push_back(*slot);
    choose(draw, sequence, num_rows, 0);
  }
}

void Scheduler::choose(Draw& draw, Sequence* sequence, int num_known, int num_drafts) {
  Choice choice{.sequence = sequence, .num_rows = num_known + num_drafts, .num_drafts = num_drafts};
  choice.sample = num_known == sequence->num_pending();
  // This step gives at least one token and the next one an anchor's: a draft is of use if three are still wanted.
  choice.draft =
      choice.sample && sequence->request.spec > 0 && !sequence->request.draft_source && sequence->num_remaining() >= 3;
  draw.rows_left -= choice.num_rows;
  draw.decision.choices.push_back(choice);
}

// Covers the positions of a live sequence. Younger ones that are not in the step yet make way, the youngest first.
bool Scheduler::make_room(Draw& draw, size_t live_idx, int num_positions) {
  Sequence* sequence = live_[live_idx];
  while (!pages_.cover(sequence->pages, num_positions)) {
    draw.short_of_pages = true;
    size_t victim_idx = live_.size() - 1;
    while (victim_idx > live_idx && draw.holds(live_[victim_idx])) --victim_idx;
    if (victim_idx <= live_idx) return false;
    Sequence* victim = live_[victim_idx];
    live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(victim_idx));
    release(victim);
    victim->num_committed = 0;
    victim->drafts.clear();
    victim->confidence.clear();
    waiting_.push_front(victim);
  }
  return true;
}

void Scheduler::remove(Sequence* sequence) {
  std::erase(waiting_, sequence);
  std::erase(live_, sequence);
  if (sequence->slot >= 0) release(sequence);
}

void Scheduler::release(Sequence* sequence) {
  pages_.release(sequence->pages);
  slots_.release(sequence->slot);
  sequence->slot = -1;
}

int count_drafts(const Sequence& sequence) {
  const int most =
      std::min({static_cast<int>(sequence.drafts.size()), sequence.request.spec, sequence.num_remaining() - 1});
  const float threshold = sequence.request.confidence_threshold;
  if (threshold <= 0 || sequence.confidence.empty()) return std::max(most, 0);
  int count = 0;
  while (count < most && sigmoid_f32(sequence.confidence[static_cast<size_t>(count)]) >= threshold) ++count;
  return count;
}

}  // namespace monostep::engine
