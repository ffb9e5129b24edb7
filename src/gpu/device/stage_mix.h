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
      uint64_t pairs[kAtOnce] = {};  // a value left open would live through the whole program
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

// The matrix comb of one warp: lane l holds elements l and l + 32 of [row][column], hc_mult x hc_mult <= 64.
class Comb {
 public:
  static constexpr int kHc = constants::kHc;
  static constexpr int kPerLane = (kHc * kHc + 31) / 32;

  explicit Comb(const Cta& cta) : cta_(cta) {}

  // Every line divided by its sum (ascending) + eps; line i holds elements i x outer_step + j x inner_step.
  void normalize(bool rows) {
#pragma unroll
    for (int k = 0; k < kPerLane; ++k) {
      const int idx = cta_.lane + 32 * k;
      const int line = rows ? idx / kHc : idx % kHc;
      float sum = 0;
#pragma unroll
      for (int j = 0; j < kHc; ++j) sum += element(rows ? line * kHc + j : j * kHc + line);
      sums_[k] = sum + constants::kHcEps;
    }
#pragma unroll
    for (int k = 0; k < kPerLane; ++k) values_[k] /= sums_[k];
  }

  float& value(int k) { return values_[k]; }

  // The element of an index, to every lane; the index may differ between lanes.
  float element(int idx) const {
    float out = shuffle(values_[0], idx % 32);
#pragma unroll
    for (int k = 1; k < kPerLane; ++k) {
      const float other = shuffle(values_[k], idx % 32);
      if (idx / 32 == k) out = other;
    }
    return out;
  }

 private:
  const Cta& cta_;
  float values_[kPerLane] = {};
  float sums_[kPerLane] = {};
};

// One warp: coefficients of the row from scratch.products; puts pre, post, comb.
inline void finish_mix(const Cta& cta, const Sink& sink, int row, const float* scale, const float* base,
                       MixScratch& scratch) {
  constexpr int kHc = constants::kHc;
  constexpr int kElements = kHc * kHc;
  const int64_t first = int64_t{row} * constants::kMixOutputs;
  if (cta.lane < 2 * kHc) {
    const bool post = cta.lane >= kHc;
    const float value = sigmoid_f32(scratch.products[cta.lane] * scale[post ? 1 : 0] + base[cta.lane]);
    put_f32(cta, sink, first + cta.lane, post ? 2.0f * value : value + constants::kHcEps);
  }
  Comb comb(cta);
#pragma unroll
  for (int k = 0; k < Comb::kPerLane; ++k) {
    const int idx = cta.lane + 32 * k;
    if (idx < kElements) comb.value(k) = scratch.products[2 * kHc + idx] * scale[2] + base[2 * kHc + idx];
  }
  float exponents[Comb::kPerLane];
#pragma unroll
  for (int k = 0; k < Comb::kPerLane; ++k) {
    const int line = (cta.lane + 32 * k) / kHc;
    float most = -INFINITY;
#pragma unroll
    for (int j = 0; j < kHc; ++j) most = fmaxf(most, comb.element(line * kHc + j));
    exponents[k] = exp_f32(comb.value(k) - most);
  }
#pragma unroll
  for (int k = 0; k < Comb::kPerLane; ++k) comb.value(k) = exponents[k];
  // Softmax over a row, then + eps.
#pragma unroll
  for (int k = 0; k < Comb::kPerLane; ++k) {
    const int line = (cta.lane + 32 * k) / kHc;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kHc; ++j) sum += comb.element(line * kHc + j);
    exponents[k] = comb.value(k) / sum + constants::kHcEps;
  }
#pragma unroll
  for (int k = 0; k < Comb::kPerLane; ++k) comb.value(k) = exponents[k];
  comb.normalize(false);
#pragma unroll 1
  for (int iteration = 1; iteration < constants::kSinkhornIterations; ++iteration) {
    comb.normalize(true);
    comb.normalize(false);
  }
#pragma unroll
  for (int k = 0; k < Comb::kPerLane; ++k) {
    const int idx = cta.lane + 32 * k;
    if (idx < kElements) put_f32(cta, sink, first + 2 * kHc + idx, comb.value(k));
  }
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
