// Attention over window and selected groups (backbone), or over the draft's context and its own rows. Tasks: output
// groups x rows. Reads the queries' partial sums, this step's new rows and the selection, older rows from rings and
// pages; writes the rotated-back output of each head. Keys are unpacked once into shared memory, kListChunk entries at
// a time, and serve as keys and values; the next chunk's records are on their way meanwhile. Products of bf16 are
// exact, their sums fp32; running maximum, chunks and roundings are those of model.md 3.5. MMA rows are entries
// (scores) and dimensions (values), MMA columns are heads.
#pragma once

#include "gpu/device/numerics.h"
#include "gpu/device/stages.h"

namespace monostep::gpu {

inline constexpr int kUnit = 16;  // neighbouring values of a key that a thread unpacks
inline constexpr int kUnits = constants::kHeadDim / kUnit;
inline constexpr int kUnitsPerThread = (kListChunk * kUnits + kConsumers - 1) / kConsumers;
inline constexpr int kSpans = (constants::kHeadDim / 32 + kWarps - 1) / kWarps;  // of 32 dimensions, a warp's
inline constexpr int kBehindWindow =
    constants::kIndexTopk > constants::kDraftLength ? constants::kIndexTopk : constants::kDraftLength;

inline constexpr int kKeyWords = padded_words(constants::kHeadDim, 2);
inline constexpr int kQueryWords = padded_words(constants::kHeadDim, 4);
inline constexpr int kScoreStride = kListChunk + 4;  // floats
inline constexpr int kWeightWords = kListChunk / 2 + 8;

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
  float denominator[kHeadTile];
  CosSin angles[kRopePairs];
  // Where each entry of the list lies: 0 absent, kInStep + first word of its row in the region of its part, else the
  // address of its record.
  uint64_t sources[constants::kWindow + kBehindWindow];
  Words parts[2];  // regions of this step's entries, of both parts of the list
  AttendRow row;   // here and not in registers, of which the chunks need all
};
static_assert(sizeof(AttendScratch) <=
              attend_scratch(constants::kHeadDim, constants::kRopeDim, constants::kWindow + kBehindWindow));
static_assert(sizeof(AttendScratch) <= constants::kScratchBytes);
inline constexpr uint64_t kInStep = uint64_t{1} << 63;

// The list of one row: entries [0, num_first) are window records, those behind are compressed ones (or, in the draft,
// the draft's own rows).
struct AttentionList {
  int num_first;
  int num_entries;
  bool second_listed;  // the sources of the second part are in the scratch
};

inline uint64_t in_step(int64_t row) { return kInStep | static_cast<uint64_t>(row * (constants::kHeadDim / 2)); }

using AttendContext = StageContext<Stage::kAttend>;

// Sources of the first part. Backbone: positions oldest to newest, absent ones first. Draft: every context position of
// the window, in the order of position mod window.
inline void list_window(const AttendContext& ctx, const AttendRow& row, AttentionList& list, uint64_t* sources) {
  const Cta& cta = ctx.cta;
  const CallRecord& record = ctx.record;
  const RequestRecord& request = ctx.request(row.request_idx);
  const bool draft = record.draft != 0;
  const int committed = row.last_position + 1;
  list.num_first = draft && committed < constants::kWindow ? committed : constants::kWindow;
  const int64_t first_row = (draft ? int64_t{record.layer - constants::kNumLayers} * constants::kRows : 0) +
                            request.first_row - request.first_position;
#pragma unroll 1
  for (int entry = cta.thread; entry < list.num_first; entry += kConsumers) {
    const int position = draft ? row.last_position - (row.last_position - entry) % constants::kWindow
                               : row.position - constants::kWindow + 1 + entry;
    sources[entry] = position < 0 ? 0
                     : position >= request.first_position
                         ? in_step(first_row + position)
                         : reinterpret_cast<uint64_t>(ring_record(cta, request, record.layer, position));
  }
}

