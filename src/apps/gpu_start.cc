// Opening a GPU (apps/gpu_start.h).
#include "apps/gpu_start.h"

#include <fmt/format.h>

#include <cstdio>
#include <utility>

#include "gpu/kernel_maker.h"
#include "gpu/program_cache.h"

namespace monostep::apps {

Result<std::unique_ptr<gpu::CudaDevice>> open_gpu() {
  Result<std::unique_ptr<gpu::CudaDevice>> device = gpu::CudaDevice::open(0);
  if (device.ok()) return device;
  return Error{Code::kUnavailable, "no usable device: " + device.error().text, "--backend gpu"};
}

gpu::KernelMaker program_maker(std::function<void(const gpu::MadeProgram&)> on_program) {
  return gpu::cuda_maker(
      gpu::default_cache_dir(), [on_program = std::move(on_program)](const gpu::MadeProgram& program) {
        if (!program.from_cache)
          fmt::print(stderr, "compiled the device program of {} rows in {:.1f} s\n", program.band, program.seconds);
        if (!program.warning.empty()) fmt::print(stderr, "{}\n", program.warning);
        if (on_program) on_program(program);
      });
}

std::filesystem::path packed_cache_dir(const std::string& option) {
  if (option == "off") return {};
  if (!option.empty()) return option;
  const std::filesystem::path programs = gpu::default_cache_dir();
  return programs.empty() ? programs : programs / "packed";
}

}  // namespace monostep::apps
