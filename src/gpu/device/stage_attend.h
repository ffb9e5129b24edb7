// Attention over a part of a row's list: window and selected groups (backbone), or the draft's context and its own
// rows. Tasks: parts x output groups x rows; parts that a list does not have are left out. Reads the queries' partial
// sums, this step's new rows and the selection, older rows from rings and pages; writes what each head leaves of the
// part (attn_part), which stage_attn_merge.h adds up. Keys are unpacked once into shared memory, kListChunk entries at
// a time, and serve as keys and values; the first chunk is in place before the queries are waited for, and the records
// of both are on their way to L2 since the list is known. Products of bf16 are exact, their sums fp32; running maximum,
// chunks and roundings are those of model.md 3.5. MMA rows are entries (scores) and dimensions (values), MMA columns
// are heads.
#pragma once

#include "gpu/device/numerics.h"
#include "gpu/device/stages.h"
#include "program/attention.h"

namespace monostep::gpu {

inline constexpr int kUnit = 16;  // neighbouring values of a key that a thread unpacks
inline constexpr int kUnits = constants::kHeadDim / kUnit;
inline constexpr int kLineBytes = 128;  // of L2
inline constexpr int kUnitsPerThread = (kListChunk * kUnits + kConsumers - 1) / kConsumers;
inline constexpr int kSpans = (constants::kHeadDim / 32 + kWarps - 1) / kWarps;  // of 32 dimensions, a warp's
using program::kListPart;
static_assert(kListPart < kConsumers && kListPart % kListChunk == 0 && kListChunk % 32 == 0);

inline constexpr int kKeyWords = padded_words(constants::kHeadDim, 2);
inline constexpr int kQueryWords = padded_words(constants::kHeadDim, 4);
inline constexpr int kScoreStride = kListChunk + 4;  // floats
inline constexpr int kWeightWords = kListChunk / 2 + 8;
inline constexpr int kPartWords = constants::kHeadDim + 2;  // values, running maximum, sum of weights

// A row of the call that is attended for.
struct AttendRow {
  int row;
  int request_idx;
  int position;
  int last_position;  // draft: last committed
};

struct alignas(16) AttendScratch {
  uint32_t keys[kListChunk * kKeyWords];      // [entry][kHeadDim / 2] bf16 pairs
  uint32_t query[kHeadTile * kQueryWords];    // [head][kHeadDim / 2] bf16 pairs
  float scores[2][kHeadTile][kScoreStride];   // partial sums of both halves of the dimensions
  uint32_t weights[kHeadTile][kWeightWords];  // bf16, entries in the order of weight_place
  float shrink[kHeadTile];
  CosSin angles[kRopePairs];
  // Where each entry of the part lies: 0 absent, kInStep + first word of its row in the region of its half of the list,
  // else the address of its record.
  uint64_t sources[kListPart];
  uint32_t fresh[kListPart / 32];  // a bit an entry: a row of this step
  Words halves[2];                 // regions of this step's entries, of both halves of the list
  AttendRow row;                   // here and not in registers, of which the chunks need all
};
static_assert(sizeof(AttendScratch) <= attend_scratch(constants::kHeadDim, constants::kRopeDim, kListPart));
static_assert(sizeof(AttendScratch) <= constants::kScratchBytes);
inline constexpr uint64_t kInStep = uint64_t{1} << 63;

// A part of a row's list: its entries [0, num_first) are window records, those behind are compressed ones (or, in the
// draft, the draft's own rows).
struct ListPart {
  int num_first;
  int num_entries;
  int begin;  // of the part in the list
};

inline uint64_t in_step(int64_t row) { return kInStep | static_cast<uint64_t>(row * (constants::kHeadDim / 2)); }
using AttendContext = StageContext<Stage::kAttend>;

// A task among those of all rows, the row fastest.
struct RowTask {
  int outer;
  int row;
};
inline RowTask row_task(const CallRecord& record, int task) {
  if (record.draft) return {task / constants::kDraftRows, task % constants::kDraftRows};
  return {task / constants::kBand, task % constants::kBand};
}

// Source of an entry of the first half of a list. Backbone: positions oldest to newest, absent ones first. Draft: every
// context position of the window, in the order of position mod window.
inline uint64_t window_source(const AttendContext& ctx, const AttendRow& row, int entry) {
  const CallRecord& record = ctx.record;
  const RequestRecord& request = ctx.request(row.request_idx);
  const bool draft = record.draft != 0;
  const int position = draft ? row.last_position - (row.last_position - entry) % constants::kWindow
                             : row.position - constants::kWindow + 1 + entry;
  if (position < 0) return 0;
  if (position < request.first_position)
    return reinterpret_cast<uint64_t>(ring_record(ctx.cta, request, record.layer, position));
  const int64_t first_row = draft ? int64_t{record.layer - constants::kNumLayers} * constants::kRows : 0;
  return in_step(first_row + request.first_row + position - request.first_position);
}

// Source of an entry of the second half: a selected group, or a draft row of the request.
inline uint64_t second_source(const AttendContext& ctx, const AttendRow& row, int idx) {
  const Cta& cta = ctx.cta;
  const CallRecord& record = ctx.record;
  const RequestRecord& request = ctx.request(row.request_idx);
  if (record.draft) return in_step(row.request_idx * constants::kDraftLength + idx);
  const auto group =
      static_cast<int>(wait_word(cta, ctx.read<Region::kTopk>(), int64_t{row.row} * constants::kIndexTopk + idx));
  if (group < 0 || cta.dead()) return 0;
  const int closed_at = group * record.ratio + record.ratio - 1;
  if (closed_at >= request.first_position) return in_step(request.first_row + closed_at - request.first_position);
  return reinterpret_cast<uint64_t>(compressed_record(cta, row.request_idx, record, group));
}

// Sources of a part, an entry a thread, with the records asked for; the other threads make the angles. Needs a barrier
// behind it, which also tells whether the step was given up.
inline void list_part(const AttendContext& ctx, const AttendRow& row, const ListPart& list, AttendScratch& scratch) {
  const int entry = ctx.cta.thread;
  if (entry >= kListPart) {
    for (int pair = entry - kListPart; pair < kRopePairs; pair += kConsumers - kListPart)
      scratch.angles[pair] = rope_angle_of(ctx.cta, ctx.record.ratio, row.position, pair);
    return;
  }
  uint64_t source = 0;
  if (entry < list.num_first) {
    source = window_source(ctx, row, list.begin + entry);
  } else if (entry < list.num_entries) {
    source = second_source(ctx, row, entry - list.num_first);
  }
  const uint32_t fresh = ballot(source >= kInStep);
  if (source != 0 && source < kInStep) {
    const int bytes = entry < list.num_first ? constants::kWindowRecord : constants::kCompressedRecord;
#pragma unroll 1
    for (int at = 0; at < bytes + kLineBytes - 1; at += kLineBytes)
      prefetch_l2(reinterpret_cast<const uint8_t*>(source) + (at < bytes ? at : bytes - 1));
  }
  scratch.sources[entry] = source;
  if (ctx.cta.lane == 0) scratch.fresh[ctx.cta.warp] = fresh;
}

// What a thread fetched of a unit: the codes and the scale byte of a record.
struct RawUnit {
  uint32_t codes[4];
  uint32_t scale;
};

struct UnitPlace {
  int entry;  // of the chunk
  int unit;
};
inline UnitPlace unit_place(const Cta& cta, int idx) {
  const auto thread = static_cast<uint32_t>(cta.thread);
  if constexpr (kConsumers % kUnits == 0)  // the same for all idx but for a constant
    return {idx * (kConsumers / kUnits) + static_cast<int>(thread / kUnits), static_cast<int>(thread % kUnits)};
  const uint32_t item = static_cast<uint32_t>(idx) * kConsumers + thread;
  return {static_cast<int>(item / kUnits), static_cast<int>(item % kUnits)};
}

inline RawUnit fetch_unit(const uint8_t* record, int unit, bool window) {
  RawUnit raw = {};
  if (window) {
    load_record<4, WindowFormat::kAlign>(record + unit * kUnit, raw.codes);
    raw.scale = load_constant(record + constants::kHeadDim + unit * kUnit / kActivationGroup);
  } else {
    load_record<2, CompressedFormat::kAlign>(record + unit * (kUnit / 2), raw.codes);
    raw.scale = load_constant(record + constants::kHeadDim / 2 + unit);
  }
  return raw;
}

inline void unpack_unit(const RawUnit& raw, bool window, uint32_t (&out)[8]) {
  float scale;
  if (window) {
    scale = e8m0_value(static_cast<uint8_t>(raw.scale));
#pragma unroll
    for (int i = 0; i < 4; ++i) e4m3x4_to_f16(raw.codes[i], out[2 * i], out[2 * i + 1]);
  } else {
    scale = e4m3_value(static_cast<uint8_t>(raw.scale)) * 0x1p14f;  // the codes come 2^-14 times too small
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t pairs[4];
      e2m1x8_to_f16(raw.codes[i], pairs);
#pragma unroll
      for (int j = 0; j < 4; ++j) out[4 * i + j] = pairs[j];
    }
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) out[i] = scaled_pair(out[i], scale);
}