// Sources of the second part: the selected groups, or the draft rows of the request. Needs a barrier behind it, which
// also tells whether the step was given up.
inline void list_selected(const AttendContext& ctx, const AttendRow& row, AttentionList& list, uint64_t* sources) {
  const Cta& cta = ctx.cta;
  const CallRecord& record = ctx.record;
  const RequestRecord& request = ctx.request(row.request_idx);
  sources += list.num_first;
  list.second_listed = true;
  const int count = list.num_entries - list.num_first;
  if (record.draft) {
    for (int idx = cta.thread; idx < count; idx += kConsumers)
      sources[idx] = in_step(row.request_idx * constants::kDraftLength + idx);
    return;
  }
  if (count == 0) return;
  const Words topk = ctx.read<Region::kTopk>();
#pragma unroll 1
  for (int idx = cta.thread; idx < count; idx += kConsumers) {
    const auto group = static_cast<int>(wait_word(cta, topk, int64_t{row.row} * constants::kIndexTopk + idx));
    const int closed_at = group * record.ratio + record.ratio - 1;
    if (group < 0 || cta.dead()) {
      sources[idx] = 0;
    } else if (closed_at >= request.first_position) {
      sources[idx] = in_step(request.first_row + closed_at - request.first_position);
    } else {
      sources[idx] = reinterpret_cast<uint64_t>(compressed_record(cta, row.request_idx, record, group));
    }
  }
}

// What a thread fetched of a chunk: of each of its units the codes and the scale byte of a record.
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

inline uint64_t source_of(const AttentionList& list, const uint64_t* sources, int entry) {
  return entry < list.num_entries ? sources[entry] : 0;
}

// Starts the loads of a chunk's records.
inline void fetch_chunk(const Cta& cta, const AttentionList& list, const uint64_t* sources, int first,
                        RawUnit (&raw)[kUnitsPerThread]) {
#pragma unroll
  for (int i = 0; i < kUnitsPerThread; ++i) {
    const UnitPlace at = unit_place(cta, i);
    raw[i] = {};  // what it held is not kept alive
    if (at.entry >= kListChunk) continue;
    const uint64_t source = source_of(list, sources, first + at.entry);
    if (source == 0 || source >= kInStep) continue;
    const auto* record = reinterpret_cast<const uint8_t*>(source);
    if (first + at.entry < list.num_first) {
      load_record<4, WindowFormat::kAlign>(record + at.unit * kUnit, raw[i].codes);
      raw[i].scale = record[constants::kHeadDim + at.unit * kUnit / kActivationGroup];
    } else {
      load_record<2, CompressedFormat::kAlign>(record + at.unit * (kUnit / 2), raw[i].codes);
      raw[i].scale = record[constants::kHeadDim / 2 + at.unit];
    }
  }
}

inline void unpack_window_unit(const RawUnit& raw, uint32_t (&out)[8]) {
  const float scale = e8m0_value(static_cast<uint8_t>(raw.scale));
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint32_t low, high;
    e4m3x4_to_f16(raw.codes[i], low, high);
    out[2 * i] = scaled_pair(low, scale);
    out[2 * i + 1] = scaled_pair(high, scale);
  }
}

inline void unpack_compressed_unit(const RawUnit& raw, uint32_t (&out)[8]) {
  const float scale = e4m3_value(static_cast<uint8_t>(raw.scale)) * 0x1p14f;  // the codes come 2^-14 times too small
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    uint32_t pairs[4];
    e2m1x8_to_f16(raw.codes[i], pairs);
#pragma unroll
    for (int j = 0; j < 4; ++j) out[4 * i + j] = scaled_pair(pairs[j], scale);
  }
}

inline void store_unit(AttendScratch& scratch, const UnitPlace& at, const uint32_t (&pairs)[8]) {
  auto* to = reinterpret_cast<Word4*>(scratch.keys + at.entry * kKeyWords + at.unit * (kUnit / 2));
  to[0] = {pairs[0], pairs[1], pairs[2], pairs[3]};
  to[1] = {pairs[4], pairs[5], pairs[6], pairs[7]};
}

// Unpacks a fetched chunk into the keys; absent entries are zero, rows of this step are left out.
inline void store_records(const Cta& cta, const AttentionList& list, AttendScratch& scratch, int first,
                          const RawUnit (&raw)[kUnitsPerThread]) {
#pragma unroll
  for (int i = 0; i < kUnitsPerThread; ++i) {
    const UnitPlace at = unit_place(cta, i);
    if (at.entry >= kListChunk) continue;
    const uint64_t source = source_of(list, scratch.sources, first + at.entry);
    if (source >= kInStep) continue;
    uint32_t pairs[8] = {};
    if (source != 0 && first + at.entry < list.num_first) {
      unpack_window_unit(raw[i], pairs);
    } else if (source != 0) {
      unpack_compressed_unit(raw[i], pairs);
    }
    store_unit(scratch, at, pairs);
  }
}

