// The weight ring: one producer warp streams the chunks of all calls of the launch, in the order in which this CTA
// consumes them, and waits only for free ring bytes, for landings, and for routing where experts come in. The ring
// never drains between stages. for_each_chunk is that order: the producer and the stages walk the same function.
#pragma once

#include "gpu/device/cta.h"

namespace monostep::gpu {

// A chunk in consumption order, and which piece of work it is for.
struct Chunk {
  uint64_t address;
  int bytes;
  int task;     // of the call; for a chunk shared by neighbouring tasks: the first
  int section;  // index in the record's sections
  int tile;     // inside the section
  int piece;    // K slice
  int expert;   // place in the list of distinct experts; -1: none
};

inline int section_of(const CallRecord& record, int tile) {
  int section = record.num_sections - 1;
  while (record.sections[section].first_tile > tile) --section;
  return section;
}

// `chunk` counts the section's chunks: tiles of a chunk first, then its K slices.
inline Chunk chunk_at(const CallRecord& record, int section_idx, int tile, int piece, int task, int chunk) {
  const SectionRecord& section = record.sections[section_idx];
  return {section.chunks + static_cast<uint64_t>(static_cast<int64_t>(chunk) * section.chunk_bytes),
          section.chunk_bytes,
          task,
          section_idx,
          tile,
          piece,
          -1};
}

struct TaskRange {
  int first;
  int stride;
};
inline TaskRange tasks_of(const CallRecord& record, int cta, int num_ctas) {
  int first = cta - record.first_cta;
  if (first < 0) first += num_ctas;
  return {first * record.tasks_per_chunk, num_ctas * record.tasks_per_chunk};
}

constexpr bool streams_weights(int stage) {
  switch (static_cast<Stage>(stage)) {
    case Stage::kEngramKv:
    case Stage::kFold:
    case Stage::kAttnIn:
    case Stage::kQProj:
    case Stage::kWoA:
    case Stage::kWoB:
    case Stage::kFfnFold:
    case Stage::kFfnIn:
    case Stage::kExpertUp:
    case Stage::kExpertDown:
    case Stage::kHead:
    case Stage::kMainProj:
    case Stage::kContextProj:
    case Stage::kMarkov: return true;
    default: return false;
  }
}

// Calls visit(chunk) for every chunk that a CTA takes in a call of stage S; stops when it returns false.
// Tasks of one K slice each: one chunk a task.
template <typename Visit>
inline bool for_each_split(const CallRecord& record, int cta, int num_ctas, const Visit& visit) {
  const TaskRange tasks = tasks_of(record, cta, num_ctas);
  for (int task = tasks.first; task < record.num_tasks; task += tasks.stride) {
    const int tile = task / record.splits;
    const int section = section_of(record, tile);
    const int inside = tile - record.sections[section].first_tile;
    const int piece = task - tile * record.splits;
    if (!visit(chunk_at(record, section, inside, piece, task, inside * record.sections[section].num_pieces + piece)))
      return false;
  }
  return true;
}

// Tasks that sum whole K: batches of tasks, K slices outside, so that a slice of the inputs serves the whole batch.
template <typename Visit>
inline bool for_each_whole(const CallRecord& record, int cta, int num_ctas, const Visit& visit) {
  const TaskRange tasks = tasks_of(record, cta, num_ctas);
  const int pieces = record.sections[0].num_pieces;
  for (int batch = tasks.first; batch < record.num_tasks; batch += tasks.stride * constants::kTaskBatch) {
    const int end = batch + tasks.stride * constants::kTaskBatch;
    for (int piece = 0; piece < pieces; ++piece) {
      for (int task = batch; task < end && task < record.num_tasks; task += tasks.stride) {
        if (!visit(chunk_at(record, 0, task, piece, task, task * pieces + piece))) return false;
      }
    }
  }
  return true;
}

// The distinct experts' tiles and K slices, experts ascending.
template <typename Visit>
inline bool for_each_up(const CallRecord& record, const Shared& shared, int cta, int num_ctas, const Visit& visit) {
  constexpr int kSplits = constants::kHidden / constants::kHiddenSlice;
  constexpr int kPerExpert = (constants::kExpertWidth + kTile - 1) / kTile * kSplits;
  const TaskRange tasks = tasks_of(record, cta, num_ctas);
  const int end = shared.num_experts * kPerExpert;
  for (int task = tasks.first; task < end; task += tasks.stride) {
    const int place = task / kPerExpert;
    const int chunk_idx = task - place * kPerExpert;
    Chunk chunk = chunk_at(record, 0, chunk_idx / kSplits, chunk_idx % kSplits, task, chunk_idx);
    chunk.address += static_cast<uint64_t>(shared.experts[place] * record.sections[0].expert_stride);
    chunk.expert = place;
    if (!visit(chunk)) return false;
  }
  return true;
}

// Expert by expert, the shared one last, all tiles of the CTA of each.
template <typename Visit>
inline bool for_each_down(const CallRecord& record, const Shared& shared, int cta, int num_ctas, const Visit& visit) {
  constexpr int kPieces = constants::kExpertWidth / constants::kDownSlice;
  const TaskRange tasks = tasks_of(record, cta, num_ctas);
  for (int place = 0; place <= shared.num_experts; ++place) {
    const int section = place < shared.num_experts ? 0 : 1;
    const uint64_t expert =
        section == 0 ? static_cast<uint64_t>(shared.experts[place] * record.sections[0].expert_stride) : 0;
    for (int task = tasks.first; task < record.num_tasks; task += tasks.stride) {
      for (int piece = 0; piece < kPieces; ++piece) {
        const int chunk_idx = task / constants::kDownTilesPerChunk * kPieces + piece;
        Chunk chunk = chunk_at(record, section, task, piece, task, chunk_idx);
        chunk.address += expert;
        if (section == 0) chunk.expert = place;
        if (!visit(chunk)) return false;
      }
    }
  }
  return true;
}

template <Stage S, typename Visit>
inline bool for_each_chunk(const CallRecord& record, const Shared& shared, int cta, int num_ctas, const Visit& visit) {
  if constexpr (S == Stage::kWoB || S == Stage::kHead || S == Stage::kMarkov) {
    return for_each_whole(record, cta, num_ctas, visit);
  } else if constexpr (S == Stage::kExpertUp) {
    return for_each_up(record, shared, cta, num_ctas, visit);
  } else if constexpr (S == Stage::kExpertDown) {
    return for_each_down(record, shared, cta, num_ctas, visit);
  } else {
    return for_each_split(record, cta, num_ctas, visit);
  }
}

// Waits for a phase of an mbarrier; false: the step was given up. `reason` as in Report.
inline bool wait_phase(const Cta& cta, uint64_t* bar, uint32_t parity, uint32_t reason) {
  for (uint32_t tries = 1; !mbarrier_try_wait(bar, parity); ++tries) {
    if (!keep_waiting(cta, tries, ~0u, reason, 0)) return false;
  }
  return true;
}

// The producer warp. Lane 0 issues; all lanes fetch the records.
class Producer {
 public:
  Producer(Cta& cta, int* sizes) : cta_(cta), sizes_(sizes) {}

