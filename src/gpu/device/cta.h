// A CTA of the step kernel: its shared memory, its waits, and its access to regions. Regions carry readiness in the
// data: each 32-bit word travels with the tag of the call that wrote it, in one 8-byte pair, so a read polls the data
// itself. A stage reaches regions only through StageContext: what its declaration (program/stage.h) does not list does
// not compile.
#pragma once

#include "base/numeric.h"
#include "gpu/device/constants.h"
#include "gpu/device/ptx.h"
#include "gpu/device/records.h"
#include "gpu/device/scratch_sizes.h"
#include "program/stage.h"

namespace monostep::gpu {

using program::Region;
using program::Stage;

inline constexpr int kRingSlots = 32;
inline constexpr int kMaxSlots = 8;  // experts a row may take

// A pass of up to eight rows of an expert's chunk whose sums wait to be added up.
struct ExpertPass {
  int task;
  int tile_split;  // kExpertUp: tile x K slices + K slice
  int first_pair;
  int count;
};

// What a thread waited for when it gave up, as in Report.
struct Stuck {
  int call;
  uint32_t pair;
  uint32_t wanted;
  uint32_t seen;
};

struct Shared {
  uint64_t full[kRingSlots];
  uint64_t empty[kRingSlots];
  uint64_t routed;
  int dead;                       // threads that gave the step up
  int left;                       // 1: the consumers have walked their calls
  Stuck stuck;                    // of the first of them
  uint32_t chunk_idx;             // chunks that the consumers took from the ring, between stages
  uint32_t ring_at;               // bytes of the ring passed, see ring.h
  int num_experts;                // distinct experts of the layer that `routed_layer` names
  int routed_layer;               // -1: none
  int num_mapped;                 // rows in `map`
  int anchors[kMaxStepRequests];  // of the drafting requests
  int ring_sizes[kRingSlots];     // of the producer
  alignas(16) CallRecord calls[2];
  alignas(16) CallRecord producer_calls[2];
  alignas(16) StepRecord step;
  alignas(16) KernelParams params;
  double row_sums[kMaxRows][kWarps];
  float row_scale[kMaxRows];
  uint32_t taken[constants::kMaxExperts / 32];
  uint16_t experts[constants::kMaxExperts];  // distinct, ascending
  int16_t row_experts[kMaxRows][kMaxSlots];  // of each row, ascending; -1 behind
  float row_weights[kMaxRows][kMaxSlots];
  int16_t map[kMaxRows];  // rows that the call computes, ascending
  ExpertPass passes[2][kExpertPasses];
  int scaled_key;  // which rows row_scale belongs to, see row_scales
  int16_t identity[constants::kPairCapacity];
  int16_t pair_begin[constants::kMaxExperts + 2];  // kExpertDown: first pair of each distinct expert
  int16_t pair_row[kMaxRows * (kMaxSlots + 1)];
  int16_t pair_slot[kMaxRows * (kMaxSlots + 1)];
};

inline constexpr int kRingOffset = state_bytes(constants::kMaxExperts, constants::kPairCapacity);
static_assert(sizeof(Shared) <= kRingOffset && constants::kExpertSlots <= kMaxSlots && constants::kRows <= kMaxRows);
inline constexpr int kScratchOffset = kRingOffset + constants::kRingBytes;

// A region's copy as a reader sees it.
struct Words {
  const uint64_t* pairs;
  uint32_t tag;
};

// Cycles of one CTA in one call, for the timeline; written only where the launch asks for it.
inline CallClock* call_clock(const KernelParams& params, int call_idx) {
  if (params.clocks == 0) return nullptr;
  return reinterpret_cast<CallClock*>(params.clocks) + static_cast<int64_t>(call_idx) * cta_count() + cta_idx();
}

struct Cta {
  const KernelParams& params;
  Shared& shared;
  int thread;  // of the consumers
  int lane;
  int warp;
  int idx;    // CTA
  int count;  // CTAs
  int call_idx = 0;
  uint32_t chunk_idx = 0;  // as in Shared, while a stage runs
  uint32_t ring_at = 0;

