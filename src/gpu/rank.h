// Rank: one rank's model and state on one device: packed weights, tables, cache pools, the arena of regions, and the
// compiled programs of the bands. Lays a step out and launches calls of it. Called by GpuBackend, by trace and by
// tests, which also read and write regions and pools between launches.
#pragma once

#include <array>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "gpu/constants.h"
#include "gpu/device/records.h"
#include "gpu/device_api.h"
#include "gpu/load_weights.h"
#include "kv/state.h"
#include "weights/checkpoint.h"
#include "weights/fill_record.h"

namespace monostep::gpu {

struct RankOptions {
  int tp = 1;
  int rank = 0;
  int num_ctas = 0;  // 0: one a multiprocessor
  int num_pages = 64;
  int num_slots = program::kMaxRequests;
  int max_context = 4096;
  Push push = Push::kNone;
  int push_delay_ns = 0;               // of Push::kPlayed
  int ring_window = 1 << 20;           // bytes of weights in flight a CTA
  int poll_limit = 1 << 22;            // looks after which a wait gives up
  uint32_t delay_seed = 0;             // tests: random sleeps of every CTA before each call; 0: off
  int64_t engram_bytes = 0;            // of pinned host memory for the Engram tables; 0: all of them
  std::filesystem::path packed_cache;  // folder of packed weights; empty: none are read or kept
};

// Makes the kernel of a program: by NVRTC, or for the emulator.
using KernelMaker =
    std::function<Result<Kernel>(Device&, const program::Layout&, const program::Plan&, const ProgramSizes&)>;

// Makes the kernel that fills synthetic shards (device/fill.cu).
using FillMaker = std::function<Result<Kernel>(Device&)>;

// Bytes that a rank has allocated.
struct MemoryUse {
  int64_t weights = 0;  // packed
  int64_t tables = 0;   // looked up by id or position, but for Engram's
  int64_t pools = 0;    // pages, slots, page table
  int64_t arena = 0;    // regions and records of all bands
  int64_t pinned = 0;   // of the host: Engram tables and reports
};

// How the model came onto the device.
struct LoadReport {
  WeightsLoad weights;
  double weights_s = 0;  // weights and tables, but for Engram's
  double engram_s = 0;
};

class Rank {
 public:
  // The device must outlive the rank. Errors: kInvalidArgument and kUnsupported by name, and the
  // device's.
  static Result<std::unique_ptr<Rank>> make(Device& device, const weights::Checkpoint& checkpoint,
                                            const RankOptions& options, KernelMaker maker);

  // The same without a checkpoint: weights, tables and Engram rows by the golden recipe, filled where they lie.
  static Result<std::unique_ptr<Rank>> make_synthetic(Device& device, const model::Geometry& geometry, uint64_t seed,
                                                      const RankOptions& options, KernelMaker maker,
                                                      const FillMaker& fill_maker);

  // What a band of rows needs; made on first use.
  struct Band {
    Band(const model::Geometry& geometry, const model::Shard& shard, const program::Shape& shape, int num_ctas)
        : layout(geometry, shard, shape), plan(layout, num_ctas) {}
    program::Layout layout;
    program::Plan plan;
    ProgramSizes sizes;
    Kernel kernel;
    Buffer calls;  // CallRecord[]
    Buffer arena;
  };

  // Makes the band of steps of so many rows and requests, so that the first of them does not wait for it. From then on
  // steps take the smallest of the bands made that holds them, and make none where one does.
  Status prepare(int num_rows, int num_requests);
  // Uploads a step. The step's tags carry `epoch`.
  Status begin_step(const program::StepInputs& inputs, uint32_t epoch);
  // Begins the step after the last one without the host: the device lays it out from that step's verdicts and drafts.
  // `slots` are the state slots of the requests that the caller takes to go on. Errors: kInvalidArgument where they are
  // not exactly those of the last step in its order (a join, leave, resume or reorder), where one of them did not
  // draft, or where a request may run past its pages.
  Status continue_step(std::span<const int> slots);
  // Results of the step before the last one begun by continue_step; call it behind that step's launch. Waits for the
  // device to have begun it, at most `seconds`.
  Result<program::StepOutputs> previous_outputs(double seconds);
  // Launches calls [first, last) of the step's program; returns before they are done.
  Status launch(int first, int last);
  // Lets the launches from now on write CallClock[calls][CTAs] at `clocks` (0: off).
  void set_clocks(DevicePtr clocks) { params_.clocks = clocks; }
  // Waits until all launches are done. Errors: kInternal with the report of a wait that gave up.
  Status finish();
  // Makes running launches give up.
  void abort();

