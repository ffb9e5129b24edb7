// Index scores. Tasks of kIndexScore: requests x chunks of kScoreChunk groups; a chunk's keys are loaded once for up to
// kQueryRows rows of the request. Reads the partial sums of indexer.wq_b and weights_proj, keys of this step from their
// region and older ones from pages, and the kept candidates; writes bf16 scores [row][kMaxGroups] of the visible groups
// (two a word; the words of a row's last four groups are filled with -inf). Queries and keys are e2m1 codes: the
// products are exact, as are the sums of a 32-group; the three roundings to bf16 are the reference's, and the sum over
// the heads is taken in fp64. Formulas: model.md 3.6.
#pragma once

#include "gpu/device/numerics.h"
#include "gpu/device/stages.h"

namespace monostep::gpu {

inline constexpr int kKeyGroups = constants::kIndexHeadDim / kIndexGroup;
inline constexpr int kCodeWords = (kKeyGroups | 1) * 4;  // words between two keys: odd pieces of 16 bytes
inline constexpr int kQueryHeads = (constants::kIndexHeads + kTile - 1) / kTile * kTile;
inline constexpr int kScaleStride = constants::kScoreChunk + 8;
// Bits of the candidates that a chunk meets, which may begin and end inside one.
inline constexpr int kMaskWords = (constants::kScoreChunk / constants::kCandidateSize + 2 + 31) / 32;
static_assert(constants::kScoreChunk == kWarps * 32, "a warp scores 32 groups of a chunk");
static_assert(constants::kMaxGroups % 4 == 0, "scores are read four at a time");

template <int kNumRows>
struct ScoreScratchOf {
  alignas(16) uint32_t keys[constants::kScoreChunk * kCodeWords];     // [group][32-group][8 codes a word]
  alignas(16) uint32_t queries[kNumRows * kQueryHeads * kCodeWords];  // [row][head] likewise
  float key_scales[kKeyGroups * kScaleStride];                        // [32-group][group]; 0 where there is none
  float query_scales[kNumRows * kKeyGroups * kQueryHeads];            // [row][32-group][head]
  float weights[kNumRows * kQueryHeads];                              // bf16 values; 0 behind the last head
  CosSin angles[kNumRows * kRopePairs];
  uint32_t kept[kNumRows * constants::kCandidateGroups];  // candidates of each row, ascending; ~0 behind
  uint32_t masks[kNumRows * kMaskWords];                  // [row] bits of the chunk's candidates that are kept
};
// Rows whose queries are held at once: as many as the scratch takes.
inline constexpr int kQueryRows = sizeof(ScoreScratchOf<8>) <= constants::kScratchBytes            ? 8
                                  : sizeof(ScoreScratchOf<kScoreRows>) <= constants::kScratchBytes ? kScoreRows
                                  : sizeof(ScoreScratchOf<4>) <= constants::kScratchBytes          ? 4
                                                                                                   : 1;
using ScoreScratch = ScoreScratchOf<kQueryRows>;
static_assert(sizeof(ScoreScratch) <= constants::kScratchBytes);
static_assert(sizeof(ScoreScratchOf<kScoreRows>) <=
              score_scratch({constants::kScoreChunk, constants::kIndexHeadDim, constants::kIndexHeads,
                             constants::kRopeDim, constants::kCandidateGroups},
                            kScoreRows));

using ScoreContext = StageContext<Stage::kIndexScore>;

inline constexpr uint32_t kMinusInfinity = 0xff80u;  // bf16

// Rows of a request that are scored together.
struct ScoreRows {
  int request_idx;
  int row;       // the first, in the regions
  int position;  // of the first
  int count;
};
inline int visible_groups(int position, int ratio) { return (position + 1) / ratio; }

// Rotated, quantised queries of the rows' heads: a thread takes four dimensions, eight lanes a 32-group.
inline void load_index_queries(const ScoreContext& ctx, const ScoreRows& rows, ScoreScratch& scratch) {
  constexpr int kQuads = constants::kIndexHeadDim / kQuad;
  constexpr int kAtOnce = 4;
  const Cta& cta = ctx.cta;
  const SplitSums from{ctx.read<Region::kQPart>(), ctx.record.index_tile, ctx.record.expert_tiles};
  const int total = rows.count * constants::kIndexHeads * kQuads;
  auto* codes = reinterpret_cast<uint16_t*>(scratch.queries);
  for (int base = 0; base < total; base += kConsumers * kAtOnce) {
    float sums[2 * kAtOnce][2];
    wait_sums<2 * kAtOnce, 1>(cta, from, sums, [&](int i) {
      const int item = base + i / 2 * kConsumers + cta.thread;
      const int row = item / (constants::kIndexHeads * kQuads);
      return SumPlace{item < total ? rows.row + row : -1, item % (constants::kIndexHeads * kQuads) * kQuad + i % 2 * 2};
    });
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int item = base + i * kConsumers + cta.thread;
      const int quad = item % kQuads;
      const int head = item / kQuads % constants::kIndexHeads;
      const int row = item / (constants::kIndexHeads * kQuads);
      float values[kQuad] = {round_bf16(sums[2 * i][0]), round_bf16(sums[2 * i][1]), round_bf16(sums[2 * i + 1][0]),
                             round_bf16(sums[2 * i + 1][1])};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int turned = quad * 2 + half - (constants::kIndexHeadDim / 2 - kRopePairs);
        if (turned < 0 || item >= total) continue;
        const CosSin& angle = scratch.angles[row * kRopePairs + turned];
        rotate_pair(values[2 * half], values[2 * half + 1], angle.cos, angle.sin);
      }
      float scale;
      const uint32_t packed = pack_quad<IndexFormat>(values, scale);
      if (item >= total) continue;
      codes[(row * kQueryHeads + head) * kCodeWords * 2 + quad] = static_cast<uint16_t>(packed);
      if (quad % (kIndexGroup / kQuad) == 0) {
        const int group = quad * kQuad / kIndexGroup;
        scratch.query_scales[(row * kKeyGroups + group) * kQueryHeads + head] = scale * 0x1p14f;  // see e2m1x8_to_f16
      }
    }
  }
}

