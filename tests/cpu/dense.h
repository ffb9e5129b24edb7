// Weights of a checkpoint as plain numbers, and products and comparisons in double: what the stage tests recompute a
// stage with.
#pragma once

#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "base/numeric.h"
#include "cpu/numerics.h"
#include "weights/checkpoint.h"

namespace monostep::cpu {

struct Dense {
  int64_t n = 1;
  int64_t k = 0;
  std::vector<double> values;  // [n][k]
  std::span<const double> row(int64_t idx) const {
    return std::span(values).subspan(static_cast<size_t>(idx * k), static_cast<size_t>(k));
  }
};

inline double element_of(const weights::Tensor& tensor, int64_t idx) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(tensor.data.data());
  switch (tensor.dtype) {
    case model::Dtype::kF8E4M3: return e4m3_value(bytes[idx]);
    case model::Dtype::kI8:
      return e2m1_value(static_cast<uint8_t>(idx % 2 == 0 ? bytes[idx / 2] & 15 : bytes[idx / 2] >> 4));
    case model::Dtype::kBF16: {
      uint16_t bits;
      std::memcpy(&bits, bytes + idx * 2, sizeof(bits));
      return bf16_value(bits);
    }
    default: {
      float value;
      std::memcpy(&value, bytes + idx * 4, sizeof(value));
      return value;
    }
  }
}

// The full name of a tensor; a vector is one row. FP8 and FP4 take their scale plane along.
inline Dense dense(const weights::Checkpoint& checkpoint, const std::string& name) {
  const weights::Tensor tensor = checkpoint.tensor(name);
  const bool fp4 = tensor.dtype == model::Dtype::kI8;
  const bool scaled = fp4 || tensor.dtype == model::Dtype::kF8E4M3;
  Dense out;
  out.n = tensor.shape.size() == 1 ? 1 : tensor.shape[0];
  out.k = tensor.shape.back() * (fp4 ? 2 : 1);
  const uint8_t* scales = nullptr;
  if (scaled) {
    const std::string scale_name = name.substr(0, name.rfind(".weight")) + ".scale";
    scales = reinterpret_cast<const uint8_t*>(checkpoint.tensor(scale_name).data.data());
  }
  for (int64_t idx = 0; idx < out.n * out.k; ++idx) {
    const int64_t scale_row = fp4 ? idx / out.k : idx / out.k / 32;
    const double scale = scaled ? std::ldexp(1.0, scales[scale_row * (out.k / 32) + idx % out.k / 32] - 127) : 1.0;
    out.values.push_back(element_of(tensor, idx) * scale);
  }
  return out;
}

template <typename Values>
std::vector<double> multiply(const Dense& weights, const Values& x) {
  std::vector<double> out(static_cast<size_t>(weights.n));
  for (int64_t n = 0; n < weights.n; ++n) {
    for (int64_t k = 0; k < weights.k; ++k)
      out[static_cast<size_t>(n)] += weights.row(n)[static_cast<size_t>(k)] * x[static_cast<size_t>(k)];
  }
  return out;
}

template <typename Values>
std::vector<float> rounded(const Values& values) {
  std::vector<float> out;
  for (const auto value : values) out.push_back(round_bf16(static_cast<float>(value)));
  return out;
}

template <typename Values>
std::vector<float> normed(const Values& x, const Dense& weight) {
  double squares = 0;
  for (const auto value : x) squares += double{value} * double{value};
  const double scale = 1 / std::sqrt(squares / static_cast<double>(x.size()) + 1e-20);
  std::vector<double> out;
  for (size_t idx = 0; idx < x.size(); ++idx) out.push_back(weight.values[idx] * (x[idx] * scale));
  return rounded(out);
}

// What the activations of an FP8 or FP4 linear become (QA).
inline std::vector<float> activations(std::vector<float> values) {
  std::vector<uint8_t> record(values.size() + values.size() / 32);
  pack_window(values, record.data());
  return values;
}

template <typename A, typename B>
double relative_error(const A& a, const B& b) {
  double difference = 0;
  double norm = 0;
  for (size_t idx = 0; idx < a.size(); ++idx) {
    difference += std::pow(double{a[idx]} - double{b[idx]}, 2);
    norm += std::pow(double{b[idx]}, 2);
  }
  return std::sqrt(difference / (norm + 1e-300));
}

}  // namespace monostep::cpu
