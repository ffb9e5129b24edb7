// Stages that finish the mHC coefficients of a site: sums of the slices' partial products, then pre, post and the
// Sinkhorn-normalised comb. Task: a row; off the critical path. Formulas: model.md 3.2.
#pragma once

#include "base/math.h"
#include "gpu/device/cta.h"
#include "gpu/device/stages.h"

namespace monostep::gpu {

struct MixScratch {
  double parts[kWarps][constants::kMixOutputs + 1];
  float products[constants::kMixOutputs + 1];
  float comb[constants::kHc * constants::kHc];
  float sums[constants::kHc];
};
static_assert(sizeof(MixScratch) <= constants::kScratchBytes);

// Products of a row, times the factor of its RMS norm: a warp an eighth of the slices, lanes the outputs.
inline void sum_products(const Cta& cta, const Words& parts, int row, MixScratch& scratch) {
  constexpr int kOutputs = constants::kMixOutputs + 1;
  constexpr int kAtOnce = 8;
  const int first = constants::kNumSlices * cta.warp / kWarps;
  const int last = constants::kNumSlices * (cta.warp + 1) / kWarps;
  for (int output = cta.lane; output < kOutputs; output += 32) {
    double sum = 0;
    for (int slice = first; slice < last; slice += kAtOnce) {
      uint64_t pairs[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (slice + i < last)
          pairs[i] = load_relaxed(parts.pairs + (int64_t{slice + i} * constants::kRows + row) * kOutputs + output);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (slice + i >= last) continue;
        const int64_t word = (int64_t{slice + i} * constants::kRows + row) * kOutputs + output;
        const uint32_t value =
            tag_of(pairs[i]) == parts.tag ? static_cast<uint32_t>(pairs[i]) : wait_word(cta, parts, word);
        sum += static_cast<double>(std::bit_cast<float>(value));
      }
    }
    scratch.parts[cta.warp][output] = sum;
  }
}

// One warp: every line of comb divided by its sum + eps; rows (step 1) or columns (step hc) of the matrix.
inline void normalize_lines(const Cta& cta, int outer_step, int inner_step, MixScratch& scratch) {
  constexpr int kHc = constants::kHc;
  if (cta.lane < kHc) {
    float sum = 0;
    for (int i = 0; i < kHc; ++i) sum += scratch.comb[cta.lane * outer_step + i * inner_step];
    scratch.sums[cta.lane] = sum + constants::kHcEps;
  }
  warp_sync();
  for (int i = cta.lane; i < kHc * kHc; i += 32) {
    const int line = outer_step == 1 ? i % kHc : i / kHc;
    scratch.comb[i] /= scratch.sums[line];
  }
  warp_sync();
}

// One warp: coefficients of the row from scratch.products; puts pre, post, comb.
inline void finish_mix(const Cta& cta, const Sink& sink, int row, const float* scale, const float* base,
                       MixScratch& scratch) {
  constexpr int kHc = constants::kHc;
  const int64_t first = int64_t{row} * constants::kMixOutputs;
  if (cta.lane < kHc) {
    const float pre = scratch.products[cta.lane] * scale[0] + base[cta.lane];
    put_f32(cta, sink, first + cta.lane, sigmoid_f32(pre) + constants::kHcEps);
    const float post = scratch.products[kHc + cta.lane] * scale[1] + base[kHc + cta.lane];
    put_f32(cta, sink, first + kHc + cta.lane, 2.0f * sigmoid_f32(post));
    float* line = scratch.comb + cta.lane * kHc;
    float most = -INFINITY;
    for (int i = 0; i < kHc; ++i) {
      const int idx = 2 * kHc + cta.lane * kHc + i;
      line[i] = scratch.products[idx] * scale[2] + base[idx];
      most = fmaxf(most, line[i]);
    }
    float sum = 0;
    for (int i = 0; i < kHc; ++i) {
      line[i] = exp_f32(line[i] - most);
      sum += line[i];
    }
    for (int i = 0; i < kHc; ++i) line[i] = line[i] / sum + constants::kHcEps;
  }
  warp_sync();
  normalize_lines(cta, 1, kHc, scratch);  // columns
  for (int iteration = 1; iteration < constants::kSinkhornIterations; ++iteration) {
    normalize_lines(cta, kHc, 1, scratch);
    normalize_lines(cta, 1, kHc, scratch);
  }
  for (int i = cta.lane; i < kHc * kHc; i += 32) put_f32(cta, sink, first + 2 * kHc + i, scratch.comb[i]);
}

template <Region Parts, Region Out, Stage S>
inline bool run_mix(StageContext<S>& ctx) {
  Cta& cta = ctx.cta;
  auto& scratch = *cta.scratch<MixScratch>();
  const auto* base = reinterpret_cast<const float*>(ctx.record.vectors[0]);
  const auto* scale = reinterpret_cast<const float*>(ctx.record.vectors[1]);
  for (int row = ctx.first_task(); row < ctx.record.num_tasks; row += ctx.task_stride()) {
    if (!ctx.live(row)) continue;
    sum_products(cta, ctx.template read<Parts>(), row, scratch);
    if (!cta.sync_alive()) return false;
    if (cta.warp == 0) {
      constexpr int kSquares = constants::kMixOutputs;
      double squares = 0;
      for (int warp = 0; warp < kWarps; ++warp) squares += scratch.parts[warp][kSquares];
      const float mean = static_cast<float>(squares) / static_cast<float>(constants::kHc * constants::kHidden);
      const float factor = 1.0f / sqrtf(mean + constants::kRmsNormEps);
      for (int output = cta.lane; output < constants::kMixOutputs; output += 32) {
        double sum = 0;
        for (int warp = 0; warp < kWarps; ++warp) sum += scratch.parts[warp][output];
        scratch.products[output] = static_cast<float>(sum) * factor;
      }
      warp_sync();
      finish_mix(cta, ctx.template write<Out>(), row, scale, base, scratch);
    }
    cta.sync();
  }
  return true;
}

template <>
inline bool run_stage(StageContext<Stage::kAttnMix>& ctx) {
  return run_mix<Region::kAttnMixPart, Region::kAttnMixOut>(ctx);
}

template <>
inline bool run_stage(StageContext<Stage::kFfnMix>& ctx) {
  return run_mix<Region::kFfnMixPart, Region::kFfnMixOut>(ctx);
}

}  // namespace monostep::gpu
