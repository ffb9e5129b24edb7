// What the host hands to the step kernel: one record a call (sizes, region places, weight chunks), the step's rows and
// requests, and the addresses of everything. Plain data with the same bytes on host and device. Filled by
// gpu/rank_program and gpu/step_record, read by the kernel and the emulator.
#pragma once

#include <cstdint>

namespace monostep::gpu {

inline constexpr int kMaxRegionRefs = 8;
inline constexpr int kMaxSections = 5;
inline constexpr int kMaxVectors = 6;
inline constexpr int kMaxRows = 64;
inline constexpr int kMaxStepRequests = 8;
inline constexpr int kMaxRanks = 8;
inline constexpr int kMaxEngramLayers = 4;

// A copy of a region that a call reads or writes. Reads and writes of a call are listed in ascending Region order, over
// all that its stage may read or write; what the call does not touch has ordinal 0.
struct RegionRef {
  uint32_t first_pair;  // of the copy, in pairs from the arena's begin
  uint32_t ordinal;     // low bits of the writer's tag
};

// One linear (or one group of it) of a call: its tiles among the call's, and its chunks in the packed weights.
struct SectionRecord {
  uint64_t chunks;        // address of expert 0's chunk 0
  int64_t expert_stride;  // bytes
  int32_t first_tile;
  int32_t num_tiles;
  int32_t num_pieces;  // K slices; chunk = tile / tiles_per_chunk x num_pieces + piece
  int32_t chunk_bytes;
  int32_t storage;  // program::Storage
  int32_t rows;     // output rows (the last tile may hold fewer than 16)
};

struct alignas(16) CallRecord {
  int32_t stage;  // program::Stage
  int32_t layer;
  int32_t draft;  // 1: the draft section (rows are draft rows)
  int32_t num_tasks;
  int32_t first_cta;
  int32_t tasks_per_chunk;
  int32_t tiles;   // of all sections of the call
  int32_t splits;  // K slices that become tasks of their own
  int32_t mode;    // model::Mode of the layer
  int32_t ratio;
  int32_t owner_idx;
  int32_t engram_idx;
  int32_t tap_idx;
  int32_t candidate_source;
  int32_t candidates_from;  // >= 0: scores are masked to the kept candidates
  int32_t num_experts;
  int32_t experts_per_token;
  int32_t num_sections;
  int32_t first_layer;    // 1: streams come from the embedding
  int32_t tile_of[5];     // first tiles in the region that the call reads; of kAttnIn: wq_a, wkv, compressor wkv,
                          // compressor gate, weights_proj; of kFfnIn: router, shared w1, shared w3
  int32_t index_tile;     // first tile of indexer.wq_b in kQPart
  int32_t reader_splits;  // K slices of the region of partial sums that the call reads
  int32_t score_chunks;
  int32_t expert_tiles;   // kExpertDown: tiles x splits of kExpertUp; kAttend and kIndexScore: splits of kQProj
  int32_t expert_splits;  // kExpertDown: splits of kExpertUp
  int32_t reserved;
  uint64_t router_bias[2];  // f32 [experts]: text rows, image rows
  RegionRef reads[kMaxRegionRefs];
  RegionRef writes[kMaxRegionRefs];
  SectionRecord sections[kMaxSections];
  uint64_t vectors[kMaxVectors];  // addresses of the call's plain weights and slices, in the order of weights_of
};
static_assert(sizeof(CallRecord) % 16 == 0 && sizeof(CallRecord) <= 768);

enum RowFlag : int32_t { kRowImage = 1, kRowNeedsLogits = 2 };
struct RowRecord {
  int32_t token;
  int32_t position;
  int32_t request;
  int32_t flags;
  int32_t image_row;  // -1: none
};

enum RequestFlag : int32_t { kRequestSample = 1, kRequestDraft = 2, kRequestContext = 4 };
struct RequestRecord {
  int32_t state_slot;
  int32_t first_row;
  int32_t num_rows;
  int32_t first_position;
  int32_t num_drafts;
  int32_t flags;
  float temperature;
  int32_t top_k;
  float top_p;
  float min_p;
  uint32_t seed_low;
  uint32_t seed_high;
  float forced_acceptance;
  uint32_t step_counter;
  int32_t stop_tokens[4];
};

struct alignas(16) StepRecord {
  uint32_t epoch;
  int32_t num_rows;
  int32_t num_requests;
  int32_t reserved;
  RowRecord rows[kMaxRows];
  RequestRecord requests[kMaxStepRequests];
};
static_assert(sizeof(StepRecord) % 16 == 0);

// What a request's step gave, for the host, written when the next step begins.
inline constexpr int kMaxDraftLength = 8;
struct RequestOutputRecord {
  int32_t num_accepted;
  int32_t num_tokens;
  int32_t last_position;
  int32_t tokens[kMaxDraftLength + 1];
  int32_t drafts[kMaxDraftLength];
  float confidence[kMaxDraftLength];
};
struct StepOutputRecord {
  uint32_t epoch;  // written last
  int32_t reserved[3];
  RequestOutputRecord requests[kMaxStepRequests];
};

// The mapped memory that host and kernel share is an array of these: whoever gives the step up sets `abort` of the
// first; CTA c says in number 1 + c what it waited for when it gave up.
struct Report {
  uint32_t abort;
  uint32_t filled;  // 1: the fields below are valid
  uint32_t cta;
  uint32_t call;
  uint32_t pair;  // index in the arena; ~0: not a region but what `wanted` names: 1 weights in the ring, 2 free ring,
                  // 3 routing, 4 the step before a step laid out on the device; ~0 - 1: a region, place unknown
  uint32_t wanted;
  uint32_t seen;
};

// How results that other ranks read are handed over.
enum class Push : int32_t {
  kPeers,   // stored into every rank's arena
  kNone,    // own arena only: peers' granules are filled by the host
  kSelf,    // peers are played: the own values are stored at every rank's place
  kPlayed,  // the same, some time later, by a warp of its own: launches have kPlayedThreads (peers.h)
};

// What a CTA did in a call: cycle counts of its SM, and of them those that its first thread waited for weights.
struct CallClock {
  int64_t begin;
  int64_t end;
  int64_t weights;
  int64_t ready;  // when the inputs of its first chunk were there
};

struct KernelParams {
  uint64_t calls;  // CallRecord[]
  uint64_t step;   // StepRecord
  uint64_t arena;
  uint64_t peer_arenas[kMaxRanks];
  uint64_t pages;
  uint64_t slots;
  uint64_t page_table;  // int32 [requests][max_pages]
  uint64_t embed;       // bf16 [vocab][hidden]
  uint64_t markov_embed;
  uint64_t token_classes;  // int32 [vocab]
  uint64_t rope;           // f32 [2][rope pairs]: base, yarn
  uint64_t engram_codes[kMaxEngramLayers];
  uint64_t engram_scales[kMaxEngramLayers];
  uint64_t engram_hash;                    // int64 [engram layers][primes columns | offsets columns | multipliers n]
  uint64_t engram_rows[kMaxEngramLayers];  // rows that the pinned table holds; row numbers are taken modulo
  uint64_t image_rows;                     // f32 [image rows][hidden]
  uint64_t report;                         // Report, mapped
  uint64_t previous_step;  // StepRecord that a step laid out on the device continues; 0: `step` holds the step
  uint64_t clocks;         // CallClock[calls][CTAs]; 0: off
  uint64_t outputs;        // mapped StepOutputRecord[2] by the parity of the epoch
  int32_t max_pages;
  int32_t first_call;
  int32_t last_call;
  int32_t rank;
  int32_t push;
  int32_t pad_class;
  int32_t poll_limit;     // tries after which a wait gives up by itself; 0: only on abort
  int32_t ring_window;    // bytes of weights in flight
  uint32_t delay_seed;    // tests: every CTA sleeps a random while before each call; 0: off
  int32_t push_delay_ns;  // of Push::kPlayed
};

}  // namespace monostep::gpu