// Head weights bf16(bf16(weights_proj) / sqrt(dim) / sqrt(heads)) of the rows, and zeros for the heads that fill the
// last tile.
inline void load_head_weights(const ScoreContext& ctx, const ScoreRows& rows, ScoreScratch& scratch) {
  constexpr int kPairs = kQueryHeads / 2;
  const Cta& cta = ctx.cta;
  const SplitSums from{ctx.read<Region::kAttnInPart>(), ctx.record.tile_of[4], ctx.record.reader_splits};
  const auto scale = static_cast<float>(1.0 / sqrt(static_cast<double>(constants::kIndexHeadDim)) /
                                        sqrt(static_cast<double>(constants::kIndexHeads)));
  for (int item = cta.thread; item < rows.count * kPairs; item += kConsumers) {
    const int row = item / kPairs;
    const int head = item % kPairs * 2;
    float sums[1][2];
    wait_sums<1, 4>(cta, from, sums,
                    [&](int) { return SumPlace{head < constants::kIndexHeads ? rows.row + row : -1, head}; });
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool used = head + half < constants::kIndexHeads;
      scratch.weights[row * kQueryHeads + head + half] = used ? round_bf16(round_bf16(sums[0][half]) * scale) : 0.0f;
      if (used) continue;
      for (int group = 0; group < kKeyGroups; ++group)
        scratch.query_scales[(row * kKeyGroups + group) * kQueryHeads + head + half] = 0;
    }
  }
}

