// exp, log and what is built from them, in plain double arithmetic: the same bits on every build and instruction set
// (libm picks other code by CPU at run time). Results are within a few ulp of double, so their fp32 roundings are the
// correct ones but for about one argument in 2^26. Used by the CPU stages and the sampling rules.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace monostep {

// 2^(j/16), correctly rounded.
inline constexpr double kPowersOfTwo[16] = {
    0x1.0000000000000p+0, 0x1.0b5586cf9890fp+0, 0x1.172b83c7d517bp+0, 0x1.2387a6e756238p+0,
    0x1.306fe0a31b715p+0, 0x1.3dea64c123422p+0, 0x1.4bfdad5362a27p+0, 0x1.5ab07dd485429p+0,
    0x1.6a09e667f3bcdp+0, 0x1.7a11473eb0187p+0, 0x1.8ace5422aa0dbp+0, 0x1.9c49182a3f090p+0,
    0x1.ae89f995ad3adp+0, 0x1.c199bdd85529cp+0, 0x1.d5818dcfba487p+0, 0x1.ea4afa2a490dap+0};

// e^x; 0 below -745, infinity above 709.78. x = (16 e + j) ln 2 / 16 + r, so e^x = 2^e 2^(j/16) e^r with |r| <= 0.022.
inline double exact_exp(double x) {
  if (!(x > -745.0)) return x != x ? x : 0.0;
  if (x > 709.78) return std::bit_cast<double>(0x7ff0000000000000ull);
  const double rounded = (x * 0x1.71547652b82fep+4 + 0x1.8p52) - 0x1.8p52;                  // to the nearest integer
  const double r = (x - rounded * 0x1.62e42fee00000p-5) - rounded * 0x1.a39ef35793c76p-37;  // ln 2 / 16 in two parts
  const int steps = static_cast<int>(rounded);
  const double square = r * r;
  const double tail = (0.5 + r * (1.0 / 6.0)) +
                      square * ((1.0 / 24.0 + r * (1.0 / 120.0)) + square * (1.0 / 720.0 + r * (1.0 / 5040.0)));
  const double power = kPowersOfTwo[steps & 15];
  const double value = power + power * (r + square * tail);
  const int exponent = steps >> 4;
  if (exponent < -1000) {  // a subnormal result: scale in two steps
    return value * std::bit_cast<double>(static_cast<uint64_t>(1023 + exponent + 200) << 52) * 0x1p-200;
  }
  // 2^1024 is not a number: take the last doubling apart.
  const int top = exponent > 1000 ? 1 : 0;
  return value * std::bit_cast<double>(static_cast<uint64_t>(1023 + exponent - top) << 52) * (top ? 2.0 : 1.0);
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

// Taylor polynomials on [-pi/4, pi/4]; the first term left out is below 1e-16.
inline double sin_polynomial(double x) {
  const double square = x * x;
  double sum = -1.0 / 1307674368000.0;
  sum = sum * square + 1.0 / 6227020800.0;
  sum = sum * square + -1.0 / 39916800.0;
  sum = sum * square + 1.0 / 362880.0;
  sum = sum * square + -1.0 / 5040.0;
  sum = sum * square + 1.0 / 120.0;
  sum = sum * square + -1.0 / 6.0;
  return x + x * square * sum;
}
inline double cos_polynomial(double x) {
  const double square = x * x;
  double sum = 1.0 / 20922789888000.0;
  sum = sum * square + -1.0 / 87178291200.0;
  sum = sum * square + 1.0 / 479001600.0;
  sum = sum * square + -1.0 / 3628800.0;
  sum = sum * square + 1.0 / 40320.0;
  sum = sum * square + -1.0 / 720.0;
  sum = sum * square + 1.0 / 24.0;
  sum = sum * square + -1.0 / 2.0;
  return 1.0 + square * sum;
}

// cos and sin of f32(f32(position) * frequency), fully range-reduced (model.md 3.4). Position 0..2^24.
struct CosSin {
  float cos = 1;
  float sin = 0;
};
inline CosSin rope_angle(int position, float frequency) {
  // pi/2 in two parts of at most 29 bits and a rest: the products of the parts with a quarter count below 2^24 are
  // exact.
  constexpr double kHalfPiHigh = 0x1.921fb54p+0;
  constexpr double kHalfPiMiddle = 0x1.10b4611p-30;
  constexpr double kHalfPiLow = 0x1.4c4c6628b80dcp-59;
  constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;
  const double angle = static_cast<double>(static_cast<float>(position) * frequency);
  const auto quarter = static_cast<int64_t>(angle * kTwoOverPi + 0.5);
  const auto count = static_cast<double>(quarter);
  const double rest = ((angle - count * kHalfPiHigh) - count * kHalfPiMiddle) - count * kHalfPiLow;
  const auto cos = static_cast<float>(cos_polynomial(rest));
  const auto sin = static_cast<float>(sin_polynomial(rest));
  switch (quarter & 3) {
    case 0: return {cos, sin};
    case 1: return {-sin, cos};
    case 2: return {-cos, -sin};
    default: return {sin, -cos};
  }
}

inline float exp_f32(float x) { return static_cast<float>(exact_exp(x)); }
inline float sigmoid_f32(float x) { return static_cast<float>(1.0 / (1.0 + exact_exp(-static_cast<double>(x)))); }
// log(1 + e^x), x itself above 20 (model.md 3.7).
inline float softplus_f32(float x) { return x > 20.0f ? x : static_cast<float>(exact_log1p(exact_exp(x))); }

}  // namespace monostep
