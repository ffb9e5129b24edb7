// GpuMirror: runs calls of a CpuBackend's step on GPU ranks. Before a launch the regions that the calls read and the
// pools go to the device, behind it the regions that they wrote and the pools come back, so trace, its records and the
// tests see the GPU's results where they would see the reference's. Made by `monostep trace --backend gpu` and by tests.
#pragma once

#include <memory>
#include <vector>

#include "cpu/backend.h"
#include "gpu/rank.h"

namespace monostep::apps {

enum class Cut { kStep, kLayer, kStage };  // calls of one launch

class GpuMirror {
 public:
  // One rank a TP rank, all on devices of this process. With more than one the calls run one by one, and what a rank
  // pushes is handed to the others in between.
  GpuMirror(std::vector<std::unique_ptr<gpu::Rank>> ranks, Cut cut) : ranks_(std::move(ranks)), cut_(cut) {}

  Status run(cpu::Machine& machine, const cpu::CallRange& range);
  gpu::Rank& rank(int idx) { return *ranks_[static_cast<size_t>(idx)]; }

 private:
  Status run_rank(cpu::Machine& machine, int rank_idx, const cpu::CallRange& range);
  Status launch(gpu::Rank& rank, const cpu::CallRange& range) const;

  std::vector<std::unique_ptr<gpu::Rank>> ranks_;
  Cut cut_;
};

}  // namespace monostep::apps
