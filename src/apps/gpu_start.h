// Opening a GPU for a subcommand: the device, and the maker of its programs, which says on standard error what it
// compiles. Used by `generate` and `trace`.
#pragma once

#include <memory>

#include "gpu/cuda_device.h"
#include "gpu/rank.h"

namespace monostep::apps {

// The first GPU. Error: kUnavailable, "no usable device" and why.
Result<std::unique_ptr<gpu::CudaDevice>> open_gpu();

// Programs from the default cache folder, or compiled.
gpu::KernelMaker program_maker();

}  // namespace monostep::apps
