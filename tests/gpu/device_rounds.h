// The same steps of a rank laid out by the host and by the device: what a step gives is read from the regions or,
// behind a device round, from the rank's outputs of the step before. Used by the tests of device rounds.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <string>
#include <vector>

#include "gpu/rank.h"
#include "program/step_rules.h"

namespace monostep::gpu {

inline constexpr double kRoundSeconds = 20;

// Requests on slots 1, 4, 7, ... that draft from their first step on: greedy, sampled and of a forced acceptance.
class Rounds {
 public:
  Rounds(Rank& rank, int num_requests, int pages_of_request) : rank_(rank) {
    for (int idx = 0; idx < num_requests; ++idx) {
      slots.push_back((1 + 3 * idx) % program::kMaxRequests);
      std::vector<int32_t>& pages = pages_.emplace_back();
      for (int page = 0; page < pages_of_request; ++page) pages.push_back(idx * pages_of_request + page);
    }
  }

  // A first step: an id and a block of drafts of the test's own.
  program::StepInputs first_step(int salt = 0) const {
    program::StepInputs inputs;
    const model::Geometry& g = rank_.geometry();
    const int rows = g.dspark_block_size + 1;
    for (size_t idx = 0; idx < slots.size(); ++idx) {
      program::StepRequest& request = inputs.requests.emplace_back();
      request.state_slot = slots[idx];
      request.pages = pages_[idx];
      request.first_row = static_cast<int>(inputs.rows.size());
      request.num_rows = rows;
      request.num_drafts = rows - 1;
      request.sample = request.draft = true;
      if (idx % 2 == 1) request.sampling = {.temperature = 0.9f, .seed = 5 + idx};
      if (idx == 0 && slots.size() > 1) request.forced_acceptance = 2.5f;
      for (int row = 0; row < rows; ++row) {
        const int token = (row * 17 + static_cast<int>(idx) * 31 + 7 + salt * 11) % g.vocab_size;
        inputs.rows.push_back({token, row, static_cast<int32_t>(idx), false, true});
      }
    }
    return inputs;
  }

  // Every step laid out by the host.
  std::vector<program::StepOutputs> by_host(int num_steps, uint32_t epoch, int salt = 0) {
    clear();
    std::vector<program::StepOutputs> out;
    program::StepInputs inputs = first_step(salt);
    for (int step = 0; step < num_steps; ++step) {
      run(rank_.begin_step(inputs, epoch + static_cast<uint32_t>(step)));
      check(rank_.finish());
      if (testing::Test::HasFailure()) return out;
      out.push_back(outputs_of(inputs));
      go_on(inputs, out.back());
    }
    return out;
  }

  // The first step laid out by the host, the others by the device.
  std::vector<program::StepOutputs> by_device(int num_steps, uint32_t epoch, int salt = 0) {
    clear();
    std::vector<program::StepOutputs> out;
    const program::StepInputs inputs = first_step(salt);
    run(rank_.begin_step(inputs, epoch));
    for (int step = 1; step < num_steps && !testing::Test::HasFailure(); ++step) {
      run(rank_.continue_step(slots));
      auto before = rank_.previous_outputs(kRoundSeconds);
      EXPECT_TRUE(before.ok()) << "step " << step << ": " << before.error().message();
      if (before.ok()) out.push_back(std::move(before.value()));
    }
    check(rank_.finish());
    out.push_back(outputs_of(inputs));
    return out;
  }

  std::vector<int> slots;

 private:
  void clear() {
    for (const int slot : slots) EXPECT_TRUE(rank_.clear_slot(slot).ok());
  }
  static void check(const Status& status) { EXPECT_TRUE(status.ok()) << status.error().message(); }
  // Launches a step that was begun.
  void run(const Status& begun) {
    check(begun);
    if (begun.ok()) check(rank_.launch(0, rank_.num_calls()));
  }

  std::vector<float> words_of(program::Region region) {
    std::vector<uint64_t> pairs;
    EXPECT_TRUE(rank_.read_region(region, 0, pairs).ok());
    std::vector<float> words;
    for (const uint64_t pair : pairs) words.push_back(std::bit_cast<float>(static_cast<uint32_t>(pair)));
    return words;
  }
  program::StepOutputs outputs_of(const program::StepInputs& inputs) {
    return program::read_outputs(inputs, rank_.geometry().dspark_block_size, words_of(program::Region::kVerdictOut),
                                 words_of(program::Region::kDraft));
  }

  // The step behind `outputs`.
  static void go_on(program::StepInputs& inputs, const program::StepOutputs& outputs) {
    for (size_t idx = 0; idx < inputs.requests.size(); ++idx) {
      program::StepRequest& request = inputs.requests[idx];
      const program::RequestOutput& output = outputs.requests[idx];
      request.first_position += request.num_rows - request.num_drafts + output.num_accepted;
      ++request.step_counter;
      for (int row = 0; row < request.num_rows; ++row) {
        program::StepRow& to = inputs.rows[static_cast<size_t>(request.first_row + row)];
        to.position = request.first_position + row;
        to.token = row == 0 ? output.tokens.back() : output.drafts[static_cast<size_t>(row - 1)];
      }
    }
  }

  Rank& rank_;
  std::vector<std::vector<int32_t>> pages_;
};

// What differs between two runs; "" for nothing.
inline std::string first_difference(const std::vector<program::StepOutputs>& a,
                                    const std::vector<program::StepOutputs>& b) {
  if (a.size() != b.size()) return "another count of steps";
  const auto same_request = [](const program::RequestOutput& x, const program::RequestOutput& y) {
    const auto bits = [](float p, float q) { return std::bit_cast<uint32_t>(p) == std::bit_cast<uint32_t>(q); };
    return x.num_accepted == y.num_accepted && x.tokens == y.tokens && x.drafts == y.drafts &&
           std::ranges::equal(x.confidence, y.confidence, bits);
  };
  for (size_t step = 0; step < a.size(); ++step) {
    if (!std::ranges::equal(a[step].requests, b[step].requests, same_request)) return "step " + std::to_string(step);
  }
  return "";
}

}  // namespace monostep::gpu