  const model::Geometry& geometry() const { return geometry_; }
  const RankOptions& options() const { return options_; }
  const Band& band() const { return *band_; }
  int num_calls() const { return static_cast<int>(band_->layout.program().calls.size()); }
  const kv::PageLayout& page_layout() const { return page_layout_; }
  const kv::SlotLayout& slot_layout() const { return slot_layout_; }

  // Words and tags of a copy of a region: value in the low half of each pair, tag in the high half.
  Status read_region(program::Region region, int copy, std::vector<uint64_t>& pairs);
  Status write_region(program::Region region, int copy, std::span<const uint64_t> pairs);
  Status read_pools(kv::Pools& pools);
  Status write_pools(const kv::Pools& pools);
  Status clear_slot(int state_slot);
  Status write_page(int32_t page_idx, std::span<const std::byte> bytes);  // [page_bytes]
  // Bytes of the packed weights from an offset that a ChunkRun names.
  Status read_weights(int64_t offset, std::span<std::byte> bytes);
  MemoryUse memory() const;
  const LoadReport& load_report() const { return load_; }
  int64_t pinned_engram_rows() const;  // of all Engram layers

 private:
  Rank(Device& device, const model::Geometry& geometry, const RankOptions& options, KernelMaker maker);
  Status settle();
  Status load_packed(const weights::Checkpoint& checkpoint);
  Status load_tables(const weights::Checkpoint& checkpoint);
  Status load_engram(const weights::Checkpoint& checkpoint);
  Status fill_weights(uint64_t seed, Kernel fill);
  Status fill_tables(uint64_t seed, Kernel fill);
  Status fill_engram(uint64_t seed, Kernel fill);
  Status fill(Kernel kernel, std::span<const weights::FillRecord> records, DevicePtr to, bool table);
  Status place_hash(std::span<const int32_t> classes);
  int64_t engram_rows(size_t engram_idx) const;
  Status place_state();
  Result<Band*> band_for(int num_rows, int num_requests);
  Status upload_pages(const program::StepInputs& inputs);
  StepRecord* host_step() const { return reinterpret_cast<StepRecord*>(step_data_.host()); }
  int32_t* host_pages() const { return reinterpret_cast<int32_t*>(step_data_.host() + sizeof(StepRecord)); }
  std::string report_text() const;
  int max_pages() const { return ceil_div(options_.max_context, program::kPageTokens); }

  Device& device_;
  model::Geometry geometry_;
  RankOptions options_;
  KernelMaker maker_;
  model::Shard shard_;
  kv::PageLayout page_layout_;
  kv::SlotLayout slot_layout_;
  std::array<std::unique_ptr<Band>, program::kBands.size()> bands_;
  Band* band_ = nullptr;   // of the step
  bool prepared_ = false;  // prepare() was called
  KernelParams params_ = {};
  LoadReport load_;
  struct Going {  // a request of the last step
    int state_slot = -1;
    bool drafts = false;
    int most_rows = 0;  // rows that its pages still hold behind the last step's first position
  };
  std::vector<Going> going_;
  uint32_t epoch_ = 0;   // of the step
  int step_parity_ = 0;  // the half of step_ that holds it
  Buffer weights_, embed_, markov_embed_, classes_, rope_, hash_, pages_, slots_, page_table_, step_, image_rows_;
  std::vector<MappedBuffer> engram_;  // [Engram layers x (codes, scales)]
  // What begin_step sends: a StepRecord, then the page table as it is on the device, int32 [kMaxRequests][max_pages].
  MappedBuffer step_data_;
  bool sending_ = false;  // it may still be read
  MappedBuffer report_;
  MappedBuffer outputs_;
};

}  // namespace monostep::gpu
