// The asynchronous part of machine.h: mbarriers, kept in their 8 bytes of shared memory as on the GPU, and bulk copies
// that complete on them some turns after their issue.
#include <fmt/format.h>

#include <cstring>

#include "emulator/machine.h"

namespace monostep::gpu::emulator {

namespace {

// The 8 bytes of an mbarrier. The mark tells it from memory that was never initialised.
struct MbarrierState {
  static constexpr uint32_t kMark = 0xb5;
  static constexpr int kMaxArrivals = (1 << 12) - 1;
  uint64_t mark : 8;
  uint64_t phase : 1;      // parity of the current phase
  uint64_t expected : 12;  // arrivals a phase
  uint64_t pending : 12;   // arrivals that this phase still lacks
  int64_t tx_bytes : 31;   // bytes that this phase still lacks
};
static_assert(sizeof(MbarrierState) == 8);

MbarrierState read(const uint64_t* bar) {
  MbarrierState state;
  std::memcpy(&state, bar, sizeof(state));
  return state;
}

// Begins the next phase when this one lacks nothing.
void write(uint64_t* bar, MbarrierState state) {
  if (state.pending == 0 && state.tx_bytes == 0) {
    state.phase ^= 1;
    state.pending = state.expected;
  }
  std::memcpy(bar, &state, sizeof(state));
}

constexpr int kCopyAlignment = 16;

}  // namespace

void Machine::check_shared(const void* address, int num_bytes, int alignment, const char* what) {
  const Fiber& self = *running.fiber;
  const int64_t offset = static_cast<const char*>(address) - self.warp->cta->shared;
  if (offset < 0 || offset + num_bytes > size_.shared_bytes || offset % alignment != 0) {
    failure_ = fmt::format("{}: {} at shared offset {}, {} bytes: expected inside {} bytes and aligned to {}",
                           place(self), what, offset, num_bytes, size_.shared_bytes, alignment);
    stop();
  }
}

void Machine::check_mbarrier(const uint64_t* bar, const char* what) {
  check_shared(bar, sizeof(*bar), sizeof(*bar), what);
  if (read(bar).mark != MbarrierState::kMark) {
    failure_ = fmt::format("{}: {} on an mbarrier that was not initialised", place(*running.fiber), what);
    stop();
  }
}

void Machine::init_mbarrier(uint64_t* bar, int arrivals) {
  check_shared(bar, sizeof(*bar), sizeof(*bar), "mbarrier_init");
  if (arrivals < 1 || arrivals > MbarrierState::kMaxArrivals) {
    failure_ = fmt::format("{}: mbarrier_init with {} arrivals", place(*running.fiber), arrivals);
    stop();
  }
  MbarrierState state{};
  state.mark = MbarrierState::kMark;
  state.expected = state.pending = static_cast<uint64_t>(arrivals) & 0xfffu;
  write(bar, state);
}

void Machine::arrive_mbarrier(uint64_t* bar) {
  check_mbarrier(bar, "mbarrier_arrive");
  MbarrierState state = read(bar);
  if (state.pending == 0) {
    failure_ = fmt::format("{}: mbarrier_arrive beyond the {} arrivals of the phase", place(*running.fiber),
                           static_cast<int>(state.expected));
    stop();
  }
  --state.pending;
  write(bar, state);
}

bool Machine::try_mbarrier(uint64_t* bar, uint32_t parity) {
  check_mbarrier(bar, "mbarrier_try_wait");
  if (parity > 1) {
    failure_ = fmt::format("{}: mbarrier_try_wait with parity {}", place(*running.fiber), parity);
    stop();
  }
  if (read(bar).phase != parity) return true;
  running.fiber->pause_parity = parity;
  pause(Pause::kMbarrier, bar);
  return read(bar).phase != parity;
}

void Machine::start_copy(const BulkCopy& wanted) {
  check_mbarrier(wanted.mbarrier, "bulk_copy");
  check_shared(wanted.to, wanted.num_bytes, kCopyAlignment, "bulk_copy");
  if (wanted.num_bytes <= 0 || wanted.num_bytes % kCopyAlignment != 0 ||
      reinterpret_cast<uintptr_t>(wanted.from) % kCopyAlignment != 0) {
    failure_ = fmt::format("{}: bulk_copy of {} bytes from {}: expected multiples of {}", place(*running.fiber),
                           wanted.num_bytes, static_cast<const void*>(wanted.from), kCopyAlignment);
    stop();
  }
  MbarrierState state = read(wanted.mbarrier);
  if (state.pending == 0) {
    failure_ = fmt::format("{}: bulk_copy arrives beyond the {} arrivals of the phase", place(*running.fiber),
                           static_cast<int>(state.expected));
    stop();
  }
  state.tx_bytes += wanted.num_bytes;
  --state.pending;
  write(wanted.mbarrier, state);
  std::memset(wanted.to, static_cast<int>(kPoison), static_cast<size_t>(wanted.num_bytes));

  constexpr int kLatestRounds = 2;  // in turns of every warp
  BulkCopy copy = wanted;
  copy.cta = running.fiber->warp->cta;
  copy.due_turn = turns_ + 1 + random_below(kLatestRounds * static_cast<int>(runnable_.size()));
  ++copy.cta->copies_in_flight;
  copies_.push(copy);
}

void Machine::deliver_copies() {
  while (!copies_.empty() && copies_.top().due_turn <= turns_) {
    const BulkCopy copy = copies_.top();
    copies_.pop();
    std::memcpy(copy.to, copy.from, static_cast<size_t>(copy.num_bytes));
    --copy.cta->copies_in_flight;
    MbarrierState state = read(copy.mbarrier);
    if (state.mark != MbarrierState::kMark) {
      failure_ =
          fmt::format("CTA {}: an mbarrier was overwritten while a bulk copy completes on it", copy.cta->cta_idx);
      stop();
    }
    state.tx_bytes -= copy.num_bytes;
    write(copy.mbarrier, state);
  }
}

}  // namespace monostep::gpu::emulator
