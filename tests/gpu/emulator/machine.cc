// See machine.h. A warp has its turn until each of its ready lanes has met something to wait for; then the next
// runnable warp has one: in round robin, or with a seed at random, with CTAs that stand still for a while.
#include "emulator/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace monostep::gpu::emulator {

constinit thread_local Running running;

namespace {

constexpr int kSharedAlignment = 128;
constexpr int kGuardBytes = 256;  // before and after each CTA's shared memory; a multiple of kSharedAlignment
constexpr std::byte kGuard{0xa7};
constexpr int kMaxReported = 8;

int64_t shared_stride(int shared_bytes) {
  return (shared_bytes + kSharedAlignment - 1) / kSharedAlignment * kSharedAlignment + 2 * kGuardBytes;
}

StackPool& stack_pool() {
  thread_local StackPool pool;
  return pool;
}

}  // namespace

const char* collective_name(Collective collective) {
  constexpr const char* kNames[] = {"warp_sync",
                                    "bar_sync",
                                    "bar_sync_or",
                                    "shuffle_xor(uint32_t)",
                                    "shuffle_xor(int)",
                                    "shuffle_xor(float)",
                                    "shuffle_xor(double)",
                                    "shuffle(uint32_t)",
                                    "shuffle(int)",
                                    "shuffle(float)",
                                    "shuffle(double)",
                                    "shuffle_up(uint32_t)",
                                    "shuffle_up(double)",
                                    "ballot",
                                    "mma_f16",
                                    "mma_bf16"};
  return kNames[static_cast<int>(collective)];
}

Machine::Machine(const MachineSize& size, void (*kernel)(const void*), const void* params)
    : size_(size), kernel_(kernel), params_(params), warps_per_cta_(size.threads / kWarpLanes) {
  random_state_ = (size.order_seed + 1) * 0x9e3779b97f4a7c15u;
  const int num_warps = size.num_ctas * warps_per_cta_;
  const int64_t stride = shared_stride(size.shared_bytes);
  shared_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(stride * size.num_ctas + kSharedAlignment));
  void* shared = shared_.get();
  size_t space = static_cast<size_t>(stride * size.num_ctas + kSharedAlignment);
  std::align(kSharedAlignment, static_cast<size_t>(stride * size.num_ctas), shared, space);
  std::memset(shared, static_cast<int>(kGuard), static_cast<size_t>(stride * size.num_ctas));

  ctas_ = std::vector<Cta>(static_cast<size_t>(size.num_ctas));
  for (int cta_idx = 0; cta_idx < size.num_ctas; ++cta_idx) {
    Cta& cta = ctas_[cta_idx];
    cta.cta_idx = cta_idx;
    cta.live_warps = warps_per_cta_;
    cta.shared = static_cast<char*>(shared) + stride * cta_idx + kGuardBytes;
    std::memset(cta.shared, static_cast<int>(kPoison), static_cast<size_t>(size.shared_bytes));
  }
  stack_pool().reserve(num_warps * kWarpLanes);
  fibers_ = std::vector<Fiber>(static_cast<size_t>(num_warps) * kWarpLanes);
  warps_ = std::vector<Warp>(static_cast<size_t>(num_warps));
  for (int warp_idx = 0; warp_idx < num_warps; ++warp_idx) {
    Warp& warp = warps_[warp_idx];
    warp.cta = &ctas_[warp_idx / warps_per_cta_];
    warp.lanes = &fibers_[static_cast<size_t>(warp_idx) * kWarpLanes];
    add_runnable(warp);
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      Fiber& fiber = warp.lanes[lane];
      fiber.warp = &warp;
      fiber.lane = lane;
      fiber.thread_idx = warp_idx % warps_per_cta_ * kWarpLanes + lane;
      const int stack_idx = warp_idx * kWarpLanes + lane;
      make_context(fiber.context, stack_pool().bottom(stack_idx), StackPool::usable_bytes(stack_idx), fiber_entry);
    }
  }
  live_warps_ = num_warps;
}

std::optional<std::string> Machine::run() {
  CHECK(running.machine == nullptr, "one launch at a time on an OS thread");
  running = {.machine = this, .accesses_left = kAccessesPerPause};
  Fiber& first = next_fiber(next_warp());
  running.fiber = &first;
  switch_context(main_, first.context);
  running = {};
  if (!failure_) check_guards();
  return std::move(failure_);
}

