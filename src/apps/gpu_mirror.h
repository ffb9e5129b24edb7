// GpuMirror: runs calls of a CpuBackend's step on GPU ranks. Before a launch the regions that the calls read and the
// pools go to the device, behind it the regions that they wrote and the pools come back, so trace, its records and the
// tests see the GPU's results where they would see the reference's. Made by `monostep trace --backend gpu` and by
// tests.
#pragma once

#include <memory>
#include <vector>

#include "cpu/backend.h"
#include "gpu/launch_cuts.h"
#include "gpu/rank.h"

namespace monostep::apps {

using gpu::Cut;

class GpuMirror {
 public:
  // Ranks for all of `backend` on one device, which must outlive the mirror. Errors: Rank's.
  static Result<std::unique_ptr<GpuMirror>> make(gpu::Device& device, const weights::Checkpoint& checkpoint,
                                                 const cpu::CpuBackend& backend, Cut cut,
                                                 const gpu::KernelMaker& maker);
  // One rank a TP rank, all on devices of this process; their pools and context must be the CPU backend's. With more
  // than one the calls run one by one, and what a rank pushes is handed to the others in between.
  GpuMirror(std::vector<std::unique_ptr<gpu::Rank>> ranks, Cut cut) : ranks_(std::move(ranks)), cut_(cut) {}

  Status run(cpu::Machine& machine, const cpu::CallRange& range);
  gpu::Rank& rank(int idx) { return *ranks_[static_cast<size_t>(idx)]; }

 private:
  Status run_rank(cpu::Machine& machine, int rank_idx, const cpu::CallRange& range);

  std::vector<std::unique_ptr<gpu::Rank>> ranks_;
  Cut cut_;
};

}  // namespace monostep::apps
