// The generated header of a device program: every size that the stage bodies need, as constants of one (geometry,
// shard, band, CTA count). Also the sizes that the host shares with it. Called by gpu/compile_program and the
// emulator's builds.
#pragma once

#include <string>

#include "base/result.h"
#include "program/plan.h"

namespace monostep::gpu {

// Shared memory of a CTA: its state, then the weight ring, then the scratch of the stages.
struct SharedPlan {
  int ring_bytes = 0;
  int scratch_bytes = 0;
  int total_bytes = 0;
};

struct ProgramSizes {
  SharedPlan shared;
  int task_batch = 1;     // tasks of a stage that sums whole K whose sums are held at once
  int pair_capacity = 0;  // rows x experts whose hidden activations are held at once
};

// Error (kUnsupported) where the shape does not fit `shared_limit` bytes of shared memory, or the geometry passes a
// limit of the device program; names which.
Result<ProgramSizes> program_sizes(const program::Layout& layout, const program::Plan& plan, int shared_limit);

// The text of "gpu/device/constants.h", which no file of the tree is.
std::string constants_header(const program::Layout& layout, const program::Plan& plan, const ProgramSizes& sizes);

}  // namespace monostep::gpu
