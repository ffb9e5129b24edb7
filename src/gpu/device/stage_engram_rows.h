// Engram's look-ups. kEngramRows (one call an Engram layer; tasks: row x column, column fastest, a warp each) reads the
// host's pinned table and the slot's class history, writes kEngramRowsOut (exact: bf16 holds e4m3 x e8m0); with the
// first layer's task 0 goes the history of the step's rows. Waits for nothing. Formulas: model.md 3.8, in int64.
#pragma once

#include "gpu/device/stages.h"

namespace monostep::gpu {

inline constexpr int kDeadClass = -1;  // class of a position inside an image span

inline int* history_at(const Cta& cta, const RequestRecord& request, int position) {
  const uint64_t slot = cta.params.slots + static_cast<uint64_t>(request.state_slot) * constants::kSlotBytes;
  return reinterpret_cast<int*>(slot + constants::kHistoryBegin) + position % constants::kHistoryRows;
}

inline int class_of_row(const Cta& cta, int row) {
  const RowRecord& source = cta.shared.step.rows[row];
  if ((source.flags & kRowImage) != 0) return kDeadClass;
  return reinterpret_cast<const int*>(cta.params.token_classes)[source.token];
}

// Token class `back` positions before a row. The history is read before the request's first position only, where no
// task of this step writes.
inline int class_before(const Cta& cta, int row, int back) {
  const RowRecord& record = cta.shared.step.rows[row];
  const RequestRecord& request = cta.shared.step.requests[record.request];
  const int position = record.position - back;
  if (position < 0) return cta.params.pad_class;
  if (position >= request.first_position) return class_of_row(cta, row - back);
  return *history_at(cta, request, position);
}

// The exclusive or over a warp's lanes.
inline uint64_t warp_xor(uint64_t value) {
  auto low = static_cast<uint32_t>(value);
  auto high = static_cast<uint32_t>(value >> 32);
#pragma unroll
  for (int mask = 16; mask > 0; mask >>= 1) {
    low ^= shuffle_xor(low, mask);
    high ^= shuffle_xor(high, mask);
  }
  return (uint64_t{high} << 32) | low;
}

// One warp: the table row of a column of a row's n-grams. A lane takes one look-back; behind a dead class all are pad.
inline int64_t table_row(const StageContext<Stage::kEngramRows>& ctx, int row, int column) {
  const Cta& cta = ctx.cta;
  constexpr int kNumbers = 2 * constants::kEngramColumns + constants::kEngramNgram;
  const auto* primes = reinterpret_cast<const int64_t*>(cta.params.engram_hash) + ctx.record.engram_idx * kNumbers;
  const int64_t* offsets = primes + constants::kEngramColumns;
  const int64_t* multipliers = offsets + constants::kEngramColumns;
  const bool takes = cta.lane < column / constants::kEngramHeads + 2;
  int token_class = takes ? class_before(cta, row, cta.lane) : 0;
  const uint32_t dead = ballot(takes && token_class == kDeadClass);
  if (dead != 0 && cta.lane >= find_first(dead)) token_class = cta.params.pad_class;
  const int64_t product = takes ? token_class * multipliers[cta.lane] : 0;
  const auto hash = static_cast<int64_t>(warp_xor(static_cast<uint64_t>(product)));
  const auto pinned = static_cast<int64_t>(cta.params.engram_rows[ctx.record.engram_idx]);
  return (hash % primes[column] + offsets[column]) % pinned;
}

// A lane's 16 values of a record: codes and scale are on their way together.
struct RecordPart {
  Word4 codes;
  uint8_t scale;
};
inline RecordPart load_part(const StageContext<Stage::kEngramRows>& ctx, int64_t record, int begin) {
  constexpr int kScales = constants::kEngramHeadDim / kActivationGroup;
  const int idx = ctx.record.engram_idx;
  const auto* codes =
      reinterpret_cast<const char*>(ctx.cta.params.engram_codes[idx]) + record * constants::kEngramHeadDim + begin;
  const auto* scales = reinterpret_cast<const uint8_t*>(ctx.cta.params.engram_scales[idx]) + record * kScales;
  return {load_constant(reinterpret_cast<const Word4*>(codes)), scales[begin / kActivationGroup]};
}

// Puts four values as two words.
inline void put_codes(const Cta& cta, const Sink& sink, int64_t word, uint32_t codes, float scale) {
  const auto value = [&](int i) { return e4m3_value(static_cast<uint8_t>(codes >> (8 * i))) * scale; };
  put_words2(cta, sink, word, bf16_pair(value(0), value(1)), bf16_pair(value(2), value(3)));
}

// Adds the step's rows to the history of their slots.
inline void store_classes(const Cta& cta) {
  const int row = cta.thread;
  if (row >= cta.shared.step.num_rows) return;
  const RowRecord& record = cta.shared.step.rows[row];
  *history_at(cta, cta.shared.step.requests[record.request], record.position) = class_of_row(cta, row);
}

template <>
inline bool run_stage(StageContext<Stage::kEngramRows>& ctx) {
  constexpr int kLaneValues = 16;
  const Cta& cta = ctx.cta;
  const Sink sink = ctx.write<Region::kEngramRowsOut>();
  const int num_tasks = ctx.num_rows() * constants::kEngramColumns;
  for (int task = ctx.first_task() + cta.warp * ctx.task_stride(); task < num_tasks;
       task += kWarps * ctx.task_stride()) {
    const int64_t record = table_row(ctx, task / constants::kEngramColumns, task % constants::kEngramColumns);
    for (int begin = cta.lane * kLaneValues; begin < constants::kEngramHeadDim; begin += 32 * kLaneValues) {
      const RecordPart part = load_part(ctx, record, begin);
      const float scale = e8m0_value(part.scale);
      const int64_t word = (int64_t{task} * constants::kEngramHeadDim + begin) / 2;
      put_codes(cta, sink, word, part.codes.x, scale);
      put_codes(cta, sink, word + 2, part.codes.y, scale);
      put_codes(cta, sink, word + 4, part.codes.z, scale);
      put_codes(cta, sink, word + 6, part.codes.w, scale);
    }
    warp_sync();
  }
  if (ctx.first_task() == 0 && ctx.record.engram_idx == 0) store_classes(cta);
  return true;
}

}  // namespace monostep::gpu
