// Adds up what a head left of the parts of a row's list, ascending, and its sink; divides, rounds and rotates back.
// Tasks: heads x rows. Reads attn_part (in the draft also the verdicts, for the row's position), writes the head's
// attn_out. Bounded: fp32 sums in the order of the CPU reference. No thread waits for another: each takes a pair of
// values, and a warp's lanes a part each for its share.
#pragma once

#include "gpu/device/numerics.h"
#include "gpu/device/stage_attend.h"
#include "gpu/device/stages.h"

namespace monostep::gpu {

using MergeContext = StageContext<Stage::kAttnMerge>;

// A row's position and the parts of its list.
struct MergeRow {
  int position;
  int num_parts;
};
inline MergeRow merge_row(const MergeContext& ctx, int row) {
  const CallRecord& record = ctx.record;
  if (!record.draft) {
    const int position = ctx.cta.shared.step.rows[row].position;
    const int groups = program::selected_groups(constants::kIndexTopk, record.ratio, position);
    return {position, program::parts_of_list(constants::kWindow + groups)};
  }
  const int last = wait_last_position(ctx.cta, ctx.read<Region::kVerdictOut>(), ctx.request_of(row));
  const int context = program::context_entries(constants::kWindow, last);
  return {last + 1 + row % constants::kDraftLength, program::parts_of_list(context + constants::kDraftLength)};
}

// Lane p's share of part p in the sums, of its running maximum and sum (lanes without a part: none), and the
// denominator.
struct Shares {
  float share;
  float denominator;
};
inline Shares share_parts(const Cta& cta, const MergeRow& row, float most, float sum, float sink) {
  float top = most;
#pragma unroll
  for (int mask = 16; mask > 0; mask >>= 1) top = fmaxf(top, shuffle_xor(top, mask));
  // The last lane has no part: it makes the sink's.
  const float share = exp_approx((cta.lane == 31 ? sink : most) - top);
  float denominator = 0;
#pragma unroll 1
  for (int part = 0; part < row.num_parts; ++part) denominator += shuffle(sum * share, part);
  return {share, denominator + shuffle(share, 31)};
}

inline void merge_head(const MergeContext& ctx, int head, int row_idx) {
  constexpr int kParts = constants::kListParts;
  constexpr int kPairs = constants::kHeadDim / 2;
  static_assert(kParts < 32, "a lane a part, and one for the sink");
  const Cta& cta = ctx.cta;
  const Words parts = ctx.read<Region::kAttnPart>();
  const Sink sink = ctx.write<Region::kAttnOut>();
  const MergeRow row = merge_row(ctx, row_idx);
  const float sink_score = reinterpret_cast<const float*>(ctx.record.vectors[0])[head];
  const auto group = static_cast<uint32_t>(head / constants::kHeadsPerGroup);
  const auto place = static_cast<uint32_t>(head % constants::kHeadsPerGroup);
  const auto word_of = [&](int part) {
    const uint32_t granule = (static_cast<uint32_t>(part) * constants::kRankGroups + group) * constants::kRows +
                             static_cast<uint32_t>(row_idx);
    return (granule * constants::kHeadsPerGroup + place) * kPartWords;
  };
#pragma unroll 1
  for (int base = 0; base < kPairs; base += kConsumers) {
    const int pair = base + cta.thread;
    const int turned = pair - (kPairs - kRopePairs);
    CosSin angle;
    if (turned >= 0 && pair < kPairs) angle = rope_angle_of(cta, ctx.record.ratio, row.position, turned);
    uint32_t words[kParts + 1][2];
    wait_words2(cta, parts, words, [&](int i) {
      if (i == kParts) return cta.lane < row.num_parts ? word_of(cta.lane) + constants::kHeadDim : kNoWord;
      return i < row.num_parts && pair < kPairs ? word_of(i) + 2 * static_cast<uint32_t>(pair) : kNoWord;
    });
    const bool has_part = cta.lane < row.num_parts;
    const Shares shares = share_parts(cta, row, has_part ? std::bit_cast<float>(words[kParts][0]) : -1e30f,
                                      has_part ? std::bit_cast<float>(words[kParts][1]) : 0.0f, sink_score);
    float low = 0;
    float high = 0;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const float share = shuffle(shares.share, part);
      if (part >= row.num_parts) continue;
      low += std::bit_cast<float>(words[part][0]) * share;
      high += std::bit_cast<float>(words[part][1]) * share;
    }
    if (pair >= kPairs) continue;
    low = round_bf16(low / shares.denominator);
    high = round_bf16(high / shares.denominator);
    if (turned >= 0) rotate_pair(low, high, angle.cos, -angle.sin);
    const int64_t place_out =
        (int64_t{head / constants::kHeadsPerGroup} * constants::kRows + row_idx) * constants::kHeadsPerGroup +
        head % constants::kHeadsPerGroup;
    put_word(cta, sink, place_out * kPairs + pair, bf16_pair(low, high));
  }
}

template <>
inline bool run_stage(StageContext<Stage::kAttnMerge>& ctx) {
  for (int task = ctx.first_task(); task < ctx.record.num_tasks; task += ctx.task_stride()) {
    const RowTask at = row_task(ctx.record, task);
    if (ctx.live(at.row)) merge_head(ctx, at.outer, at.row);
  }
  return ctx.cta.sync_alive();
}

}  // namespace monostep::gpu
