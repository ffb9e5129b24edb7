// A backend without a model, for the engine's tests: logits are a hash of the tokens before a row, drafts are the next
// tokens with every third one wrong. It keeps the tokens of each slot and the content of each page, and reports
// (GoogleTest failure) every step that does not continue them: wrong positions, page tables that do not cover, shared
// or overwritten memory.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <set>
#include <vector>

#include "engine/request.h"
#include "program/layout.h"
#include "program/sampling.h"

namespace monostep::engine {

class FakeBackend : public program::Backend {
 public:
  explicit FakeBackend(const Limits& limits) : limits_(limits), slots_(static_cast<size_t>(limits.num_slots)) {}

  Result<program::Ticket> decode(const program::StepInputs& inputs) override {
    if (fail_next) {
      fail_next = false;
      return Error{Code::kDeviceFailed, "asked to fail", "fake"};
    }
    ++num_steps;
    steps.push_back(inputs.rows);
    check_step(inputs);
    outputs_ = {};
    for (const program::StepRequest& request : inputs.requests) outputs_.requests.push_back(serve(inputs, request));
    return ++ticket_;
  }

  Result<program::StepOutputs> wait(program::Ticket ticket) override {
    EXPECT_EQ(ticket, ticket_);
    return outputs_;
  }

  void clear_slot(int state_slot) override { slots_[static_cast<size_t>(state_slot)].clear(); }

  // What any correct engine must produce: one token at a time.
  std::vector<int32_t> plain(const Request& request) const {
    std::vector<int32_t> tokens = request.prompt;
    std::vector<int32_t> out;
    while (static_cast<int>(out.size()) < request.max_tokens) {
      out.push_back(next_token(tokens, request.sampling));
      tokens.push_back(out.back());
      for (const int32_t stop : request.stop_tokens) {
        if (out.back() == stop) return out;
      }
    }
    return out;
  }

  std::vector<float> logits_after(std::span<const int32_t> before) const {
    uint64_t hash = 1469598103934665603u;
    for (const int32_t token : before) hash = (hash ^ static_cast<uint64_t>(token + 1)) * 1099511628211u;
    std::vector<float> logits(static_cast<size_t>(limits_.vocab_size));
    for (float& logit : logits) {
      hash = hash * 6364136223846793005u + 1442695040888963407u;
      logit = static_cast<float>(hash >> 40) * 0x1p-22f;  // 0 to 4
    }
    return logits;
  }

  int32_t next_token(std::span<const int32_t> before, const program::Sampling& sampling) const {
    return program::sample_token(logits_after(before), sampling, static_cast<int>(before.size()));
  }

  int num_steps = 0;
  std::vector<std::vector<program::StepRow>> steps;  // rows of each step
  bool fail_next = false;

 private:
  using Tokens = std::vector<int32_t>;

  void check_step(const program::StepInputs& inputs) {
    EXPECT_TRUE(!last_epoch_ || inputs.epoch > *last_epoch_);
    last_epoch_ = inputs.epoch;
    ASSERT_GE(inputs.requests.size(), 1u);
    ASSERT_LE(inputs.requests.size(), static_cast<size_t>(program::kMaxRequests));
    ASSERT_LE(inputs.rows.size(), static_cast<size_t>(program::kMaxBand));
    std::set<int> slots;
    std::set<int32_t> pages;
    size_t num_pages = 0;
    int next_row = 0;
    for (size_t request_idx = 0; request_idx < inputs.requests.size(); ++request_idx) {
      const program::StepRequest& request = inputs.requests[request_idx];
      EXPECT_EQ(request.first_row, next_row);
      next_row += request.num_rows;
      EXPECT_TRUE(slots.insert(request.state_slot).second) << "slot " << request.state_slot << " twice in a step";
      pages.insert(request.pages.begin(), request.pages.end());
      num_pages += request.pages.size();
      check_request(inputs, request, static_cast<int>(request_idx));
    }
    EXPECT_EQ(pages.size(), num_pages) << "a page has two holders in a step";
    EXPECT_EQ(static_cast<size_t>(next_row), inputs.rows.size());
  }

