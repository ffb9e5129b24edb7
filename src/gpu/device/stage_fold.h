// Stages of the residual streams: fold, Engram, mHC mixing. Tasks: slices of the hidden dimension for all rows (folds),
// rows (mixes). A fold holds its slice's streams as fp32 in shared memory; mHC products are summed in fp64. Formulas:
// model.md 3.2 and 3.8.
#pragma once

#include "base/math.h"
#include "gpu/device/inputs.h"
#include "gpu/device/stages.h"

namespace monostep::gpu {

inline constexpr int kWidth = constants::kSliceWidth;
inline constexpr int kStreamValues = constants::kHc * kWidth;  // of one row of a slice
inline constexpr int kMixWords = constants::kMixOutputs;

// Shared memory of the folds.
struct FoldScratch {
  float streams[constants::kRows][kStreamValues];
  float mix[constants::kRows][kMixWords];
  float gates[constants::kRows][constants::kHc];
};
static_assert(sizeof(FoldScratch) <= constants::kScratchBytes);

// Coefficients of the mapped rows into shared memory; needs a barrier behind it.
inline void load_mix(const Cta& cta, const Words& words, int count, FoldScratch& scratch) {
  for (int i = cta.thread; i < count * kMixWords; i += kConsumers) {
    const int row = cta.shared.map[i / kMixWords];
    scratch.mix[row][i % kMixWords] = wait_f32(cta, words, int64_t{row} * kMixWords + i % kMixWords);
  }
}

// bf16 of the ranks' partial sums 0..TP-1 for columns d and d + 1 (d even) of a row.
inline void sublayer_pair(const Cta& cta, const Words& exchange, int row, int d, float (&out)[2]) {
  uint32_t raw[constants::kTp][2];
  wait_words2(cta, exchange, raw, [&](int rank) {
    return static_cast<uint32_t>(((rank * constants::kHiddenTiles + d / kTile) * constants::kRows + row) * kTile +
                                 d % kTile);
  });
  float sum[2] = {std::bit_cast<float>(raw[0][0]), std::bit_cast<float>(raw[0][1])};
#pragma unroll
  for (int rank = 1; rank < constants::kTp; ++rank) {
    sum[0] += std::bit_cast<float>(raw[rank][0]);
    sum[1] += std::bit_cast<float>(raw[rank][1]);
  }
  out[0] = round_bf16(sum[0]);
  out[1] = round_bf16(sum[1]);
}

// Word of (slice, row, stream, column pair) in a region of streams.
inline int64_t stream_word(int slice, int row, int stream, int pair) {
  return ((int64_t{slice} * constants::kRows + row) * constants::kHc + stream) * (kWidth / 2) + pair;
}

// X'[k] = bf16(post[k] y + sum_j comb[j][k] X[j]) for a pair of columns of every stream, into shared memory.
inline void expand_pair(const Cta& cta, const Words& exchange, const Words& streams, int slice, int row, int pair,
                        FoldScratch& scratch) {
  float x[constants::kHc][2];
  uint64_t raw[constants::kHc];
#pragma unroll
  for (int j = 0; j < constants::kHc; ++j) raw[j] = load_relaxed(streams.pairs + stream_word(slice, row, j, pair));
  float y[2];
  sublayer_pair(cta, exchange, row, slice * kWidth + 2 * pair, y);
#pragma unroll
  for (int j = 0; j < constants::kHc; ++j) {
    const uint32_t word = tag_of(raw[j]) == streams.tag ? static_cast<uint32_t>(raw[j])
                                                        : wait_word(cta, streams, stream_word(slice, row, j, pair));
    x[j][0] = low_bf16(word);
    x[j][1] = high_bf16(word);
  }
  const float* mix = scratch.mix[row];
#pragma unroll
  for (int k = 0; k < constants::kHc; ++k) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float sum = 0;
#pragma unroll
      for (int j = 0; j < constants::kHc; ++j) sum += mix[2 * constants::kHc + j * constants::kHc + k] * x[j][i];
      scratch.streams[row][k * kWidth + 2 * pair + i] = round_bf16(mix[constants::kHc + k] * y[i] + sum);
    }
  }
}

