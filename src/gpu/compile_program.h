// The device program of one layout and plan: its sources with the generated constants, ready for a compiler. Called by
// the GPU backend, `monostep compile` and the emulated programs of the tests.
#pragma once

#include <filesystem>

#include "gpu/constants.h"
#include "gpu/program_cache.h"

namespace monostep::gpu {

inline constexpr const char* kKernelName = "monostep_step";
inline constexpr int kSharedLimit = 232448;  // bytes a CTA of sm_90 may ask for

// Every text that goes into the program. The standard headers that the sources name are replaced by the few lines of
// them that are used.
Sources program_sources(const program::Layout& layout, const program::Plan& plan, const ProgramSizes& sizes);

CompileOptions program_options();

// The kernel that fills synthetic shards.
inline constexpr const char* kFillKernelName = "monostep_fill";
Sources fill_sources();

// The kernel that reads memory as fast as the machine can (gpu/read_bandwidth.h).
inline constexpr const char* kReadKernelName = "monostep_read";
Sources read_sources();

}  // namespace monostep::gpu
