// Kernels for CUDA devices (gpu/kernel_maker.h).
#include "gpu/kernel_maker.h"

#include <fmt/format.h>

#include <chrono>

#include "gpu/compile_program.h"

namespace monostep::gpu {
namespace {

constexpr int kComputeMajor = 9;
constexpr int kComputeMinor = 0;

Status check_device(Device& device) {
  TRY_ASSIGN(const DeviceInfo info, device.info());
  if (info.compute_major == kComputeMajor && info.compute_minor == kComputeMinor) return {};
  return Error{Code::kUnavailable,
               fmt::format("compute capability {}.{}, but the device programs are for {}.{}", info.compute_major,
                           info.compute_minor, kComputeMajor, kComputeMinor),
               info.name};
}

}  // namespace

KernelMaker cuda_maker(std::filesystem::path cache_dir, std::function<void(const MadeProgram&)> on_program) {
  return [cache_dir = std::move(cache_dir), on_program = std::move(on_program)](
             Device& device, const program::Layout& layout, const program::Plan& plan,
             const ProgramSizes& sizes) -> Result<Kernel> {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point start = Clock::now();
    TRY(check_device(device));
    TRY_ASSIGN(const CachedCubin made,
               cached_compile(program_sources(layout, plan, sizes), program_options(), cache_dir));
    on_program({layout.shape().band, made.from_cache, std::chrono::duration<double>(Clock::now() - start).count(),
                made.warning, static_cast<int64_t>(made.cubin.bytes.size())});
    return device.load(made.cubin.bytes, kKernelName);
  };
}

}  // namespace monostep::gpu
