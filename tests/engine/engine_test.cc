// The step loop on a backend without a model: the text is plain decoding's whatever the speculation, the chunks, the
// company and the memory; requests end where they must; refusals, cancels and failures leave the others alone. The
// backend checks each step.
#include "engine/engine.h"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cmath>

#include "../program/chi_square.h"
#include "fake_backend.h"

namespace monostep::engine {
namespace {

using Tokens = std::vector<int32_t>;

const Limits kLimits = {.vocab_size = 40, .max_context = 512, .max_spec = 5, .num_slots = 8, .num_pages = 64};

struct Answer {
  Tokens tokens;
  std::optional<Finish> finish;
  std::vector<DraftPosition> draft_positions;
};

Request make_request(int num_prompt, int max_tokens, uint64_t seed = 1) {
  Request request;
  for (int token_idx = 0; token_idx < num_prompt; ++token_idx) {
    request.prompt.push_back(static_cast<int32_t>((seed * 7 + static_cast<uint64_t>(token_idx) * 13) % 40));
  }
  request.max_tokens = max_tokens;
  request.sampling.seed = seed;
  request.spec = 5;
  return request;
}

void record_into(Answer& answer, Request& request) {
  request.on_tokens = [&answer](const Sequence& sequence, std::span<const int32_t> tokens) {
    answer.tokens.insert(answer.tokens.end(), tokens.begin(), tokens.end());
    answer.finish = sequence.finish;
    answer.draft_positions = sequence.draft_positions;
    EXPECT_EQ(static_cast<size_t>(sequence.num_generated()), answer.tokens.size());
  };
}

void run_to_end(Engine& engine) {
  for (int step = 0; engine.has_work(); ++step) {
    const Status status = engine.step();
    ASSERT_TRUE(status.ok()) << status.error().message();
    ASSERT_LT(step, 20000) << "no end";
  }
}

std::vector<Answer> serve(std::vector<Request> requests, const Limits& limits, int* num_steps = nullptr) {
  FakeBackend backend(limits);
  Engine engine(limits, backend);
  std::vector<Answer> answers(requests.size());
  for (size_t request_idx = 0; request_idx < requests.size(); ++request_idx) {
    record_into(answers[request_idx], requests[request_idx]);
    const auto id = engine.submit(requests[request_idx]);
    EXPECT_TRUE(id.ok()) << id.error().message();
  }
  run_to_end(engine);
  if (num_steps != nullptr) *num_steps = backend.num_steps;
  return answers;
}

Tokens plain(const Request& request) { return FakeBackend(kLimits).plain(request); }

TEST(Engine, text_is_plain_decodings_with_and_without_speculation) {
  for (const float temperature : {0.0f, 1.0f}) {
    for (int spec = 0; spec <= 5; ++spec) {
      Request request = make_request(20, 60);
      request.sampling.temperature = temperature;
      request.spec = spec;
      int num_steps = 0;
      const Answer answer = serve({request}, kLimits, &num_steps)[0];
      EXPECT_EQ(answer.tokens, plain(request)) << "spec " << spec << " temperature " << temperature;
      EXPECT_EQ(answer.finish, Finish::kLength);
      if (spec == 0) {
        EXPECT_EQ(num_steps, 60);
      }
      if (spec == 5) {
        EXPECT_LT(num_steps, 35);  // two of three drafts are right
      }
    }
  }
}

// Drafts from outside that are right for `num_right` positions and wrong in the next.
DraftSource drafts_right_for(int num_right, const Request& request) {
  return [num_right, whole = [&] {
    Tokens tokens = request.prompt;
    const Tokens generated = plain(request);
    tokens.insert(tokens.end(), generated.begin(), generated.end());
    return tokens;
  }()](std::span<const int32_t> tokens) {
    Tokens drafts;
    for (int draft_idx = 0; draft_idx < 5; ++draft_idx) {
      const size_t position = tokens.size() + static_cast<size_t>(draft_idx);
      const int32_t right = position < whole.size() ? whole[position] : 0;
      drafts.push_back(draft_idx < num_right ? right : (right + 1) % 40);
    }
    return drafts;
  };
}

TEST(Engine, outside_drafts_right_for_0_to_5_positions_give_the_plain_text) {
  for (const float temperature : {0.0f, 1.0f}) {
    for (int num_right = 0; num_right <= 5; ++num_right) {
      Request request = make_request(9, 61);
      request.sampling.temperature = temperature;
      request.draft_source = drafts_right_for(num_right, request);
      int num_steps = 0;
      const Answer answer = serve({request}, kLimits, &num_steps)[0];
      EXPECT_EQ(answer.tokens, plain(request)) << num_right;
      EXPECT_EQ(num_steps, 1 + (60 + num_right) / (num_right + 1)) << num_right;  // the first token, then n + 1 a step
      for (int draft_idx = 0; draft_idx < 5; ++draft_idx) {
        const DraftPosition& position = answer.draft_positions[static_cast<size_t>(draft_idx)];
        EXPECT_EQ(position.num_accepted, draft_idx < num_right ? position.num_verified : 0);
      }
    }
  }
}

std::vector<double> softmax(const std::vector<float>& logits) {
  std::vector<double> out;
  double total = 0;
  for (const float logit : logits) out.push_back(std::exp(static_cast<double>(logit)));
  for (const double weight : out) total += weight;
  for (double& weight : out) weight /= total;
  return out;
}

TEST(Engine, sampled_pairs_follow_the_target_whatever_the_drafts) {
  Limits limits = kLimits;
  limits.vocab_size = 6;
  FakeBackend backend(limits);
  Engine engine(limits, backend);
  const Tokens prompt = {1, 2, 3};
  std::vector<int> counts(36, 0);  // of the tokens behind a given first one
  const int32_t given = backend.next_token(prompt, {});
  for (uint64_t seed = 0; seed < 30000; ++seed) {
    Request request;
    request.prompt = prompt;
    request.max_tokens = 4;
    request.spec = 3;
    request.sampling = {.temperature = 1, .seed = seed};
    request.draft_source = [](std::span<const int32_t>) { return Tokens{2, 0, 5}; };
    Tokens tokens;
    request.on_tokens = [&](const Sequence&, std::span<const int32_t> added) {
      tokens.insert(tokens.end(), added.begin(), added.end());
    };
    ASSERT_TRUE(engine.submit(request).ok());
    run_to_end(engine);
    if (tokens[0] == given) ++counts[static_cast<size_t>(tokens[1] * 6 + tokens[2])];
  }
  Tokens before = prompt;
  before.push_back(given);
  const std::vector<double> first = softmax(backend.logits_after(before));
  std::vector<double> pairs;
  for (int32_t token = 0; token < 6; ++token) {
    Tokens longer = before;
    longer.push_back(token);
    for (const double chance : softmax(backend.logits_after(longer))) {
      pairs.push_back(first[static_cast<size_t>(token)] * chance);
    }
  }
  int freedom = 0;
  EXPECT_LE(chi_square(counts, pairs, &freedom), chi_square_limit(freedom));
  EXPECT_EQ(freedom, 35);
  std::swap(pairs[3], pairs[20]);  // positive control
  EXPECT_GT(chi_square(counts, pairs, &freedom), chi_square_limit(freedom));
}

TEST(Engine, a_stop_token_ends_inside_an_accepted_prefix) {
  Request request = make_request(9, 40);
  const Tokens whole = plain(request);
  for (size_t stop_idx = 0; stop_idx < 12; ++stop_idx) {
    Request stopped = request;
    stopped.draft_source = drafts_right_for(5, request);
    stopped.stop_tokens = {whole[stop_idx]};
    const auto first = std::find(whole.begin(), whole.end(), whole[stop_idx]);
    const Answer answer = serve({stopped}, kLimits)[0];
    EXPECT_EQ(answer.tokens, Tokens(whole.begin(), first + 1)) << stop_idx;
    EXPECT_EQ(answer.finish, Finish::kStop);
  }
}

TEST(Engine, max_tokens_is_exact_for_every_length_and_acceptance) {
  for (int max_tokens = 1; max_tokens <= 14; ++max_tokens) {
    for (const int num_right : {0, 2, 5}) {
      Request request = make_request(5, max_tokens);
      request.draft_source = drafts_right_for(num_right, make_request(5, 40));
      EXPECT_EQ(serve({request}, kLimits)[0].tokens, plain(request)) << max_tokens << " right " << num_right;
    }
  }
}

TEST(Engine, no_row_stands_beyond_the_context) {
  Limits limits = kLimits;
  limits.max_context = 70;
  Request request = make_request(50, 20);  // the backend checks each position
  EXPECT_EQ(serve({request}, limits)[0].tokens, plain(request));
  FakeBackend backend(limits);
  Engine engine(limits, backend);
  EXPECT_EQ(engine.submit(make_request(50, 21)).error().place, "max_tokens");
}

TEST(Engine, a_confidence_threshold_verifies_fewer_drafts_and_keeps_the_text) {
  Request request = make_request(9, 60);
  const Answer all = serve({request}, kLimits)[0];
  request.confidence_threshold = 0.5f;
  const Answer sure = serve({request}, kLimits)[0];
  EXPECT_EQ(sure.tokens, plain(request));
  int64_t num_all = 0, num_sure = 0, num_accepted = 0;
  for (size_t draft_idx = 0; draft_idx < 5; ++draft_idx) {
    num_all += all.draft_positions[draft_idx].num_verified;
    num_sure += sure.draft_positions[draft_idx].num_verified;
    num_accepted += sure.draft_positions[draft_idx].num_accepted;
  }
  EXPECT_LT(num_sure, num_all);
  EXPECT_EQ(num_accepted, num_sure);  // this backend's confidence is always right
}

TEST(Engine, forced_acceptance_has_the_asked_mean_and_plain_tokens_behind_the_drafts) {
  Request request = make_request(9, 400);
  request.acceptance_length = 3.51f;
  Limits limits = kLimits;
  FakeBackend backend(limits);
  Engine engine(limits, backend);
  Tokens committed = request.prompt;
  request.on_tokens = [&](const Sequence& sequence, std::span<const int32_t> tokens) {
    committed.insert(committed.end(), tokens.begin(), tokens.end() - 1);
    EXPECT_EQ(tokens.back(), backend.next_token(committed, sequence.request.sampling));
    committed.push_back(tokens.back());
  };
  ASSERT_TRUE(engine.submit(request).ok());
  run_to_end(engine);
  EXPECT_NEAR(399.0 / (backend.num_steps - 1), 3.51, 0.15);
}

TEST(Engine, text_does_not_depend_on_chunks_company_or_memory) {
  EXPECT_TRUE(rc::check("requests that join and leave", [] {
    Limits limits = kLimits;
    limits.chunk = *rc::gen::inRange(1, 49);
    limits.num_slots = *rc::gen::inRange(1, 10);
    limits.num_pages = *rc::gen::inRange(3, 12);
    const int num_requests = *rc::gen::inRange(1, 12);
    FakeBackend backend(limits);
    Engine engine(limits, backend);
    std::vector<Request> requests;
    std::vector<Answer> answers(static_cast<size_t>(num_requests));
    for (int request_idx = 0; request_idx < num_requests; ++request_idx) {
      Request request =
          make_request(*rc::gen::inRange(1, 100), *rc::gen::inRange(1, 90), static_cast<uint64_t>(request_idx));
      request.sampling.temperature = *rc::gen::element(0.0f, 0.8f);
      request.spec = *rc::gen::inRange(0, 6);
      request.stop_tokens = {*rc::gen::inRange(0, 40)};
      requests.push_back(request);
      record_into(answers[static_cast<size_t>(request_idx)], request);
      RC_ASSERT(engine.submit(request).ok());
      for (int step = *rc::gen::inRange(0, 6); step > 0; --step) RC_ASSERT(engine.step().ok());
    }
    run_to_end(engine);
    for (size_t request_idx = 0; request_idx < requests.size(); ++request_idx) {
      RC_ASSERT(answers[request_idx].tokens == plain(requests[request_idx]));
    }
    RC_ASSERT(!testing::Test::HasFailure());  // the backend's own checks
  }));
}

TEST(Engine, sequences_that_made_way_for_pages_say_the_same) {
  Limits limits = kLimits;
  limits.num_pages = 4;
  std::vector<Request> requests;
  for (uint64_t seed = 0; seed < 6; ++seed) requests.push_back(make_request(30, 100, seed));
  int num_steps = 0, num_roomy_steps = 0;
  const std::vector<Answer> answers = serve(requests, limits, &num_steps);
  for (size_t request_idx = 0; request_idx < requests.size(); ++request_idx) {
    EXPECT_EQ(answers[request_idx].tokens, plain(requests[request_idx])) << request_idx;
  }
  serve(requests, kLimits, &num_roomy_steps);
  EXPECT_GT(num_steps, num_roomy_steps);  // some did have to wait
}

TEST(Engine, a_cancelled_request_stops_and_its_memory_serves_the_next) {
  Limits limits = kLimits;
  limits.num_slots = 1;
  FakeBackend backend(limits);
  Engine engine(limits, backend);
  Answer first, second;
  Request long_request = make_request(5, 400), short_request = make_request(5, 10, 2);
  record_into(first, long_request);
  record_into(second, short_request);
  const uint64_t id = engine.submit(long_request).value();
  ASSERT_TRUE(engine.submit(short_request).ok());
  for (int step = 0; step < 4; ++step) ASSERT_TRUE(engine.step().ok());
  ASSERT_NE(engine.find(id), nullptr);
  engine.cancel(id);
  EXPECT_EQ(engine.find(id), nullptr);
  const size_t num_before = first.tokens.size();
  run_to_end(engine);
  EXPECT_EQ(first.tokens.size(), num_before);
  EXPECT_EQ(second.tokens, plain(short_request));
  engine.cancel(id);     // gone: ignored
  engine.cancel(12345);  // never was: ignored
}

TEST(Engine, a_callback_may_cancel_and_submit) {
  FakeBackend backend(kLimits);
  Engine engine(kLimits, backend);
  Answer follower;
  Request next = make_request(4, 6, 3);
  record_into(follower, next);
  Request request = make_request(5, 100);
  Request other = make_request(6, 100, 2);
  int num_other = 0;
  other.on_tokens = [&](const Sequence&, std::span<const int32_t>) { ++num_other; };
  uint64_t other_id = 0;
  request.on_tokens = [&](const Sequence& sequence, std::span<const int32_t>) {
    engine.cancel(sequence.id);
    engine.cancel(other_id);  // in the same step, before its turn
    ASSERT_TRUE(engine.submit(next).ok());
  };
  ASSERT_TRUE(engine.submit(request).ok());
  other_id = engine.submit(other).value();
  run_to_end(engine);
  EXPECT_EQ(num_other, 0);
  EXPECT_EQ(follower.tokens, plain(next));
}

TEST(Engine, a_request_that_never_fits_is_refused_at_once) {
  Limits limits = kLimits;
  limits.num_pages = 1;
  FakeBackend backend(limits);
  Engine engine(limits, backend);
  const auto refused = engine.submit(make_request(60, 10));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::kExhausted);
  EXPECT_FALSE(engine.has_work());
  EXPECT_TRUE(engine.submit(make_request(60, 5)).ok());  // the last token enters no cache
  run_to_end(engine);
}

TEST(Engine, a_failed_step_commits_nothing_and_may_be_tried_again) {
  FakeBackend backend(kLimits);
  Engine engine(kLimits, backend);
  Answer answer;
  Request request = make_request(60, 20);
  record_into(answer, request);
  const uint64_t id = engine.submit(request).value();
  ASSERT_TRUE(engine.step().ok());
  const int num_committed = engine.find(id)->num_committed;
  backend.fail_next = true;
  const Status failed = engine.step();
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code, Code::kDeviceFailed);
  EXPECT_EQ(engine.find(id)->num_committed, num_committed);
  run_to_end(engine);
  EXPECT_EQ(answer.tokens, plain(request));
}

