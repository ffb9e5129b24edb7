// What a cubin (the compiled device program, an ELF64 file) needs of the machine, kernel by kernel, read without any
// tool: registers, stack, shared memory, code. Reads bytes in memory, which may be hostile. Called by `monostep
// compile`, the tests that hold programs against their bounds, and CudaDevice (parameter sizes).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace monostep::gpu {

struct Cubin {
  std::vector<std::byte> bytes;
};

struct KernelResources {
  std::string name;
  int registers = 0;         // a thread
  int64_t stack_bytes = 0;   // a thread's stack frame; 0 where recursion hides it: see local_stores
  int64_t shared_bytes = 0;  // static shared memory a CTA, without the 1 KiB the system keeps
  int64_t params_bytes = 0;  // of all parameters
  int64_t code_bytes = 0;    // with the functions it calls
  // Instructions that touch the stack, spills included (called functions too). Both 0: no spill and no array in memory.
  int64_t local_stores = 0;
  int64_t local_loads = 0;
};

// All kernels of the cubin in the order of their names. Errors: kCorrupt, naming the offset or section.
Result<std::vector<KernelResources>> read_cubin(std::span<const std::byte> bytes);

}  // namespace monostep::gpu
