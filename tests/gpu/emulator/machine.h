// The emulated GPU during one launch: fibers (threads) in warps in CTAs, who may run, what the others wait for,
// barriers, bulk copies in flight. Everything runs on one OS thread. emulated_ptx.h calls it from inside kernels;
// run.cc sets it up.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <queue>
#include <string>
#include <vector>

#include "emulator/context.h"

namespace monostep::gpu::emulator {

inline constexpr int kWarpLanes = 32;
inline constexpr uint32_t kAllLanes = 0xffffffffu;
inline constexpr int kNumBarriers = 16;
inline constexpr std::byte kPoison{0xee};

// What the lanes of a warp do together. All lanes must arrive with the same one.
enum class Collective : uint8_t {
  kWarpSync,
  kBarSync,
  kBarSyncOr,
  kShuffleXorU32,
  kShuffleXorInt,
  kShuffleXorFloat,
  kShuffleXorDouble,
  kShuffleU32,
  kShuffleInt,
  kShuffleFloat,
  kShuffleDouble,
  kShuffleUpU32,
  kShuffleUpDouble,
  kBallot,
  kMmaF16,
  kMmaBf16,
};
const char* collective_name(Collective collective);

// Why a lane gave its turn away although it can run.
enum class Pause : uint8_t { kNone, kLoad, kStore, kAtomic, kMbarrier, kSleep, kClock };

struct Warp;
struct Cta;
class Machine;

struct Fiber {
  Context context;
  Warp* warp = nullptr;
  int thread_idx = 0;
  int lane = 0;
  Pause pause = Pause::kNone;  // the last one
  uint32_t pause_parity = 0;   // of kMbarrier
  const void* pause_address = nullptr;
};

// The arguments that all threads at a barrier share.
struct BarrierUse {
  int id = 0;
  int threads = 0;
  bool operator==(const BarrierUse&) const = default;
};

struct Warp {
  uint32_t ready = kAllLanes;  // lanes that can run
  uint32_t turn = 0;           // lanes that still run in this turn of the warp
  uint32_t arrived = 0;        // lanes in `collective`
  uint32_t exited = 0;
  Collective collective = Collective::kWarpSync;
  bool highest_first = false;  // order of the lanes in this turn
  uint32_t round = 0;          // collectives completed; its parity picks the buffer
  int runnable_idx = -1;       // position in Machine's list
  int barrier = -1;            // barrier that the warp waits at
  BarrierUse bar_use;          // of kBarSync and kBarSyncOr
  bool bar_predicate = false;  // of any lane that arrived
  bool bar_result = false;     // of the last barrier that completed
  Cta* cta = nullptr;
  Fiber* lanes = nullptr;  // [32]
  uint64_t operand[2][kWarpLanes] = {};
  uint32_t mma_a[kWarpLanes][4] = {};  // operand registers
  uint32_t mma_b[kWarpLanes][2] = {};
  double mma_sum[kWarpLanes][4] = {};  // the products' sums of each lane's four outputs
};

struct Barrier {
  Collective collective = Collective::kBarSync;  // this and the next set by the first to arrive
  int threads = 0;                               // that it waits for
  bool predicate = false;                        // of any thread that arrived
  std::vector<Warp*> waiting;                    // warps that arrived
};

struct Cta {
  int cta_idx = 0;
  int live_warps = 0;
  int copies_in_flight = 0;
  int64_t resume_turn = 0;  // none of its warps runs before this turn of the machine
  char* shared = nullptr;   // [shared_bytes]
  std::array<Barrier, kNumBarriers> barriers;
};

struct BulkCopy {
  int64_t due_turn = 0;
  Cta* cta = nullptr;
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  int num_bytes = 0;
  uint64_t* mbarrier = nullptr;
  bool operator<(const BulkCopy& other) const { return due_turn > other.due_turn; }  // the queue's top is due first
};

struct MachineSize {
  int num_ctas = 0;
  int threads = 0;
  int shared_bytes = 0;
  uint64_t order_seed = 0;
  int64_t max_turns = 0;
};

class Machine {
 public:
  Machine(const MachineSize& size, void (*kernel)(const void*), const void* params);

  // Runs all CTAs to their end; the text of what went wrong, if something did.
  std::optional<std::string> run();

  // The rest is called by running fibers.
  int num_ctas() const { return size_.num_ctas; }

  // Arrives; returns when all lanes of the warp have. The result is the parity of the buffer that holds their operands.
  int rendezvous(Collective collective, uint64_t operand);
  // kBarSync or kBarSyncOr; whether any thread's predicate holds.
  bool bar_sync(Collective collective, const BarrierUse& use, bool predicate);
  void pause(Pause why, const void* address);
  int64_t emulated_nanoseconds() { return turns_ * kTurnNanoseconds + ++clock_reads_; }
  [[noreturn]] void fail(const char* text);

  void init_mbarrier(uint64_t* bar, int arrivals);
  void arrive_mbarrier(uint64_t* bar);
  bool try_mbarrier(uint64_t* bar, uint32_t parity);
  void start_copy(const BulkCopy& copy);

 private:
  static constexpr int64_t kTurnNanoseconds = 10;

  [[noreturn]] void stop();  // ends the launch with failure_
  static void fiber_entry();
  [[noreturn]] void exit_fiber();

  void leave(Fiber& self);
  Fiber& next_fiber(Warp& warp);
  Warp& next_warp();
  void begin_turn(Warp& warp, uint32_t lanes);
  void add_runnable(Warp& warp);
  void remove_runnable(Warp& warp);
  void complete(Warp& warp, uint32_t running_lane);
  void check_arrival(const Warp& warp, Collective collective);
  void arrive_barrier(Fiber& self);
  void check_barrier(const Fiber& self, const Barrier& barrier);

  void check_shared(const void* address, int num_bytes, int alignment, const char* what);
  void check_mbarrier(const uint64_t* bar, const char* what);
  void deliver_copies();
  void check_guards();

  uint64_t random();
  int random_below(int limit) { return static_cast<int>(((random() >> 32) * static_cast<uint64_t>(limit)) >> 32); }

  std::string place(const Fiber& fiber) const;
  std::string waiting_warps() const;

  MachineSize size_;
  void (*kernel_)(const void*) = nullptr;
  const void* params_ = nullptr;
  int warps_per_cta_ = 0;
  uint64_t random_state_ = 0;
  int64_t turns_ = 0;
  int64_t clock_reads_ = 0;
  int cursor_ = 0;  // of round robin
  int live_warps_ = 0;
  Context main_;
  std::optional<std::string> failure_;
  std::vector<Cta> ctas_;
  std::vector<Warp> warps_;
  std::vector<Fiber> fibers_;
  std::vector<Warp*> runnable_;
  std::priority_queue<BulkCopy> copies_;
  std::unique_ptr<std::byte[]> shared_;  // [num_ctas] of guard, shared memory, guard
};

// What the fibers of this OS thread see.
struct Running {
  Machine* machine = nullptr;
  Fiber* fiber = nullptr;
  int accesses_left = 0;  // relaxed accesses until the next pause
};
extern constinit thread_local Running running;

// Called at each relaxed access, so that spinning fibers let the others run.
inline constexpr int kAccessesPerPause = 8;
inline void access(Pause why, const void* address) {
  if (--running.accesses_left <= 0) running.machine->pause(why, address);
}

// Fills mma_sum of the warp from mma_a and mma_b.
void multiply(Warp& warp, bool bf16);

}  // namespace monostep::gpu::emulator
