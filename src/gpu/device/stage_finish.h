// Stages that finish partial sums once, so that the linears behind them read compact bf16 rows: kQNorm (query latents,
// normed; task: a row), kOSum (output projection's first half; task: a row's chunk of columns), kExpertAct (gated
// activations of a row's expert; task: row x slot). Formulas: model.md 3.5 and 3.7.
#pragma once

#include "gpu/device/numerics.h"
#include "gpu/device/routing.h"
#include "gpu/device/stages.h"

namespace monostep::gpu {

struct QNormScratch {
  float values[constants::kQLoraRank];
  double partials[kWarps];
};
static_assert(sizeof(QNormScratch) <= constants::kScratchBytes);

template <>
inline bool run_stage(StageContext<Stage::kQNorm>& ctx) {
  Cta& cta = ctx.cta;
  auto& scratch = *cta.scratch<QNormScratch>();
  const SplitSums sums{ctx.read<Region::kAttnInPart>(), ctx.record.tile_of[0], ctx.record.reader_splits};
  const Sink sink = ctx.write<Region::kQIn>();
  for (int row = ctx.first_task(); row < ctx.record.num_tasks; row += ctx.task_stride()) {
    if (!ctx.live(row)) continue;
    load_sums<constants::kQLoraRank>(cta, sums, row, scratch.values);
    if (!cta.sync_alive()) return false;
    norm_row(cta, scratch.values, constants::kQLoraRank, ctx.record.vectors[0], scratch.partials);
    for (int pair = cta.thread; pair < constants::kQLoraRank / 2; pair += kConsumers) {
      put_word(cta, sink, int64_t{row} * (constants::kQLoraRank / 2) + pair,
               bf16_pair(scratch.values[2 * pair], scratch.values[2 * pair + 1]));
    }
  }
  return true;
}

template <>
inline bool run_stage(StageContext<Stage::kOSum>& ctx) {
  constexpr int kWidth = constants::kRankGroups * constants::kOLoraRank;
  constexpr int kChunk = constants::kOChunk;
  const Cta& cta = ctx.cta;
  const SplitSums sums{ctx.read<Region::kOaPart>(), 0, ctx.record.reader_splits};
  const Sink sink = ctx.write<Region::kOIn>();
  for (int task = ctx.first_task(); task < ctx.record.num_tasks; task += ctx.task_stride()) {
    const int row = task / (kWidth / kChunk);
    if (!ctx.live(row)) continue;
    const int begin = task % (kWidth / kChunk) * kChunk;
    for (int pair = cta.thread; pair < kChunk / 2; pair += kConsumers) {
      float out[1][2];
      wait_sums<1, 4>(cta, sums, out, [&](int) { return SumPlace{row, begin + 2 * pair}; });
      put_word(cta, sink, (int64_t{row} * kWidth + begin) / 2 + pair, bf16_pair(out[0][0], out[0][1]));
    }
  }
  return cta.sync_alive();
}

// a = bf16(w (silu(min(g, limit)) clamp(u, limit))), g and u bf16.
MONOSTEP_NOINLINE inline float gated(float gate, float up, float weight) {
  const float g = fminf(gate, constants::kSwigluLimit);
  const float u = fminf(fmaxf(up, -constants::kSwigluLimit), constants::kSwigluLimit);
  return round_bf16(weight * (g * sigmoid_f32(g) * u));
}

// g (part 0) or u (part 1) of two neighbouring columns of a row's slot: bf16 of the sum over K slices, ascending.
inline void slot_sums(const StageContext<Stage::kExpertAct>& ctx, int part, int row, int slot, int column,
                      float (&out)[2]) {
  const CallRecord& record = ctx.record;
  const bool shared_expert = slot == constants::kExpertSlots;
  float sums[1][2] = {};
  if (shared_expert) {
    const SplitSums from{ctx.read<Region::kFfnInPart>(), record.tile_of[1 + part], record.reader_splits};
    wait_sums<1, 4>(ctx.cta, from, sums, [&](int) { return SumPlace{row, column}; });
  } else {
    const Words words = ctx.read<Region::kExpertPart>();
    for (int begin = 0; begin < record.expert_splits; begin += 4) {
      uint32_t raw[4][2];
      wait_words2(ctx.cta, words, raw, [&](int i) {
        if (begin + i >= record.expert_splits) return kNoWord;
        const int tile_split = column / kTile * record.expert_splits + begin + i;
        return static_cast<uint32_t>(expert_word(record.expert_tiles, part, tile_split, row, slot) + column % kTile);
      });
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (begin + i >= record.expert_splits) continue;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float value = std::bit_cast<float>(raw[i][half]);
          sums[0][half] = begin + i == 0 ? value : sums[0][half] + value;
        }
      }
    }
  }
  out[0] = round_bf16(sums[0][0]);
  out[1] = round_bf16(sums[0][1]);
}

template <>
inline bool run_stage(StageContext<Stage::kExpertAct>& ctx) {
  constexpr int kSlots = constants::kExpertSlots + 1;
  constexpr int kWidth = constants::kExpertWidth;
  Cta& cta = ctx.cta;
  const Sink sink = ctx.write<Region::kExpertIn>();
  for (int task = ctx.first_task(); task < ctx.record.num_tasks; task += ctx.task_stride()) {
    const int row = task / kSlots;
    const int slot = task % kSlots;
    const bool shared_expert = slot == constants::kExpertSlots;
    if (!ctx.live(row) || (!shared_expert && slot >= ctx.record.experts_per_token)) continue;
    if (!shared_expert && !route_one_row(ctx, row)) return false;
    const float weight = shared_expert ? 1.0f : cta.shared.row_weights[row][slot];
    for (int pair = cta.thread; pair < kWidth / 2; pair += kConsumers) {
      float gate[2];
      float up[2];
      slot_sums(ctx, 0, row, slot, 2 * pair, gate);
      slot_sums(ctx, 1, row, slot, 2 * pair, up);
      put_word(cta, sink, (int64_t{task} * kWidth) / 2 + pair,
               bf16_pair(gated(gate[0], up[0], weight), gated(gate[1], up[1], weight)));
    }
  }
  return cta.sync_alive();
}

}  // namespace monostep::gpu