// Positive controls: what the backend of these tests must report.
void decode_wrong_step(const std::function<void(program::StepInputs&)>& change) {
  FakeBackend backend(kLimits);
  static const Tokens pages = {0, 1};
  program::StepInputs inputs;
  for (int request_idx = 0; request_idx < 2; ++request_idx) {
    program::StepRequest request;
    request.state_slot = request_idx;
    request.pages = std::span(pages).subspan(static_cast<size_t>(request_idx), 1);
    request.first_row = request_idx;
    request.num_rows = 1;
    request.sample = true;
    inputs.requests.push_back(request);
    inputs.rows.push_back({.request = request_idx, .needs_logits = true});
  }
  change(inputs);
  EXPECT_TRUE(backend.decode(inputs).ok());
}

TEST(FakeBackend, reports_steps_that_do_not_continue_what_is_there) {
  decode_wrong_step([](program::StepInputs&) {});  // nothing wrong
  EXPECT_NONFATAL_FAILURE(decode_wrong_step([](auto& inputs) { inputs.rows[1].position = 1; }), "row.position");
  EXPECT_NONFATAL_FAILURE(decode_wrong_step([](auto& inputs) { inputs.rows[0].token = 40; }), "vocab_size");
  EXPECT_NONFATAL_FAILURE(decode_wrong_step([](auto& inputs) { inputs.requests[1].state_slot = 0; }),
                          "twice in a step");
  EXPECT_NONFATAL_FAILURE(decode_wrong_step([](auto& inputs) { inputs.requests[1].pages = inputs.requests[0].pages; }),
                          "two holders");
}

TEST(Engine, an_idle_engine_steps_without_effect) {
  FakeBackend backend(kLimits);
  Engine engine(kLimits, backend);
  EXPECT_TRUE(engine.step().ok());
  EXPECT_EQ(backend.num_steps, 0);
}

}  // namespace
}  // namespace monostep::engine
