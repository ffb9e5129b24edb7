// Whether the persistent kernel serves (`--mono auto|on|off`): decided from the settled configuration and the device's
// properties alone, before anything is allocated or compiled, so that a refused start leaves memory as `off` does. No
// device calls. Called where a GPU backend is made.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "gpu/device_api.h"
#include "model/geometry.h"

namespace monostep::gpu {

enum class Mono {
  kAuto,  // the persistent kernel, or one launch a stage where it is refused
  kOn,    // the persistent kernel, or an error
  kOff,   // one launch a stage
};
// Errors: kInvalidArgument, with what is expected.
Result<Mono> parse_mono(std::string_view text);

struct GateOptions {
  int tp = 1;
  int num_ctas = 0;  // 0: one a multiprocessor
  int num_pages = 64;
  int num_slots = 8;
  int max_context = 8192;
};

// Bytes of device memory that a rank takes, by class.
struct RankMemory {
  int64_t weights = 0;  // packed, and the embeddings
  int64_t pools = 0;    // pages and slots
  int64_t arenas = 0;   // regions of all bands
  int64_t total() const { return weights + pools + arenas; }
};
// Errors: kInvalidArgument, where the TP size does not divide the geometry.
Result<RankMemory> rank_memory(const model::Geometry& geometry, const GateOptions& options, int num_ctas);

// The first reason why the persistent kernel cannot serve; none if it can.
std::optional<std::string> mono_refusal(const DeviceInfo& device, const model::Geometry& geometry,
                                        const GateOptions& options);

struct MonoChoice {
  bool persistent = false;
  std::string reason;  // for the log: why `auto` did not take it; empty otherwise
};
// Errors: kUnavailable, the reason of a refusal under `on`.
Result<MonoChoice> choose_mono(Mono mono, const DeviceInfo& device, const model::Geometry& geometry,
                               const GateOptions& options);

}  // namespace monostep::gpu