inline void store_unit(AttendScratch& scratch, const UnitPlace& at, const uint32_t (&pairs)[8]) {
  auto* to = reinterpret_cast<Word4*>(scratch.keys + at.entry * kKeyWords + at.unit * (kUnit / 2));
  to[0] = {pairs[0], pairs[1], pairs[2], pairs[3]};
  to[1] = {pairs[4], pairs[5], pairs[6], pairs[7]};
}

// Unpacks a chunk's records into the keys; absent entries are zero, rows of this step are left out. A few units at a
// time, for the sake of the code's size: it is fetched anew in each layer.
inline void load_records(const Cta& cta, const ListPart& list, AttendScratch& scratch, int first) {
  constexpr int kAtOnce = kUnitsPerThread < 4 ? kUnitsPerThread : 4;
#pragma unroll 1
  for (int base = 0; base < kUnitsPerThread; base += kAtOnce) {
    RawUnit raw[kAtOnce];
    uint64_t sources[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const UnitPlace at = unit_place(cta, base + i);
      sources[i] = at.entry < kListChunk ? scratch.sources[first + at.entry] : kInStep;
      raw[i] = {};
      if (sources[i] == 0 || sources[i] >= kInStep) continue;
      raw[i] = fetch_unit(reinterpret_cast<const uint8_t*>(sources[i]), at.unit, first + at.entry < list.num_first);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const UnitPlace at = unit_place(cta, base + i);
      uint32_t pairs[8] = {};
      if (sources[i] >= kInStep) continue;
      if (sources[i] != 0) unpack_unit(raw[i], first + at.entry < list.num_first, pairs);
      store_unit(scratch, at, pairs);
    }
  }
}

