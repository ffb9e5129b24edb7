// See run.h.
#include "emulator/run.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>

#include "emulator/machine.h"

namespace monostep::gpu {

Status run_emulated(const EmulatedLaunch& launch, void (*kernel)(const void* params), const void* params) {
  constexpr int kMaxThreads = 1024;
  if (launch.num_ctas < 1 || launch.threads < 1 || launch.threads > kMaxThreads ||
      launch.threads % emulator::kWarpLanes != 0 || launch.shared_bytes < 0 || launch.max_turns < 1) {
    return Error{
        .code = Code::kInvalidArgument,
        .text = fmt::format("{} CTAs of {} threads, {} bytes of shared memory, {} turns: expected whole warps, at "
                            "most {} threads, at least one turn",
                            launch.num_ctas, launch.threads, launch.shared_bytes, launch.max_turns, kMaxThreads),
        .place = "emulated launch"};
  }
  emulator::Machine machine({.num_ctas = launch.num_ctas,
                             .threads = launch.threads,
                             .shared_bytes = launch.shared_bytes,
                             .order_seed = launch.order_seed,
                             .max_turns = launch.max_turns},
                            kernel, params);
  std::optional<std::string> failure = machine.run();
  if (failure) return Error{.code = Code::kDeviceFailed, .text = *std::move(failure), .place = "emulated launch"};
  return {};
}

}  // namespace monostep::gpu
