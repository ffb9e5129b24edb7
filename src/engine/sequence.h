// Sequence: a request's token timeline in the engine. Made by Engine::submit, moved forward by Engine::commit, read by
// the scheduler and the step builder.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/request.h"

namespace monostep::engine {

enum class Finish { kStop, kLength, kCancelled };

struct DraftPosition {  // how drafts fared at one position behind the anchor
  int64_t num_verified = 0;
  int64_t num_accepted = 0;
};

struct Sequence {
  uint64_t id = 0;
  Request request;
  std::vector<int32_t> tokens;  // prompt, then generated
  int num_committed = 0;        // leading tokens whose state is in the caches
  int slot = -1;                // -1: waiting, holds no memory
  std::vector<int32_t> pages;
  std::vector<int32_t> drafts;                 // what may follow tokens; empty: none
  std::vector<float> confidence;               // of each draft, before the sigmoid; empty for drafts from outside
  uint32_t num_sampled_steps = 0;              // steps that gave tokens
  std::vector<DraftPosition> draft_positions;  // [request.spec]
  std::optional<Finish> finish;

  int num_pending() const { return static_cast<int>(tokens.size()) - num_committed; }  // known, not in the caches
  int num_generated() const { return static_cast<int>(tokens.size() - request.prompt.size()); }
  int num_remaining() const { return request.max_tokens - num_generated(); }
};

}  // namespace monostep::engine
