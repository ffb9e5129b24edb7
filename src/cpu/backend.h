// CpuBackend: the engine's view of the simulated machine. Lays a step out (live rows, tags), walks the program's
// sections that it needs and reads verdicts and drafts back. One process, any number of simulated ranks. Made by
// `generate`, `trace` and tests.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "cpu/executor.h"
#include "program/step.h"
#include "weights/checkpoint.h"

namespace monostep::cpu {

struct CpuOptions {
  int tp = 1;
  int ctas = 0;  // a rank; 0: hardware threads over tp, at least 1
  int num_slots = program::kMaxRequests;
  int num_pages = 64;
  int max_context = 4096;
  bool checks = false;      // level L2: random order and overwrite checks
  uint64_t order_seed = 0;  // of the random order
};

class CpuBackend : public program::Backend {
 public:
  // kInvalidArgument: a TP size that does not divide the geometry, by name. The checkpoint must outlive the backend.
  static Result<std::unique_ptr<CpuBackend>> make(const weights::Checkpoint& checkpoint, const CpuOptions& options);

  Result<program::Ticket> decode(const program::StepInputs& inputs) override;
  Result<program::StepOutputs> wait(program::Ticket ticket) override;
  void clear_slot(int state_slot) override;

  // Runs calls instead of the simulated CTAs, with and without checks. What it reads and leaves in the machine's region
  // stores (words and tags) and pools must be what the stages would have read and left; the step's inputs, live rows
  // and band lie in the machine.
  using Runner = std::function<Status(Machine&, const CallRange&)>;
  void set_runner(Runner runner) { runner_ = std::move(runner); }

  // The parts of decode, for trace and for tests that feed regions or stop after a call.
  Status begin_step(const program::StepInputs& inputs);
  Status run(const CallRange& range);
  program::StepOutputs outputs() const;
  Machine& machine() { return machine_; }
  const CpuOptions& options() const { return options_; }

 private:
  explicit CpuBackend(const CpuOptions& options) : options_(options) {}
  void choose_band(int rows, int requests);
  void lay_out_rows();

  CpuOptions options_;
  Runner runner_;  // null: the simulated CTAs
  Machine machine_;
  program::StepInputs inputs_;
  program::StepOutputs outputs_;
  std::array<std::unique_ptr<Band>, program::kBands.size()> bands_;  // made on first use
  model::Shard shard_;
  model::Geometry geometry_;
  int num_ctas_ = 1;
  uint32_t epoch_ = 0;
  program::Ticket ticket_ = 0;
};

}  // namespace monostep::cpu
