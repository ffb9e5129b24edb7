// Played peers (Push::kPlayed): one more warp a CTA, so that no consumer stalls for the simulation. It watches what its
// CTA pushes in the calls that all ranks read and, a delay later, stores the same words at every other rank's place, as
// peers as fast as this rank would. Reads and writes the exchanged regions; the words of one task (a tile of a linear,
// or the bests of a Markov tile) are released together. What rank 0 samples for all comes without delay.
#pragma once

#include "gpu/device/cta.h"
#include "gpu/device/ring.h"

namespace monostep::gpu {

// What a call pushes: of each task `rows` x `row_words` words, in the order of ranks, tasks and rows.
struct Exchange {
  const uint64_t* pairs = nullptr;  // of rank 0's task 0
  uint32_t tag = 0;
  int rows = 0;
  int row_words = 0;  // 0: the call pushes nothing

  int task_words() const { return rows * row_words; }
};

template <Stage S, Region R>
inline Exchange exchange_of(const CallRecord& record, const Shared& shared, int rows, int row_words) {
  static_assert(program::may_write(S, R) && program::kRegions[static_cast<int>(R)].scope == program::Scope::kAllRanks);
  const RegionRef& ref = record.writes[place_in(program::kStages[static_cast<int>(S)].writes, R)];
  return {reinterpret_cast<const uint64_t*>(shared.params.arena) + ref.first_pair,
          (shared.step.epoch << constants::kTagBits) | ref.ordinal, rows, row_words};
}

inline Exchange exchange_of(const CallRecord& record, const Shared& shared) {
  switch (static_cast<Stage>(record.stage)) {
    case Stage::kEngramKv:
      return exchange_of<Stage::kEngramKv, Region::kEngramKvOut>(record, shared, constants::kRows, kTile);
    case Stage::kWoB: return exchange_of<Stage::kWoB, Region::kAttnExchange>(record, shared, constants::kRows, kTile);
    case Stage::kExpertDown:
      return exchange_of<Stage::kExpertDown, Region::kFfnExchange>(record, shared, constants::kRows, kTile);
    case Stage::kHead: return exchange_of<Stage::kHead, Region::kLogits>(record, shared, constants::kRows, kTile);
    case Stage::kMarkov:
      return exchange_of<Stage::kMarkov, Region::kMarkovTop>(record, shared, constants::kMaxRequests, 2);
    default: return {};
  }
}

class Player {
 public:
  explicit Player(Shared& shared) : shared_(shared), lane_(thread_idx() % 32) {}

  void run() {
    const KernelParams& params = shared_.params;
    for (int call = params.first_call; call < params.last_call && alive_; ++call) {
      const CallRecord& record = reinterpret_cast<const CallRecord*>(params.calls)[call];
      exchange_ = exchange_of(record, shared_);
      if (exchange_.row_words != 0) play_call(record);
    }
  }

 private:
  static constexpr int kMostSeen = 32;  // tasks; lane l keeps the time of the l-th
  static constexpr int kBatch = 8;      // pieces of two words that a lane holds

  // Tasks in the order in which the CTA pushes them. The next exchange needs what this one releases.
  void play_call(const CallRecord& record) {
    num_tasks_ = record.num_tasks;
    per_chunk_ = record.tasks_per_chunk;
    const TaskRange range = tasks_of(record, cta_idx(), cta_count());
    first_task_ = range.first;
    chunk_stride_ = range.stride;
    draft_ = record.draft != 0;
    stage_ = static_cast<Stage>(record.stage);
    // Of the draft's logits a rank reads its own alone: what comes next does not wait for them.
    delay_ns_ = draft_ && stage_ == Stage::kHead ? 0 : static_cast<uint64_t>(shared_.params.push_delay_ns);
    num_seen_ = num_released_ = 0;
    int first_row = 0;
    while (first_row < exchange_.rows && !pushes(first_row)) ++first_row;
    if (first_row == exchange_.rows) return;
    while (alive_ && task_at(num_seen_) < num_tasks_) {
      if (num_seen_ - num_released_ == kMostSeen) release_to(num_released_ + 1);
      watch(own_pairs(task_at(num_seen_)), first_row);
    }
    if (alive_) release_to(num_seen_);
  }

  int task_at(int place) const { return first_task_ + place / per_chunk_ * chunk_stride_ + place % per_chunk_; }

  const uint64_t* own_pairs(int task) const {
    return exchange_.pairs + (int64_t{shared_.params.rank} * num_tasks_ + task) * exchange_.task_words();
  }