void Machine::fiber_entry() {
  enter_context(running.machine->main_);
  running.machine->kernel_(running.machine->params_);
  running.machine->exit_fiber();
}

// ---- turns

void Machine::exit_fiber() {
  Fiber& self = *running.fiber;
  Warp& warp = *self.warp;
  if (warp.arrived != 0) {
    failure_ =
        fmt::format("{} exits while other lanes of its warp wait in {}", place(self), collective_name(warp.collective));
    stop();
  }
  warp.exited |= 1u << self.lane;
  warp.ready &= ~(1u << self.lane);
  if (warp.exited == kAllLanes) {
    remove_runnable(warp);
    if (--warp.cta->live_warps == 0 && warp.cta->copies_in_flight != 0) {
      failure_ =
          fmt::format("CTA {} ends with {} bulk copies in flight", warp.cta->cta_idx, warp.cta->copies_in_flight);
      stop();
    }
    if (--live_warps_ == 0) switch_context(self.context, main_);
  }
  leave(self);
  std::abort();  // nobody switches to an exited fiber
}

// Gives the OS thread to the next fiber; returns when it is this one's turn again.
void Machine::leave(Fiber& self) {
  Fiber& next = next_fiber(*self.warp);
  if (&next == &self) return;
  running.fiber = &next;
  switch_context(self.context, next.context);
}

Fiber& Machine::next_fiber(Warp& current) {
  Warp& warp = current.turn != 0 ? current : next_warp();
  const int lane = warp.highest_first ? 31 - std::countl_zero(warp.turn) : std::countr_zero(warp.turn);
  warp.turn &= ~(1u << lane);
  return warp.lanes[lane];
}

Warp& Machine::next_warp() {
  if (runnable_.empty()) {
    failure_ = fmt::format("nothing can proceed: {}", waiting_warps());
    stop();
  }
  if (++turns_ > size_.max_turns) {
    failure_ = fmt::format("not done after {} turns: {}", size_.max_turns, waiting_warps());
    stop();
  }
  if (!copies_.empty()) deliver_copies();
  const int num_runnable = static_cast<int>(runnable_.size());
  Warp* next = nullptr;
  if (size_.order_seed == 0) {
    if (++cursor_ >= num_runnable) cursor_ = 0;
    next = runnable_[cursor_];
  } else {
    constexpr int kTries = 4;  // if all CTAs are delayed, one of them runs
    for (int try_idx = 0; try_idx < kTries; ++try_idx) {
      next = runnable_[random_below(num_runnable)];
      if (next->cta->resume_turn <= turns_) break;
    }
    constexpr int kTurnsPerDelay = 256, kLongestDelay = 16;  // the latter in turns of every warp
    if (random_below(kTurnsPerDelay) == 0) next->cta->resume_turn = turns_ + random_below(kLongestDelay * num_runnable);
  }
  begin_turn(*next, next->ready);
  return *next;
}

void Machine::begin_turn(Warp& warp, uint32_t lanes) {
  warp.turn = lanes;
  if (size_.order_seed != 0) warp.highest_first = (random() >> 63) != 0;
}

void Machine::add_runnable(Warp& warp) {
  warp.runnable_idx = static_cast<int>(runnable_.size());
  runnable_.push_back(&warp);
}

void Machine::remove_runnable(Warp& warp) {
  runnable_[warp.runnable_idx] = runnable_.back();
  runnable_[warp.runnable_idx]->runnable_idx = warp.runnable_idx;
  runnable_.pop_back();
  warp.runnable_idx = -1;
}

void Machine::pause(Pause why, const void* address) {
  running.accesses_left = size_.order_seed == 0 ? kAccessesPerPause : 1 + random_below(2 * kAccessesPerPause);
  Fiber& self = *running.fiber;
  self.pause = why;
  self.pause_address = address;
  leave(self);
}

void Machine::fail(const char* text) {
  failure_ = text;
  stop();
}