  template <typename T>
  T* scratch() const {
    return reinterpret_cast<T*>(shared_base() + kScratchOffset);
  }
  const CallRecord& record() const { return shared.calls[call_idx & 1]; }
  void sync() const { bar_sync(1, kConsumers); }
  bool dead() const { return *const_cast<volatile int*>(&shared.dead) != 0; }
  // A barrier that tells every consumer the same: whether all waits before it were met.
  bool sync_alive() const { return !bar_sync_or(1, kConsumers, dead()); }
};

// Gives the step up: the CTA's first thread that does leaves word of what it waited for, see report_stuck.
inline void give_up(Shared& shared, int call_idx, uint32_t pair, uint32_t wanted, uint32_t seen) {
  if (atomic_add_shared(&shared.dead, 1) == 0) shared.stuck = {call_idx, pair, wanted, seen};
}

// All consumers, behind the barrier that ends their last call: tells the host, and all other CTAs, that this one gave
// the step up.
inline void report_stuck(const Shared& shared) {
  if (thread_idx() != 0 || shared.dead == 0) return;
  auto* shared_report = reinterpret_cast<Report*>(shared.params.report);
  Report* report = shared_report + 1 + cta_idx();
  if (report->filled != 0) return;  // an earlier launch of the step did
  report->cta = static_cast<uint32_t>(cta_idx());
  report->call = static_cast<uint32_t>(shared.stuck.call);
  report->pair = shared.stuck.pair;
  report->wanted = shared.stuck.wanted;
  report->seen = shared.stuck.seen;
  shared_report->abort = 1;
  *const_cast<volatile uint32_t*>(&report->filled) = 1;
}

// Called by a wait after every failed look; false: give up. `tries` counts from 1. Every 64th look takes the others of
// the CTA into account, every 16,384th the outside world. It calls nothing: a call would cost every wait registers.
inline bool keep_waiting(const Cta& cta, uint32_t tries, uint32_t pair, uint32_t wanted, uint32_t seen) {
  if ((tries & 63) != 0) return true;
  if (cta.dead()) return false;
  if ((tries & ((1u << 14) - 1)) != 0) return true;
  const bool stopped =
      static_cast<uint32_t>(load_relaxed_sys(reinterpret_cast<const uint64_t*>(cta.params.report))) != 0;
  if (thread_idx() >= kConsumers) return !stopped;  // the producer is ahead of the stages: it stops when they do
  const auto limit = static_cast<uint32_t>(cta.params.poll_limit);
  if (!stopped && (limit == 0 || tries < limit)) return true;
  give_up(cta.shared, cta.call_idx, pair, wanted, seen);
  return false;
}

inline uint32_t tag_of(uint64_t pair) { return static_cast<uint32_t>(pair >> 32); }

// The word at `idx`, once it carries the tag.
inline uint32_t wait_word(const Cta& cta, const Words& words, int64_t idx) {
  uint64_t pair = load_relaxed(words.pairs + idx);
  for (uint32_t tries = 1; tag_of(pair) != words.tag; ++tries) {
    if (!keep_waiting(cta, tries,
                      static_cast<uint32_t>(words.pairs + idx - reinterpret_cast<const uint64_t*>(cta.params.arena)),
                      words.tag, tag_of(pair)))
      break;
    pair = load_relaxed(words.pairs + idx);
  }
  return static_cast<uint32_t>(pair);
}
inline float wait_f32(const Cta& cta, const Words& words, int64_t idx) {
  return std::bit_cast<float>(wait_word(cta, words, idx));
}

// N pieces of two neighbouring words, all loads outstanding together: out[i] = words index(i), index(i) + 1; index
// even, or kNoWord for nothing. One loop of loads, for the sake of its size: a stage's code is fetched anew in each
// layer.
inline constexpr uint32_t kNoWord = ~0u;
template <int N, typename Index>
inline void wait_words2(const Cta& cta, const Words& words, uint32_t (&out)[N][2], const Index& index) {
  uint32_t at[N];
  uint64_t low[N];
  uint64_t high[N];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    at[i] = index(i);
    low[i] = high[i] = uint64_t{words.tag} << 32;
  }
  for (uint32_t tries = 1;; ++tries) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (at[i] != kNoWord) load_relaxed(words.pairs + at[i], low[i], high[i]);
    }
    uint32_t differing = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) differing |= (tag_of(low[i]) ^ words.tag) | (tag_of(high[i]) ^ words.tag);
    if (differing == 0) break;
    // The report names the region's copy by its first word.
    if (!keep_waiting(cta, tries,
                      static_cast<uint32_t>(words.pairs - reinterpret_cast<const uint64_t*>(cta.params.arena)),
                      words.tag, 0))
      break;
  }
#pragma unroll
  for (int i = 0; i < N; ++i) {
    out[i][0] = static_cast<uint32_t>(low[i]);
    out[i][1] = static_cast<uint32_t>(high[i]);
  }
}

inline float low_bf16(uint32_t word) { return std::bit_cast<float>(word << 16); }
inline float high_bf16(uint32_t word) { return std::bit_cast<float>(word & 0xffff0000u); }
// As base/numeric.h's, in one instruction.
inline uint32_t bf16_pair(float low, float high) { return bf16x2_of(low, high); }
inline uint16_t bf16_bits(float value) { return static_cast<uint16_t>(bf16x2_of(value, 0)); }
inline float round_bf16(float value) { return std::bit_cast<float>(bf16x2_of(0, value)); }

// A region's copy as its writer sees it.
struct Sink {
  uint64_t first_pair;
  uint32_t tag;
  bool all_ranks;
};

// Whether the own values stand for those of the other ranks.
inline bool plays_peers(const KernelParams& params) { return params.push >= static_cast<int32_t>(Push::kSelf); }