  void run() {
    const KernelParams& params = cta_.params;
    fetch(params.first_call);
    for (int call = params.first_call; call < params.last_call; ++call) {
      if (call + 1 < params.last_call) fetch(call + 1);
      warp_sync();
      const CallRecord& record = cta_.shared.producer_calls[call & 1];
      cta_.call_idx = call;
      const bool alive = cta_.lane != 0 || !streams_weights(record.stage) || stream(record);
      warp_sync();
      if (ballot(!alive) != 0) break;  // all lanes leave together
    }
    if (cta_.lane == 0) drain();
    warp_sync();
  }

 private:
  void fetch(int call) {
    const auto* from = reinterpret_cast<const Word4*>(cta_.params.calls) + call * (sizeof(CallRecord) / 16);
    auto* to = reinterpret_cast<Word4*>(&cta_.shared.producer_calls[call & 1]);
    for (int i = cta_.lane; i < static_cast<int>(sizeof(CallRecord) / 16); i += 32) to[i] = load_constant(from + i);
  }

  bool stream(const CallRecord& record) {
    const bool routed =
        record.stage == static_cast<int>(Stage::kExpertUp) || record.stage == static_cast<int>(Stage::kExpertDown);
    if (routed && record.layer != routed_layer_) {
      if (!wait_phase(cta_, &cta_.shared.routed, routed_phase_, 3)) return false;
      routed_phase_ ^= 1;
      routed_layer_ = record.layer;
    }
    const auto take = [&](const Chunk& chunk) { return issue(chunk.address, chunk.bytes); };
    switch (static_cast<Stage>(record.stage)) {
      case Stage::kWoB:
      case Stage::kHead:
      case Stage::kMarkov: return for_each_whole(record, cta_.idx, cta_.count, take);
      case Stage::kExpertUp: return for_each_up(record, cta_.shared, cta_.idx, cta_.count, take);
      case Stage::kExpertDown: return for_each_down(record, cta_.shared, cta_.idx, cta_.count, take);
      default: return for_each_split(record, cta_.idx, cta_.count, take);
    }
  }

