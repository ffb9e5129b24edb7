// The numbers of a step (program/plan.h).
#include "program/plan.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace monostep::program {
namespace {

constexpr int kRegionAlign = 128;  // bytes
constexpr int kPairBytes = 8;      // a 32-bit value and its tag

int rows_of(const Layout& layout, const Call& call) {
  return call.section == Section::kDraft ? layout.draft_rows() : layout.shape().band;
}

bool has_linears(Stage stage) {
  switch (stage) {
    case Stage::kEngramKv:
    case Stage::kAttnIn:
    case Stage::kQProj:
    case Stage::kWoA:
    case Stage::kWoB:
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

// Sections that are equal parts of one linear's kind.
bool has_equal_sections(Stage stage) {
  return stage == Stage::kWoA || stage == Stage::kExpertUp || stage == Stage::kContextProj;
}

// Layer whose role and sizes a call has: the head, the context projection and the Markov head belong to none.
int size_layer(const Call& call) { return call.stage == Stage::kMarkov ? 0 : std::max(call.layer, 0); }

std::vector<Linear> linears(const Layout& layout, const Call& call) {
  return linears_of(call.stage, layout.program().roles[static_cast<size_t>(size_layer(call))]);
}

}  // namespace

TileTask tile_task(const Layout& layout, const Call& call, int task) {
  CHECK(has_linears(call.stage), "a tile of a stage without linears");
  const int splits = layout.stage_splits(call.stage, size_layer(call));
  TileTask place{0, task / splits, task % splits};
  if (has_equal_sections(call.stage)) {
    const int tiles = layout.stage_tiles(call.stage, size_layer(call));
    return {place.tile / tiles, place.tile % tiles, place.split};
  }
  for (const Linear linear : linears(layout, call)) {
    const int tiles = layout.size(linear, size_layer(call)).tiles();
    if (place.tile < tiles) return place;
    place.tile -= tiles;
    ++place.section;
  }
  CHECK(false, "a task beyond the tiles of its call");
  return place;
}

LinearSize section_size(const Layout& layout, const Call& call, int section) {
  const std::vector<Linear> all = linears(layout, call);
  return layout.size(all[has_equal_sections(call.stage) ? 0 : static_cast<size_t>(section)], size_layer(call));
}

ItemTask item_task(const Layout& layout, const Call& call, int task) {
  const int rows = rows_of(layout, call);
  switch (call.stage) {
    case Stage::kEngramRows: {
      const int columns = layout.geometry().num_engram_columns();
      return {task / columns, task % columns};
    }
    case Stage::kOSum: return {task / layout.o_chunks(), task % layout.o_chunks()};
    case Stage::kExpertAct: return {task / (layout.expert_slots() + 1), task % (layout.expert_slots() + 1)};
    case Stage::kAttend:
    case Stage::kAttnMerge:
    case Stage::kContextNew: return {task / rows, task % rows};
    case Stage::kIndexScore: {
      const int chunks = layout.score_chunks(call.layer);
      return {task / chunks, task % chunks};
    }
    case Stage::kVerdict:
    case Stage::kDraftOut: return {task, 0};
    default: CHECK(!has_linears(call.stage), "an item of a stage of linears"); return {0, task};
  }
}

int granule_of(const Layout& layout, const Call& call, Region region, int rank, int task) {
  switch (region) {
    case Region::kTaps:
      return layout.program().roles[static_cast<size_t>(call.layer)].tap_idx * layout.num_slices() + task;
    case Region::kEngramKvOut:
    case Region::kAttnExchange:
    case Region::kFfnExchange:
    case Region::kLogits:
    case Region::kMarkovTop: return rank * layout.num_tasks(call) + task;
    case Region::kAttnOut: {
      const ItemTask item = item_task(layout, call, task);
      const int heads = layout.heads_per_group();
      return (item.outer / heads * layout.rows() + item.inner) * heads + item.outer % heads;
    }
    case Region::kAttnPart:
    case Region::kContextNewOut: {
      const ItemTask item = item_task(layout, call, task);
      return item.outer * layout.rows() + item.inner;
    }
    default: return task;
  }
}

Plan::Plan(const Layout& layout, int num_ctas) : num_ctas_(num_ctas) {
  CHECK(num_ctas > 0, "a plan for no CTA");
  place_calls(layout);
  place_regions(layout);
  list_reductions(layout);
  chunk_runs_ = program::chunk_runs(layout);
}

void Plan::place_calls(const Layout& layout) {
  const std::vector<Call>& program_calls = layout.program().calls;
  int64_t next_cta = 0;
  int most = 0;
  for (size_t call_idx = 0; call_idx < program_calls.size(); ++call_idx) {
    const Call& call = program_calls[call_idx];
    CallPlan plan;
    plan.call_idx = static_cast<int>(call_idx);
    plan.num_tasks = layout.num_tasks(call);
    plan.tasks_per_chunk = tiles_per_chunk(layout, call.stage);
    plan.first_cta = static_cast<int>(next_cta % num_ctas_);
    next_cta += ceil_div(plan.num_tasks, plan.tasks_per_chunk);
    calls_.push_back(plan);
    // Calls of one stage differ in their layer (or, without a layer, in the copy that they write): enough to tell
    // writers apart.
    ordinals_.push_back(static_cast<uint32_t>(call.layer + 2));
    most = std::max(most, call.layer + 2);
  }
  tag_bits_ = std::bit_width(static_cast<uint32_t>(most));
}

std::vector<int> Plan::tasks_of(int call_idx, int cta) const {
  const CallPlan& call = calls_[static_cast<size_t>(call_idx)];
  std::vector<int> tasks;
  const int stride = num_ctas_ * call.tasks_per_chunk;
  for (int first = (cta - call.first_cta + num_ctas_) % num_ctas_ * call.tasks_per_chunk; first < call.num_tasks;
       first += stride) {
    for (int task = first; task < std::min(first + call.tasks_per_chunk, call.num_tasks); ++task) tasks.push_back(task);
  }
  return tasks;
}

void Plan::place_regions(const Layout& layout) {
  for (int region_idx = 0; region_idx < kNumRegions; ++region_idx) {
    const auto region = static_cast<Region>(region_idx);
    const int values_per_word = decl(region).word == Word::kBF16 ? 2 : 1;
    const auto idx = static_cast<size_t>(region_idx);
    region_bytes_[idx] = ceil_div<int64_t>(layout.region_words(region), values_per_word) * kPairBytes;
    copy_stride_[idx] = round_up<int64_t>(region_bytes_[idx], kRegionAlign);
    first_offset_[idx] = arena_bytes_;
    arena_bytes_ += copy_stride_[idx] * layout.num_copies(region);
  }
}

int64_t Plan::region_offset(Region region, int copy) const {
  const auto idx = static_cast<size_t>(region);
  return first_offset_[idx] + copy * copy_stride_[idx];
}

void Plan::list_reductions(const Layout& layout) {
  for (const Call& call : layout.program().calls) {
    if (!has_linears(call.stage)) continue;
    for (int region_idx = 0; region_idx < kNumRegions; ++region_idx) {
      const auto region = static_cast<Region>(region_idx);
      if ((call.writes & bit(region)) == 0 || region == Region::kMarkovTop) continue;
      ReductionOrder order;
      order.region = region;
      order.layer = call.layer;
      order.num_splits = layout.stage_splits(call.stage, size_layer(call));
      order.split_width = section_size(layout, call, 0).k / order.num_splits;
      const bool summed = region == Region::kAttnExchange || region == Region::kFfnExchange;
      order.num_ranks = summed ? layout.shard().tp : 1;
      reductions_.push_back(order);
    }
  }
}

}  // namespace monostep::program
