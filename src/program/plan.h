// Plan: the numbers of one step for one (layout, CTA count): tasks and their CTAs, byte offsets of the regions, tags,
// reduction orders, and the weight chunks in the order that a rank consumes them. Only numbers, all pure functions of
// the layout and the CTA count; CTA count changes who computes a piece, never a piece. Read by both backends, the
// packer and `monostep plan`.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "program/layout.h"
#include "program/packing.h"

namespace monostep::program {

// What a task of a linear's stage computes: tile `tile` of part `section`, over K slice `split`. Splits are fastest:
// task = (tiles of the sections before + tile) x splits + split. A section is a linear of the stage in the order of
// Linear (kAttnIn, kQProj, kFfnIn), an output group of the rank (kWoA), a position in the step's ascending list of
// distinct experts (kExpertUp), a draft layer (kContextProj), and 0 for the other stages of linears.
TileTask tile_task(const Layout& layout, const Call& call, int task);

// Which part of the work of a stage without linears a task is. `outer`: row (kEngramRows, kOSum, kExpertAct), part
// of a list x output groups + output group (kAttend), head (kAttnMerge), draft layer (kContextNew), request
// (kIndexScore, kVerdict, kDraftOut), else 0. `inner`: Engram column (kEngramRows), chunk of columns (kOSum), expert
// slot, the shared expert last (kExpertAct), row (kAttend, kAttnMerge, kContextNew and the stages of one task a row),
// score chunk (kIndexScore), slice (the folds). Inner is fastest.
struct ItemTask {
  int outer = 0;
  int inner = 0;
};
ItemTask item_task(const Layout& layout, const Call& call, int task);

// The granule of `region` (which the call writes) that a task of `rank` writes: one a task, none shared. Regions that
// are pushed to every rank hold the ranks' granules one rank after the other, except kSampled, where rank 0 alone
// writes.
int granule_of(const Layout& layout, const Call& call, Region region, int rank, int task);

// Sizes of the linear of a section (a rank's share; of one group for kWoA).
LinearSize section_size(const Layout& layout, const Call& call, int section);

struct CallPlan {
  int call_idx = 0;
  int num_tasks = 0;        // an upper bound, as Layout::num_tasks
  int first_cta = 0;        // the CTA of task 0; consecutive small calls fall on different CTAs
  int tasks_per_chunk = 1;  // neighbouring tasks that take their weights from one chunk and so share a CTA
};

// How the partial sums of a region are added up: K slices ascending inside a rank, then ranks 0..TP-1, in fp32. Routed
// experts come ascending by id and the shared expert last inside a rank's sum. Functions of geometry and shard alone.
struct ReductionOrder {
  Region region = Region::kAttnInPart;
  int layer = -1;
  int num_splits = 1;  // slice s covers inputs [s x split_width, (s + 1) x split_width) of the rank's share
  int split_width = 0;
  int num_ranks = 1;
  bool operator==(const ReductionOrder&) const = default;
};

class Plan {
 public:
  Plan(const Layout& layout, int num_ctas);

  int num_ctas() const { return num_ctas_; }
  const std::vector<CallPlan>& calls() const { return calls_; }  // one a call of the program, in its order
  int cta_of(int call_idx, int task) const {
    const CallPlan& call = calls_[static_cast<size_t>(call_idx)];
    return (call.first_cta + task / call.tasks_per_chunk) % num_ctas_;
  }
  std::vector<int> tasks_of(int call_idx, int cta) const;  // the tasks of a CTA, ascending

  // Byte offset of a copy of a region in a rank's arena: 128-byte aligned, no two overlap. A region's bytes hold
  // value+tag pairs.
  int64_t region_offset(Region region, int copy) const;
  int64_t region_bytes(Region region) const { return region_bytes_[static_cast<size_t>(region)]; }  // of one copy
  int64_t arena_bytes() const { return arena_bytes_; }

  // The tag of everything that a call puts in the step of `epoch`. Never 0. No two writers of one copy of a region
  // share a tag in any tag_period() consecutive steps, so nothing is zeroed between steps.
  uint32_t tag(uint32_t epoch, int call_idx) const {
    return (epoch << tag_bits_) | ordinals_[static_cast<size_t>(call_idx)];
  }
  int tag_bits() const { return tag_bits_; }  // low bits of a tag: the writer
  int64_t tag_period() const { return int64_t{1} << (32 - tag_bits_); }

  // The weights that each call streams, in consumption order, with the offsets of their chunks in the rank's packed
  // file.
  const std::vector<ChunkRun>& chunk_runs() const { return chunk_runs_; }
  const std::vector<ReductionOrder>& reductions() const { return reductions_; }

 private:
  void place_calls(const Layout& layout);
  void place_regions(const Layout& layout);
  void list_reductions(const Layout& layout);

  int num_ctas_ = 1;
  int tag_bits_ = 0;
  std::vector<CallPlan> calls_;
  std::vector<uint32_t> ordinals_;  // [calls], low bits of the tag
  std::array<int64_t, kNumRegions> first_offset_{};
  std::array<int64_t, kNumRegions> copy_stride_{};
  std::array<int64_t, kNumRegions> region_bytes_{};
  int64_t arena_bytes_ = 0;
  std::vector<ChunkRun> chunk_runs_;
  std::vector<ReductionOrder> reductions_;
};

}  // namespace monostep::program
