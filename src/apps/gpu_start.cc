// Opening a GPU (apps/gpu_start.h).
#include "apps/gpu_start.h"

#include <fmt/format.h>

#include <cstdio>

#include "gpu/kernel_maker.h"
#include "gpu/program_cache.h"

namespace monostep::apps {

Result<std::unique_ptr<gpu::CudaDevice>> open_gpu() {
  Result<std::unique_ptr<gpu::CudaDevice>> device = gpu::CudaDevice::open(0);
  if (device.ok()) return device;
  return Error{Code::kUnavailable, "no usable device: " + device.error().text, "--backend gpu"};
}

gpu::KernelMaker program_maker() {
  return gpu::cuda_maker(gpu::default_cache_dir(), [](const gpu::MadeProgram& program) {
    if (!program.from_cache)
      fmt::print(stderr, "compiled the device program of {} rows in {:.1f} s\n", program.band, program.seconds);
    if (!program.warning.empty()) fmt::print(stderr, "{}\n", program.warning);
  });
}

}  // namespace monostep::apps