// The chunk's rows of this step, from their regions. Needs a barrier behind it, which also tells whether the step was
// given up.
inline void store_new_rows(const Cta& cta, const AttentionList& list, AttendScratch& scratch, int first) {
#pragma unroll 1
  for (int i = 0; i < kUnitsPerThread; ++i) {
    const UnitPlace at = unit_place(cta, i);
    if (at.entry >= kListChunk) continue;
    const uint64_t source = source_of(list, scratch.sources, first + at.entry);
    if (source < kInStep) continue;
    const auto word = static_cast<int64_t>(source & ~kInStep) + at.unit * (kUnit / 2);
    uint32_t words[4][2];
    wait_words2(cta, scratch.parts[first + at.entry < list.num_first ? 0 : 1], words,
                [&](int j) { return word + 2 * j; });
    store_unit(
        scratch, at,
        {words[0][0], words[0][1], words[1][0], words[1][1], words[2][0], words[2][1], words[3][0], words[3][1]});
  }
}

// Rotated queries of heads [first, first + count) of the rank; the tile's other heads are zero. Needs a barrier behind
// it.
inline void load_queries(const AttendContext& ctx, const AttendRow& row, int first, int count, AttendScratch& scratch) {
  constexpr int kPairs = constants::kHeadDim / 2;
  constexpr int kAtOnce = 4;
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

// Running state of a head, the same in all lanes of its warp.
struct HeadState {
  float most = -1e30f;
  float sum = 0;
};

// Weights of a chunk for head `warp`: softmax with a running maximum.
inline void weigh_chunk(const Cta& cta, const AttentionList& list, AttendScratch& scratch, int first,
                        HeadState& state) {
  const auto scale = static_cast<float>(1.0 / sqrt(static_cast<double>(constants::kHeadDim)));
  float* scores = scratch.scores[0][cta.warp];
  float next = state.most;
  for (int entry = cta.lane; entry < kListChunk; entry += 32) {
    const bool present = source_of(list, scratch.sources, first + entry) != 0;
    scores[entry] =
        present ? (scores[entry] + scratch.scores[1][cta.warp][entry]) * scale : std::bit_cast<float>(0xff800000u);
    next = fmaxf(next, scores[entry]);
  }
#pragma unroll
  for (int mask = 16; mask > 0; mask >>= 1) next = fmaxf(next, shuffle_xor(next, mask));
  auto* weights = reinterpret_cast<uint16_t*>(scratch.weights[cta.warp]);
  float sum = 0;
#pragma unroll 1
  for (int entry = cta.lane; entry < kListChunk; entry += 32) {  // one after the other: registers are short
    const float weight = exp_f32(scores[entry] - next);          // 0 where absent
    sum += weight;
    weights[weight_place(entry)] = bf16_bits(weight);
  }
  const float shrink = exp_f32(state.most - next);
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

// Divides, rounds, rotates back and puts the values of heads [first, first + count), of which the scratch has the
// denominators.
inline void put_values(const AttendContext& ctx, const AttendScratch& scratch, const Values& values, int64_t first_head,
                       int count) {
  const Cta& cta = ctx.cta;
  const Sink sink = ctx.write<Region::kAttnOut>();
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
      uint32_t words[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float low = round_bf16(values[span][j][odd] / scratch.denominator[head]);
        float high = round_bf16(values[span][j][2 + odd] / scratch.denominator[head]);
        const int turned = dim / 2 + j - (constants::kHeadDim / 2 - kRopePairs);
        if (turned >= 0) rotate_pair(low, high, scratch.angles[turned].cos, -scratch.angles[turned].sin);
        words[j] = bf16_pair(low, high);
      }
      put_words2(cta, sink, (first_head + head) * (constants::kHeadDim / 2) + dim / 2, words[0], words[1]);
    }
  }
}

