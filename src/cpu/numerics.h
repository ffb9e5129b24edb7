// Small numerics that several stages share: RMSNorm, RoPE, the cache records, and sums over K-splits. Formulas:
// model.md 3.2-3.4.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/rope.h"

namespace monostep::cpu {

// y = bf16(weight * (x * rsqrt(mean(x^2) + eps))): one rounding at the end.
void rms_norm(std::span<const float> x, std::span<const float> weight, double eps, float* out);

// Rotates the last 2 * angles.size() values: adjacent pairs, fp32, rounded to bf16. `inverse` negates the angles.
std::vector<model::CosSin> angles_at(const std::vector<float>& frequencies, int position);
void rotate(std::span<float> values, const std::vector<model::CosSin>& angles, bool inverse);

// A window or draft ring record: e4m3 codes, then one E8M0 scale per 32 (QA). `values` are replaced by what the record
// holds.
void pack_window(std::span<float> values, uint8_t* record);
void unpack_window(const uint8_t* record, std::span<float> values);
// A compressed KV record: e2m1 codes (even index in the low nibble), then one E4M3 scale per 16 (QC).
void pack_compressed(std::span<float> values, uint8_t* record);
void unpack_compressed(const uint8_t* record, std::span<float> values);
// An index key (or query): e2m1 codes, then one E8M0 scale per 32 (QI).
void pack_index(std::span<float> values, uint8_t* record);
void unpack_index(const uint8_t* record, std::span<float> values);

// pre, post and comb of a site from its products m (model.md 3.2), scale [3] and base [(2+hc)hc]:
// out = pre [hc], post [hc], comb [hc][hc].
struct HyperRule {
  int hc_mult = 4;
  int sinkhorn_iters = 20;
  float eps = 1e-6f;
};
void finish_mix(std::span<const float> products, std::span<const float> scale, std::span<const float> base,
                const HyperRule& rule, float* out);

}  // namespace monostep::cpu
