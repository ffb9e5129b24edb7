// The checks of a request (engine/request.h). Comparisons are written so that a NaN is refused.
#include "engine/request.h"

#include <fmt/format.h>

#include <cmath>

#include "kv/allocator.h"

namespace monostep::engine {
namespace {

Error refusal(const char* place, std::string text) { return Error{Code::kInvalidArgument, std::move(text), place}; }

Status check_sampling(const program::Sampling& sampling) {
  if (!(sampling.temperature >= 0) || !std::isfinite(sampling.temperature)) {
    return refusal("temperature", fmt::format("{} is not a finite number of at least 0", sampling.temperature));
  }
  if (sampling.top_k < 0) return refusal("top_k", fmt::format("{} is negative (0: off)", sampling.top_k));
  if (!(sampling.top_p > 0 && sampling.top_p <= 1)) {
    return refusal("top_p", fmt::format("{} is not above 0 and at most 1", sampling.top_p));
  }
  if (!(sampling.min_p >= 0 && sampling.min_p <= 1)) {
    return refusal("min_p", fmt::format("{} is not between 0 and 1", sampling.min_p));
  }
  return {};
}

Status check_speculation(const Request& request) {
  if (request.spec < 0) return refusal("spec", fmt::format("{} is negative", request.spec));
  const float threshold = request.confidence_threshold;
  if (!(threshold >= 0 && threshold <= 1)) {
    return refusal("confidence_threshold", fmt::format("{} is not between 0 and 1", threshold));
  }
  if (!request.acceptance_length) return {};
  if (!(*request.acceptance_length >= 1)) {
    return refusal("acceptance_length", fmt::format("{} is not at least 1", *request.acceptance_length));
  }
  if (threshold != 0) {
    return refusal("acceptance_length", "cannot be combined with a confidence threshold");
  }
  return {};
}

Status check_prompt(const Request& request, const Limits& limits) {
  const size_t num_tokens = request.prompt.size();
  for (size_t token_idx = 0; token_idx < num_tokens; ++token_idx) {
    const int32_t token = request.prompt[token_idx];
    if (token < 0 || token >= limits.vocab_size) {
      return refusal("prompt", fmt::format("token id {} (number {}) is outside the vocabulary 0..{}", token,
                                           token_idx + 1, limits.vocab_size - 1));
    }
  }
  if (num_tokens >= static_cast<size_t>(limits.max_context)) {
    return refusal("prompt", fmt::format("{} tokens leave no room in a context of {}", num_tokens, limits.max_context));
  }
  if (request.max_tokens > limits.max_context - static_cast<int>(num_tokens)) {
    return refusal("max_tokens", fmt::format("{} prompt tokens and {} more exceed the context of {}", num_tokens,
                                             request.max_tokens, limits.max_context));
  }
  return {};
}

}  // namespace

Status check_parameters(const Request& request) {
  if (request.max_tokens < 1) return refusal("max_tokens", fmt::format("{} is not at least 1", request.max_tokens));
  if (request.stop_tokens.size() > program::kMaxStopTokens) {
    return refusal("stop_tokens",
                   fmt::format("{} ids, at most {}", request.stop_tokens.size(), program::kMaxStopTokens));
  }
  TRY(check_sampling(request.sampling));
  return check_speculation(request);
}

Status check_fits(const Request& request, const Limits& limits) {
  if (request.prompt.empty()) return refusal("prompt", "has no tokens");
  TRY(check_prompt(request, limits));
  if (request.spec > limits.max_spec) {
    return refusal("spec", fmt::format("{} exceeds the model's draft length {}", request.spec, limits.max_spec));
  }
  if (request.acceptance_length && *request.acceptance_length > static_cast<float>(request.spec + 1)) {
    return refusal("acceptance_length",
                   fmt::format("{} is not between 1 and {} (spec + 1)", *request.acceptance_length, request.spec + 1));
  }
  // The last token never enters a cache.
  const int num_pages = kv::PageAllocator::pages_for(static_cast<int>(request.prompt.size()) + request.max_tokens - 1);
  if (num_pages > limits.num_pages) {
    return Error{Code::kExhausted, fmt::format("needs {} pages, the pool has {}", num_pages, limits.num_pages),
                 "prompt"};
  }
  return {};
}

}  // namespace monostep::engine