// The chunk's rows of this step, from their regions. Needs a barrier behind it, which also tells whether the step was
// given up.
inline void store_new_rows(const Cta& cta, const ListPart& list, AttendScratch& scratch, int first) {
  uint32_t fresh = 0;
#pragma unroll
  for (int i = 0; i < kListChunk / 32; ++i) fresh |= scratch.fresh[first / 32 + i];
  if (fresh == 0) return;
#pragma unroll 1
  for (int i = 0; i < kUnitsPerThread; ++i) {
    const UnitPlace at = unit_place(cta, i);
    if (at.entry >= kListChunk) continue;
    const uint64_t source = scratch.sources[first + at.entry];
    if (source < kInStep) continue;
    const auto word = static_cast<int64_t>(source & ~kInStep) + at.unit * (kUnit / 2);
    uint32_t words[4][2];
    wait_words2(cta, scratch.halves[first + at.entry < list.num_first ? 0 : 1], words,
                [&](int j) { return static_cast<uint32_t>(word + 2 * j); });
    store_unit(
        scratch, at,
        {words[0][0], words[0][1], words[1][0], words[1][1], words[2][0], words[2][1], words[3][0], words[3][1]});
  }
}

// Rotated queries of heads [first, first + count) of the rank; the tile's other heads are zero. Needs a barrier behind
// it.
inline void load_queries(const AttendContext& ctx, const AttendRow& row, int first, int count, AttendScratch& scratch) {
  constexpr int kPairs = constants::kHeadDim / 2;
  constexpr int kAtOnce = 8;
  const Cta& cta = ctx.cta;
  const SplitSums from{ctx.read<Region::kQPart>(), 0, ctx.record.expert_tiles};
  for (int base = 0; base < kHeadTile * kPairs; base += kConsumers * kAtOnce) {
    const uint32_t begin = static_cast<uint32_t>(base + cta.thread);
    float sums[kAtOnce][2];
    wait_sums<kAtOnce, 1>(cta, from, sums, [&](int i) {
      const int item = static_cast<int>(begin) + i * kConsumers;
      return SumPlace{item < count * kPairs ? row.row : -1, first * constants::kHeadDim + 2 * item};
    });
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const uint32_t item = begin + static_cast<uint32_t>(i * kConsumers);
      if (item >= kHeadTile * kPairs) continue;
      const auto pair = static_cast<int>(item % kPairs);
      float low = round_bf16(sums[i][0]);
      float high = round_bf16(sums[i][1]);
      const int turned = pair - (kPairs - kRopePairs);
      if (turned >= 0) rotate_pair(low, high, scratch.angles[turned].cos, scratch.angles[turned].sin);
      scratch.query[item / kPairs * kQueryWords + item % kPairs] = bf16_pair(low, high);
    }
  }
}

