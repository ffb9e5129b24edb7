// Request: what a client asks for; Limits: what the engine and its model can serve; and the checks between the two. An
// error's place is the field's name. Checked by programs before they load a model and by Engine::submit.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "program/step.h"

namespace monostep::engine {

struct Sequence;

// Drafts from outside: given prompt and generated tokens (the last one is the anchor), the ids that may follow.
using DraftSource = std::function<std::vector<int32_t>(std::span<const int32_t> tokens)>;

// Called after each step that gave a request tokens. The sequence's `finish` is set with its last tokens. May call
// Engine::cancel and Engine::submit, not Engine::step.
using OnTokens = std::function<void(const Sequence& sequence, std::span<const int32_t> tokens)>;

struct Request {
  std::vector<int32_t> prompt;
  int max_tokens = 0;  // generated tokens, the stop token included
  program::Sampling sampling;
  std::vector<int32_t> stop_tokens;  // at most program::kMaxStopTokens
  int spec = 0;                      // drafts verified a step; 0: no speculation
  std::optional<float>
      acceptance_length;           // forced mean tokens a step, for benchmarks: drafts are taken whether right or not
  float confidence_threshold = 0;  // > 0: only the leading drafts that are this likely are verified
  DraftSource draft_source;        // set: replaces the model's drafts
  OnTokens on_tokens;
};

struct Limits {
  int vocab_size = 0;
  int max_context = 0;  // positions a request may have
  int max_spec = 0;     // the model's draft length; 0: no draft layers
  int num_slots = 0;
  int num_pages = 0;
  int chunk = program::kMaxBand;  // prompt rows a step
};

// What can be said without a model: ranges and combinations. kInvalidArgument.
Status check_parameters(const Request& request);

// Whether the request can be served within the limits. kInvalidArgument; kExhausted where its pages exceed the whole
// pool.
Status check_fits(const Request& request, const Limits& limits);

}  // namespace monostep::engine
