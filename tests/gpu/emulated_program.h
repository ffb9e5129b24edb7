// Device programs on the emulator: compiles the device sources with the constants of a layout by the host's compiler
// and loads them. Used by tests of the stages and of gpu/rank.
#pragma once

#include "emulator/device.h"
#include "gpu/program_cache.h"
#include "gpu/rank.h"

namespace monostep::gpu {

// The maker of emulated kernels for gpu::Rank; the device must be an EmulatedDevice. Programs are kept in the build
// folder under a digest of their sources.
KernelMaker emulated_maker();

// Address of an extern "C" function of a file `main` that is compiled for the emulator with the headers of `sources`.
Result<void*> emulated_function(const Sources& sources, const std::string& main, const char* name);

}  // namespace monostep::gpu
