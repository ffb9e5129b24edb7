// The gate of the persistent kernel (gpu/gate.h).
#include "gpu/gate.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "gpu/compile_program.h"
#include "gpu/device/records.h"
#include "kv/state.h"
#include "weights/pack.h"

namespace monostep::gpu {
namespace {

using program::kBands;

constexpr int kMajor = 9;  // sm_90a, for which the program is compiled
constexpr int kMinor = 0;

int ctas_of(const DeviceInfo& device, const GateOptions& options) {
  return options.num_ctas == 0 ? device.num_sms : options.num_ctas;
}

std::optional<std::string> machine_refusal(const DeviceInfo& device, const GateOptions& options) {
  if (device.compute_major != kMajor || device.compute_minor != kMinor) {
    return fmt::format("compute capability {}.{}; the step program is made for {}.{}", device.compute_major,
                       device.compute_minor, kMajor, kMinor);
  }
  if (ctas_of(device, options) > device.num_sms)
    return fmt::format("{} CTAs; the device has {} multiprocessors", ctas_of(device, options), device.num_sms);
  if (!device.cooperative) return "the device has no cooperative launches";
  return std::nullopt;
}

std::optional<std::string> program_refusal(const DeviceInfo& device, const model::Geometry& geometry,
                                           const GateOptions& options) {
  const Result<model::Shard> shard = model::make_shard(geometry, options.tp);
  if (!shard.ok()) return shard.error().place + ": " + shard.error().text;
  const int limit = std::min(kSharedLimit, device.max_shared_bytes_per_cta);
  for (const int band : kBands) {
    const program::Layout layout(geometry, *shard, program::shape_for(geometry, band, 1, options.max_context));
    const program::Plan plan(layout, ctas_of(device, options));
    const Result<ProgramSizes> sizes = program_sizes(layout, plan, limit);
    if (!sizes.ok()) return sizes.error().text;
  }
  return std::nullopt;
}

std::optional<std::string> memory_refusal(const DeviceInfo& device, const model::Geometry& geometry,
                                          const GateOptions& options) {
  const Result<RankMemory> need = rank_memory(geometry, options, ctas_of(device, options));
  if (!need.ok()) return need.error().text;
  if (need->total() <= device.free_bytes) return std::nullopt;
  return fmt::format("{} bytes of device memory are free; weights take {}, pools {}, regions {}", device.free_bytes,
                     need->weights, need->pools, need->arenas);
}

}  // namespace

Result<Mono> parse_mono(std::string_view text) {
  if (text == "auto") return Mono::kAuto;
  if (text == "on") return Mono::kOn;
  if (text == "off") return Mono::kOff;
  return Error{Code::kInvalidArgument, fmt::format("expected auto, on or off, found \"{}\"", text), "--mono"};
}

Result<RankMemory> rank_memory(const model::Geometry& geometry, const GateOptions& options, int num_ctas) {
  TRY_ASSIGN(const model::Shard shard, model::make_shard(geometry, options.tp));
  RankMemory memory;
  for (const int band : kBands) {
    const program::Layout layout(geometry, shard, program::shape_for(geometry, band, 1, options.max_context));
    memory.arenas += program::Plan(layout, num_ctas).arena_bytes();
    if (band == kBands.front()) memory.weights = weights::packed_bytes(weights::packed_runs(layout));  // of any band
  }
  const int64_t embedded = int64_t{geometry.hidden_size} + geometry.dspark_markov_rank;
  memory.weights += geometry.vocab_size * embedded * static_cast<int64_t>(sizeof(uint16_t));
  memory.pools = options.num_pages * kv::PageLayout(geometry).page_bytes() +
                 options.num_slots * kv::SlotLayout(geometry).slot_bytes();
  return memory;
}

std::optional<std::string> mono_refusal(const DeviceInfo& device, const model::Geometry& geometry,
                                        const GateOptions& options) {
  if (auto reason = machine_refusal(device, options)) return reason;
  if (auto reason = program_refusal(device, geometry, options)) return reason;
  return memory_refusal(device, geometry, options);
}

Result<MonoChoice> choose_mono(Mono mono, const DeviceInfo& device, const model::Geometry& geometry,
                               const GateOptions& options) {
  if (mono == Mono::kOff) return MonoChoice{};
  std::optional<std::string> reason = mono_refusal(device, geometry, options);
  if (!reason) return MonoChoice{true, {}};
  if (mono == Mono::kOn) return Error{Code::kUnavailable, std::move(*reason), "--mono on"};
  return MonoChoice{false, std::move(*reason)};
}

}  // namespace monostep::gpu