// Nothing that owns memory may be alive on the stack of the fiber: it is never gone back to.
void Machine::stop() {
  CHECK(running.fiber != nullptr, "a failure before the first fiber runs");
  switch_context(running.fiber->context, main_);
  std::abort();  // nobody switches back
}

uint64_t Machine::random() {
  random_state_ ^= random_state_ << 13;
  random_state_ ^= random_state_ >> 7;
  random_state_ ^= random_state_ << 17;
  return random_state_ * 0x2545f4914f6cdd1du;
}

// ---- collectives

int Machine::rendezvous(Collective collective, uint64_t operand) {
  Fiber& self = *running.fiber;
  Warp& warp = *self.warp;
  if (warp.exited != 0 || (warp.arrived != 0 && warp.collective != collective)) check_arrival(warp, collective);
  const int parity = static_cast<int>(warp.round & 1u);
  const uint32_t bit = 1u << self.lane;
  warp.collective = collective;
  warp.operand[parity][self.lane] = operand;
  warp.arrived |= bit;
  if (warp.arrived != kAllLanes) {
    warp.ready &= ~bit;
    leave(self);
    return parity;
  }
  if (collective >= Collective::kMmaF16) multiply(warp, collective == Collective::kMmaBf16);
  complete(warp, bit);
  // A warp that only meets itself still lets others run.
  constexpr uint32_t kRoundsPerTurn = 16;
  if (warp.round % kRoundsPerTurn == 0) {
    warp.turn = 0;
    leave(self);
  }
  return parity;
}

// All lanes of the warp go on; `running_lane` (its bit, or 0) already does.
void Machine::complete(Warp& warp, uint32_t running_lane) {
  warp.arrived = 0;
  warp.ready = kAllLanes;
  ++warp.round;
  begin_turn(warp, kAllLanes & ~running_lane);
}

void Machine::check_arrival(const Warp& warp, Collective collective) {
  const Fiber& self = *running.fiber;
  if (warp.exited != 0) {
    failure_ = fmt::format("{} calls {} after {} lanes of its warp have exited", place(self),
                           collective_name(collective), std::popcount(warp.exited));
    stop();
  }
  failure_ = fmt::format("{} calls {} while lanes {:#010x} of its warp are in {}", place(self),
                         collective_name(collective), warp.arrived, collective_name(warp.collective));
  stop();
}

bool Machine::bar_sync(Collective collective, const BarrierUse& use, bool predicate) {
  Fiber& self = *running.fiber;
  Warp& warp = *self.warp;
  if (warp.exited != 0 || (warp.arrived != 0 && warp.collective != collective)) check_arrival(warp, collective);
  if (warp.arrived != 0 && warp.bar_use != use) {
    failure_ = fmt::format("{} calls bar_sync({}, {}) while lanes {:#010x} of its warp are in bar_sync({}, {})",
                           place(self), use.id, use.threads, warp.arrived, warp.bar_use.id, warp.bar_use.threads);
    stop();
  }
  warp.bar_predicate = predicate || (warp.arrived != 0 && warp.bar_predicate);
  warp.collective = collective;
  warp.bar_use = use;
  warp.arrived |= 1u << self.lane;
  warp.ready &= ~(1u << self.lane);
  if (warp.arrived == kAllLanes) {
    arrive_barrier(self);
  } else {
    leave(self);
  }
  return warp.bar_result;
}

// The whole warp of `self` has arrived.
void Machine::arrive_barrier(Fiber& self) {
  Warp& warp = *self.warp;
  const auto [id, threads] = warp.bar_use;
  if (id < 0 || id >= kNumBarriers || threads <= 0 || threads % kWarpLanes != 0 || threads > size_.threads) {
    failure_ = fmt::format(
        "{} calls bar_sync({}, {}): expected an id of 0..15 and a multiple of 32 up to the CTA's {} threads",
        place(self), id, threads, size_.threads);
    stop();
  }
  Barrier& barrier = warp.cta->barriers[id];
  if (barrier.waiting.empty()) {
    barrier.collective = warp.collective;
    barrier.threads = threads;
    barrier.predicate = false;
  }
  check_barrier(self, barrier);
  barrier.predicate |= warp.bar_predicate;
  if (static_cast<int>(barrier.waiting.size() + 1) * kWarpLanes < threads) {
    barrier.waiting.push_back(&warp);
    warp.barrier = id;
    remove_runnable(warp);
    leave(self);
    return;
  }
  for (Warp* other : barrier.waiting) {
    other->barrier = -1;
    other->bar_result = barrier.predicate;
    complete(*other, 0);
    other->turn = 0;  // until its turn comes
    add_runnable(*other);
  }
  barrier.waiting.clear();
  warp.bar_result = barrier.predicate;
  complete(warp, 1u << self.lane);
}

