// exp, log and what is built from them, in plain double arithmetic: the same bits on every build and instruction set (libm picks
// other code by CPU at run time). Results are within one ulp of double, so their fp32 roundings are the correct ones but for
// about one argument in 2^28. Used by the CPU stages and the sampling rules.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace monostep {

// e^x; 0 below -745, infinity above 709.78.
inline double exact_exp(double x) {
  if (!(x > -745.0)) return x != x ? x : 0.0;
  if (x > 709.78) return std::bit_cast<double>(0x7ff0000000000000ull);
  const double k = std::floor(x * 1.4426950408889634 + 0.5);
  const double r = (x - k * 0x1.62e42fee00000p-1) - k * 0x1.a39ef35793c76p-33;  // ln 2 in two parts
  double term = 1.0 / 6227020800.0;  // 1/13!
  constexpr double kInverse[] = {1.0 / 479001600.0, 1.0 / 39916800.0, 1.0 / 3628800.0, 1.0 / 362880.0, 1.0 / 40320.0,
                                 1.0 / 5040.0,      1.0 / 720.0,      1.0 / 120.0,     1.0 / 24.0,     1.0 / 6.0,
                                 0.5,               1.0,              1.0};
  for (const double coefficient : kInverse) term = term * r + coefficient;
  const int exponent = static_cast<int>(k);
  if (exponent < -1000) {  // a subnormal result: scale in two steps
    return term * std::bit_cast<double>(static_cast<uint64_t>(1023 + exponent + 200) << 52) * 0x1p-200;
  }
  return term * std::bit_cast<double>(static_cast<uint64_t>(1023 + exponent - (exponent > 1000 ? 1 : 0)) << 52) *
         (exponent > 1000 ? 2.0 : 1.0);
}

// atanh(s) for |s| <= 0.18, by its series.
inline double atanh_series(double s) {
  const double z = s * s;
  double sum = 1.0 / 25.0;
  for (int denominator = 23; denominator >= 1; denominator -= 2) sum = sum * z + 1.0 / denominator;
  return s * sum;
}

// Natural logarithm of a positive normal number.
inline double exact_log(double x) {
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0xfffffffffffffull) | 0x3ff0000000000000ull);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  return exponent * 0.6931471805599453 + 2.0 * atanh_series((m - 1.0) / (m + 1.0));
}

// log(1 + x) for x >= 0, without cancellation near 0.
inline double exact_log1p(double x) { return x < 0.4 ? 2.0 * atanh_series(x / (2.0 + x)) : exact_log(1.0 + x); }

inline float exp_f32(float x) { return static_cast<float>(exact_exp(x)); }
inline float sigmoid_f32(float x) { return static_cast<float>(1.0 / (1.0 + exact_exp(-static_cast<double>(x)))); }
// log(1 + e^x), x itself above 20 (model.md 3.7).
inline float softplus_f32(float x) { return x > 20.0f ? x : static_cast<float>(exact_log1p(exact_exp(x))); }

}  // namespace monostep