// Kept candidates of the rows. Only groups that the last row sees can be among them.
inline void load_kept(const ScoreContext& ctx, const ScoreRows& rows, ScoreScratch& scratch) {
  constexpr int kCount = constants::kCandidateGroups;
  const Cta& cta = ctx.cta;
  const Words words = ctx.read<Region::kCandidates>();
  const int visible = visible_groups(rows.position + rows.count - 1, ctx.record.ratio);
  const int most = (visible + constants::kCandidateSize - 1) / constants::kCandidateSize;
  for (int item = cta.thread; item < rows.count * kCount; item += kConsumers) {
    const bool used = item % kCount < most;  // the others are -1
    scratch.kept[item] = used ? wait_word(cta, words, int64_t{rows.row} * kCount + item) : ~0u;
  }
}

// All that the rows bring to their scores. False: given up.
inline bool load_score_rows(const ScoreContext& ctx, const ScoreRows& rows, ScoreScratch& scratch) {
  for (int row = 0; row < rows.count; ++row)
    load_angles(ctx.cta, ctx.record.ratio, rows.position + row, scratch.angles + row * kRopePairs);
  if (ctx.record.candidates_from >= 0) load_kept(ctx, rows, scratch);
  load_head_weights(ctx, rows, scratch);
  ctx.cta.sync();
  load_index_queries(ctx, rows, scratch);
  return ctx.cta.sync_alive();
}

// A row's mask over the candidates that a chunk meets, one warp a row: bit i is candidate begin / size + i. Needs a
// barrier behind it.
inline void mark_kept(const Cta& cta, const ScoreRows& rows, int begin, ScoreScratch& scratch) {
  for (int row = cta.warp; row < rows.count; row += kWarps) {
    const uint32_t* kept = scratch.kept + row * constants::kCandidateGroups;
    for (int word = 0; word < kMaskWords; ++word) {
      const auto wanted = static_cast<uint32_t>(begin / constants::kCandidateSize + word * 32 + cta.lane);
      int low = 0;  // entries before it are below `wanted`
      int high = constants::kCandidateGroups;
      while (low < high) {
        const int middle = (low + high) / 2;
        if (kept[middle] < wanted) {
          low = middle + 1;
        } else {
          high = middle;
        }
      }
      const uint32_t bits = ballot(low < constants::kCandidateGroups && kept[low] == wanted);
      if (cta.lane == 0) scratch.masks[row * kMaskWords + word] = bits;
    }
  }
}

// Codes of 32 values of a key of this step: the values are on the grid already, so quantising them again changes none.
inline float wait_new_key(const Cta& cta, const Words& words, int64_t first_word, uint32_t (&codes)[4]) {
  uint32_t pairs[8][2];
  wait_words2(cta, words, pairs, [&](int i) { return static_cast<uint32_t>(first_word + 2 * i); });
  float amax = 0;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const uint32_t pair = pairs[i / 2][i % 2];
    amax = fmaxf(amax, fmaxf(fabsf(low_bf16(pair)), fabsf(high_bf16(pair))));
  }
  const float scale = index_scale(amax);
#pragma unroll
  for (int i = 0; i < 4; ++i) codes[i] = 0;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const uint32_t pair = pairs[i / 2][i % 2];
    const uint32_t both = e2m1_bits(low_bf16(pair) / scale) | (uint32_t{e2m1_bits(high_bf16(pair) / scale)} << 4);
    codes[i / 4] |= both << (i % 4 * 8);
  }
  return scale;
}

// The row of this step that closes a group, counted from the request's first; negative: its key is in its page.
inline int closing_row(const ScoreContext& ctx, const RequestRecord& request, int group) {
  return group * ctx.record.ratio + ctx.record.ratio - 1 - request.first_position;
}

