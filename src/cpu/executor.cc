// Walks a program over simulated CTAs (cpu/executor.h).
#include "cpu/executor.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "base/check.h"
#include "cpu/stages.h"

namespace monostep::cpu {
namespace {

using program::Stage;

// A CTA that waits this long has met a fault: no step takes minutes.
constexpr auto kPatience = std::chrono::seconds(300);

template <Stage S>
void run_one(Machine& machine, const CtaCall& where, std::span<const int> tasks) {
  StageContext<S> context(machine, where, tasks);
  run_stage(context);
}

using StageFunction = void (*)(Machine&, const CtaCall&, std::span<const int>);

template <size_t... Indices>
constexpr std::array<StageFunction, sizeof...(Indices)> stage_functions(std::index_sequence<Indices...>) {
  return {&run_one<static_cast<Stage>(Indices)>...};
}
constexpr auto kStageFunctions = stage_functions(std::make_index_sequence<program::kNumStages>{});

std::string describe(const Machine& machine, const Wait& wait, uint32_t seen) {
  return "no progress: " + call_name(machine.program(), wait.call_idx) + " on rank " + std::to_string(wait.rank) +
         " CTA " + std::to_string(wait.cta) + " waits for " + region_name(wait.region) + " granule " +
         std::to_string(wait.granule) + ", wanted tag " + std::to_string(wait.wanted) + ", seen tag " +
         std::to_string(seen);
}

// Every CTA is a thread; a wait spins, then sleeps. Yielding instead would hand whole time slices to other programs of
// a busy machine, while a thread that wakes from sleep is soon run again.
constexpr auto kSpin = std::chrono::microseconds(500);
constexpr auto kSleep = std::chrono::microseconds(20);

class SpinWaiter : public Waiter {
 public:
  explicit SpinWaiter(Machine& machine) : machine_(machine) {}

  bool wait(const std::atomic<uint32_t>& tag, const Wait& wait) override {
    if (spin(tag, wait.wanted)) return true;
    const auto begin = std::chrono::steady_clock::now();
    while (!spin(tag, wait.wanted)) {
      if (machine_.aborted.load(std::memory_order_relaxed)) return false;
      const auto spent = std::chrono::steady_clock::now() - begin;
      if (spent > kPatience) give_up(wait, tag.load());
      if (spent > kSpin) std::this_thread::sleep_for(kSleep);
    }
    return true;
  }

 private:
  static bool spin(const std::atomic<uint32_t>& tag, uint32_t wanted) {
    for (int look = 0; look < 256; ++look) {
      if (tag.load(std::memory_order_acquire) == wanted) return true;
    }
    return false;
  }

  void give_up(const Wait& wait, uint32_t seen) {
    const std::lock_guard lock(mutex_);
    if (machine_.violation.empty()) machine_.violation = describe(machine_, wait, seen);
    machine_.aborted = true;
  }

  Machine& machine_;
  std::mutex mutex_;
};

// One worker runs at a time; at every pause and every wait the next one is drawn.
class BatonWaiter : public Waiter {
 public:
  BatonWaiter(Machine& machine, int num_workers, uint64_t seed)
      : machine_(machine),
        random_(seed),
        wake_(static_cast<size_t>(num_workers)),
        workers_(static_cast<size_t>(num_workers)) {}

  void begin(int worker) {
    std::unique_lock lock(mutex_);
    if (++begun_ == static_cast<int>(workers_.size())) choose_next();
    wake_[static_cast<size_t>(worker)].wait(lock, [&] { return current_ == worker; });
  }
  void end(int worker) {
    const std::lock_guard lock(mutex_);
    workers_[static_cast<size_t>(worker)].done = true;
    choose_next();
  }

  bool wait(const std::atomic<uint32_t>& tag, const Wait& wait) override {
    const int worker = wait.rank * machine_.plan().num_ctas() + wait.cta;
    std::unique_lock lock(mutex_);
    while (tag.load(std::memory_order_acquire) != wait.wanted) {
      if (machine_.aborted) return false;
      workers_[static_cast<size_t>(worker)] = {true, false, &wait, &tag};
      if (!anyone_can_run()) {
        give_up();
        return false;
      }
      hand_over(worker, lock);
    }
    return true;
  }

  void put_happened() override {
    const std::lock_guard lock(mutex_);
    for (Worker& each : workers_) each.blocked = false;
  }

  void pause(int worker) override {
    std::unique_lock lock(mutex_);
    hand_over(worker, lock);
  }

  // Runs only when nothing else can.
  void hold_back(int worker) { late_ = worker; }

 private:
  struct Worker {
    bool blocked = false;  // waits, and nothing was put since it looked
    bool done = false;
    const Wait* wait = nullptr;  // the last one; it lives while the worker is blocked
    const std::atomic<uint32_t>* tag = nullptr;
  };