// The embedding of a row in every stream: of an image row, of a token, or of a draft row's token.
inline void embed_pair(const Cta& cta, const RowRecord& row_record, int row, int slice, int pair,
                       FoldScratch& scratch) {
  const int64_t d = slice * kWidth + 2 * pair;
  float value[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    value[i] = row_record.image_row >= 0
                   ? reinterpret_cast<const float*>(
                         cta.params.image_rows)[row_record.image_row * int64_t{constants::kHidden} + d + i]
                   : bf16_value(reinterpret_cast<const uint16_t*>(
                         cta.params.embed)[row_record.token * int64_t{constants::kHidden} + d + i]);
  }
#pragma unroll
  for (int k = 0; k < constants::kHc; ++k) {
    scratch.streams[row][k * kWidth + 2 * pair] = value[0];
    scratch.streams[row][k * kWidth + 2 * pair + 1] = value[1];
  }
}

// u = bf16(sum_j pre[j] X[j]) for a pair of columns; pre null: stream 0 alone.
inline uint32_t collapse_pair(const FoldScratch& scratch, int row, int pair, const float* pre) {
  float out[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float* x = scratch.streams[row] + 2 * pair + i;
    float sum = x[0] * (pre == nullptr ? 1.0f : pre[0]);
#pragma unroll
    for (int k = 1; k < constants::kHc; ++k) {
      if (pre != nullptr) sum += pre[k] * x[k * kWidth];
    }
    out[i] = sum;
  }
  return bf16_pair(out[0], out[1]);
}

// Calls f(row, pair) for every mapped row and pair of columns of the slice.
template <typename F>
inline void for_each_pair(const Cta& cta, int count, const F& f) {
  for (int i = cta.thread; i < count * (kWidth / 2); i += kConsumers)
    f(cta.shared.map[i / (kWidth / 2)], i % (kWidth / 2));
}

inline void put_streams(const Cta& cta, const Sink& sink, int slice, int count, const FoldScratch& scratch) {
  for_each_pair(cta, count, [&](int row, int pair) {
#pragma unroll
    for (int k = 0; k < constants::kHc; ++k) {
      const float* x = scratch.streams[row] + k * kWidth + 2 * pair;
      put_word(cta, sink, stream_word(slice, row, k, pair), bf16_pair(x[0], x[1]));
    }
  });
}

inline void put_collapsed(const Cta& cta, const Sink& sink, int slice, int count, const FoldScratch& scratch,
                          bool first_layer) {
  for_each_pair(cta, count, [&](int row, int pair) {
    const int64_t word = (int64_t{slice} * constants::kRows + row) * (kWidth / 2) + pair;
    put_word(cta, sink, word, collapse_pair(scratch, row, pair, first_layer ? nullptr : scratch.mix[row]));
  });
}

// Sum over the lanes of a warp, by halves.
inline double sum_over_lanes(double value) {
#pragma unroll
  for (int mask = 16; mask > 0; mask >>= 1) value += shuffle_xor(value, mask);
  return value;
}

// Sums over the lanes of eight values: lane l has that of value l / 4. The tree of additions is that of every value.
inline float sum_eight(const Cta& cta, float (&values)[8]) {
#pragma unroll
  for (int mask = 16, kept = 4; kept > 0; mask /= 2, kept /= 2) {
    const bool upper = (cta.lane & mask) != 0;
#pragma unroll
    for (int i = 0; i < kept; ++i) {
      const float sent = upper ? values[i] : values[i + kept];
      values[i] = (upper ? values[i + kept] : values[i]) + shuffle_xor(sent, mask);
    }
  }
  values[0] += shuffle_xor(values[0], 2);
  return values[0] + shuffle_xor(values[0], 1);
}