  bool issue(uint64_t address, int bytes) {
    int skip = 0;
    if (offset_ + bytes > constants::kRingBytes) {
      skip = constants::kRingBytes - offset_;
      offset_ = 0;
    }
    const int need = bytes + skip;
    while (used_ > 0 && (used_ + need > constants::kRingBytes || issued_ - oldest_ == kRingSlots)) {
      if (!wait_phase(cta_, &cta_.shared.empty[oldest_ % kRingSlots], (oldest_ / kRingSlots) & 1, 2)) return false;
      used_ -= sizes_[oldest_ % kRingSlots];
      if (landed_ == oldest_) {  // read, so it has landed
        in_flight_ -= sizes_[oldest_ % kRingSlots];
        ++landed_;
      }
      ++oldest_;
    }
    while (landed_ != issued_ && in_flight_ + bytes > cta_.params.ring_window) {
      if (!land()) return false;
    }
    sizes_[issued_ % kRingSlots] = need;
    used_ += need;
    in_flight_ += need;
    bulk_copy(shared_base() + kRingOffset + offset_, reinterpret_cast<const void*>(address), bytes,
              &cta_.shared.full[issued_ % kRingSlots]);
    ++issued_;
    offset_ += bytes;
    return true;
  }

  bool land() {
    if (!wait_phase(cta_, &cta_.shared.full[landed_ % kRingSlots], (landed_ / kRingSlots) & 1, 1)) return false;
    in_flight_ -= sizes_[landed_ % kRingSlots];
    ++landed_;
    return true;
  }

  // No copy may be under way when the CTA leaves.
  void drain() {
    for (; landed_ != issued_; ++landed_) {
      while (!mbarrier_try_wait(&cta_.shared.full[landed_ % kRingSlots], (landed_ / kRingSlots) & 1)) {
      }
    }
  }

  Cta& cta_;
  int* sizes_;  // [kRingSlots] of shared memory
  int offset_ = 0;
  int used_ = 0;
  int in_flight_ = 0;
  uint32_t issued_ = 0;
  uint32_t oldest_ = 0;  // first chunk whose bytes are not free again
  uint32_t landed_ = 0;  // first chunk not known to have landed
  uint32_t routed_phase_ = 0;
  int routed_layer_ = -1;
};

// The consumers' side: the next chunk of the ring, once it has landed (or the step was given up).
inline const char* next_chunk(Cta& cta, int bytes) {
  int offset = static_cast<int>(cta.ring_at);
  if (offset + bytes > constants::kRingBytes) offset = 0;
  cta.ring_at = static_cast<uint32_t>(offset + bytes);
  uint64_t* bar = &cta.shared.full[cta.chunk_idx % kRingSlots];
  const uint32_t parity = (cta.chunk_idx / kRingSlots) & 1;
  if (cta.thread == 0 && cta.params.clocks != 0) {
    CallClock* clock = call_clock(cta.params, cta.call_idx);
    const long long begin = clock_cycles();
    if (clock->ready == 0) clock->ready = begin;
    wait_phase(cta, bar, parity, 1);
    clock->weights += clock_cycles() - begin;
  } else {
    wait_phase(cta, bar, parity, 1);
  }
  return shared_base() + kRingOffset + offset;
}
// This warp has read the chunk.
inline void release_chunk(Cta& cta) {
  warp_sync();
  if (cta.lane == 0) mbarrier_arrive(&cta.shared.empty[cta.chunk_idx % kRingSlots]);
  ++cta.chunk_idx;
}

}  // namespace monostep::gpu