// MMA row g of a tile is entry g with its two lowest bits swapped: neighbouring rows then fall on different banks.
constexpr int entry_of_row(int g) { return (g & 4) | ((g & 1) << 1) | ((g >> 1) & 1); }

// Scores of a chunk: two warps an entry tile, one a half of the dimensions; 32 dimensions at a time.
inline void multiply_queries(const Cta& cta, AttendScratch& scratch) {
  constexpr int kGroups = constants::kHeadDim / kGroup;
  const int g = cta.lane >> 2;
  const int t = cta.lane & 3;
  const int half = cta.warp & 1;
  const int entry = cta.warp / 2 * kTile + entry_of_row(g);
  const auto* low = reinterpret_cast<const Word4*>(scratch.keys + entry * kKeyWords) + t;
  const auto* high = reinterpret_cast<const Word4*>(scratch.keys + (entry + 8) * kKeyWords) + t;
  const auto* query = reinterpret_cast<const Word4*>(scratch.query + g * kQueryWords) + t;
  float sum[4] = {};
#pragma unroll 4
  for (int group = kGroups * half / 2; group < kGroups * (half + 1) / 2; ++group) {
    const Word4 a = low[group * 4];
    const Word4 b = high[group * 4];
    const Word4 q = query[group * 4];
    float d[4] = {};
    mma_bf16(d, {a.x, b.x, a.y, b.y}, q.x, q.y);
    mma_bf16(d, {a.z, b.z, a.w, b.w}, q.z, q.w);
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i] += d[i];
  }
  scratch.scores[half][2 * t][entry] = sum[0];
  scratch.scores[half][2 * t + 1][entry] = sum[1];
  scratch.scores[half][2 * t][entry + 8] = sum[2];
  scratch.scores[half][2 * t + 1][entry + 8] = sum[3];
}

// Place of an entry's weight among the chunk's: the four entries t, t + 4, t + 8, t + 12 of a tile that MMA lane t
// holds are neighbours.
constexpr int weight_place(int entry) { return entry / kTile * kTile + entry % 4 * 4 + entry % kTile / 4; }

// Within 2^-20 where it is not negligible: weights are rounded to bf16.
inline float exp_approx(float x) { return exp2_approx(x * 0x1.715476p+0f); }

// Running state of a head, the same in all lanes of its warp.
struct HeadState {
  float most = -1e30f;
  float sum = 0;
};

