// Opening a GPU for a subcommand: the device, and the maker of its programs, which says on standard error what it
// compiles. Used by `generate` and `trace`.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "gpu/cuda_device.h"
#include "gpu/kernel_maker.h"
#include "gpu/rank.h"

namespace monostep::apps {

// The first GPU. Error: kUnavailable, "no usable device" and why.
Result<std::unique_ptr<gpu::CudaDevice>> open_gpu();

// Programs from the default cache folder, or compiled. `on_program` is told of each.
gpu::KernelMaker program_maker(std::function<void(const gpu::MadeProgram&)> on_program = {});

// The folder of packed weights that --packed-cache asks for: a folder; "off": none (empty); "": beside the programs.
std::filesystem::path packed_cache_dir(const std::string& option);
inline constexpr const char* kPackedCacheVariable = "MONOSTEP_PACKED_CACHE";

}  // namespace monostep::apps
