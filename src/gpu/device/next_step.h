// A step laid out on the device: the requests of the step before go on in the same order, each from its verdict, with
// the drafts that the step made. Every CTA derives the same record from the regions that the step before left; CTA 0
// keeps it for the step after and hands the step's results to the host. Called when the kernel begins.
#pragma once

#include "gpu/device/cta.h"

namespace monostep::gpu {

// Pairs of one request in kVerdictOut (accepted, tokens, last position, tokens...) and kDraft (ids, confidences).
inline constexpr int kVerdictWords = constants::kDraftLength + 4;
inline constexpr int kDraftWords = 2 * constants::kDraftLength;

inline const uint64_t* request_pairs(const KernelParams& params, Region region, int words, int request) {
  return reinterpret_cast<const uint64_t*>(params.arena) + constants::kRegionPair[static_cast<int>(region)] +
         static_cast<int64_t>(request) * words;
}

// Whether the region holds what the step before left of a request.
inline bool is_left(const uint64_t* pairs, int words, uint32_t epoch, uint32_t ordinal) {
  const uint32_t wanted = (epoch << constants::kTagBits) | ordinal;
  for (int i = 0; i < words; ++i) {
    if (tag_of(pairs[i]) != wanted) return false;
  }
  return true;
}

// The request behind its verdict: rows are the anchor and the drafts.
inline void advance_request(StepRecord& step, int request, const uint64_t* verdict, const uint64_t* draft) {
  RequestRecord& record = step.requests[request];
  const auto word = [](uint64_t pair) { return static_cast<int32_t>(static_cast<uint32_t>(pair)); };
  const int tokens = word(verdict[1]);
  const int anchor = word(verdict[2 + tokens]);
  record.first_position = word(verdict[2]) + 1;
  record.first_row = request * (constants::kDraftLength + 1);
  record.num_rows = constants::kDraftLength + 1;
  record.num_drafts = constants::kDraftLength;
  record.step_counter += 1;
  for (int i = 0; i <= constants::kDraftLength; ++i) {
    const int token = i == 0 ? anchor : word(draft[i - 1]);
    step.rows[record.first_row + i] = {token, record.first_position + i, request, kRowNeedsLogits, -1};
  }
}

inline void write_output(const KernelParams& params, int request, const uint64_t* verdict, const uint64_t* draft,
                         uint32_t epoch) {
  auto& out = reinterpret_cast<StepOutputRecord*>(params.outputs)[epoch & 1].requests[request];
  const auto word = [](uint64_t pair) { return static_cast<int32_t>(static_cast<uint32_t>(pair)); };
  out.num_accepted = word(verdict[0]);
  out.num_tokens = word(verdict[1]);
  out.last_position = word(verdict[2]);
  for (int i = 0; i <= constants::kDraftLength; ++i) out.tokens[i] = word(verdict[3 + i]);
  for (int i = 0; i < constants::kDraftLength; ++i) {
    out.drafts[i] = word(draft[i]);
    out.confidence[i] = std::bit_cast<float>(static_cast<uint32_t>(draft[constants::kDraftLength + i]));
  }
}

// All threads of the CTA; shared.step holds the step before. False (in every thread): it is not there to be continued.
inline bool lay_out_next(Shared& shared) {
  const KernelParams& params = shared.params;
  StepRecord& step = shared.step;
  const uint32_t epoch = step.epoch;
  const int request = thread_idx();
  bool left = true;
  if (request < step.num_requests) {
    const uint64_t* verdict = request_pairs(params, Region::kVerdictOut, kVerdictWords, request);
    const uint64_t* draft = request_pairs(params, Region::kDraft, kDraftWords, request);
    left = (step.requests[request].flags & kRequestDraft) != 0 &&
           is_left(verdict, kVerdictWords, epoch, constants::kVerdictOrdinal) &&
           is_left(draft, kDraftWords, epoch, constants::kDraftOrdinal);
    if (left) {
      advance_request(step, request, verdict, draft);
      if (cta_idx() == 0) write_output(params, request, verdict, draft, epoch);
    }
  }
  const bool lost = bar_sync_or(0, kThreads, !left);
  if (thread_idx() == 0) {
    step.epoch = epoch + 1;
    step.num_rows = step.num_requests * (constants::kDraftLength + 1);
    if (cta_idx() == 0)
      *const_cast<volatile uint32_t*>(&reinterpret_cast<StepOutputRecord*>(params.outputs)[epoch & 1].epoch) = epoch;
  }
  return !lost;
}

}  // namespace monostep::gpu