// One 32-group of a key: codes, and the scale with what e2m1x8_to_f16 leaves out.
inline void store_key(ScoreScratch& scratch, int key, int part, const uint32_t (&codes)[4], float scale) {
  *reinterpret_cast<Word4*>(scratch.keys + key * kCodeWords + part * 4) = {codes[0], codes[1], codes[2], codes[3]};
  scratch.key_scales[part * kScaleStride + key] = scale * 0x1p14f;
}

// Keys of groups [begin, end) of the request from their pages; keys behind the end and those of this step get scale 0.
inline void load_page_keys(const ScoreContext& ctx, int request_idx, int begin, int end, ScoreScratch& scratch) {
  constexpr int kAtOnce = kKeyGroups < 4 ? kKeyGroups : 4;
  const Cta& cta = ctx.cta;
  const RequestRecord& request = ctx.request(request_idx);
  for (int base = 0; base < kKeyGroups; base += kAtOnce) {
    uint32_t codes[kAtOnce][4];
    float scales[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const uint32_t item = static_cast<uint32_t>((base + i) * kConsumers + cta.thread);
      const int group = begin + static_cast<int>(item / kKeyGroups);
      scales[i] = 0;
      codes[i][0] = codes[i][1] = codes[i][2] = codes[i][3] = 0;
      if (base + i >= kKeyGroups || group >= end || closing_row(ctx, request, group) >= 0) continue;
      const auto part = static_cast<int>(item % kKeyGroups);
      const uint8_t* key = index_record(cta, request_idx, ctx.record, group);
      load_record<4, IndexFormat::kAlign>(key + part * (kIndexGroup / 2), codes[i]);
      scales[i] = e8m0_value(key[constants::kIndexHeadDim / 2 + part]);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const uint32_t item = static_cast<uint32_t>((base + i) * kConsumers + cta.thread);
      if (base + i >= kKeyGroups) continue;
      store_key(scratch, static_cast<int>(item / kKeyGroups), static_cast<int>(item % kKeyGroups), codes[i], scales[i]);
    }
  }
}

// Keys of groups [begin, end) that this step closes, from their region; by the threads that stored them before. Needs a
// barrier behind it, which also tells whether the step was given up.
inline void load_new_keys(const ScoreContext& ctx, int request_idx, int begin, int end, ScoreScratch& scratch) {
  const RequestRecord& request = ctx.request(request_idx);
  if (end <= begin || closing_row(ctx, request, end - 1) < 0) return;
  const Words words = ctx.read<Region::kIndexKeyNew>();
#pragma unroll 1
  for (int item = ctx.cta.thread; item < (end - begin) * kKeyGroups; item += kConsumers) {
    const int key = item / kKeyGroups;
    const int part = item % kKeyGroups;
    const int closing = closing_row(ctx, request, begin + key);
    if (closing < 0) continue;
    const int64_t row = request.first_row + closing;
    uint32_t codes[4];
    const float scale = wait_new_key(ctx.cta, words, (row * constants::kIndexHeadDim + part * kIndexGroup) / 2, codes);
    store_key(scratch, key, part, codes, scale);
  }
}

inline constexpr int kKeyTiles = 2;  // MMA tiles of eight keys that a warp works on together
inline constexpr int kKeysAtOnce = kKeyTiles * 8;

// Keys as MMA columns, as f16.
using KeyTiles = uint32_t[kKeyTiles][kKeyGroups][4];