// Partial mHC products of the slice: [row][outputs, then the sum of squares]. `chunk` holds f32
// [output][stream][column]. One warp an output, eight rows at a time; lanes share out the columns. The slice's sums are
// taken in fp32, those over the slices (stage_mix.h) in fp64.
inline void put_mix_products(const Cta& cta, const Sink& sink, const float* chunk, int slice, int count,
                             const FoldScratch& scratch) {
  constexpr int kOutputs = kMixWords + 1;
  constexpr int kRowsAtOnce = 8;
  constexpr int kPerLane = (kStreamValues + 31) / 32;
  for (int base = 0; base < count; base += kRowsAtOnce) {
    float x[kRowsAtOnce][kPerLane] = {};
#pragma unroll
    for (int n = 0; n < kRowsAtOnce; ++n) {
      if (base + n >= count) continue;
      const float* streams = scratch.streams[cta.shared.map[base + n]];
#pragma unroll
      for (int k = 0; k < kPerLane; ++k) {
        if (cta.lane + 32 * k < kStreamValues) x[n][k] = streams[cta.lane + 32 * k];
      }
    }
#pragma unroll 1
    for (int output = cta.warp; output < kOutputs; output += kWarps) {
      float sums[kRowsAtOnce] = {};
#pragma unroll
      for (int k = 0; k < kPerLane; ++k) {
        const bool weighted = output < kMixWords && cta.lane + 32 * k < kStreamValues;
        const float weight = weighted ? chunk[output * kStreamValues + cta.lane + 32 * k] : 0.0f;
#pragma unroll
        for (int n = 0; n < kRowsAtOnce; ++n) sums[n] = fmaf(output < kMixWords ? weight : x[n][k], x[n][k], sums[n]);
      }
      const float sum = sum_eight(cta, sums);
      const int n = base + cta.lane / 4;
      if (cta.lane % 4 == 0 && n < count)
        put_f32(cta, sink, (slice * constants::kRows + cta.shared.map[n]) * kOutputs + output, sum);
    }
  }
}

// Key (part = stream) or value (part = kHc) of a row's Engram: bf16 of the sums over K slices, two columns.
template <Stage S>
inline void engram_pair(const StageContext<S>& ctx, int row, int part, int slice, int pair, float (&out)[2]) {
  constexpr int kTiles = (constants::kEngramRankRows + kTile - 1) / kTile;
  const Words words = ctx.template read<Region::kEngramKvOut>();
  const int splits = ctx.record.reader_splits;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int n = part * constants::kHidden + slice * kWidth + 2 * pair + i;
    const int in_rank = n % constants::kEngramRankRows;
    const int tile = n / constants::kEngramRankRows * kTiles + in_rank / kTile;
    float sum = 0;
    for (int split = 0; split < splits; ++split) {
      const int64_t granule = int64_t{tile} * splits + split;
      const float value = wait_f32(ctx.cta, words, (granule * constants::kRows + row) * kTile + in_rank % kTile);
      sum = split == 0 ? value : sum + value;
    }
    out[i] = round_bf16(sum);
  }
}

// Streams at the start of a layer, before its Engram, into shared memory. Behind load_mix and its barrier.
template <Stage S>
inline void start_streams(StageContext<S>& ctx, int slice, int count, FoldScratch& scratch) {
  const Cta& cta = ctx.cta;
  if (ctx.record.first_layer == 0) {
    const Words exchange = ctx.template read<Region::kFfnExchange>();
    const Words streams = ctx.template read<Region::kFfnStreams>();
    for_each_pair(cta, count,
                  [&](int row, int pair) { expand_pair(cta, exchange, streams, slice, row, pair, scratch); });
    return;
  }
  for_each_pair(cta, count, [&](int row, int pair) { embed_pair(cta, token_of(ctx, row), row, slice, pair, scratch); });
}

