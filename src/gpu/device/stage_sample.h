// Sampling and verdict. kSample reads kLogits of all ranks, writes kSampled; tasks are rows, rank 0's ids count on
// every rank. kVerdict reads kSampled, writes kVerdictOut; tasks are requests. Ids are exact given the logits. Rows
// that yield no token hold 0, which every rank writes for itself and nobody waits for. Formulas: model.md 3.1 and 5.2.
#pragma once

#include "gpu/device/sampling.h"
#include "gpu/device/stages.h"

namespace monostep::gpu {

// First row of a request that yields a token: the row before its drafts.
inline int first_sampled_row(const RequestRecord& request) {
  return request.first_row + request.num_rows - 1 - request.num_drafts;
}
template <Stage S>
inline bool yields_token(const StageContext<S>& ctx, int row) {
  const RequestRecord& request = ctx.request(ctx.request_of(row));
  return (request.flags & kRequestSample) != 0 && row >= first_sampled_row(request);
}

template <>
inline bool run_stage(StageContext<Stage::kSample>& ctx) {
  Cta& cta = ctx.cta;
  const Sink sink = ctx.write<Region::kSampled>();
  const Sink own{sink.first_pair, sink.tag, false};
  for (int row = ctx.first_task(); row < ctx.num_rows(); row += ctx.task_stride()) {
    if (!yields_token(ctx, row)) {
      if (cta.thread == 0) put_word(cta, own, row, 0);
      continue;
    }
    if (cta.params.rank != 0 && !plays_peers(cta.params)) continue;
    const RequestRecord& request = ctx.request(ctx.request_of(row));
    const int position = cta.shared.step.rows[row].position + 1;
    const int token = sample_token(cta, {ctx.read<Region::kLogits>(), row}, request, position);
    if (token < 0) return false;
    if (cta.thread == 0) put_word(cta, sink, row, static_cast<uint32_t>(token));
    cta.sync();  // nobody reads the scratch any more
  }
  return true;
}

// Drafts accepted by the minimum-variance schedule (program::forced_accepted).
inline int forced_accepted(const RequestRecord& request) {
  const double mean = static_cast<double>(request.forced_acceptance) - 1;
  const int certain = static_cast<int>(mean);
  const float uniform = uniform_noise(request, request.step_counter, Purpose::kForcedAcceptance);
  const int accepted = certain + (uniform < mean - certain ? 1 : 0);
  return accepted < request.num_drafts ? accepted : request.num_drafts;
}

inline bool is_stop(const RequestRecord& request, int token) {
  for (int idx = 0; idx < 4; ++idx) {
    if (request.stop_tokens[idx] == token) return true;
  }
  return false;
}

// One thread: the verdict of a request, from the ids of all rows.
inline void put_verdict(const StageContext<Stage::kVerdict>& ctx, const int* sampled, int request_idx) {
  const RequestRecord& request = ctx.request(request_idx);
  const RowRecord* rows = ctx.cta.shared.step.rows;
  const bool samples = (request.flags & kRequestSample) != 0;
  const int first = first_sampled_row(request);
  int accepted = 0;
  if (samples && request.forced_acceptance > 0) {
    accepted = forced_accepted(request);
  } else if (samples) {
    while (accepted < request.num_drafts && rows[first + 1 + accepted].token == sampled[first + accepted]) ++accepted;
  }
  const auto token_of = [&](int idx) {
    return idx < accepted ? rows[first + 1 + idx].token : sampled[first + accepted];
  };
  int count = 0;
  while (samples && count <= accepted) {
    if (is_stop(request, token_of(count++))) break;
  }
  const Sink sink = ctx.write<Region::kVerdictOut>();
  const auto put = [&](int idx, int value) {
    put_word(ctx.cta, sink, request_idx * (constants::kDraftLength + 4) + idx, static_cast<uint32_t>(value));
  };
  put(0, accepted);
  put(1, count);
  put(2, request.first_position + request.num_rows - 1 - request.num_drafts + accepted);
  for (int idx = 0; idx <= constants::kDraftLength; ++idx) put(3 + idx, idx < count ? token_of(idx) : 0);
}

template <>
inline bool run_stage(StageContext<Stage::kVerdict>& ctx) {
  Cta& cta = ctx.cta;
  if (ctx.first_task() >= cta.shared.step.num_requests) return true;
  int* sampled = cta.scratch<int>();  // [rows]
  const int row = cta.thread;
  if (row < ctx.num_rows() && yields_token(ctx, row))
    sampled[row] = static_cast<int>(wait_word(cta, ctx.read<Region::kSampled>(), row));
  if (!cta.sync_alive()) return false;
  for (int task = ctx.first_task(); task < cta.shared.step.num_requests; task += ctx.task_stride()) {
    if (cta.thread == 0) put_verdict(ctx, sampled, task);
  }
  return true;
}

}  // namespace monostep::gpu