// Scores before the last rounding of one row for the warp's keys [first, first + kKeysAtOnce) of the chunk:
// sums[tile][i] is the share of the lane's heads for key 8 tile + 2t + i.
inline void score_row(const Cta& cta, const ScoreScratch& scratch, int row, int first, const KeyTiles& keys,
                      double (&sums)[kKeyTiles][2]) {
  const int g = cta.lane >> 2;
  const int t = cta.lane & 3;
  for (int head = g; head < kQueryHeads; head += kTile) {
    const uint32_t* low_codes = scratch.queries + (row * kQueryHeads + head) * kCodeWords + t;
    const uint32_t* high_codes = low_codes + 8 * kCodeWords;
    float dots[kKeyTiles][4] = {};
#pragma unroll
    for (int group = 0; group < kKeyGroups; ++group) {
      uint32_t low[4];
      uint32_t high[4];
      e2m1x8_to_f16(low_codes[group * 4], low);
      e2m1x8_to_f16(high_codes[group * 4], high);
      const float* scales = scratch.query_scales + (row * kKeyGroups + group) * kQueryHeads + head;
#pragma unroll
      for (int tile = 0; tile < kKeyTiles; ++tile) {
        const uint32_t(&b)[4] = keys[tile][group];
        float d[4] = {};
        mma_f16(d, {low[0], high[0], low[1], high[1]}, b[0], b[1]);
        mma_f16(d, {low[2], high[2], low[3], high[3]}, b[2], b[3]);
        const float* key_scales = scratch.key_scales + group * kScaleStride + first + tile * 8 + 2 * t;
#pragma unroll
        for (int i = 0; i < 4; ++i) dots[tile][i] += d[i] * (scales[i / 2 * 8] * key_scales[i % 2]);
      }
    }
    const float* weights = scratch.weights + row * kQueryHeads + head;
#pragma unroll
    for (int tile = 0; tile < kKeyTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        sums[tile][i % 2] +=
            static_cast<double>(round_bf16(fmaxf(round_bf16(dots[tile][i]), 0.0f) * weights[i / 2 * 8]));
    }
  }
}

// Adds the lanes' shares up: lane (g, t) gets the sum of key 8 (g / 4) + 2t + g / 2 % 2.
inline double add_shares(const Cta& cta, const double (&sums)[kKeyTiles][2]) {
  const bool tile = (cta.lane & 16) != 0;
  const bool odd = (cta.lane & 8) != 0;
  const double first = (tile ? sums[1][0] : sums[0][0]) + shuffle_xor(tile ? sums[0][0] : sums[1][0], 16);
  const double second = (tile ? sums[1][1] : sums[0][1]) + shuffle_xor(tile ? sums[0][1] : sums[1][1], 16);
  const double sum = (odd ? second : first) + shuffle_xor(odd ? first : second, 8);
  return sum + shuffle_xor(sum, 4);
}

// Where a row's scores of a chunk go, and which of its groups count.
struct ScoreOut {
  const uint32_t* mask;  // null: all
  int begin;             // first group of the chunk
  int visible;
  int64_t first_word;  // of the row
};

inline uint32_t masked_score(const ScoreOut& out, int group, uint32_t score) {
  if (group >= out.visible) return kMinusInfinity;
  if (out.mask == nullptr) return score;
  const int bit = group / constants::kCandidateSize - out.begin / constants::kCandidateSize;
  return (out.mask[bit / 32] >> (bit % 32) & 1) != 0 ? score : kMinusInfinity;
}

// Puts the word of groups `group` and `group` + 1, if the row's reader looks at it.
inline void put_scores(const Cta& cta, const Sink& sink, const ScoreOut& out, int group, uint32_t low, uint32_t high) {
  if (group / 4 * 4 >= out.visible) return;
  put_word(cta, sink, out.first_word + group / 2,
           masked_score(out, group, low) | (masked_score(out, group + 1, high) << 16));
}

inline bool any_kept(const uint32_t* mask) {
  uint32_t any = 0;
  for (int word = 0; word < kMaskWords; ++word) any |= mask[word];
  return any != 0;
}

