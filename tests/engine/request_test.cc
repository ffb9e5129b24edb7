// Each refusal of a request, by the field's name, beside the nearest request that is taken.
#include "engine/request.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

namespace monostep::engine {
namespace {

constexpr Limits kLimits = {.vocab_size = 100, .max_context = 200, .max_spec = 5, .num_slots = 2, .num_pages = 2};

Request good() {
  Request request;
  request.prompt = {0, 99};
  request.max_tokens = 10;
  request.spec = 5;
  return request;
}

Status check(const Request& request) {
  TRY(check_parameters(request));
  return check_fits(request, kLimits);
}

void expect_taken(const std::function<void(Request&)>& change) {
  Request request = good();
  change(request);
  const Status status = check(request);
  EXPECT_TRUE(status.ok()) << status.error().message();
}

void expect_refused(const char* place, const std::function<void(Request&)>& change,
                    Code code = Code::kInvalidArgument) {
  Request request = good();
  change(request);
  const Status status = check(request);
  ASSERT_FALSE(status.ok()) << place;
  EXPECT_EQ(status.error().place, place);
  EXPECT_EQ(status.error().code, code);
  EXPECT_FALSE(status.error().text.empty());
}

TEST(Request, a_good_one_is_taken) {
  expect_taken([](Request&) {});
}

TEST(Request, sampling_outside_its_ranges_is_refused_by_name) {
  for (const float value : {-0.1f, NAN, INFINITY}) {
    expect_refused("temperature", [&](Request& request) { request.sampling.temperature = value; });
  }
  for (const float value : {0.0f, -1.0f, 1.01f, NAN}) {
    expect_refused("top_p", [&](Request& request) { request.sampling.top_p = value; });
  }
  for (const float value : {-0.1f, 1.1f, NAN}) {
    expect_refused("min_p", [&](Request& request) { request.sampling.min_p = value; });
  }
  expect_refused("top_k", [](Request& request) { request.sampling.top_k = -1; });
  expect_taken([](Request& request) {
    request.sampling = {.temperature = 100, .top_k = 1000000, .top_p = 0.001f, .min_p = 1, .seed = ~uint64_t{0}};
  });
}

TEST(Request, speculation_outside_its_ranges_is_refused_by_name) {
  expect_refused("spec", [](Request& request) { request.spec = 6; });
  expect_refused("spec", [](Request& request) { request.spec = -1; });
  for (const float value : {0.0f, 0.5f, -1.0f, 6.01f, NAN, INFINITY}) {
    expect_refused("acceptance_length", [&](Request& request) { request.acceptance_length = value; });
  }
  expect_refused("acceptance_length", [](Request& request) {
    request.acceptance_length = 3.5f;
    request.spec = 2;
  });
  expect_refused("acceptance_length", [](Request& request) {
    request.acceptance_length = 3;
    request.confidence_threshold = 0.5f;
  });
  for (const float value : {-0.1f, 1.1f, NAN}) {
    expect_refused("confidence_threshold", [&](Request& request) { request.confidence_threshold = value; });
  }
  expect_taken([](Request& request) { request.acceptance_length = 6; });
  expect_taken([](Request& request) { request.confidence_threshold = 1; });
}

TEST(Request, a_prompt_outside_vocabulary_or_context_is_refused) {
  expect_refused("prompt", [](Request& request) { request.prompt.clear(); });
  expect_refused("prompt", [](Request& request) { request.prompt = {5, 100}; });
  expect_refused("prompt", [](Request& request) { request.prompt = {-1}; });
  expect_refused("prompt", [](Request& request) { request.prompt.assign(200, 1); });
  Request request = good();
  request.prompt = {5, 100};
  EXPECT_NE(check(request).error().text.find("token id 100 (number 2)"), std::string::npos)
      << check(request).error().text;
}

TEST(Request, lengths_outside_the_context_are_refused) {
  expect_refused("max_tokens", [](Request& request) { request.max_tokens = 0; });
  expect_refused("max_tokens", [](Request& request) { request.max_tokens = -5; });
  expect_refused("max_tokens", [](Request& request) { request.max_tokens = 199; });
  expect_refused("max_tokens", [](Request& request) { request.max_tokens = 2147483647; });
  expect_taken([](Request& request) { request.max_tokens = 127; });  // 129 positions less the last token: two pages
}

TEST(Request, one_that_the_whole_pool_cannot_hold_is_exhausted) {
  expect_refused("prompt", [](Request& request) { request.max_tokens = 128; }, Code::kExhausted);
}

TEST(Request, too_many_stop_tokens_are_refused) {
  expect_refused("stop_tokens", [](Request& request) { request.stop_tokens = {1, 2, 3, 4, 5}; });
  expect_taken([](Request& request) { request.stop_tokens = {1, 2, 3, 4}; });
}

}  // namespace
}  // namespace monostep::engine