// Weights of a chunk for head `warp`: softmax with a running maximum.
inline void weigh_chunk(const Cta& cta, AttendScratch& scratch, int first, HeadState& state) {
  constexpr int kEntries = kListChunk / 32;  // a lane's
  const auto scale = static_cast<float>(1.0 / sqrt(static_cast<double>(constants::kHeadDim)));
  float scores[kEntries];
  float next = state.most;
#pragma unroll
  for (int i = 0; i < kEntries; ++i) {
    const int entry = cta.lane + 32 * i;
    const bool present = scratch.sources[first + entry] != 0;
    scores[i] = present ? (scratch.scores[0][cta.warp][entry] + scratch.scores[1][cta.warp][entry]) * scale
                        : std::bit_cast<float>(0xff800000u);
    next = fmaxf(next, scores[i]);
  }
#pragma unroll
  for (int mask = 16; mask > 0; mask >>= 1) next = fmaxf(next, shuffle_xor(next, mask));
  auto* weights = reinterpret_cast<uint16_t*>(scratch.weights[cta.warp]);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kEntries; ++i) {
    const float weight = exp_approx(scores[i] - next);  // 0 where absent
    sum += weight;
    weights[weight_place(cta.lane + 32 * i)] = bf16_bits(weight);
  }
  const float shrink = exp_approx(state.most - next);
#pragma unroll
  for (int mask = 16; mask > 0; mask >>= 1) sum += shuffle_xor(sum, mask);
  state.sum = state.sum * shrink + sum;
  state.most = next;
  if (cta.lane == 0) scratch.shrink[cta.warp] = shrink;
}

// Values: out[span][j] holds dimensions 32 (warp + span x kWarps) + 4g + 2j and the next (rows g and g + 8 of MMA tile
// j) of heads 2t and 2t + 1.
using Values = float[kSpans][2][4];

inline void add_values(const Cta& cta, const AttendScratch& scratch, Values& out) {
  const int g = cta.lane >> 2;
  const int t = cta.lane & 3;
  const float even = scratch.shrink[2 * t];
  const float odd = scratch.shrink[2 * t + 1];
#pragma unroll
  for (int span = 0; span < kSpans; ++span) {
    const int dim = (cta.warp + span * kWarps) * 32 + 4 * g;
    if (dim >= constants::kHeadDim) continue;  // the same for the whole warp
    float d[2][4] = {};
#pragma unroll
    for (int step = 0; step < kListChunk / kTile; ++step) {
      uint32_t low[4];
      uint32_t high[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t* key = scratch.keys + (step * kTile + t + 4 * i) * kKeyWords + dim / 2;
        const uint64_t both = *reinterpret_cast<const uint64_t*>(key);
        low[i] = static_cast<uint32_t>(both);
        high[i] = static_cast<uint32_t>(both >> 32);
      }
      const uint64_t weights = *reinterpret_cast<const uint64_t*>(scratch.weights[g] + step * (kTile / 2) + 2 * t);
      const auto b0 = static_cast<uint32_t>(weights);
      const auto b1 = static_cast<uint32_t>(weights >> 32);
      const auto multiply = [&](float(&sum)[4], const uint32_t(&v)[4]) {
        mma_bf16(sum,
                 {permute_bytes(v[0], v[1], 0x5410), permute_bytes(v[0], v[1], 0x7632),
                  permute_bytes(v[2], v[3], 0x5410), permute_bytes(v[2], v[3], 0x7632)},
                 b0, b1);
      };
      multiply(d[0], low);
      multiply(d[1], high);
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out[span][j][i] = out[span][j][i] * (i % 2 == 0 ? even : odd) + d[j][i];
    }
  }
}

// Puts what `count` heads leave of a part from `first_word` on: values, running maximum, sum.
inline void put_part(const AttendContext& ctx, const Values& values, const HeadState& state, int64_t first_word,
                     int count) {
  const Cta& cta = ctx.cta;
  const Sink sink = ctx.write<Region::kAttnPart>();
  const int g = cta.lane >> 2;
  const int t = cta.lane & 3;
#pragma unroll
  for (int span = 0; span < kSpans; ++span) {
    const int dim = (cta.warp + span * kWarps) * 32 + 4 * g;
    if (dim >= constants::kHeadDim) continue;
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      const int head = 2 * t + odd;
      if (head >= count) continue;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        put_words2(cta, sink, first_word + head * kPartWords + dim + 2 * j,
                   std::bit_cast<uint32_t>(values[span][j][odd]), std::bit_cast<uint32_t>(values[span][j][2 + odd]));
      }
    }
  }
  if (cta.lane == 0 && cta.warp < count) {
    put_words2(cta, sink, first_word + cta.warp * kPartWords + constants::kHeadDim, std::bit_cast<uint32_t>(state.most),
               std::bit_cast<uint32_t>(state.sum));
  }
}