  void check_request(const program::StepInputs& inputs, const program::StepRequest& request, int request_idx) {
    ASSERT_GE(request.state_slot, 0);
    ASSERT_LT(request.state_slot, limits_.num_slots);
    const Tokens& committed = slots_[static_cast<size_t>(request.state_slot)];
    EXPECT_EQ(request.first_position, static_cast<int>(committed.size()));
    ASSERT_GE(request.num_rows, request.num_drafts + 1);
    EXPECT_LE(request.num_rows - request.num_drafts, limits_.chunk);
    EXPECT_TRUE(request.sample || (request.num_drafts == 0 && !request.draft));
    ASSERT_GE(static_cast<int>(request.pages.size()) * program::kPageTokens, request.first_position + request.num_rows);
    for (const int32_t page : request.pages) ASSERT_TRUE(page >= 0 && page < limits_.num_pages);
    for (int position = 0; position < request.first_position; ++position) {
      EXPECT_EQ(content(request, position), committed[static_cast<size_t>(position)]) << "page content at " << position;
    }
    const int anchor_idx = request.num_rows - request.num_drafts - 1;
    for (int row_idx = 0; row_idx < request.num_rows; ++row_idx) {
      const program::StepRow& row = inputs.rows[static_cast<size_t>(request.first_row + row_idx)];
      EXPECT_EQ(row.request, request_idx);
      EXPECT_EQ(row.position, request.first_position + row_idx);
      EXPECT_LT(row.position, limits_.max_context);
      EXPECT_TRUE(row.token >= 0 && row.token < limits_.vocab_size);
      EXPECT_EQ(row.needs_logits, request.sample && row_idx >= anchor_idx);
    }
  }

  int32_t& content(const program::StepRequest& request, int position) {
    const int32_t page = request.pages[static_cast<size_t>(position / program::kPageTokens)];
    return pages_[{page, position % program::kPageTokens}];
  }

  program::RequestOutput serve(const program::StepInputs& inputs, const program::StepRequest& request) {
    Tokens& committed = slots_[static_cast<size_t>(request.state_slot)];
    const int num_known = request.num_rows - request.num_drafts;
    Tokens drafts, sampled;
    Tokens tokens = committed;
    for (int row_idx = 0; row_idx < request.num_rows; ++row_idx) {
      const program::StepRow& row = inputs.rows[static_cast<size_t>(request.first_row + row_idx)];
      content(request, row.position) = row.token;
      tokens.push_back(row.token);
      if (row_idx < num_known) committed.push_back(row.token);
      if (row_idx >= num_known) drafts.push_back(row.token);
      if (row.needs_logits) sampled.push_back(next_token(tokens, request.sampling));
    }
    program::RequestOutput out;
    if (!request.sample) return out;
    const program::Judgement judgement = program::judge(request, drafts, sampled);
    out.num_accepted = judgement.num_accepted;
    out.tokens = judgement.tokens;
    committed.insert(committed.end(), drafts.begin(), drafts.begin() + judgement.num_accepted);
    if (request.draft) make_drafts(committed, request, judgement, &out);
    return out;
  }

  // Right but for those whose position is a multiple of three; the confidence says so.
  void make_drafts(const Tokens& committed, const program::StepRequest& request, const program::Judgement& judgement,
                   program::RequestOutput* out) const {
    Tokens tokens = committed;
    tokens.push_back(judgement.tokens.back());
    for (int draft_idx = 0; draft_idx < limits_.max_spec; ++draft_idx) {
      const bool wrong = tokens.size() % 3 == 0;
      const int32_t right = next_token(tokens, request.sampling);
      out->drafts.push_back(wrong ? (right + 1) % limits_.vocab_size : right);
      out->confidence.push_back(wrong ? -2.0f : 2.0f);  // sigmoid 0.12 and 0.88
      tokens.push_back(out->drafts.back());
    }
  }

  Limits limits_;
  std::vector<Tokens> slots_;                         // committed tokens of each slot
  std::map<std::pair<int32_t, int>, int32_t> pages_;  // (page, offset) -> token
  program::StepOutputs outputs_;
  program::Ticket ticket_ = 0;
  std::optional<uint32_t> last_epoch_;
};

}  // namespace monostep::engine
