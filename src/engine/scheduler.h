// Scheduler: the one routing decision a step. Holds the queues and the index pools; says which sequences run, with how
// many rows and drafts. Decoding sequences come first, prompt chunks fill the rest of the band. When pages run out the
// youngest sequence gives its memory back and is computed again later (results do not depend on chunking, so its tokens
// stay the same).
#pragma once

#include <deque>
#include <vector>

#include "engine/request.h"
#include "engine/sequence.h"
#include "kv/allocator.h"

namespace monostep::engine {

struct Choice {  // one sequence's part of a step
  Sequence* sequence = nullptr;
  int num_rows = 0;  // tokens from num_committed on, then the drafts
  int num_drafts = 0;
  bool sample = false;  // its last known token is among the rows
  bool draft = false;   // the model makes a draft for the next step
};

struct StepDecision {
  std::vector<Choice> choices;   // at most program::kMaxRequests; together at most program::kMaxBand rows
  std::vector<int> fresh_slots;  // taken by a sequence that starts from nothing: cleared before the step
};

class Scheduler {
 public:
  explicit Scheduler(const Limits& limits);

  // The sequence must fit (check_fits) and outlive its stay.
  void add(Sequence* sequence) { waiting_.push_back(sequence); }
  // Forgets the sequence and takes its memory back.
  void remove(Sequence* sequence);
  // Empty only where no sequence is queued.
  StepDecision pick();

 private:
  struct Draw;  // a decision being made
  void pick_decoding(Draw& draw);
  void pick_prompts(Draw& draw);
  void admit(Draw& draw);
  void choose(Draw& draw, Sequence* sequence, int num_known, int num_drafts);
  bool make_room(Draw& draw, size_t live_idx, int num_positions);
  void release(Sequence* sequence);

  int chunk_ = 0;
  size_t max_live_ = 0;
  kv::PageAllocator pages_;
  kv::SlotAllocator slots_;
  std::deque<Sequence*> waiting_;
  std::vector<Sequence*> live_;  // hold a slot; in order of admission
};

// Leading drafts that the next step verifies: within the request's drafts, its remaining tokens and its confidence
// threshold.
int count_drafts(const Sequence& sequence);

}  // namespace monostep::engine
