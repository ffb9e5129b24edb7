// See device.h.
#include "emulator/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace monostep::gpu {

namespace {

constexpr int64_t kAlignment = 256;
constexpr int64_t kGuardBytes = 256;
constexpr std::byte kGuard{0xa7};
constexpr std::byte kNotCleared{0xee};

Error refusal(Code code, std::string text) {
  return {.code = code, .text = std::move(text), .place = "emulated device"};
}

}  // namespace

Result<DeviceInfo> EmulatedDevice::info() {
  return DeviceInfo{.name = "emulated",
                    .num_sms = options_.num_sms,
                    .compute_major = 9,
                    .compute_minor = 0,
                    .total_bytes = options_.total_bytes,
                    .free_bytes = options_.total_bytes - used_bytes_,
                    .max_shared_bytes_per_cta = options_.max_shared_bytes_per_cta,
                    .cooperative = true,
                    .l2_bytes = 50 << 20};
}

// ---- memory

Result<DevicePtr> EmulatedDevice::allocate(int64_t num_bytes) { return take(num_bytes, false); }
void EmulatedDevice::free(DevicePtr memory) { give_back(memory, false); }

Result<MappedMemory> EmulatedDevice::allocate_mapped(int64_t num_bytes) {
  TRY_ASSIGN(const DevicePtr memory, take(num_bytes, true));
  return MappedMemory{.host = reinterpret_cast<std::byte*>(memory), .device = memory, .num_bytes = num_bytes};
}
void EmulatedDevice::free_mapped(const MappedMemory& memory) { give_back(memory.device, true); }

Result<DevicePtr> EmulatedDevice::take(int64_t num_bytes, bool mapped) {
  if (num_bytes <= 0) return refusal(Code::kInvalidArgument, fmt::format("allocation of {} bytes", num_bytes));
  if (!mapped && num_bytes > options_.total_bytes - used_bytes_) {
    return refusal(Code::kExhausted,
                   fmt::format("{} bytes asked for, {} free", num_bytes, options_.total_bytes - used_bytes_));
  }
  Memory memory{.bytes = std::make_unique_for_overwrite<std::byte[]>(
                    static_cast<size_t>(num_bytes + 2 * kGuardBytes + kAlignment)),
                .num_bytes = num_bytes,
                .mapped = mapped};
  const auto first = reinterpret_cast<DevicePtr>(memory.bytes.get()) + kGuardBytes;
  const DevicePtr address = (first + kAlignment - 1) / kAlignment * kAlignment;
  auto* bytes = reinterpret_cast<std::byte*>(address);
  std::fill_n(bytes - kGuardBytes, kGuardBytes, kGuard);
  std::fill_n(bytes, num_bytes, kNotCleared);
  std::fill_n(bytes + num_bytes, kGuardBytes, kGuard);
  if (!mapped) used_bytes_ += num_bytes;
  memories_.emplace(address, std::move(memory));
  return address;
}

void EmulatedDevice::give_back(DevicePtr address, bool mapped) {
  const auto found = memories_.find(address);
  CHECK(found != memories_.end() && found->second.mapped == mapped, "freed memory that was not allocated here");
  const int64_t num_bytes = found->second.num_bytes;
  const auto* bytes = reinterpret_cast<const std::byte*>(address);
  const auto intact = [](std::byte value) { return value == kGuard; };
  const bool below = std::all_of(bytes - kGuardBytes, bytes, intact);
  const bool above = std::all_of(bytes + num_bytes, bytes + num_bytes + kGuardBytes, intact);
  if (!below || !above) {
    const auto status = fail(refusal(Code::kDeviceFailed, fmt::format("something wrote {} an allocation of {} bytes",
                                                                      below ? "above" : "below", num_bytes)));
    static_cast<void>(status);  // reported by idle()
  }
  if (!mapped) used_bytes_ -= num_bytes;
  memories_.erase(found);
}

Status EmulatedDevice::check_range(DevicePtr memory, int64_t num_bytes, const char* what) const {
  if (failure_) return *failure_;
  if (capturing_) return refusal(Code::kInvalidArgument, fmt::format("{} while a graph is captured", what));
  auto found = memories_.upper_bound(memory);
  if (found != memories_.begin() && num_bytes >= 0) {
    --found;
    if (memory + static_cast<uint64_t>(num_bytes) <= found->first + static_cast<uint64_t>(found->second.num_bytes)) {
      return {};
    }
  }
  return refusal(Code::kInvalidArgument,
                 fmt::format("{} of {} bytes at {:#x}: not inside an allocation", what, num_bytes, memory));
}

Status EmulatedDevice::upload(DevicePtr to, const void* from, int64_t num_bytes) {
  TRY(check_range(to, num_bytes, "upload"));
  if (num_bytes > 0) std::memcpy(reinterpret_cast<void*>(to), from, static_cast<size_t>(num_bytes));
  return {};
}

