// What `monostep generate` says about a finished request: one line of JSON, or a table. Used by generate.cc.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/start_report.h"
#include "engine/sequence.h"

namespace monostep::apps {

using Clock = std::chrono::steady_clock;

struct Generation {  // one request's answer
  int num_prompt_tokens = 0;
  std::vector<int32_t> token_ids;  // generated, the stop token included
  std::string text;
  Clock::time_point submitted, first_token, last_token;
  uint32_t num_steps = 0;  // steps that gave tokens
  std::vector<engine::DraftPosition> draft_positions;
  std::optional<engine::Finish> finish;

  double time_to_first_token_ms() const;
  double tokens_per_second() const;  // of the tokens after the first; 0 where there is one
  double tokens_per_step() const;    // of the steps after the first; 1 where there is one
};

// {"token_ids": [...], "text": "...", "stats": {...}, "start": {...}}, ASCII, without the newline; "start" where there
// is one.
std::string to_json(const Generation& generation, const std::optional<StartReport>& start);

// Lines for a person.
std::string to_table(const Generation& generation);

}  // namespace monostep::apps