// Heads [first, first + count) of the rank for one row. False: given up.
inline bool attend_heads(const AttendContext& ctx, AttentionList& list, int first, int count, AttendScratch& scratch) {
  const Cta& cta = ctx.cta;
  RawUnit raw[kUnitsPerThread];
  HeadState state;
  Values values = {};
  // The second part is waited for as late as its first chunk is fetched.
  const auto fetch = [&](int begin) {
    if (!list.second_listed && begin + kListChunk > list.num_first) {
      list_selected(ctx, scratch.row, list, scratch.sources);
      if (!cta.sync_alive()) return false;
    }
    fetch_chunk(cta, list, scratch.sources, begin, raw);
    return true;
  };
  if (!fetch(0)) return false;
  load_queries(ctx, scratch.row, first, count, scratch);
#pragma unroll 1
  for (int begin = 0; begin < list.num_entries; begin += kListChunk) {
    store_records(cta, list, scratch, begin, raw);
    store_new_rows(cta, list, scratch, begin);
    if (!cta.sync_alive()) return false;
    if (begin + kListChunk < list.num_entries && !fetch(begin + kListChunk)) return false;
    multiply_queries(cta, scratch);
    cta.sync();
    weigh_chunk(cta, list, scratch, begin, state);
    cta.sync();
    add_values(cta, scratch, values);
    cta.sync();
  }
  if (cta.lane == 0 && cta.warp < count) {
    const auto* sinks = reinterpret_cast<const float*>(ctx.record.vectors[0]);
    scratch.denominator[cta.warp] = state.sum + exp_f32(sinks[first + cta.warp] - state.most);
  }
  cta.sync();
  const int group = first / constants::kHeadsPerGroup;
  put_values(ctx, scratch, values,
             (int64_t{group} * constants::kRows + scratch.row.row) * constants::kHeadsPerGroup +
                 first % constants::kHeadsPerGroup,
             count);
  return true;
}

// One row of one output group. False: given up.
inline bool attend_row(const AttendContext& ctx, int group, int row_idx, AttendScratch& scratch) {
  const Cta& cta = ctx.cta;
  const CallRecord& record = ctx.record;
  AttendRow row{row_idx, ctx.request_of(row_idx), 0, 0};
  AttentionList list{0, 0, false};
  Words parts[2] = {ctx.read<Region::kWindowNew>(), ctx.read<Region::kCompressedNew>()};
  int num_second = 0;
  if (record.draft) {
    row.last_position = wait_last_position(cta, ctx.read<Region::kVerdictOut>(), row.request_idx);
    if (!cta.sync_alive()) return false;
    row.position = row.last_position + 1 + row_idx % constants::kDraftLength;
    parts[1] = parts[0];
    parts[0] = ctx.read<Region::kContextNewOut>();
    num_second = constants::kDraftLength;
  } else {
    row.position = cta.shared.step.rows[row_idx].position;
    const int visible = record.ratio > 0 ? (row.position + 1) / record.ratio : 0;
    num_second = visible < constants::kIndexTopk ? visible : constants::kIndexTopk;
  }
  if (cta.thread == 0) {
    scratch.parts[0] = parts[0];
    scratch.parts[1] = parts[1];
    scratch.row = row;
  }
  load_angles(cta, record.ratio, row.position, scratch.angles);
  list_window(ctx, row, list, scratch.sources);
  list.num_entries = list.num_first + num_second;
  cta.sync();
  for (int head = 0; head < constants::kHeadsPerGroup; head += kHeadTile) {
    const int left = constants::kHeadsPerGroup - head;
    const int first = group * constants::kHeadsPerGroup + head;
    if (!attend_heads(ctx, list, first, left < kHeadTile ? left : kHeadTile, scratch)) return false;
    cta.sync();  // the scratch is free
  }
  return true;
}

template <>
inline bool run_stage(StageContext<Stage::kAttend>& ctx) {
  AttendScratch& scratch = *ctx.cta.scratch<AttendScratch>();
  const int rows = ctx.record.draft ? constants::kDraftRows : constants::kBand;
  for (int task = ctx.first_task(); task < ctx.record.num_tasks; task += ctx.task_stride()) {
    if (ctx.live(task % rows) && !attend_row(ctx, task / rows, task % rows, scratch)) return false;
  }
  return true;
}

}  // namespace monostep::gpu