Status EmulatedDevice::upload_later(DevicePtr to, const std::byte* from, int64_t num_bytes) {
  const auto at = reinterpret_cast<DevicePtr>(from);
  auto found = memories_.upper_bound(at);
  const bool inside =
      found != memories_.begin() && (--found)->second.mapped &&
      at + static_cast<uint64_t>(num_bytes) <= found->first + static_cast<uint64_t>(found->second.num_bytes);
  CHECK(inside, "a later upload from memory that is not mapped");
  return EmulatedDevice::upload(to, from, num_bytes);
}

Status EmulatedDevice::download(void* to, DevicePtr from, int64_t num_bytes) {
  TRY(check_range(from, num_bytes, "download"));
  if (num_bytes > 0) std::memcpy(to, reinterpret_cast<const void*>(from), static_cast<size_t>(num_bytes));
  return {};
}

Status EmulatedDevice::fill(DevicePtr to, uint8_t value, int64_t num_bytes) {
  TRY(check_range(to, num_bytes, "fill"));
  std::fill_n(reinterpret_cast<std::byte*>(to), num_bytes, std::byte{value});
  return {};
}

// ---- kernels

Result<Kernel> EmulatedDevice::load(std::span<const std::byte>, const char* name) {
  const auto found = functions_.find(name);
  if (found == functions_.end()) return refusal(Code::kNotFound, fmt::format("no kernel \"{}\"", name));
  kernels_.push_back(found->second);
  return Kernel{.handle = kernels_.size()};
}

Status EmulatedDevice::launch(Kernel kernel, const Launch& launch) {
  if (failure_) return *failure_;
  CHECK(kernel.handle > 0 && kernel.handle <= kernels_.size(), "launch of a kernel that was not loaded");
  if (launch.shared_bytes > options_.max_shared_bytes_per_cta) {
    return refusal(Code::kInvalidArgument, fmt::format("{} bytes of shared memory a CTA, {} possible",
                                                       launch.shared_bytes, options_.max_shared_bytes_per_cta));
  }
  if (launch.cooperative && launch.num_ctas > options_.num_sms) {
    return refusal(Code::kInvalidArgument,
                   fmt::format("{} CTAs cannot be resident on {} SMs", launch.num_ctas, options_.num_sms));
  }
  const auto* params = static_cast<const std::byte*>(launch.params);
  KeptLaunch kept{.function = kernels_[kernel.handle - 1], .launch = launch, .params = {}};
  kept.params.assign(params, params + launch.params_bytes);
  if (!capturing_) return run(kept);
  graphs_.back().push_back(std::move(kept));
  return {};
}

Status EmulatedDevice::run(const KeptLaunch& kept) {
  const Status status = run_emulated({.num_ctas = kept.launch.num_ctas,
                                      .threads = kept.launch.threads,
                                      .shared_bytes = kept.launch.shared_bytes,
                                      .order_seed = options_.order_seed,
                                      .max_turns = options_.max_turns},
                                     kept.function, kept.params.data());
  if (options_.order_seed != 0) ++options_.order_seed;
  return status.ok() ? status : fail(status.error());
}

Status EmulatedDevice::fail(Error error) {
  if (!failure_) failure_ = std::move(error);
  return *failure_;
}

void EmulatedDevice::abandon(Error why) {
  capturing_ = false;
  if (!failure_) failure_ = std::move(why);
}

Status EmulatedDevice::synchronize() {
  if (failure_) return *failure_;
  return {};
}

Result<bool> EmulatedDevice::idle() {
  if (failure_) return *failure_;
  return true;
}

Status EmulatedDevice::record(int event_idx) {
  CHECK(event_idx >= 0 && event_idx < kMaxEvents, "an event index out of range");
  events_[event_idx] = std::chrono::steady_clock::now();
  return {};
}

Result<float> EmulatedDevice::elapsed_ms(int begin_event_idx, int end_event_idx) {
  const auto begin = events_.find(begin_event_idx), end = events_.find(end_event_idx);
  if (begin == events_.end() || end == events_.end()) {
    return refusal(Code::kInvalidArgument,
                   fmt::format("events {} and {} were not both recorded", begin_event_idx, end_event_idx));
  }
  return std::chrono::duration<float, std::milli>(end->second - begin->second).count();
}

Status EmulatedDevice::begin_capture() {
  if (capturing_) return refusal(Code::kInvalidArgument, "a graph is already captured");
  capturing_ = true;
  graphs_.emplace_back();
  return {};
}

Result<Graph> EmulatedDevice::end_capture() {
  if (!capturing_) return refusal(Code::kInvalidArgument, "no graph is captured");
  capturing_ = false;
  return Graph{.handle = graphs_.size()};
}

Status EmulatedDevice::launch(Graph graph) {
  if (failure_) return *failure_;
  CHECK(graph.handle > 0 && graph.handle <= graphs_.size(), "launch of a graph that was not captured");
  if (capturing_) return refusal(Code::kInvalidArgument, "launch of a graph while a graph is captured");
  for (const KeptLaunch& kept : graphs_[graph.handle - 1]) TRY(run(kept));
  return {};
}

}  // namespace monostep::gpu
