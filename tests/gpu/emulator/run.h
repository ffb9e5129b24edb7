// Runs a device kernel on the emulator: every thread of every CTA is a fiber of the calling OS thread. Called by the
// tests of device sources and by EmulatedDevice.
#pragma once

#include <cstdint>

#include "base/result.h"

namespace monostep::gpu {

struct EmulatedLaunch {
  int num_ctas = 1;
  int threads = 32;                 // a CTA, a multiple of 32
  int shared_bytes = 0;             // a CTA
  uint64_t order_seed = 0;          // 0: round robin; else pseudo-random order with delays of whole CTAs
  int64_t max_turns = 100'000'000;  // turns of warps
};

// Errors: a kernel that breaks a rule of the machine, cannot proceed, or is not done after max_turns; the text says
// which lane did it and what the other warps wait for.
Status run_emulated(const EmulatedLaunch& launch, void (*kernel)(const void* params), const void* params);

}  // namespace monostep::gpu
