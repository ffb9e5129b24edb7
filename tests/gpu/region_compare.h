// The compare rule of a region's contents between two backends, word by word: equal bits, or a bound. fp32 words may
// differ by 1e-5 of the region's root mean square: they are sums of at most a few thousand products in fp32 (error
// about 2^-24 a step, measured below 2e-6) whose order differs. bf16 words are roundings of such sums: at most one unit
// in the last place, in one word of a hundred; as rarely an fp32 word shows that an input of it was rounded the other
// way. Used by tests/gpu/region_harness.h.
#pragma once

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "program/layout.h"

namespace monostep::gpu {

using program::Region;

// A word that no call has put.
inline const float kPoison = std::bit_cast<float>(0x7fc50000u);

inline constexpr double kF32Bound = 1e-5;  // of the root mean square

// The same, of fp32 words behind a rounding: one bf16 step of one value of a slice of streams reaches the products of
// its row. Measured on micro, one request at every position of 128: at most 4.8e-3.
inline constexpr double kRoundedBound = 1e-2;

// Words of unlike size (sums of squares beside products, ids beside values) lie in columns with an RMS of their own.
inline int columns_of(const program::Layout& layout, Region region) {
  switch (region) {
    case Region::kAttnMixPart:
    case Region::kFfnMixPart: return layout.mix_outputs() + 1;
    case Region::kAttnMixOut:
    case Region::kFfnMixOut: return layout.mix_outputs();
    case Region::kEngramDots: return 3;
    case Region::kMarkovTop: return 2;
    case Region::kDraft: return 2 * layout.geometry().dspark_block_size;
    default: return 1;
  }
}

enum class WordRule { kBits, kF32, kBF16 };
inline WordRule rule_of(const program::Layout& layout, Region region, int column) {
  if (region == Region::kMarkovTop) return column == 1 ? WordRule::kBits : WordRule::kF32;  // value, id
  if (region == Region::kDraft)                                                             // ids, then confidences
    return column < layout.geometry().dspark_block_size ? WordRule::kBits : WordRule::kF32;
  if (program::decl(region).compare == program::Compare::kBits) return WordRule::kBits;
  return program::decl(region).word == program::Word::kBF16 ? WordRule::kBF16 : WordRule::kF32;
}

inline bool same_bits(float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); }
inline double bf16_ulp(float value) { return std::ldexp(1.0, std::ilogb(value) - 7); }

struct Comparison {
  std::string text;  // what is wrong; empty: nothing
  double ratio = 0;  // worst error over its bound
  int64_t differing = 0;
  int64_t live = 0;  // words that were put
};

// The size whose bf16 unit a word may be off. Outputs of the attention are rounded, rotated in pairs and rounded again:
// a unit of the larger value of a pair reaches both.
inline float rounded_size(Region region, std::span<const float> wanted, std::span<const float> found, size_t idx) {
  const float own = std::max(std::fabs(wanted[idx]), std::fabs(found[idx]));
  if (region != Region::kAttnOut) return own;
  const size_t other = idx ^ 1;
  const bool paired = other < wanted.size() && std::isfinite(wanted[other]);
  return paired ? std::hypot(own, wanted[other]) : own;
}

// The share of the tight bound that a word's error takes; 0 for equal bits, infinity where no error is allowed.
inline double error_ratio(WordRule rule, float wanted, float found, double rms, float size) {
  if (same_bits(wanted, found)) return 0;
  if (rule == WordRule::kBits || !std::isfinite(wanted) || !std::isfinite(found)) return HUGE_VAL;
  const double error = std::fabs(static_cast<double>(wanted) - static_cast<double>(found));
  const double bound = kF32Bound * rms;
  if (rule == WordRule::kF32) return error / bound;
  return error / (bf16_ulp(size) + bound);
}

// How many words a rounding that fell the other way may touch: bf16 words themselves, and fp32 words that the call
// computes from values that it rounds. One value of a slice of streams reaches all mHC products of its row, and one
// weight of a key all values of its head.
inline double rounded_share(Region region) {
  const bool reaches_many =
      region == Region::kAttnMixPart || region == Region::kFfnMixPart || region == Region::kAttnPart;
  return reaches_many ? 0.1 : 0.01;
}

inline std::vector<double> column_rms(std::span<const float> words, int columns) {
  std::vector<double> squares(static_cast<size_t>(columns));
  std::vector<int64_t> counts(squares.size());
  for (size_t idx = 0; idx < words.size(); ++idx) {
    if (!std::isfinite(words[idx])) continue;
    squares[idx % squares.size()] += static_cast<double>(words[idx]) * static_cast<double>(words[idx]);
    ++counts[idx % squares.size()];
  }
  for (size_t column = 0; column < squares.size(); ++column)
    squares[column] = std::sqrt(squares[column] / static_cast<double>(std::max<int64_t>(counts[column], 1)));
  return squares;
}

// Words that only one side puts: the device program writes scores behind a row's last visible group, ids of rows that
// yield none, and the places of a verdict behind its last token; the reference writes zeros for the rows of requests
// that do not draft.
inline bool is_padding(Region region, float wanted, float found) {
  if (same_bits(wanted, kPoison)) {
    if (region == Region::kScores) return found == -HUGE_VALF;
    return (region == Region::kVerdictOut || region == Region::kSampled) && same_bits(found, 0.0f);
  }
  return region == Region::kFfnExchange && wanted == 0 && same_bits(found, kPoison);
}

// Compares a copy of a region with the reference's.
inline Comparison compare_region(const program::Layout& layout, Region region, std::span<const float> wanted,
                                 std::span<const float> found) {
  Comparison out;
  const int columns = columns_of(layout, region);
  const std::vector<double> rms = column_rms(wanted, columns);
  size_t worst = 0;
  int64_t rounded = 0;
  for (size_t idx = 0; idx < wanted.size(); ++idx) {
    if (is_padding(region, wanted[idx], found[idx])) continue;
    const size_t column = idx % rms.size();
    const WordRule rule = rule_of(layout, region, static_cast<int>(column));
    const double ratio =
        error_ratio(rule, wanted[idx], found[idx], rms[column], rounded_size(region, wanted, found, idx));
    if (!same_bits(wanted[idx], kPoison)) ++out.live;
    if (!same_bits(wanted[idx], found[idx])) ++out.differing;
    const bool flipped = rule == WordRule::kBF16 ? ratio > 0 : ratio > 1;
    if (flipped) ++rounded;
    const double worst_ratio = rule == WordRule::kF32 && flipped ? ratio * kF32Bound / kRoundedBound : ratio;
    if (worst_ratio > out.ratio) {
      out.ratio = worst_ratio;
      worst = idx;
    }
  }
  const int64_t most_rounded =
      std::max<int64_t>(2, static_cast<int64_t>(rounded_share(region) * static_cast<double>(out.live)));
  if (out.ratio <= 1 && rounded <= most_rounded) return out;
  out.text = fmt::format("region {}: {} of {} words differ; the worst is word {}: {} ({:#x}), wanted {} ({:#x})",
                         program::decl(region).name, out.differing, out.live, worst, found[worst],
                         std::bit_cast<uint32_t>(found[worst]), wanted[worst], std::bit_cast<uint32_t>(wanted[worst]));
  return out;
}

}  // namespace monostep::gpu