// What a row of the first layer embeds; a draft block starts with the verdict's anchor.
template <Stage S>
inline RowRecord token_of(const StageContext<S>& ctx, int row) {
  if (ctx.record.draft == 0) return ctx.cta.shared.step.rows[row];
  RowRecord out{constants::kNoiseToken, 0, 0, 0, -1};
  if constexpr (program::may_read(S, Region::kVerdictOut)) {
    if (row % constants::kDraftLength == 0) out.token = ctx.cta.shared.anchors[row / constants::kDraftLength];
  }
  return out;
}

// Anchors of the drafting requests into shared memory: a verdict is (accepted, tokens, last position, tokens...), the
// anchor the last of its tokens. Needs a barrier behind it.
inline void load_anchors(const StageContext<Stage::kFold>& ctx) {
  const Cta& cta = ctx.cta;
  if (cta.thread >= cta.shared.step.num_requests) return;
  if ((ctx.request(cta.thread).flags & kRequestDraft) == 0) return;
  const Words words = ctx.read<Region::kVerdictOut>();
  const int64_t first = int64_t{cta.thread} * (constants::kDraftLength + 4);
  const auto tokens = static_cast<int>(wait_word(cta, words, first + 1));
  const bool valid = tokens >= 1 && tokens <= constants::kDraftLength + 1;
  const auto token = static_cast<int>(wait_word(cta, words, first + 2 + (valid ? tokens : 1)));
  cta.shared.anchors[cta.thread] = token >= 0 && token < constants::kVocab ? token : 0;
}

// Gates of the mapped rows from the partial dots of all slices: 0 for image rows. One warp a row and stream.
inline void load_gates(const StageContext<Stage::kFold>& ctx, int count, FoldScratch& scratch) {
  const Cta& cta = ctx.cta;
  const Words dots = ctx.read<Region::kEngramDots>();
  for (int item = cta.warp; item < count * constants::kHc; item += kWarps) {
    const int row = cta.shared.map[item / constants::kHc];
    const int stream = item % constants::kHc;
    double sums[3] = {};
    for (int slice = cta.lane; slice < constants::kNumSlices; slice += 32) {
      const int64_t first = ((int64_t{slice} * constants::kRows + row) * constants::kHc + stream) * 3;
#pragma unroll
      for (int i = 0; i < 3; ++i) sums[i] += static_cast<double>(wait_f32(cta, dots, first + i));
    }
#pragma unroll
    for (int i = 0; i < 3; ++i) sums[i] = sum_over_lanes(sums[i]);
    const auto hidden = static_cast<float>(constants::kHidden);
    const float norm_x = 1.0f / sqrtf(static_cast<float>(sums[1]) / hidden + constants::kRmsNormEps);
    const float norm_key = 1.0f / sqrtf(static_cast<float>(sums[2]) / hidden + constants::kRmsNormEps);
    const float product = static_cast<float>(sums[0]) * norm_x * norm_key / sqrtf(hidden);
    const float root = sqrtf(fmaxf(fabsf(product), 1e-6f));
    const bool image = (cta.shared.step.rows[row].flags & kRowImage) != 0;
    if (cta.lane == 0) scratch.gates[row][stream] = image ? 0.0f : sigmoid_f32(copysignf(root, product));
  }
}

// Engram layers: the streams that kEngramFold left, plus gate x value.
inline void add_engram(const StageContext<Stage::kFold>& ctx, int slice, int count, FoldScratch& scratch) {
  const Words streams = ctx.read<Region::kEngramStreams>();
  for_each_pair(ctx.cta, count, [&](int row, int pair) {
    float value[2];
    engram_pair(ctx, row, constants::kHc, slice, pair, value);
#pragma unroll
    for (int k = 0; k < constants::kHc; ++k) {
      const uint32_t word = wait_word(ctx.cta, streams, stream_word(slice, row, k, pair));
      float* x = scratch.streams[row] + k * kWidth + 2 * pair;
      x[0] = round_bf16(low_bf16(word) + scratch.gates[row][k] * value[0]);
      x[1] = round_bf16(high_bf16(word) + scratch.gates[row][k] * value[1]);
    }
  });
}

