// The simulated machine: what the CTAs of all ranks share during a step - region stores with tags, weights, pools,
// inputs - and the waiting that holds a CTA until a granule carries the wanted tag. Filled by the backend, walked by
// the executor, reached by the stage bodies only through StageContext.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cpu/weights.h"
#include "kv/state.h"
#include "program/plan.h"

namespace monostep::cpu {

// One rank's hand-off areas. Values are 32-bit words (bf16 values widened, integers bit-cast); each granule has a tag,
// which is the readiness that travels with the data.
class RegionStore {
 public:
  explicit RegionStore(const program::Layout& layout);
  float* data(program::Region region, int copy) { return at(region, copy).words.data(); }
  std::atomic<uint32_t>& tag(program::Region region, int copy, int granule) {
    return at(region, copy).tags[static_cast<size_t>(granule)];
  }
  // All words and all tags of a copy, for who mirrors them.
  std::span<float> words(program::Region region, int copy) { return at(region, copy).words; }
  std::span<std::atomic<uint32_t>> tags(program::Region region, int copy) { return at(region, copy).tags; }
  // Words of a granule where granules lie one behind the other: all regions but kScores and kExpertPart.
  int64_t granule_words(program::Region region) const { return granule_words_[static_cast<size_t>(region)]; }
  // Level L2: every word is NaN until it is put, so that a read without its poll cannot pass unseen. poison() before a
  // step; begin_content() before a call's first word lands in a copy (kTaps is filled by several calls and keeps what
  // it has).
  void poison();
  void begin_content(program::Region region, int copy, int call_idx);

 private:
  struct Copy {
    std::vector<float> words;
    std::vector<std::atomic<uint32_t>> tags;
    int content = -1;  // the call whose words it holds, where level L2 is on
  };
  Copy& at(program::Region region, int copy) { return copies_[static_cast<size_t>(region)][static_cast<size_t>(copy)]; }
  std::vector<std::vector<Copy>> copies_;  // [regions][copies]
  std::vector<int64_t> granule_words_;     // [regions]
};

// What a wait wants, for the report when it gives up.
struct Wait {
  program::Region region;
  int copy;
  int granule;
  uint32_t wanted;
  int rank;
  int cta;
  int call_idx;
};

// How CTAs wait for each other: real threads that spin, or threads of which one at a time runs in a random order.
class Waiter {
 public:
  virtual ~Waiter() = default;
  // Waits until `tag` equals wait.wanted; false when the step was given up.
  virtual bool wait(const std::atomic<uint32_t>& tag, const Wait& wait) = 0;
  virtual void put_happened() {}         // some tag changed
  virtual void pause(int /*worker*/) {}  // a point where another CTA may run
};

// Faults that a test asks for (level L4 of ARCHITECTURE.md).
struct Fault {
  int drop_put_call = -1;    // the call whose put of granule 0 is lost on rank 0
  int wrong_tag_call = -1;   // the call that puts granule 0 with the tag of another step on rank 0
  int rank_scope_call = -1;  // the call whose pushes to other ranks are lost
  int skip_poll_call = -1;   // the call that does not wait for what it polls
  int late_cta = -1;         // the CTA (rank 0) that always runs last
};

struct RankState {
  RegionStore* regions = nullptr;  // of the step's band
  std::unique_ptr<RankWeights> weights;
  std::unique_ptr<kv::Pools> pools;
};

// The draft's rows have positions that only the verdict knows.
struct Row {
  int idx = 0;  // row of the regions
  int request = 0;
  int token = 0;     // target rows; draft rows: the noise token but for the anchor
  int position = 0;  // target rows
  bool image = false;
  int draft_pos = 0;  // draft rows: place in the draft block
};

// What a band of rows needs: sizes, task assignment, region stores, and who serves whom.
struct Band {
  Band(const model::Geometry& geometry, const model::Shard& shard, const program::Shape& shape, int num_ctas);
  program::Layout layout;
  program::Plan plan;
  std::vector<std::unique_ptr<RegionStore>> regions;           // [ranks]
  std::vector<std::array<int, program::kNumRegions>> writers;  // [call] the call whose content it reads, -1: none
  std::vector<std::array<int, program::kNumRegions>> copies;   // [call] the copy that it writes
  std::vector<std::array<int, program::kNumRegions>>
      last_readers;  // [call] last reader of the content that it replaces, -1: none
};

struct Machine {
  Band* band = nullptr;  // of the step
  ModelTables tables;
  std::vector<RankState> ranks;
  const program::StepInputs* inputs = nullptr;
  std::vector<Row> target_rows;   // live rows of the step
  std::vector<Row> draft_rows;    // live rows of the draft block
  std::vector<int> image_row_of;  // [target rows] index into inputs->image_rows, -1: none
  Waiter* waiter = nullptr;
  Fault fault;
  std::atomic<bool> aborted{false};
  std::string violation;  // first broken rule, by name
  std::vector<std::atomic<int>>
      finished;  // [rank x CTAs + cta] calls that a CTA has finished this step; empty: checks are off

  int num_ranks() const { return static_cast<int>(ranks.size()); }
  const program::Layout& layout() const { return band->layout; }
  const program::Plan& plan() const { return band->plan; }
  const program::Program& program() const { return band->layout.program(); }
};

std::string region_name(program::Region region);
// "stage layer 3" of a call.
std::string call_name(const program::Program& program, int call_idx);

}  // namespace monostep::cpu
