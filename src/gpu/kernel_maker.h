// The maker of kernels for CUDA devices: takes a program from the folder of compiled programs, or compiles it with
// NVRTC. Given to Rank by the programs.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "gpu/rank.h"

namespace monostep::gpu {

struct MadeProgram {
  int band = 0;  // rows
  bool from_cache = false;
  double seconds = 0;
  std::string warning;  // why the folder could not keep it; empty if it did
  int64_t cubin_bytes = 0;
};

// Errors of the maker: kUnavailable where the device is not one that the programs are for, or where there is neither a
// compiler nor a kept program; the compiler's and the device's. `on_program` is told of each program.
KernelMaker cuda_maker(std::filesystem::path cache_dir, std::function<void(const MadeProgram&)> on_program);

}  // namespace monostep::gpu
