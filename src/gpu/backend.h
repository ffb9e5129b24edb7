// GpuBackend: the engine's view of one rank on one GPU. A step is uploaded, launched as its cut says and left to run;
// wait() watches it, reads verdicts and drafts back and names the wait that gave up where one did. Made by `generate`,
// `bench` and tests.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <tuple>

#include "gpu/launch_cuts.h"
#include "gpu/rank.h"
#include "program/step.h"

namespace monostep::gpu {

struct GpuOptions {
  Cut cut = Cut::kStep;                      // kStage: a step's launches are kept in a graph
  std::chrono::milliseconds watchdog{5000};  // after which a step is given up
};

class GpuBackend final : public program::Backend {
 public:
  // `device` is the rank's and must outlive the backend.
  GpuBackend(Device& device, std::unique_ptr<Rank> rank, const GpuOptions& options)
      : device_(device), rank_(std::move(rank)), options_(options) {}

  // Makes the program of steps of so many rows and requests, so that the first of them does not wait for it.
  Status prepare(int num_rows, int num_requests);

  // Returns before the step is done. The step before it must have been waited for or is waited for here.
  Result<program::Ticket> decode(const program::StepInputs& inputs) override;
  // Errors: kInternal and kTimeout (the watchdog's) with what was waited for; the backend serves the next step.
  // kDeviceFailed: the device is lost, and with this error every later call fails at once.
  Result<program::StepOutputs> wait(program::Ticket ticket) override;
  void clear_slot(int state_slot) override;

  Rank& rank() { return *rank_; }

 private:
  Status begin();
  Status launch(const program::CallRange& range);
  Status launch_graph(const program::CallRange& range);
  Result<Graph> capture(const program::CallRange& range);
  Result<bool> idle_by(std::chrono::steady_clock::time_point deadline);
  Status await();
  Error lose(Error why);
  Result<program::StepOutputs> collect();
  Status read_words(program::Region region, program::Stage writer, size_t tagged_word, std::vector<float>& words);

  Device& device_;
  std::unique_ptr<Rank> rank_;
  GpuOptions options_;
  std::map<std::tuple<int, int, int>, Graph> graphs_;  // by band, first and last call
  program::StepInputs inputs_;
  std::optional<Result<program::StepOutputs>> result_;  // of the latest step, once it was waited for
  std::chrono::steady_clock::time_point launched_;
  std::optional<Error> lost_;  // the device does not answer or has failed
  uint32_t epoch_ = 0;
  program::Ticket ticket_ = 0;
};

}  // namespace monostep::gpu