void Machine::check_barrier(const Fiber& self, const Barrier& barrier) {
  const Warp& warp = *self.warp;
  if (barrier.threads == warp.bar_use.threads && barrier.collective == warp.collective) return;
  failure_ = fmt::format("{} calls {}({}, {}) where others wait in {} for {} threads", place(self),
                         collective_name(warp.collective), warp.bar_use.id, warp.bar_use.threads,
                         collective_name(barrier.collective), barrier.threads);
  stop();
}

// ---- reports

std::string Machine::place(const Fiber& fiber) const {
  return fmt::format("CTA {} warp {} lane {}", fiber.warp->cta->cta_idx, fiber.thread_idx / kWarpLanes, fiber.lane);
}

namespace {

std::string paused_at(const Fiber& fiber, int shared_bytes) {
  constexpr const char* kNames[] = {"runs",     "load_relaxed", "store_relaxed", "atomic_cas",
                                    "mbarrier", "sleep",        "clock"};
  std::string text = fmt::format("lane {} {}", fiber.lane, kNames[static_cast<int>(fiber.pause)]);
  if (fiber.pause_address == nullptr) return text;
  const int64_t offset = static_cast<const char*>(fiber.pause_address) - fiber.warp->cta->shared;
  text += offset >= 0 && offset < shared_bytes ? fmt::format(" of shared+{:#x}", offset)
                                               : fmt::format(" of {}", fiber.pause_address);
  if (fiber.pause == Pause::kMbarrier) text += fmt::format(" parity {}", fiber.pause_parity);
  return text;
}

std::string warp_state(const Warp& warp, int shared_bytes) {
  if (warp.barrier >= 0) {
    const Barrier& barrier = warp.cta->barriers[warp.barrier];
    return fmt::format("{}({}, {}), {} threads there", collective_name(barrier.collective), warp.barrier,
                       barrier.threads, barrier.waiting.size() * kWarpLanes);
  }
  std::string text;
  if (warp.arrived != 0) {
    text = fmt::format("{} lanes in {}", std::popcount(warp.arrived), collective_name(warp.collective));
  }
  if (warp.ready != 0) {
    text += text.empty() ? "" : ", ";
    text += paused_at(warp.lanes[std::countr_zero(warp.ready)], shared_bytes);
    if (std::popcount(warp.ready) > 1) text += fmt::format(" and {} more lanes", std::popcount(warp.ready) - 1);
  }
  return text;
}

}  // namespace

std::string Machine::waiting_warps() const {
  std::string text = fmt::format("{} warps wait", live_warps_);
  int num_reported = 0;
  for (const Warp& warp : warps_) {
    if (warp.exited == kAllLanes) continue;
    if (num_reported++ == kMaxReported) break;
    text += fmt::format("; CTA {} warp {}: {}", warp.cta->cta_idx, warp.lanes[0].thread_idx / kWarpLanes,
                        warp_state(warp, size_.shared_bytes));
  }
  return text;
}

void Machine::check_guards() {
  const int64_t above_bytes = shared_stride(size_.shared_bytes) - kGuardBytes - size_.shared_bytes;
  for (const Cta& cta : ctas_) {
    const auto* shared = reinterpret_cast<const std::byte*>(cta.shared);
    const auto intact = [](std::byte value) { return value == kGuard; };
    const bool below = std::all_of(shared - kGuardBytes, shared, intact);
    const bool above = std::all_of(shared + size_.shared_bytes, shared + size_.shared_bytes + above_bytes, intact);
    if (below && above) continue;
    failure_ = fmt::format("CTA {} wrote {} its {} bytes of shared memory", cta.cta_idx, below ? "above" : "below",
                           size_.shared_bytes);
    return;
  }
}

}  // namespace monostep::gpu::emulator
