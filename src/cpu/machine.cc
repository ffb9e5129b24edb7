// Region stores, tags and the context's access to them (cpu/machine.h, cpu/context.h).
#include "cpu/machine.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/context.h"

namespace monostep::cpu {

using program::Region;
using program::Scope;

RegionStore::RegionStore(const program::Layout& layout) {
  for (int idx = 0; idx < program::kNumRegions; ++idx) {
    const auto region = static_cast<Region>(idx);
    std::vector<Copy>& list = copies_.emplace_back(static_cast<size_t>(layout.num_copies(region)));
    const auto granules = static_cast<size_t>(layout.num_granules(region));
    for (Copy& copy : list) {
      copy.words.resize(static_cast<size_t>(layout.region_words(region)));
      copy.tags = std::vector<std::atomic<uint32_t>>(granules);
    }
    granule_words_.push_back(granules == 0 ? 0 : layout.region_words(region) / static_cast<int64_t>(granules));
  }
}

void RegionStore::poison() {
  for (std::vector<Copy>& list : copies_) {
    for (Copy& copy : list) {
      std::fill(copy.words.begin(), copy.words.end(), std::numeric_limits<float>::quiet_NaN());
      copy.content = -1;
    }
  }
}

void RegionStore::begin_content(Region region, int copy_idx, int call_idx) {
  Copy& copy = at(region, copy_idx);
  if (copy.content == call_idx || region == Region::kTaps) return;
  std::fill(copy.words.begin(), copy.words.end(), std::numeric_limits<float>::quiet_NaN());
  copy.content = call_idx;
}

Band::Band(const model::Geometry& geometry, const model::Shard& shard, const program::Shape& shape, int num_ctas)
    : layout(geometry, shard, shape), plan(layout, num_ctas) {
  for (int rank = 0; rank < shard.tp; ++rank) regions.push_back(std::make_unique<RegionStore>(layout));
  const program::Program& program = layout.program();
  const auto num_calls = static_cast<int>(program.calls.size());
  std::array<int, program::kNumRegions> none;
  none.fill(-1);
  writers.assign(program.calls.size(), none);
  copies = writers;
  last_readers = writers;
  auto readers_of = writers;  // [call] last call that reads its content
  for (int call_idx = 0; call_idx < num_calls; ++call_idx) {
    const program::Call& call = program.calls[static_cast<size_t>(call_idx)];
    for (size_t idx = 0; idx < program::kNumRegions; ++idx) {
      const auto region = static_cast<Region>(idx);
      if ((call.reads & program::bit(region)) != 0) {
        const int writer = program::writer_of(program, geometry, region, call_idx);
        writers[static_cast<size_t>(call_idx)][idx] = writer;
        if (writer >= 0) readers_of[static_cast<size_t>(writer)][idx] = call_idx;
      }
      if ((call.writes & program::bit(region)) == 0) continue;
      const int copy = program::copy_of(program, geometry, region, call);
      copies[static_cast<size_t>(call_idx)][idx] = copy;
      for (int earlier = call_idx - 1; earlier >= 0; --earlier) {
        if (copies[static_cast<size_t>(earlier)][idx] != copy) continue;
        last_readers[static_cast<size_t>(call_idx)][idx] = readers_of[static_cast<size_t>(earlier)][idx];
        break;
      }
    }
  }
}

std::string region_name(Region region) { return std::string(program::decl(region).name); }

std::string call_name(const program::Program& program, int call_idx) {
  const program::Call& call = program.calls[static_cast<size_t>(call_idx)];
  const std::string name(program::decl(call.stage).name);
  return call.layer < 0 ? name : name + " layer " + std::to_string(call.layer);
}

namespace {

// Whether a granule holds every row ([row][words]), one row (granules [..][row]), part of a row (granules [row][..]),
// or something that not every live row fills.
enum class Rows { kAll, kOne, kPart, kOther };
Rows rows_of(Region region) {
  switch (region) {
    case Region::kEngramKvOut:
    case Region::kEngramStreams:
    case Region::kEngramDots:
    case Region::kStreams:
    case Region::kAttnU:
    case Region::kAttnMixPart:
    case Region::kAttnInPart:
    case Region::kQPart:
    case Region::kOaPart:
    case Region::kAttnExchange:
    case Region::kFfnStreams:
    case Region::kFfnU:
    case Region::kFfnMixPart:
    case Region::kFfnInPart:
    case Region::kFfnExchange:
    case Region::kHeadU: return Rows::kAll;
    case Region::kAttnMixOut:
    case Region::kFfnMixOut:
    case Region::kQIn:
    case Region::kWindowNew:
    case Region::kAttnPart: return Rows::kOne;
    case Region::kEngramRowsOut:
    case Region::kAttnOut:
    case Region::kOIn:
    case Region::kExpertIn: return Rows::kPart;
    default: return Rows::kOther;
  }
}

// The row of a granule that holds one row or part of one.
int row_of(const program::Layout& layout, Region region, int granule) {
  const int rows = layout.rows();
  if (region == Region::kAttnOut) return granule / layout.heads_per_group() % rows;  // [group][row][head]
  return rows_of(region) == Rows::kPart ? granule / (layout.num_granules(region) / rows) : granule % rows;
}

uint32_t tag_of(const Machine& machine, int call_idx) { return machine.plan().tag(machine.inputs->epoch, call_idx); }

int copy_written(const Machine& machine, int call_idx, Region region) {
  return machine.band->copies[static_cast<size_t>(call_idx)][static_cast<size_t>(region)];
}

}  // namespace

int ContextBase::serving_call(Region region) const {
  const int writer = machine_.band->writers[static_cast<size_t>(where_.call_idx)][static_cast<size_t>(region)];
  CHECK(writer >= 0, "a region that nobody wrote before this call");
  return writer;
}

bool ContextBase::poll_granule(Region region, int granule, int writer) {
  if (machine_.fault.skip_poll_call == where_.call_idx) return true;
  const int copy = copy_written(machine_, writer, region);
  RegionStore& store = *machine_.ranks[static_cast<size_t>(where_.rank)].regions;
  const Wait wait{region, copy, granule, tag_of(machine_, writer), where_.rank, where_.cta, where_.call_idx};
  return machine_.waiter->wait(store.tag(region, copy, granule), wait);
}

const float* ContextBase::read_copy(Region region, int writer) const {
  return machine_.ranks[static_cast<size_t>(where_.rank)].regions->data(region, copy_written(machine_, writer, region));
}

float* ContextBase::write_copy(Region region) {
  check_overwrite(region);
  const int copy = copy_written(machine_, where_.call_idx, region);
  RegionStore& own = *machine_.ranks[static_cast<size_t>(where_.rank)].regions;
  if (!machine_.finished.empty()) own.begin_content(region, copy, where_.call_idx);
  return own.data(region, copy);
}

// Every reader of the content that this call replaces must be done, on every rank that the region reaches.
void ContextBase::check_overwrite(Region region) {
  if (machine_.finished.empty() || (checked_ & program::bit(region)) != 0) return;
  checked_ |= program::bit(region);
  const int reader = machine_.band->last_readers[static_cast<size_t>(where_.call_idx)][static_cast<size_t>(region)];
  if (reader < 0) return;
  const bool all_ranks = program::decl(region).scope == Scope::kAllRanks;
  const int num_ctas = machine_.plan().num_ctas();
  for (int rank = 0; rank < machine_.num_ranks(); ++rank) {
    if (!all_ranks && rank != where_.rank) continue;
    for (int cta = 0; cta < num_ctas; ++cta) {
      if (machine_.plan().tasks_of(reader, cta).empty()) continue;
      if (machine_.finished[static_cast<size_t>(rank * num_ctas + cta)].load() > reader) continue;
      if (machine_.violation.empty()) {
        machine_.violation = region_name(region) + ": " + call_name(machine_.program(), where_.call_idx) +
                             " overwrites what " + call_name(machine_.program(), reader) + " has not read on rank " +
                             std::to_string(rank) + " CTA " + std::to_string(cta);
      }
      machine_.aborted = true;
    }
  }
}

// Level L2: what a call read before its put is NaN (RegionStore::begin_content), and so is what it made of it.
void ContextBase::check_content(Region region, int granule) {
  const Rows layout = rows_of(region);
  if (machine_.finished.empty() || layout == Rows::kOther) return;
  const int copy = copy_written(machine_, where_.call_idx, region);
  RegionStore& own = *machine_.ranks[static_cast<size_t>(where_.rank)].regions;
  const int64_t granule_words = own.granule_words(region);
  const int64_t row_words = layout == Rows::kAll ? granule_words / machine_.layout().rows() : granule_words;
  const float* words = own.data(region, copy) + granule * granule_words;
  for (const Row& row : rows()) {
    const float* from = layout == Rows::kAll ? words + row.idx * row_words : words;
    const bool own_granule = layout == Rows::kAll || row_of(machine_.layout(), region, granule) == row.idx;
    if (!own_granule || std::none_of(from, from + row_words, [](float word) { return std::isnan(word); })) continue;
    if (machine_.violation.empty()) {
      machine_.violation = "read before its put: " + call_name(machine_.program(), where_.call_idx) + " on rank " +
                           std::to_string(where_.rank) + " CTA " + std::to_string(where_.cta) + " puts NaN into " +
                           region_name(region) + " granule " + std::to_string(granule);
    }
    machine_.aborted = true;
  }
}

void ContextBase::put_granule(Region region, int granule) {
  check_content(region, granule);
  const int copy = copy_written(machine_, where_.call_idx, region);
  RegionStore& own = *machine_.ranks[static_cast<size_t>(where_.rank)].regions;
  const bool first = where_.rank == 0 && granule == 0;
  uint32_t tag = tag_of(machine_, where_.call_idx);
  if (first && machine_.fault.drop_put_call == where_.call_idx) return;
  if (first && machine_.fault.wrong_tag_call == where_.call_idx) {
    tag = machine_.plan().tag(machine_.inputs->epoch - 1, where_.call_idx);
  }
  const bool push =
      program::decl(region).scope == Scope::kAllRanks && machine_.fault.rank_scope_call != where_.call_idx;
  for (int rank = 0; push && rank < machine_.num_ranks(); ++rank) {
    if (rank == where_.rank) continue;
    RegionStore& peer = *machine_.ranks[static_cast<size_t>(rank)].regions;
    const int64_t words = own.granule_words(region);
    if (!machine_.finished.empty()) peer.begin_content(region, copy, where_.call_idx);
    std::memcpy(peer.data(region, copy) + granule * words, own.data(region, copy) + granule * words,
                static_cast<size_t>(words) * sizeof(float));
    peer.tag(region, copy, granule).store(tag, std::memory_order_release);
  }
  own.tag(region, copy, granule).store(tag, std::memory_order_release);
  machine_.waiter->put_happened();
}

}  // namespace monostep::cpu
