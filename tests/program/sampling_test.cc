// The sampling and verdict rules: draws against the exact restricted distributions (chi-square, fixed seeds) and
// against a plain sort-everything replay; verdicts against plain sampling draw by draw; the forced schedule's mean and
// spread.
#include "program/sampling.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "chi_square.h"

namespace monostep::program {
namespace {

using Logits = std::vector<float>;

// The exact distribution, the slow and obvious way: sort everything, cut by count, by mass, by share of the best.
std::vector<double> exact_distribution(const Logits& logits, const Sampling& sampling) {
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  std::vector<double> weight(logits.size());
  for (size_t token = 0; token < logits.size(); ++token) {
    weight[token] = std::exp((static_cast<double>(logits[token]) - logits[order[0]]) / sampling.temperature);
  }
  if (sampling.top_k > 0 && static_cast<size_t>(sampling.top_k) < order.size())
    order.resize(static_cast<size_t>(sampling.top_k));
  double total = 0, mass = 0;
  for (const size_t token : order) total += weight[token];
  size_t num_kept = 0;
  while (num_kept < order.size() && (num_kept == 0 || mass < sampling.top_p * total)) mass += weight[order[num_kept++]];
  order.resize(num_kept);
  std::erase_if(order, [&](size_t token) { return weight[token] < sampling.min_p; });
  std::vector<double> out(logits.size(), 0.0);
  total = 0;
  for (const size_t token : order) total += weight[token];
  for (const size_t token : order) out[token] = weight[token] / total;
  return out;
}

Logits random_logits(size_t count, float spread, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  Logits logits(count);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

std::vector<int> count_draws(const Logits& logits, Sampling sampling, int num_draws) {
  std::vector<int> counts(logits.size(), 0);
  for (int draw_idx = 0; draw_idx < num_draws; ++draw_idx) {
    sampling.seed = 1000 + static_cast<uint64_t>(draw_idx) / 100;
    ++counts[static_cast<size_t>(sample_token(logits, sampling, draw_idx % 100))];
  }
  return counts;
}

const std::vector<Sampling>& restrictions() {
  static const std::vector<Sampling> list = {
      {.temperature = 1},
      {.temperature = 0.5f},
      {.temperature = 2, .top_k = 5},
      {.temperature = 1, .top_p = 0.8f},
      {.temperature = 1, .min_p = 0.1f},
      {.temperature = 1.3f, .top_k = 9, .top_p = 0.9f, .min_p = 0.05f},
      {.temperature = 1, .top_k = 1},
      {.temperature = 1, .top_p = 1e-6f},
  };
  return list;
}

TEST(Sampling, draws_follow_the_restricted_distribution) {
  const Logits logits = random_logits(16, 1.5f, 7);
  for (size_t case_idx = 0; case_idx < restrictions().size(); ++case_idx) {
    const Sampling& sampling = restrictions()[case_idx];
    int freedom = 0;
    const double chi = chi_square(count_draws(logits, sampling, 40000), exact_distribution(logits, sampling), &freedom);
    EXPECT_LE(chi, chi_square_limit(freedom)) << "case " << case_idx << ", freedom " << freedom;
  }
}

TEST(Sampling, the_chi_square_rejects_a_near_distribution) {  // positive control
  const Logits logits = random_logits(16, 1.5f, 7);
  int freedom = 0;
  const double chi = chi_square(count_draws(logits, {.temperature = 1}, 40000),
                                exact_distribution(logits, {.temperature = 1.05f}), &freedom);
  EXPECT_GT(chi, chi_square_limit(freedom));
  EXPECT_EQ(chi_square(count_draws(logits, {.temperature = 1}, 40000),
                       exact_distribution(logits, {.temperature = 1, .top_k = 8}), &freedom),
            INFINITY);
}

// The draw that the definition asks for: the first id at which the restricted distribution passes the uniform.
int32_t defined_draw(const std::vector<double>& distribution, double uniform) {
  double sum = 0;
  size_t last = 0;
  for (size_t token = 0; token < distribution.size(); ++token) {
    if (distribution[token] == 0) continue;
    sum += distribution[token];
    last = token;
    if (sum > uniform) break;
  }
  return static_cast<int32_t>(last);
}

TEST(Sampling, each_draw_is_the_defined_one_on_large_vocabularies) {
  for (const float spread : {0.0f, 0.05f, 2.0f}) {  // 0: all logits tie; 0.05: the nucleus is most of the vocabulary
    const Logits logits = random_logits(20011, spread, 11);
    for (Sampling sampling : restrictions()) {
      sampling.seed = 5;
      const std::vector<double> distribution = exact_distribution(logits, sampling);
      for (int position = 0; position < 6; ++position) {
        const float uniform = uniform_noise(5, static_cast<uint32_t>(position), Purpose::kToken);
        EXPECT_EQ(sample_token(logits, sampling, position), defined_draw(distribution, uniform))
            << "spread " << spread << " top_k " << sampling.top_k << " top_p " << sampling.top_p << " at " << position;
      }
    }
  }
}

TEST(Sampling, greedy_takes_the_lower_id_of_a_tie) {
  EXPECT_EQ(sample_token(Logits{1, 3, 3, 2}, {}, 0), 1);
  EXPECT_EQ(sample_token(Logits{-0.0f, 0.0f}, {}, 0), 0);
  EXPECT_EQ(sample_token(Logits{-5}, {}, 9), 0);
}

TEST(Sampling, restrictions_keep_the_lower_ids_of_a_tie) {
  const Logits logits = {0, 1, 1, 1, 1, 0};
  for (int position = 0; position < 300; ++position) {
    EXPECT_LE(sample_token(logits, {.temperature = 1, .top_k = 2}, position), 2);
    const int32_t nucleus =
        sample_token(logits, {.temperature = 1, .top_p = 0.4f}, position);  // one of four holds 0.21
    EXPECT_TRUE(nucleus == 1 || nucleus == 2) << nucleus;
  }
  const Logits zeros = {-0.0f, 0.0f, -0.0f};  // equal, so the lower id is first
  for (int position = 0; position < 50; ++position)
    EXPECT_EQ(sample_token(zeros, {.temperature = 1, .top_k = 1}, position), 0);
}

TEST(Sampling, extreme_logits_and_temperatures_stay_defined) {
  const Logits logits = {-3.4e38f, 3.4e38f, 0};
  EXPECT_EQ(sample_token(logits, {.temperature = 1e-30f}, 3), 1);
  EXPECT_EQ(sample_token(logits, {.temperature = 1e-45f, .top_p = 0.5f}, 3), 1);
  const Logits flat = {2, 2, 2, 2};
  std::vector<int> counts = count_draws(flat, {.temperature = 3e38f}, 4000);
  for (const int count : counts) EXPECT_NEAR(count, 1000, 150);
}

TEST(Sampling, noise_depends_on_seed_position_and_purpose_alone) {
  const float noise = uniform_noise(1, 2, Purpose::kToken);
  EXPECT_EQ(noise, uniform_noise(1, 2, Purpose::kToken));
  EXPECT_NE(noise, uniform_noise(2, 2, Purpose::kToken));
  EXPECT_NE(noise,
            uniform_noise(uint64_t{1} | uint64_t{1} << 32, 2, Purpose::kToken));  // both halves of the seed count
  EXPECT_NE(noise, uniform_noise(1, 3, Purpose::kToken));
  EXPECT_NE(noise, uniform_noise(1, 2, Purpose::kForcedAcceptance));
  // The published answer of the zero counter and key starts with 6627e8d5; 24 bits of it are taken.
  EXPECT_EQ(uniform_noise(0, 0, Purpose::kToken), static_cast<float>(0x6627e8) * 0x1p-24f);
}

// The target's tokens of a row and those behind it, when the rows before hold `drafts`: any function of what came
// before.
std::vector<int32_t> sampled_after(const std::vector<int32_t>& drafts, const Sampling& sampling, int position) {
  std::vector<int32_t> out;
  uint32_t history = 1;
  for (size_t row_idx = 0; row_idx <= drafts.size(); ++row_idx) {
    out.push_back(sample_token(random_logits(6, 1, history), sampling, position + static_cast<int>(row_idx)));
    if (row_idx < drafts.size()) history = history * 31 + static_cast<uint32_t>(drafts[row_idx]) + 1;
  }
  return out;
}

StepRequest request_of(const Sampling& sampling) {
  StepRequest request;
  request.sampling = sampling;
  return request;
}

TEST(Judge, emits_what_plain_sampling_draws) {
  EXPECT_TRUE(rc::check("any drafts", [] {
    const auto num_drafts = *rc::gen::inRange<size_t>(0, 6);
    const auto drafts = *rc::gen::container<std::vector<int32_t>>(num_drafts, rc::gen::inRange(0, 6));
    const Sampling sampling = {.temperature = *rc::gen::element(0.0f, 1.0f), .seed = *rc::gen::arbitrary<uint64_t>()};
    const Judgement judgement = judge(request_of(sampling), drafts, sampled_after(drafts, sampling, 40));
    std::vector<int32_t> plain;  // one token at a time
    while (plain.size() < judgement.tokens.size()) plain.push_back(sampled_after(plain, sampling, 40).back());
    RC_ASSERT(judgement.tokens == plain);
    RC_ASSERT(judgement.tokens.size() == static_cast<size_t>(judgement.num_accepted) + 1);
    for (int draft_idx = 0; draft_idx < judgement.num_accepted; ++draft_idx) {
      RC_ASSERT(drafts[static_cast<size_t>(draft_idx)] == plain[static_cast<size_t>(draft_idx)]);
    }
    const auto next = static_cast<size_t>(judgement.num_accepted);
    if (next < drafts.size()) RC_ASSERT(drafts[next] != plain[next]);  // no draft that agrees is left out
  }));
}

TEST(Judge, the_token_behind_any_draft_follows_the_plain_distribution) {
  const Logits logits = random_logits(6, 1, 1);
  const std::vector<double> distribution = exact_distribution(logits, {.temperature = 1});
  for (int32_t draft = 0; draft < 6; ++draft) {
    std::vector<int> counts(6, 0);
    int num_accepted = 0;
    const std::vector<int32_t> drafts = {draft};
    for (uint64_t seed = 0; seed < 20000; ++seed) {
      const Sampling sampling = {.temperature = 1, .seed = seed};
      const Judgement judgement = judge(request_of(sampling), drafts, sampled_after(drafts, sampling, 3));
      ++counts[static_cast<size_t>(judgement.tokens[0])];
      num_accepted += judgement.num_accepted;
    }
    int freedom = 0;
    EXPECT_LE(chi_square(counts, distribution, &freedom), chi_square_limit(freedom)) << draft;
    const double chance = distribution[static_cast<size_t>(draft)];  // accepted with p(draft)
    EXPECT_NEAR(num_accepted / 20000.0, chance, 5 * std::sqrt(chance * (1 - chance) / 20000)) << draft;
  }
}

TEST(Judge, a_stop_token_ends_the_tokens_wherever_it_stands) {
  StepRequest request;
  request.stop_tokens = {-1, 9, -1, -1};
  const std::vector<int32_t> drafts = {4, 9, 5};
  const Judgement inside = judge(request, drafts, std::vector<int32_t>{4, 9, 5, 6});
  EXPECT_EQ(inside.tokens, (std::vector<int32_t>{4, 9}));
  EXPECT_EQ(inside.num_accepted, 3);  // before the cut
  EXPECT_EQ(judge(request, drafts, std::vector<int32_t>{9, 9, 5, 6}).tokens, (std::vector<int32_t>{9}));
  EXPECT_EQ(judge(request, drafts, std::vector<int32_t>{4, 7, 5, 6}).tokens, (std::vector<int32_t>{4, 7}));
  EXPECT_EQ(judge(request, {}, std::vector<int32_t>{9}).tokens, (std::vector<int32_t>{9}));
}

TEST(Judge, forced_acceptance_emits_drafts_then_the_targets_token) {
  const std::vector<int32_t> drafts = {1, 2, 3, 4, 5}, sampled = {11, 12, 13, 14, 15, 16};
  for (int num_forced = 0; num_forced <= 5; ++num_forced) {
    StepRequest request;
    request.forced_acceptance = static_cast<float>(num_forced + 1);
    const Judgement judgement = judge(request, drafts, sampled);
    std::vector<int32_t> wanted(drafts.begin(), drafts.begin() + num_forced);
    wanted.push_back(sampled[static_cast<size_t>(num_forced)]);
    EXPECT_EQ(judgement.tokens, wanted);
    EXPECT_EQ(judgement.num_accepted, num_forced);
  }
  StepRequest request;  // agreement does not lengthen it
  request.forced_acceptance = 2;
  EXPECT_EQ(judge(request, drafts, std::vector<int32_t>{1, 2, 3, 4, 5, 6}).tokens, (std::vector<int32_t>{1, 2}));
  request.stop_tokens[0] = 1;
  EXPECT_EQ(judge(request, drafts, sampled).tokens, (std::vector<int32_t>{1}));
}

TEST(ForcedAcceptance, has_the_asked_mean_and_the_least_variance) {
  constexpr int kSteps = 40000;
  for (const float acceptance : {1.0f, 1.25f, 2.0f, 3.51f, 5.9f, 6.0f}) {
    const double mean = static_cast<double>(acceptance) - 1;
    const double fraction = mean - std::floor(mean);
    double sum = 0;
    for (uint32_t step = 0; step < kSteps; ++step) {
      const int accepted = forced_accepted(acceptance, 5, 17, step);
      sum += accepted;
      EXPECT_TRUE(accepted == std::floor(mean) || accepted == std::ceil(mean)) << acceptance << ": " << accepted;
    }
    EXPECT_NEAR(sum / kSteps, mean, 5 * std::sqrt(fraction * (1 - fraction) / kSteps)) << acceptance;
  }
}

TEST(ForcedAcceptance, is_a_function_of_seed_and_step) {
  int num_differing = 0;
  for (uint32_t step = 0; step < 200; ++step) {
    EXPECT_EQ(forced_accepted(3.5f, 5, 1, step), forced_accepted(3.5f, 5, 1, step));
    num_differing += forced_accepted(3.5f, 5, 1, step) != forced_accepted(3.5f, 5, 2, step);
  }
  EXPECT_GT(num_differing, 50);
}

TEST(ForcedAcceptanceDeathTest, more_than_the_drafts_is_our_bug) {
  EXPECT_DEATH(forced_accepted(3.5f, 2, 0, 0), "between");
}

}  // namespace
}  // namespace monostep::program