inline void put_tap(const StageContext<Stage::kFold>& ctx, int slice, int count, const FoldScratch& scratch) {
  const Sink sink = ctx.write<Region::kTaps>();
  const int64_t granule = ctx.record.tap_idx * constants::kNumSlices + slice;
  for_each_pair(ctx.cta, count, [&](int row, int pair) {
    float out[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float sum = 0;
#pragma unroll
      for (int k = 0; k < constants::kHc; ++k) sum += scratch.streams[row][k * kWidth + 2 * pair + i];
      out[i] = sum / static_cast<float>(constants::kHc);
    }
    put_word(ctx.cta, sink, (granule * constants::kRows + row) * (kWidth / 2) + pair, bf16_pair(out[0], out[1]));
  });
}

// Everything that a fold leaves of its slice: streams, collapsed input, mHC partials. Takes the slice's chunk.
inline bool finish_fold(Cta& cta, const Sink& streams, const Sink& collapsed, const Sink& parts, int slice, int count,
                        FoldScratch& scratch, bool first_layer) {
  put_collapsed(cta, collapsed, slice, count, scratch, first_layer);
  put_streams(cta, streams, slice, count, scratch);
  const auto* chunk = reinterpret_cast<const float*>(next_chunk(cta, cta.record().sections[0].chunk_bytes));
  put_mix_products(cta, parts, chunk, slice, count, scratch);
  release_chunk(cta);
  return cta.sync_alive();
}

template <>
inline bool run_stage(StageContext<Stage::kEngramFold>& ctx) {
  Cta& cta = ctx.cta;
  auto& scratch = *cta.scratch<FoldScratch>();
  const int count = map_rows(cta, ctx.num_rows(), [&](int row) { return ctx.live(row); });
  if (ctx.first_task() >= ctx.record.num_tasks) return true;
  if (ctx.record.first_layer == 0) load_mix(cta, ctx.read<Region::kFfnMixOut>(), count, scratch);
  const Sink dots = ctx.write<Region::kEngramDots>();
  const auto* q_weight = reinterpret_cast<const uint16_t*>(ctx.record.vectors[0]);
  const auto* k_weight = reinterpret_cast<const uint16_t*>(ctx.record.vectors[1]);
  for (int slice = ctx.first_task(); slice < ctx.record.num_tasks; slice += ctx.task_stride()) {
    if (!cta.sync_alive()) return false;
    start_streams(ctx, slice, count, scratch);
    if (!cta.sync_alive()) return false;
    put_streams(cta, ctx.write<Region::kEngramStreams>(), slice, count, scratch);
    for (int item = cta.warp; item < count * constants::kHc; item += kWarps) {
      const int row = cta.shared.map[item / constants::kHc];
      const int stream = item % constants::kHc;
      double sums[3] = {};
      for (int pair = cta.lane; pair < kWidth / 2; pair += 32) {
        float key[2];
        engram_pair(ctx, row, stream, slice, pair, key);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float x = scratch.streams[row][stream * kWidth + 2 * pair + i];
          const int64_t at = int64_t{stream} * constants::kHidden + slice * kWidth + 2 * pair + i;
          const float w = bf16_value(q_weight[at]) * bf16_value(k_weight[at]);
          sums[0] += static_cast<double>(x * w * key[i]);
          sums[1] += static_cast<double>(x) * x;
          sums[2] += static_cast<double>(key[i]) * key[i];
        }
      }
      const int64_t first = ((int64_t{slice} * constants::kRows + row) * constants::kHc + stream) * 3;
#pragma unroll
      for (int i = 0; i < 3; ++i) {
        sums[i] = sum_over_lanes(sums[i]);
        if (cta.lane == 0) put_f32(cta, dots, first + i, static_cast<float>(sums[i]));
      }
    }
  }
  return cta.sync_alive();
}