// Heads [first, first + count) of the rank over the part that is listed in the scratch. False: given up.
inline bool attend_heads(const AttendContext& ctx, const ListPart& list, int first, int count, HeadState& state,
                         Values& values) {
  const Cta& cta = ctx.cta;
  AttendScratch& scratch = *cta.scratch<AttendScratch>();
#pragma unroll 1
  for (int begin = 0; begin < list.num_entries; begin += kListChunk) {
    load_records(cta, list, scratch, begin);
    store_new_rows(cta, list, scratch, begin);
    if (begin == 0) load_queries(ctx, scratch.row, first, count, scratch);
    if (!cta.sync_alive()) return false;
    multiply_queries(cta, scratch);
    cta.sync();
    weigh_chunk(cta, scratch, begin, state);
    cta.sync();
    add_values(cta, scratch, values);
    cta.sync();  // the keys are free
  }
  return true;
}

// Where a task's row lies, and its part; the scratch gets what the chunks need of it. False: given up.
inline bool find_part(const AttendContext& ctx, int part, int row_idx, ListPart& list, AttendRow& row) {
  const Cta& cta = ctx.cta;
  const CallRecord& record = ctx.record;
  AttendScratch& scratch = *cta.scratch<AttendScratch>();
  row = {row_idx, ctx.request_of(row_idx), 0, 0};
  int num_first = constants::kWindow;
  int num_second = 0;
  if (record.draft) {
    row.last_position = wait_last_position(cta, ctx.read<Region::kVerdictOut>(), row.request_idx);
    if (!cta.sync_alive()) return false;
    row.position = row.last_position + 1 + row_idx % constants::kDraftLength;
    num_first = program::context_entries(constants::kWindow, row.last_position);
    num_second = constants::kDraftLength;
  } else {
    row.position = cta.shared.step.rows[row_idx].position;
    num_second = program::selected_groups(constants::kIndexTopk, record.ratio, row.position);
  }
  list.begin = part * kListPart;
  list.num_first = num_first - list.begin;
  const int left = num_first + num_second - list.begin;
  list.num_entries = left < kListPart ? left : kListPart;
  if (cta.thread == 0 && list.num_entries > 0) {
    scratch.halves[0] = record.draft ? ctx.read<Region::kContextNewOut>() : ctx.read<Region::kWindowNew>();
    scratch.halves[1] = record.draft ? ctx.read<Region::kWindowNew>() : ctx.read<Region::kCompressedNew>();
    scratch.row = row;
  }
  return true;
}

// One part of one row for the heads of an output group. False: given up.
inline bool attend_part(const AttendContext& ctx, int part, int group, int row_idx) {
  const Cta& cta = ctx.cta;
  AttendScratch& scratch = *cta.scratch<AttendScratch>();
  ListPart list;
  AttendRow row;
  if (!find_part(ctx, part, row_idx, list, row)) return false;
  if (list.num_entries <= 0) return true;
  list_part(ctx, row, list, scratch);
  if (!cta.sync_alive()) return false;
  const int64_t granule = int64_t{part * constants::kRankGroups + group} * constants::kRows + row_idx;
  for (int head = 0; head < constants::kHeadsPerGroup; head += kHeadTile) {
    const int left = constants::kHeadsPerGroup - head;
    const int count = left < kHeadTile ? left : kHeadTile;
    HeadState state;
    Values values = {};
    if (!attend_heads(ctx, list, group * constants::kHeadsPerGroup + head, count, state, values)) return false;
    put_part(ctx, values, state, (granule * constants::kHeadsPerGroup + head) * kPartWords, count);
  }
  return true;
}

template <>
inline bool run_stage(StageContext<Stage::kAttend>& ctx) {
  for (int task = ctx.first_task(); task < ctx.record.num_tasks; task += ctx.task_stride()) {
    const RowTask at = row_task(ctx.record, task);
    if (!ctx.live(at.row)) continue;
    // outer: part x groups + group
    if (!attend_part(ctx, at.outer / constants::kRankGroups, at.outer % constants::kRankGroups, at.row)) return false;
  }
  return true;
}

}  // namespace monostep::gpu
