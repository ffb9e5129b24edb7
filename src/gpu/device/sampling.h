// How a CTA draws a row's token: argmax, or softmax with temperature, top-k, top-p, min-p and counter-based noise. The
// rules and each token's arithmetic are program/sampling's (model.md 5.2); nothing is sorted: a cut is found digit by
// digit of the tokens' order, a draw by halves of the vocabulary. Sums are fp64 in an order that geometry and shard
// alone decide. Called by the sampling and Markov stages; all consumers call and meet in every function here that
// takes a Cta, but for the warp-wide ones.
#pragma once

#include "base/math.h"
#include "base/philox.h"
#include "gpu/device/cta.h"

namespace monostep::gpu {

// A place counts the columns of the head's tiles of all ranks: ascending with the ids, with gaps where a rank's last
// tile is not full.
inline constexpr int kPlaces = constants::kTp * constants::kHeadTiles * kTile;

inline bool is_token(int place) {
  return place / kTile % constants::kHeadTiles * kTile + place % kTile < constants::kRankVocab;
}
inline int token_at(int place) {
  const int granule = place / kTile;
  const int token =
      granule / constants::kHeadTiles * constants::kRankVocab + granule % constants::kHeadTiles * kTile + place % kTile;
  return token < constants::kVocab ? token : 0;  // logits that are not finite may find no token
}

struct PlaceRange {
  int begin;  // even
  int end;    // even
};

// The higher value, then the lower id.
struct Best {
  float value = -std::bit_cast<float>(0x7f800000u);
  int id = 0x7fffffff;

  void take(const Best& other) {
    if (other.value > value || (other.value == value && other.id < id)) *this = other;
  }
};
inline Best warp_best(Best best) {
#pragma unroll
  for (int mask = 16; mask > 0; mask >>= 1) best.take({shuffle_xor(best.value, mask), shuffle_xor(best.id, mask)});
  return best;
}
inline double warp_sum(double sum) {
#pragma unroll
  for (int mask = 16; mask > 0; mask >>= 1) sum += shuffle_xor(sum, mask);
  return sum;
}

inline constexpr int kDigitBits = 4;
inline constexpr int kDigits = 1 << kDigitBits;
inline constexpr int kLogitPairs = 6;  // that a thread has under way
struct SampleScratch {
  double shares[kDigits][kConsumers];         // of one digit and one thread
  float logits[2 * kLogitPairs][kConsumers];  // of one thread
  double digits[kDigits];
  double parts[2][kWarps];
  Best best[kWarps];
};
static_assert(sizeof(SampleScratch) <= constants::kScratchBytes);
inline SampleScratch& sample_scratch(const Cta& cta) { return *cta.scratch<SampleScratch>(); }

// A row of kLogits: [rank x tiles + tile][row][kTile].
struct RowLogits {
  Words words;
  int row;

  int64_t word_of(int place) const { return (int64_t{place / kTile} * constants::kRows + row) * kTile + place % kTile; }
  // Calls visit(place, logit) for the tokens of a range that thread `first` of `stride` takes, ascending. The logits
  // pass through shared memory so that the code of a visit stands there a few times only.
  template <typename Visit>
  void each(const Cta& cta, PlaceRange range, int first, int stride, const Visit& visit) const {
    auto& logits = sample_scratch(cta).logits;
    for (int base = range.begin + 2 * first; base < range.end; base += 2 * stride * kLogitPairs) {
      uint32_t raw[kLogitPairs][2];
      wait_words2(cta, words, raw, [&](int i) {
        const int place = base + 2 * stride * i;
        return place < range.end ? static_cast<uint32_t>(word_of(place)) : kNoWord;
      });
#pragma unroll
      for (int i = 0; i < 2 * kLogitPairs; ++i) logits[i][cta.thread] = std::bit_cast<float>(raw[i / 2][i % 2]);
#pragma unroll 2
      for (int i = 0; i < 2 * kLogitPairs; ++i) {
        const int place = base + 2 * stride * (i / 2) + i % 2;
        if (place < range.end && is_token(place)) visit(place, logits[i][cta.thread]);
      }
    }
  }
};

// Smaller is better; the zeros are equal.
inline uint32_t order_of(float logit) {
  const uint32_t bits = std::bit_cast<uint32_t>(logit + 0.0f);
  return ~(bits ^ ((bits >> 31) != 0 ? 0xffffffffu : 0x80000000u));
}

// The worst token that is kept.
struct TokenCut {
  uint32_t order = 0xffffffffu;
  int place = kPlaces;
};

// What a token counts in a sum: nothing outside [first_order, cut], else 1 or its unnormalised probability, which is 1
// for the highest logit.
struct Measure {
  double highest;
  double temperature;
  TokenCut cut{};
  uint32_t first_order = 0;
  bool counts_tokens = false;
  double min_p = 0;

