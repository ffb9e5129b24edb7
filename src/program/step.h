// What one engine iteration is given and gives back: StepInputs, StepOutputs, and Backend, the interface through which
// the engine sees the CPU reference and the GPU. Built by engine/step_builder, read by the stages of both backends.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "model/geometry.h"

namespace monostep::program {

inline constexpr int kMaxRequests = 8;    // requests of one step
inline constexpr int kMaxBand = 48;       // widest band: 8 requests x (anchor + 5 drafts)
inline constexpr int kMaxStopTokens = 4;  // ids that end a request inside a verdict
inline constexpr std::array<int, 4> kBands = {8, 16, 24, 48};

// The smallest band that holds `rows`; rows must be at most kMaxBand.
int band_of(int rows);

// How a row's token is drawn. temperature 0 is the argmax (ties: lower id).
struct Sampling {
  float temperature = 0;
  int top_k = 0;      // 0: off
  float top_p = 1;    // 1: off
  float min_p = 0;    // 0: off
  uint64_t seed = 0;  // noise is a pure function of (seed, position)
};

struct StepRequest {
  int state_slot = -1;             // index in the state pool
  std::span<const int32_t> pages;  // page table: pages[p / kPageTokens] holds position p
  int first_row = 0;               // rows first_row .. first_row + num_rows - 1 are this request's
  int num_rows = 0;
  int first_position = 0;  // position of first_row; everything before it is committed
  int num_drafts = 0;      // the last num_drafts rows are drafts to be verified
  bool sample = false;     // the row before the drafts (and each draft row) yields a token; false inside a prompt
  bool draft = false;      // make a draft block behind the verdict
  bool context = true;     // write the draft's context rows (off where the request never drafts)
  Sampling sampling;
  float forced_acceptance = 0;  // > 0: mean tokens a step of the minimum-variance schedule (benchmarks)
  uint32_t step_counter = 0;    // steps this request has taken: the noise index of the schedule
  std::array<int32_t, kMaxStopTokens> stop_tokens = {-1, -1, -1, -1};
};

struct StepRow {
  int32_t token = 0;
  int32_t position = 0;
  int32_t request = 0;
  bool image = false;         // inside an image span: bias_vl, dead n-gram history, Engram gate 0
  bool needs_logits = false;  // the head computes this row
};

struct StepInputs {
  uint32_t epoch = 0;                 // counts steps of this backend; part of every tag
  std::vector<StepRequest> requests;  // 1..kMaxRequests
  std::vector<StepRow> rows;          // 1..kMaxBand, all live; the band's other rows are dead
  std::span<const float>
      image_rows;  // [image rows of the step in row order][hidden] bf16 values; replaces their embedding
  bool any_context() const {
    for (const StepRequest& request : requests)
      if (request.context) return true;
    return false;
  }
  bool any_draft() const {
    for (const StepRequest& request : requests)
      if (request.draft) return true;
    return false;
  }
};

// What a request's step gave.
struct RequestOutput {
  int num_accepted = 0;           // drafts accepted; num_accepted + 1 tokens are emitted (none inside a prompt)
  std::vector<int32_t> tokens;    // emitted ids; a stop token ends the list
  std::vector<int32_t> drafts;    // next draft block, empty where none was asked for
  std::vector<float> confidence;  // of each draft, before the sigmoid
};

struct StepOutputs {
  std::vector<RequestOutput> requests;
};

using Ticket = uint64_t;

// A backend runs steps in order. It returns an error for a step that it cannot serve; it never guesses.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual Result<Ticket> decode(const StepInputs& inputs) = 0;
  virtual Result<StepOutputs> wait(Ticket ticket) = 0;
  // Forgets everything a slot holds, before a new request takes it.
  virtual void clear_slot(int state_slot) = 0;
};

}  // namespace monostep::program