// Scores of a chunk for the rows: keys, queries and masks are in the scratch.
inline void score_chunk(const ScoreContext& ctx, const ScoreRows& rows, int begin, const ScoreScratch& scratch) {
  const Cta& cta = ctx.cta;
  const Sink sink = ctx.write<Region::kScores>();
  const int g = cta.lane >> 2;
  const int t = cta.lane & 3;
  for (int first = cta.warp * 32; first < cta.warp * 32 + 32; first += kKeysAtOnce) {
    KeyTiles keys;
#pragma unroll
    for (int tile = 0; tile < kKeyTiles; ++tile) {
#pragma unroll
      for (int group = 0; group < kKeyGroups; ++group)
        e2m1x8_to_f16(scratch.keys[(first + tile * 8 + g) * kCodeWords + group * 4 + t], keys[tile][group]);
    }
    for (int row = 0; row < rows.count; ++row) {
      const bool masked = ctx.record.candidates_from >= 0;
      const ScoreOut out{masked ? scratch.masks + row * kMaskWords : nullptr, begin,
                         visible_groups(rows.position + row, ctx.record.ratio),
                         int64_t{rows.row + row} * (constants::kMaxGroups / 2)};
      if (begin + first >= out.visible) continue;  // the same for the whole warp
      double sums[kKeyTiles][2] = {};
      if (!masked || any_kept(out.mask)) score_row(cta, scratch, row, first, keys, sums);
      const uint32_t score = bf16_bits(static_cast<float>(add_shares(cta, sums)));
      const uint32_t next = shuffle_xor(score, 8);
      if ((g & 3) == 0) put_scores(cta, sink, out, begin + first + g / 4 * 8 + 2 * t, score, next);
    }
  }
}

// One chunk of groups for some rows. False: given up.
inline bool run_score_chunk(const ScoreContext& ctx, const ScoreRows& rows, int begin, ScoreScratch& scratch) {
  const Cta& cta = ctx.cta;
  const int visible = visible_groups(rows.position + rows.count - 1, ctx.record.ratio);
  const int end = begin + constants::kScoreChunk < visible ? begin + constants::kScoreChunk : visible;
  if (begin >= end) return true;
  bool wanted = true;
  if (ctx.record.candidates_from >= 0) {
    mark_kept(cta, rows, begin, scratch);
    cta.sync();
    wanted = false;
    for (int row = 0; row < rows.count; ++row) wanted = wanted || any_kept(scratch.masks + row * kMaskWords);
  }
  if (wanted) {
    load_page_keys(ctx, rows.request_idx, begin, end, scratch);
    load_new_keys(ctx, rows.request_idx, begin, end, scratch);
  }
  if (!cta.sync_alive()) return false;
  score_chunk(ctx, rows, begin, scratch);
  cta.sync();  // the keys are free
  return true;
}

template <>
inline bool run_stage(StageContext<Stage::kIndexScore>& ctx) {
  ScoreScratch& scratch = *ctx.cta.scratch<ScoreScratch>();
  const StepRecord& step = ctx.cta.shared.step;
  int most_rows = 0;
  for (int idx = 0; idx < step.num_requests; ++idx)
    most_rows = most_rows > step.requests[idx].num_rows ? most_rows : step.requests[idx].num_rows;
  for (int first = 0; first < most_rows; first += kQueryRows) {
    int loaded = -1;
    for (int task = ctx.first_task(); task < ctx.record.num_tasks; task += ctx.task_stride()) {
      const int request_idx = task / ctx.record.score_chunks;
      if (request_idx >= step.num_requests) break;
      const RequestRecord& request = ctx.request(request_idx);
      const int left = request.num_rows - first;
      const int begin = task % ctx.record.score_chunks * constants::kScoreChunk;
      const ScoreRows rows{request_idx, request.first_row + first, request.first_position + first,
                           left < kQueryRows ? left : kQueryRows};
      if (left <= 0 || begin >= visible_groups(rows.position + rows.count - 1, ctx.record.ratio)) continue;
      if (loaded != request_idx && !load_score_rows(ctx, rows, scratch)) return false;
      loaded = request_idx;
      if (!run_score_chunk(ctx, rows, begin, scratch)) return false;
    }
    ctx.cta.sync();  // the queries are free
  }
  return true;
}

}  // namespace monostep::gpu