  // Whether the call puts a row of its region.
  bool pushes(int row) const {
    if (stage_ == Stage::kMarkov) return live_row(shared_.step, true, row * constants::kDraftLength);
    if (!live_row(shared_.step, draft_, row)) return false;
    return draft_ || stage_ != Stage::kHead || (shared_.step.rows[row].flags & kRowNeedsLogits) != 0;
  }

  // Until the task's words are there. Meanwhile what is due is released.
  void watch(const uint64_t* own, int first_row) {
    for (uint32_t tries = 1; alive_; ++tries) {
      if (num_released_ < num_seen_ && is_due()) release_to(num_released_ + 1);
      const uint64_t before = global_nanoseconds();
      // One word first: that costs the machine little while the call is far off.
      const bool begun = tag_of(load_relaxed(own + first_row * exchange_.row_words)) == exchange_.tag;
      if (ballot(!begun) == 0 && is_complete(own)) {
        if (lane_ == num_seen_ % kMostSeen) seen_ = before;
        ++num_seen_;
        return;
      }
      alive_ = ballot(!keep_watching(tries)) == 0;
    }
  }

  bool is_complete(const uint64_t* own) const {
    bool complete = true;
    for (int word = 2 * lane_; word < exchange_.task_words(); word += 64) {
      if (!pushes(word / exchange_.row_words)) continue;
      uint64_t low, high;
      load_relaxed(own + word, low, high);
      complete = complete && tag_of(low) == exchange_.tag && tag_of(high) == exchange_.tag;
    }
    return ballot(!complete) == 0;
  }

  // The player ends with the stages: its own waits have no other bound.
  bool keep_watching(uint32_t tries) const {
    if ((tries & 63) != 0) return true;
    if (*const_cast<volatile int*>(&shared_.dead) != 0) return false;
    if ((tries & ((1u << 14) - 1)) != 0) return true;
    const bool left = *const_cast<volatile int*>(&shared_.left) != 0;
    const bool stopped =
        static_cast<uint32_t>(load_relaxed_sys(reinterpret_cast<const uint64_t*>(shared_.params.report))) != 0;
    return !left && !stopped;
  }

  // When the task at a place is released; all lanes ask together.
  uint64_t due(int place) const {
    const int lane = place % kMostSeen;
    const uint64_t low = shuffle(static_cast<uint32_t>(seen_), lane);
    const uint64_t high = shuffle(static_cast<uint32_t>(seen_ >> 32), lane);
    return ((high << 32) | low) + delay_ns_;
  }
  bool is_due() const { return (ballot(global_nanoseconds() >= due(num_released_)) & 1) != 0; }

  // Releases the tasks up to a place, each when it is due. The pieces of all of them are one list; a batch of it is
  // read before it is due.
  void release_to(int end) {
    const int task_pieces = exchange_.task_words() / 2;
    const int num_pieces = (end - num_released_) * task_pieces;
    for (int base = lane_; base < num_pieces + lane_; base += 32 * kBatch) {
      uint64_t low[kBatch];
      uint64_t high[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int piece = base + i * 32;
        low[i] = high[i] = 0;
        if (piece < num_pieces) load_relaxed(own_piece(piece, task_pieces), low[i], high[i]);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int piece = base + i * 32;
        const uint64_t when = due(num_released_ + (piece < num_pieces ? piece / task_pieces : 0));
        if (tag_of(low[i]) != exchange_.tag) continue;  // of a dead row, or behind the end
        while (global_nanoseconds() < when) {
        }
        store_copies(own_piece(piece, task_pieces), low[i], high[i]);
      }
      warp_sync();
    }
    num_released_ = end;
  }

  const uint64_t* own_piece(int piece, int task_pieces) const {
    return own_pairs(task_at(num_released_ + piece / task_pieces)) + 2 * (piece % task_pieces);
  }

  void store_copies(const uint64_t* own, uint64_t low, uint64_t high) const {
    const int64_t rank_words = int64_t{num_tasks_} * exchange_.task_words();
    for (int rank = 0; rank < constants::kTp; ++rank) {
      if (rank == shared_.params.rank) continue;
      store_relaxed(const_cast<uint64_t*>(own) + (rank - shared_.params.rank) * rank_words, low, high);
    }
  }

  Shared& shared_;
  const int lane_;
  bool alive_ = true;
  Exchange exchange_;
  // Of the call.
  Stage stage_ = Stage::kWoB;
  bool draft_ = false;
  uint64_t delay_ns_ = 0;
  int num_tasks_ = 0;
  int first_task_ = 0;
  int per_chunk_ = 1;
  int chunk_stride_ = 0;
  int num_seen_ = 0;
  int num_released_ = 0;
  uint64_t seen_ = 0;  // when the lane's task was seen
};

}  // namespace monostep::gpu
