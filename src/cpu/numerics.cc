// RMSNorm, RoPE, cache records and the mHC coefficients (cpu/numerics.h).
#include "cpu/numerics.h"

#include <algorithm>
#include <cmath>

#include "base/math.h"
#include "base/numeric.h"

namespace monostep::cpu {
namespace {

float largest(std::span<const float> values) {
  float amax = 0;
  for (const float value : values) amax = std::max(amax, std::fabs(value));
  return amax;
}

// Two e2m1 codes a byte, even index low.
void put_nibble(uint8_t* record, size_t idx, uint8_t code) {
  uint8_t& byte = record[idx / 2];
  byte = static_cast<uint8_t>(idx % 2 == 0 ? (byte & 0xf0u) | code : (byte & 0x0fu) | (code << 4));
}
uint8_t get_nibble(const uint8_t* record, size_t idx) {
  return static_cast<uint8_t>(idx % 2 == 0 ? record[idx / 2] & 15u : record[idx / 2] >> 4);
}

}  // namespace

void rms_norm(std::span<const float> x, std::span<const float> weight, double eps, float* out) {
  // One ulp of the mean moves about 1 in 30,000 results to another bf16 value, so the sum is taken exactly.
  double sum = 0;
  for (const float value : x) sum += static_cast<double>(value) * value;
  const auto mean = static_cast<float>(sum / static_cast<double>(x.size()));
  const float scale = 1.0f / std::sqrt(mean + static_cast<float>(eps));
  for (size_t idx = 0; idx < x.size(); ++idx) out[idx] = round_bf16(weight[idx] * (x[idx] * scale));
}

std::vector<model::CosSin> angles_at(const std::vector<float>& frequencies, int position) {
  std::vector<model::CosSin> angles;
  angles.reserve(frequencies.size());
  for (const float frequency : frequencies) angles.push_back(model::rope_angle(position, frequency));
  return angles;
}

void rotate(std::span<float> values, const std::vector<model::CosSin>& angles, bool inverse) {
  float* tail = values.data() + values.size() - 2 * angles.size();
  for (size_t pair = 0; pair < angles.size(); ++pair) {
    const float cosine = angles[pair].cos;
    const float sine = inverse ? -angles[pair].sin : angles[pair].sin;
    const float a = tail[2 * pair];
    const float b = tail[2 * pair + 1];
    tail[2 * pair] = round_bf16(a * cosine - b * sine);
    tail[2 * pair + 1] = round_bf16(a * sine + b * cosine);
  }
}

void pack_window(std::span<float> values, uint8_t* record) {
  uint8_t* scales = record + values.size();
  for (size_t begin = 0; begin < values.size(); begin += kActivationGroup) {
    const float scale = activation_scale(largest(values.subspan(begin, kActivationGroup)));
    scales[begin / kActivationGroup] = e8m0_bits(scale);
    for (size_t idx = begin; idx < begin + kActivationGroup; ++idx) record[idx] = e4m3_bits(values[idx] / scale);
  }
  unpack_window(record, values);
}

void unpack_window(const uint8_t* record, std::span<float> values) {
  const uint8_t* scales = record + values.size();
  for (size_t idx = 0; idx < values.size(); ++idx) {
    values[idx] = round_bf16(e4m3_value(record[idx]) * e8m0_value(scales[idx / kActivationGroup]));
  }
}

void pack_compressed(std::span<float> values, uint8_t* record) {
  uint8_t* scales = record + values.size() / 2;
  for (size_t begin = 0; begin < values.size(); begin += kCompressedGroup) {
    const uint8_t bits = compressed_scale_bits(largest(values.subspan(begin, kCompressedGroup)));
    scales[begin / kCompressedGroup] = bits;
    const float scale = e4m3_value(bits);
    for (size_t idx = begin; idx < begin + kCompressedGroup; ++idx)
      put_nibble(record, idx, e2m1_bits(values[idx] / scale));
  }
  unpack_compressed(record, values);
}

void unpack_compressed(const uint8_t* record, std::span<float> values) {
  const uint8_t* scales = record + values.size() / 2;
  for (size_t idx = 0; idx < values.size(); ++idx) {
    values[idx] = round_bf16(e2m1_value(get_nibble(record, idx)) * e4m3_value(scales[idx / kCompressedGroup]));
  }
}

void pack_index(std::span<float> values, uint8_t* record) {
  uint8_t* scales = record + values.size() / 2;
  for (size_t begin = 0; begin < values.size(); begin += kIndexGroup) {
    const float scale = index_scale(largest(values.subspan(begin, kIndexGroup)));
    scales[begin / kIndexGroup] = e8m0_bits(scale);
    for (size_t idx = begin; idx < begin + kIndexGroup; ++idx) put_nibble(record, idx, e2m1_bits(values[idx] / scale));
  }
  unpack_index(record, values);
}

void unpack_index(const uint8_t* record, std::span<float> values) {
  const uint8_t* scales = record + values.size() / 2;
  for (size_t idx = 0; idx < values.size(); ++idx) {
    values[idx] = round_bf16(e2m1_value(get_nibble(record, idx)) * e8m0_value(scales[idx / kIndexGroup]));
  }
}

void finish_mix(std::span<const float> products, std::span<const float> scale, std::span<const float> base,
                const HyperRule& rule, float* out) {
  const int hc = rule.hc_mult;
  for (int stream = 0; stream < hc; ++stream) {
    out[stream] =
        sigmoid_f32(products[static_cast<size_t>(stream)] * scale[0] + base[static_cast<size_t>(stream)]) + rule.eps;
    const auto post = static_cast<size_t>(hc + stream);
    out[hc + stream] = 2.0f * sigmoid_f32(products[post] * scale[1] + base[post]);
  }
  float* comb = out + 2 * hc;
  for (int row = 0; row < hc; ++row) {
    float* line = comb + row * hc;
    for (int column = 0; column < hc; ++column) {
      const auto idx = static_cast<size_t>(2 * hc + row * hc + column);
      line[column] = products[idx] * scale[2] + base[idx];
    }
    const float most = *std::max_element(line, line + hc);
    float sum = 0;
    for (int column = 0; column < hc; ++column) sum += line[column] = exp_f32(line[column] - most);
    for (int column = 0; column < hc; ++column) line[column] = line[column] / sum + rule.eps;
  }
  const auto normalize = [&](int outer_step, int inner_step) {
    for (int outer = 0; outer < hc; ++outer) {
      float sum = 0;
      for (int inner = 0; inner < hc; ++inner) sum += comb[outer * outer_step + inner * inner_step];
      for (int inner = 0; inner < hc; ++inner) comb[outer * outer_step + inner * inner_step] /= sum + rule.eps;
    }
  };
  normalize(1, hc);  // columns
  for (int iteration = 1; iteration < rule.sinkhorn_iters; ++iteration) {
    normalize(hc, 1);
    normalize(1, hc);
  }
}

}  // namespace monostep::cpu
