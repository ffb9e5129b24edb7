// The requests of a benchmark: synthetic caches behind the context, and rows of whole draft blocks that go on from what
// each step gave. Used by bench_step.cc.
#pragma once

#include <cstdint>
#include <vector>

#include "apps/bench_step.h"
#include "program/step.h"

namespace monostep::apps {

// Fills every page of the requests with random values of usual size.
Status fill_pages(gpu::Rank& rank, const BenchShape& shape);

class BenchSequences {
 public:
  BenchSequences(const model::Geometry& geometry, const BenchShape& shape);

  int rows_a_request() const { return geometry_.dspark_block_size + 1; }
  std::span<const int> slots() const { return slots_; }

  // The next step; its requests begin at the context again where their positions end.
  const program::StepInputs& next_inputs();
  const program::StepInputs& inputs() const { return inputs_; }  // of the step begun last
  void take(const program::StepOutputs& outputs);
  void rewind();

  void count_from_here() { num_tokens_ = num_outputs_ = 0; }
  double tokens_a_step() const { return num_outputs_ == 0 ? 0 : double(num_tokens_) / double(num_outputs_); }

 private:
  struct Sequence {
    std::vector<int32_t> pages;
    std::vector<int32_t> tokens;  // of the next rows: the last id, then the drafts
    int position = 0;
    uint32_t step_counter = 0;
  };
  void add_request(int idx);

  model::Geometry geometry_;
  BenchShape shape_;
  std::vector<Sequence> sequences_;
  std::vector<int> slots_;
  program::StepInputs inputs_;
  int64_t num_tokens_ = 0;
  int64_t num_outputs_ = 0;
};

}  // namespace monostep::apps