  double of(int place, float logit) const {
    const uint32_t order = order_of(logit);
    if (order < first_order || order > cut.order || (order == cut.order && place > cut.place)) return 0;
    if (counts_tokens) return 1;
    const double weight = exact_exp((static_cast<double>(logit) - highest) / temperature);
    return weight < min_p ? 0 : weight;
  }
};

// What a running sum must come to: `fixed` plus a share of the whole. A cut reaches it, a draw passes it.
struct Goal {
  double share = 0;
  double fixed = 0;
  bool passes = false;

  double of(double total) const { return share * total + fixed; }
  bool met(double sum, double wanted) const { return passes ? sum > wanted : sum >= wanted; }
};

// The part in which a running sum meets its goal: the last one that holds anything where rounding left it below.
struct Part {
  int idx;
  double before;
};
inline Part find_part(const double* parts, int count, double before, const Goal& goal, double wanted) {
  Part found{0, before};
  for (int idx = 0; idx < count; ++idx) {
    if (!(parts[idx] > 0)) continue;
    found = {idx, before};
    before += parts[idx];
    if (goal.met(before, wanted)) break;
  }
  return found;
}
inline double sum_parts(const double* parts, int count) {
  double sum = 0;
  for (int idx = 0; idx < count; ++idx) sum += parts[idx];
  return sum;
}

// digits[d] = measure of the tokens whose order begins with `prefix` and goes on with digit d at `shift`.
inline void sum_digits(const Cta& cta, const RowLogits& logits, uint32_t prefix, int shift, const Measure& measure) {
  SampleScratch& scratch = sample_scratch(cta);
  for (int digit = 0; digit < kDigits; ++digit) scratch.shares[digit][cta.thread] = 0;
  logits.each(cta, {0, kPlaces}, cta.thread, kConsumers, [&](int place, float logit) {
    const uint32_t digit = (order_of(logit) ^ prefix) >> shift;
    if (digit < kDigits) scratch.shares[digit][cta.thread] += measure.of(place, logit);
  });
  cta.sync();
  for (int digit = cta.warp; digit < kDigits; digit += kWarps) {
    double sum = 0;
    for (int thread = cta.lane; thread < kConsumers; thread += 32) sum += scratch.shares[digit][thread];
    sum = warp_sum(sum);
    if (cta.lane == 0) scratch.digits[digit] = sum;
  }
  cta.sync();
}

// The place at which the running sum, `before` at the first one, meets the goal: by eighths of the range.
inline int find_place(const Cta& cta, const RowLogits& logits, double before, const Measure& measure,
                      const Goal& goal) {
  PlaceRange range{0, kPlaces};
  double wanted = 0;
  cta.sync();  // nobody reads the parts of a search before
  for (int turn = 0; range.end - range.begin > 2; ++turn) {
    const int width = (range.end - range.begin + 2 * kWarps - 1) / (2 * kWarps) * 2;
    const auto part_at = [&](int idx) {
      const int begin = range.begin + idx * width;
      return PlaceRange{begin < range.end ? begin : range.end, begin + width < range.end ? begin + width : range.end};
    };
    double sum = 0;
    logits.each(cta, part_at(cta.warp), cta.lane, 32, [&](int place, float logit) { sum += measure.of(place, logit); });
    sum = warp_sum(sum);
    double* parts = sample_scratch(cta).parts[turn & 1];
    if (cta.lane == 0) parts[cta.warp] = sum;
    cta.sync();
    if (turn == 0) wanted = goal.of(sum_parts(parts, kWarps));
    const Part part = find_part(parts, kWarps, before, goal, wanted);
    before = part.before;
    range = part_at(part.idx);
  }
  int found = range.begin;
#pragma unroll 1
  for (int place = range.begin; place < range.end && is_token(place); ++place) {
    const double value = measure.of(place, wait_f32(cta, logits.words, logits.word_of(place)));
    if (!(value > 0)) continue;
    found = place;
    before += value;
    if (goal.met(before, wanted)) break;
  }
  return found;
}

// The token at which the running sum in the order of the ranks reaches the goal.
inline TokenCut find_cut(const Cta& cta, const RowLogits& logits, const Measure& measure, const Goal& goal) {
  const double* digits = sample_scratch(cta).digits;
  uint32_t order = 0;
  double before = 0;
  double wanted = 0;
  for (int shift = 32 - kDigitBits; shift >= 0; shift -= kDigitBits) {
    sum_digits(cta, logits, order, shift, measure);
    if (shift == 32 - kDigitBits) wanted = goal.of(sum_parts(digits, kDigits));
    const Part part = find_part(digits, kDigits, before, goal, wanted);
    before = part.before;
    order |= static_cast<uint32_t>(part.idx) << shift;
  }
  Measure ties = measure;
  ties.first_order = order;
  if (order < ties.cut.order) ties.cut = {order, kPlaces};
  return {order, find_place(cta, logits, before, ties, {0, wanted, false})};
}

// Uniform in [0, 1) with 24 bits (program::uniform_noise).
enum class Purpose : uint32_t { kToken = 0, kForcedAcceptance = 1 };
inline float uniform_noise(const RequestRecord& request, uint32_t index, Purpose purpose) {
  const PhiloxCounter counter = {index, static_cast<uint32_t>(purpose), 0, 0};
  const PhiloxKey key = {request.seed_low, request.seed_high};
  return static_cast<float>(philox4x32_10(counter, key)[0] >> 8) * 0x1p-24f;
}

// The place drawn with `uniform` from the restricted softmax.
inline int draw_place(const Cta& cta, const RowLogits& logits, const RequestRecord& request, float highest,
                      float uniform) {
  Measure measure{highest, request.temperature};
  const bool limits_count = request.top_k > 0 && request.top_k < constants::kVocab;
  const bool limits_mass = request.top_p < 1;
#pragma unroll 1
  for (int rule = 0; rule < 2; ++rule) {  // top-k, then top-p
    measure.counts_tokens = rule == 0;
    if (rule == 0 ? !limits_count : !limits_mass) continue;
    const Goal goal = rule == 0 ? Goal{0, static_cast<double>(request.top_k)} : Goal{request.top_p, 0};
    measure.cut = find_cut(cta, logits, measure, goal);
  }
  measure.min_p = request.min_p;
  return find_place(cta, logits, 0, measure, {uniform, 0, true});
}

// The token of a row that takes `position`; -1: given up.
inline int sample_token(const Cta& cta, const RowLogits& logits, const RequestRecord& request, int position) {
  SampleScratch& scratch = sample_scratch(cta);
  Best best;
  logits.each(cta, {0, kPlaces}, cta.thread, kConsumers, [&](int place, float logit) { best.take({logit, place}); });
  best = warp_best(best);
  if (cta.lane == 0) scratch.best[cta.warp] = best;
  if (!cta.sync_alive()) return -1;
  for (int warp = 0; warp < kWarps; ++warp) best.take(scratch.best[warp]);
  if (request.temperature <= 0) return token_at(best.id < kPlaces ? best.id : 0);
  const float uniform = uniform_noise(request, static_cast<uint32_t>(position), Purpose::kToken);
  return token_at(draw_place(cta, logits, request, best.value, uniform));
}

}  // namespace monostep::gpu