template <>
inline bool run_stage(StageContext<Stage::kFold>& ctx) {
  Cta& cta = ctx.cta;
  auto& scratch = *cta.scratch<FoldScratch>();
  const bool engram = ctx.record.engram_idx >= 0;
  const bool first_layer = ctx.record.first_layer != 0;
  const int count = map_rows(cta, ctx.num_rows(), [&](int row) { return ctx.live(row); });
  if (ctx.first_task() >= ctx.record.num_tasks) return true;
  if (!first_layer) load_mix(cta, ctx.read<Region::kFfnMixOut>(), count, scratch);
  if (first_layer && ctx.record.draft != 0) load_anchors(ctx);
  if (engram) load_gates(ctx, count, scratch);
  for (int slice = ctx.first_task(); slice < ctx.record.num_tasks; slice += ctx.task_stride()) {
    if (!cta.sync_alive()) return false;
    if (engram) {
      add_engram(ctx, slice, count, scratch);
    } else {
      start_streams(ctx, slice, count, scratch);
    }
    if (!cta.sync_alive()) return false;
    if (ctx.record.tap_idx >= 0) put_tap(ctx, slice, count, scratch);
    if (!finish_fold(cta, ctx.write<Region::kStreams>(), ctx.write<Region::kAttnU>(), ctx.write<Region::kAttnMixPart>(),
                     slice, count, scratch, first_layer))
      return false;
  }
  return true;
}

template <>
inline bool run_stage(StageContext<Stage::kFfnFold>& ctx) {
  Cta& cta = ctx.cta;
  auto& scratch = *cta.scratch<FoldScratch>();
  const int count = map_rows(cta, ctx.num_rows(), [&](int row) { return ctx.live(row); });
  if (ctx.first_task() >= ctx.record.num_tasks) return true;
  load_mix(cta, ctx.read<Region::kAttnMixOut>(), count, scratch);
  const Words exchange = ctx.read<Region::kAttnExchange>();
  const Words streams = ctx.read<Region::kStreams>();
  for (int slice = ctx.first_task(); slice < ctx.record.num_tasks; slice += ctx.task_stride()) {
    if (!cta.sync_alive()) return false;
    for_each_pair(cta, count,
                  [&](int row, int pair) { expand_pair(cta, exchange, streams, slice, row, pair, scratch); });
    if (!cta.sync_alive()) return false;
    if (!finish_fold(cta, ctx.write<Region::kFfnStreams>(), ctx.write<Region::kFfnU>(),
                     ctx.write<Region::kFfnMixPart>(), slice, count, scratch, false))
      return false;
  }
  return true;
}

template <>
inline bool run_stage(StageContext<Stage::kHeadFold>& ctx) {
  Cta& cta = ctx.cta;
  auto& scratch = *cta.scratch<FoldScratch>();
  const int count = map_rows(cta, ctx.num_rows(), [&](int row) { return ctx.live(row); });
  if (ctx.first_task() >= ctx.record.num_tasks) return true;
  load_mix(cta, ctx.read<Region::kFfnMixOut>(), count, scratch);
  for (int slice = ctx.first_task(); slice < ctx.record.num_tasks; slice += ctx.task_stride()) {
    if (!cta.sync_alive()) return false;
    const Words exchange = ctx.read<Region::kFfnExchange>();
    const Words streams = ctx.read<Region::kFfnStreams>();
    for_each_pair(cta, count,
                  [&](int row, int pair) { expand_pair(cta, exchange, streams, slice, row, pair, scratch); });
    if (!cta.sync_alive()) return false;
    put_collapsed(cta, ctx.write<Region::kHeadU>(), slice, count, scratch, false);
  }
  return cta.sync_alive();
}

}  // namespace monostep::gpu