// Live rows of a call: all target rows of the step; draft rows whose request drafts.
inline bool live_row(const StepRecord& step, bool draft, int row) {
  if (!draft) return row < step.num_rows;
  const int owner = row / constants::kDraftLength;
  return owner < step.num_requests && (step.requests[owner].flags & kRequestDraft) != 0;
}

inline uint64_t* arena_pairs(uint64_t arena, uint64_t at) { return reinterpret_cast<uint64_t*>(arena) + at; }

// Puts one word. For regions that every rank reads, `peer_stride` is the distance in words between the ranks' granules
// (0: one writer for all ranks).
inline void put_word(const Cta& cta, const Sink& sink, int64_t idx, uint32_t value, int64_t peer_stride = 0) {
  const uint64_t pair = (uint64_t{sink.tag} << 32) | value;
  const uint64_t at = sink.first_pair + static_cast<uint64_t>(idx);
  store_relaxed(arena_pairs(cta.params.arena, at), pair);
  if constexpr (constants::kTp > 1) {
    if (!sink.all_ranks) return;
    for (int rank = 0; rank < constants::kTp; ++rank) {
      if (rank == cta.params.rank) continue;
      if (cta.params.push == static_cast<int32_t>(Push::kPeers)) {
        store_relaxed_sys(arena_pairs(cta.params.peer_arenas[rank], at), pair);
      } else if (cta.params.push == static_cast<int32_t>(Push::kSelf) && peer_stride != 0) {
        store_relaxed(arena_pairs(cta.params.arena, at + static_cast<uint64_t>((rank - cta.params.rank) * peer_stride)),
                      pair);
      }
    }
  }
}
// Two neighbouring words, `idx` even.
inline void put_words2(const Cta& cta, const Sink& sink, int64_t idx, uint32_t first, uint32_t second) {
  const uint64_t tag = uint64_t{sink.tag} << 32;
  store_relaxed(arena_pairs(cta.params.arena, sink.first_pair + static_cast<uint64_t>(idx)), tag | first, tag | second);
}
inline void put_f32(const Cta& cta, const Sink& sink, int64_t idx, float value, int64_t peer_stride = 0) {
  put_word(cta, sink, idx, std::bit_cast<uint32_t>(value), peer_stride);
}

constexpr int place_in(program::RegionSet set, Region region) {
  int place = 0;
  for (int idx = 0; idx < static_cast<int>(region); ++idx) place += static_cast<int>((set >> idx) & 1);
  return place;
}

template <Stage S>
struct StageContext {
  Cta& cta;
  const CallRecord& record;

  explicit StageContext(Cta& owner) : cta(owner), record(owner.record()) {}

  template <Region R>
  Words read() const {
    static_assert(program::may_read(S, R), "the stage does not declare that it reads this region");
    constexpr int kPlace = place_in(program::kStages[static_cast<int>(S)].reads, R);
    const RegionRef& ref = record.reads[kPlace];
    return {reinterpret_cast<const uint64_t*>(cta.params.arena) + ref.first_pair, tag(ref.ordinal)};
  }
  // For regions that several calls of a step fill: the copy and the ordinal of one of them.
  template <Region R>
  Words read_from(int copy, uint32_t ordinal) const {
    static_assert(program::may_read(S, R), "the stage does not declare that it reads this region");
    return {reinterpret_cast<const uint64_t*>(cta.params.arena) + constants::kRegionPair[static_cast<int>(R)] +
                static_cast<int64_t>(copy) * constants::kCopyPairs[static_cast<int>(R)],
            tag(ordinal)};
  }
  template <Region R>
  Sink write() const {
    static_assert(program::may_write(S, R), "the stage does not declare that it writes this region");
    constexpr int kPlace = place_in(program::kStages[static_cast<int>(S)].writes, R);
    constexpr bool kAll = program::kRegions[static_cast<int>(R)].scope == program::Scope::kAllRanks;
    const RegionRef& ref = record.writes[kPlace];
    return {ref.first_pair, tag(ref.ordinal), kAll};
  }
  uint32_t tag(uint32_t ordinal) const { return (cta.shared.step.epoch << constants::kTagBits) | ordinal; }

  // First task of this CTA, and the step to its next one; tasks that share a chunk are neighbours.
  int first_task() const {
    int first = cta.idx - record.first_cta;
    if (first < 0) first += cta.count;
    return first * record.tasks_per_chunk;
  }
  int task_stride() const { return cta.count * record.tasks_per_chunk; }

  int num_rows() const { return record.draft ? constants::kDraftRows : cta.shared.step.num_rows; }
  int request_of(int row) const {
    return record.draft ? row / constants::kDraftLength : cta.shared.step.rows[row].request;
  }
  const RequestRecord& request(int idx) const { return cta.shared.step.requests[idx]; }
  bool live(int row) const { return live_row(cta.shared.step, record.draft != 0, row); }
};

}  // namespace monostep::gpu
