// Drawing a row's token and judging drafts (program/sampling.h). All arithmetic is double in a fixed order and exp is
// base/math.h's, so a draw has the same result on every build. Sums run in ascending id; ranks are by logit, then lower
// id.
#include "program/sampling.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>

#include "base/check.h"
#include "base/math.h"
#include "base/philox.h"

namespace monostep::program {
namespace {

constexpr uint64_t kKeepAll = ~uint64_t{0};

// A token's rank as a number: smaller is better (higher logit, then lower id).
uint64_t rank_of(float logit, size_t token) {
  const uint32_t bits = std::bit_cast<uint32_t>(logit + 0.0f);  // + 0: the zeros are equal
  const uint32_t ascending = bits ^ ((bits >> 31) != 0 ? 0xffffffffu : 0x80000000u);
  return (uint64_t{~ascending} << 32) | token;
}

int32_t argmax(std::span<const float> logits) {
  size_t best = 0;
  for (size_t token = 1; token < logits.size(); ++token) {
    if (logits[token] > logits[best]) best = token;
  }
  return static_cast<int32_t>(best);
}

// Unnormalised probabilities: 1 for the highest logit.
class Weights {
 public:
  Weights(std::span<const float> logits, float temperature)
      : logits_(logits), highest_(*std::max_element(logits.begin(), logits.end())), temperature_(temperature) {}

  double of(size_t token) const { return exact_exp((static_cast<double>(logits_[token]) - highest_) / temperature_); }

  // Mass of the tokens whose rank is at most `cut`.
  double mass(uint64_t cut) const {
    double sum = 0;
    for (size_t token = 0; token < logits_.size(); ++token) {
      if (rank_of(logits_[token], token) <= cut) sum += of(token);
    }
    return sum;
  }

 private:
  std::span<const float> logits_;
  double highest_;
  double temperature_;
};

// Rank of the last token of the shortest leading run of `ranks` (best first) that holds `wanted`. Only as many ranks
// are sorted as the run needs, in steps.
uint64_t nucleus_cut(std::vector<uint64_t>& ranks, const Weights& weights, double wanted) {
  double mass = 0;
  size_t num_sorted = 0;
  for (size_t num_wanted = 256; num_sorted < ranks.size(); num_wanted *= 8) {
    const auto begin = ranks.begin() + static_cast<std::ptrdiff_t>(num_sorted);
    const auto end = ranks.begin() + static_cast<std::ptrdiff_t>(std::min(num_wanted, ranks.size()));
    if (end != ranks.end()) std::nth_element(begin, end, ranks.end());
    std::sort(begin, end);
    for (auto rank = begin; rank != end; ++rank) {
      mass += weights.of(*rank & 0xffffffffu);
      if (mass >= wanted) return *rank;
    }
    num_sorted = static_cast<size_t>(end - ranks.begin());
  }
  return kKeepAll;  // rounding left the sum just below `wanted`
}

// The worst rank that top_k and top_p keep.
uint64_t restriction_cut(std::span<const float> logits, const Sampling& sampling, const Weights& weights) {
  const bool by_count = sampling.top_k > 0 && static_cast<size_t>(sampling.top_k) < logits.size();
  if (!by_count && sampling.top_p >= 1) return kKeepAll;
  std::vector<uint64_t> ranks(logits.size());
  for (size_t token = 0; token < logits.size(); ++token) ranks[token] = rank_of(logits[token], token);
  uint64_t cut = kKeepAll;
  if (by_count) {
    const auto last = ranks.begin() + sampling.top_k - 1;
    std::nth_element(ranks.begin(), last, ranks.end());
    cut = *last;
    ranks.erase(last + 1, ranks.end());
  }
  if (sampling.top_p >= 1) return cut;
  return std::min(cut, nucleus_cut(ranks, weights, static_cast<double>(sampling.top_p) * weights.mass(cut)));
}

int32_t draw(std::span<const float> logits, const Sampling& sampling, float uniform) {
  const Weights weights(logits, sampling.temperature);
  const uint64_t cut = restriction_cut(logits, sampling, weights);
  std::vector<double> kept(logits.size(), 0.0);
  double total = 0;
  for (size_t token = 0; token < logits.size(); ++token) {
    if (rank_of(logits[token], token) > cut) continue;
    const double weight = weights.of(token);
    if (weight < static_cast<double>(sampling.min_p)) continue;
    kept[token] = weight;
    total += weight;
  }
  const double wanted = static_cast<double>(uniform) * total;  // below total, which the same additions reach again
  double sum = 0;
  for (size_t token = 0; token < kept.size(); ++token) {
    sum += kept[token];
    if (sum > wanted) return static_cast<int32_t>(token);
  }
  CHECK(false, "a draw ran past the total mass: the logits are not finite");
  return 0;
}

bool is_stop(const StepRequest& request, int32_t token) {
  return std::find(request.stop_tokens.begin(), request.stop_tokens.end(), token) != request.stop_tokens.end();
}

int count_agreeing(std::span<const int32_t> drafts, std::span<const int32_t> sampled) {
  size_t count = 0;
  while (count < drafts.size() && drafts[count] == sampled[count]) ++count;
  return static_cast<int>(count);
}

}  // namespace

int32_t sample_token(std::span<const float> logits, const Sampling& sampling, int position) {
  CHECK(!logits.empty(), "a row has logits");
  if (sampling.temperature <= 0) return argmax(logits);
  return draw(logits, sampling, uniform_noise(sampling.seed, static_cast<uint32_t>(position), Purpose::kToken));
}

Judgement judge(const StepRequest& request, std::span<const int32_t> drafts, std::span<const int32_t> sampled) {
  CHECK(sampled.size() == drafts.size() + 1, "the target yields a token for the anchor and for each draft");
  const int num_drafts = static_cast<int>(drafts.size());
  Judgement out;
  out.num_accepted = request.forced_acceptance > 0 ? forced_accepted(request.forced_acceptance, num_drafts,
                                                                     request.sampling.seed, request.step_counter)
                                                   : count_agreeing(drafts, sampled);
  const auto accepted = drafts.first(static_cast<size_t>(out.num_accepted));
  out.tokens.assign(accepted.begin(), accepted.end());
  out.tokens.push_back(sampled[accepted.size()]);
  const auto stop =
      std::find_if(out.tokens.begin(), out.tokens.end(), [&](int32_t token) { return is_stop(request, token); });
  if (stop != out.tokens.end()) out.tokens.erase(stop + 1, out.tokens.end());
  return out;
}

int forced_accepted(float acceptance, int num_drafts, uint64_t seed, uint32_t step_counter) {
  const double mean = static_cast<double>(acceptance) - 1;
  CHECK(mean >= 0 && mean <= num_drafts, "a forced acceptance lies between 1 and the drafts plus one");
  const double certain = std::floor(mean);
  const bool one_more = uniform_noise(seed, step_counter, Purpose::kForcedAcceptance) < mean - certain;
  return static_cast<int>(certain) + (one_more ? 1 : 0);
}

float uniform_noise(uint64_t seed, uint32_t index, Purpose purpose) {
  const PhiloxCounter counter = {index, static_cast<uint32_t>(purpose), 0, 0};
  const PhiloxKey key = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  return static_cast<float>(philox4x32_10(counter, key)[0] >> 8) * 0x1p-24f;
}

}  // namespace monostep::program