  // Everybody waits. The waiter of the earliest call names what is missing: every CTA has passed the call that should
  // have put it.
  void give_up() {
    const Worker* first = nullptr;
    for (const Worker& each : workers_) {
      if (!each.done && (first == nullptr || each.wait->call_idx < first->wait->call_idx)) first = &each;
    }
    if (machine_.violation.empty()) machine_.violation = describe(machine_, *first->wait, first->tag->load());
    machine_.aborted = true;
  }

  bool anyone_can_run() const {
    return std::any_of(workers_.begin(), workers_.end(),
                       [](const Worker& each) { return !each.done && !each.blocked; });
  }

  void choose_next() {
    std::vector<int> able;
    for (size_t idx = 0; idx < workers_.size(); ++idx) {
      if (!workers_[idx].done && (!workers_[idx].blocked || machine_.aborted)) able.push_back(static_cast<int>(idx));
    }
    if (able.size() > 1) std::erase(able, late_);
    if (able.empty()) return;
    current_ = able[random_() % able.size()];
    wake_[static_cast<size_t>(current_)].notify_one();
  }

  void hand_over(int worker, std::unique_lock<std::mutex>& lock) {
    choose_next();
    wake_[static_cast<size_t>(worker)].wait(lock, [&] { return current_ == worker; });
  }

  Machine& machine_;
  std::mutex mutex_;
  std::mt19937_64 random_;
  std::vector<std::condition_variable> wake_;
  std::vector<Worker> workers_;
  int current_ = -1;
  int begun_ = 0;
  int late_ = -1;
};

void run_cta(Machine& machine, const CallRange& range, int rank, int cta) {
  const int worker = rank * machine.plan().num_ctas() + cta;
  for (int call_idx = range.first; call_idx < range.last; ++call_idx) {
    if (machine.aborted.load(std::memory_order_relaxed)) return;
    const std::vector<int> tasks = machine.plan().tasks_of(call_idx, cta);
    if (!tasks.empty()) {
      const auto stage = static_cast<size_t>(machine.program().calls[static_cast<size_t>(call_idx)].stage);
      kStageFunctions[stage](machine, {rank, cta, call_idx}, tasks);
    }
    if (!machine.finished.empty()) machine.finished[static_cast<size_t>(worker)].store(call_idx + 1);
  }
}

// Random mode: tasks of a call one by one in random order, with a pause before each.
void run_cta_shuffled(Machine& machine, const CallRange& range, int worker, uint64_t seed) {
  const int num_ctas = machine.plan().num_ctas();
  const int rank = worker / num_ctas;
  const int cta = worker % num_ctas;
  std::mt19937_64 random(seed * 1000003 + static_cast<uint64_t>(worker));
  for (int call_idx = range.first; call_idx < range.last; ++call_idx) {
    std::vector<int> tasks = machine.plan().tasks_of(call_idx, cta);
    std::shuffle(tasks.begin(), tasks.end(), random);
    const auto stage = static_cast<size_t>(machine.program().calls[static_cast<size_t>(call_idx)].stage);
    size_t begin = 0;
    while (begin < tasks.size() && !machine.aborted) {
      machine.waiter->pause(worker);
      const size_t count = std::min<size_t>(1 + random() % 3, tasks.size() - begin);
      kStageFunctions[stage](machine, {rank, cta, call_idx}, std::span(tasks).subspan(begin, count));
      begin += count;
    }
    if (machine.aborted) return;
    machine.finished[static_cast<size_t>(worker)].store(call_idx + 1);
  }
}

Status verdict_of(Machine& machine) {
  machine.waiter = nullptr;
  if (!machine.aborted) return {};
  return Error{Code::kInternal, machine.violation, "step"};
}

}  // namespace

Status run_calls(Machine& machine, const CallRange& range) {
  CHECK(machine.finished.empty(), "checks need one CTA at a time");
  SpinWaiter waiter(machine);
  machine.waiter = &waiter;
  const int num_workers = machine.num_ranks() * machine.plan().num_ctas();
  {
    std::vector<std::jthread> threads;
    for (int worker = 1; worker < num_workers; ++worker) {
      threads.emplace_back([&machine, &range, worker] {
        run_cta(machine, range, worker / machine.plan().num_ctas(), worker % machine.plan().num_ctas());
      });
    }
    run_cta(machine, range, 0, 0);
  }
  return verdict_of(machine);
}

Status run_calls_in_random_order(Machine& machine, const CallRange& range, uint64_t seed) {
  CHECK(!machine.finished.empty(), "random order needs a machine with checks");
  const int num_workers = machine.num_ranks() * machine.plan().num_ctas();
  BatonWaiter waiter(machine, num_workers, seed);
  waiter.hold_back(machine.fault.late_cta);
  machine.waiter = &waiter;
  {
    std::vector<std::jthread> threads;
    for (int worker = 0; worker < num_workers; ++worker) {
      threads.emplace_back([&machine, &range, &waiter, worker, seed] {
        waiter.begin(worker);
        run_cta_shuffled(machine, range, worker, seed);
        waiter.end(worker);
      });
    }
  }
  return verdict_of(machine);
}

}  // namespace monostep::cpu
