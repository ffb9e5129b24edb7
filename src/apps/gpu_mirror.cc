// Mirroring of regions and pools (apps/gpu_mirror.h).
#include "apps/gpu_mirror.h"

#include <algorithm>
#include <bit>
#include <set>
#include <utility>

#include "base/numeric.h"

namespace monostep::apps {
namespace {

using program::Region;
using program::Scope;
using program::Stage;
using program::Word;

// Which tags are taken over: those of a step, or of one call of it. With several ranks the calls run one by one and
// only the call's own tags count: a rank's arena still holds what it was handed of earlier layers of the step.
struct Epoch {
  uint32_t epoch = 0;
  int tag_bits = 0;
  uint32_t exact = 0;  // 0: any call

  bool holds(uint32_t tag) const {
    return exact != 0 ? tag == exact : tag >> tag_bits == epoch << tag_bits >> tag_bits;
  }
};

// Regions whose granules do not lie one behind the other: all their words carry the tag of granule 0, which every step
// writes.
bool is_scattered(Region region) { return region == Region::kScores || region == Region::kExpertPart; }

// The granule of a value of a region.
size_t granule_at(cpu::RegionStore& store, Region region, size_t value_idx) {
  if (is_scattered(region)) return 0;
  return value_idx / static_cast<size_t>(store.granule_words(region));
}

std::vector<uint64_t> pairs_of(cpu::RegionStore& store, Region region, int copy) {
  const std::span<const float> words = store.words(region, copy);
  const std::span<std::atomic<uint32_t>> tags = store.tags(region, copy);
  const bool halves = program::decl(region).word == Word::kBF16;
  const size_t per_pair = halves ? 2 : 1;
  std::vector<uint64_t> out((words.size() + per_pair - 1) / per_pair);
  for (size_t idx = 0; idx < out.size(); ++idx) {
    const size_t at = idx * per_pair;
    uint32_t value = std::bit_cast<uint32_t>(words[at]);
    if (halves) {
      const uint32_t high = at + 1 < words.size() ? bf16_bits(words[at + 1]) : 0;
      value = bf16_bits(words[at]) | (high << 16);
    }
    const uint64_t tag = tags.empty() ? 0 : tags[granule_at(store, region, at)].load();
    out[idx] = (tag << 32) | value;
  }
  return out;
}

// Takes over what was written in the step of `epoch`: words, and the tags of their granules. Where several calls wrote
// parts of a granule, the latest has the highest tag.
void take_pairs(cpu::RegionStore& store, Region region, int copy, std::span<const uint64_t> pairs, const Epoch& epoch) {
  const std::span<float> words = store.words(region, copy);
  const std::span<std::atomic<uint32_t>> tags = store.tags(region, copy);
  const bool halves = program::decl(region).word == Word::kBF16;
  for (size_t idx = 0; idx < pairs.size(); ++idx) {
    const auto tag = static_cast<uint32_t>(pairs[idx] >> 32);
    if (!epoch.holds(tag)) continue;
    const auto value = static_cast<uint32_t>(pairs[idx]);
    const size_t at = halves ? 2 * idx : idx;
    if (halves) {
      words[at] = bf16_value(static_cast<uint16_t>(value));
      if (at + 1 < words.size()) words[at + 1] = bf16_value(static_cast<uint16_t>(value >> 16));
    } else {
      words[at] = std::bit_cast<float>(value);
    }
    std::atomic<uint32_t>& known = tags[granule_at(store, region, at)];
    if (!epoch.holds(known.load()) || known.load() < tag) known.store(tag);
  }
}

using RegionCopy = std::pair<Region, int>;

std::vector<Region> regions_of(program::RegionSet set) {
  std::vector<Region> out;
  for (int idx = 0; idx < program::kNumRegions; ++idx) {
    if ((set & program::bit(static_cast<Region>(idx))) != 0) out.push_back(static_cast<Region>(idx));
  }
  return out;
}

// What the calls of a range read of the calls before it.
std::set<RegionCopy> copies_read(const program::Layout& layout, const cpu::CallRange& range) {
  const program::Program& program = layout.program();
  std::set<RegionCopy> out;
  for (int call_idx = range.first; call_idx < range.last; ++call_idx) {
    for (const Region region : regions_of(program.calls[static_cast<size_t>(call_idx)].reads)) {
      const int writer = program::writer_of(program, layout.geometry(), region, call_idx);
      if (writer < 0) continue;
      // The taps are filled by calls of several layers.
      if (writer >= range.first && region != Region::kTaps) continue;
      out.emplace(region,
                  program::copy_of(program, layout.geometry(), region, program.calls[static_cast<size_t>(writer)]));
    }
  }
  return out;
}

std::set<RegionCopy> copies_written(const program::Layout& layout, const cpu::CallRange& range) {
  const program::Program& program = layout.program();
  std::set<RegionCopy> out;
  for (int call_idx = range.first; call_idx < range.last; ++call_idx) {
    const program::Call& call = program.calls[static_cast<size_t>(call_idx)];
    for (const Region region : regions_of(call.writes))
      out.emplace(region, program::copy_of(program, layout.geometry(), region, call));
  }
  return out;
}

enum class PoolUse { kNone, kRead, kWrite };

PoolUse pool_use(Stage stage) {
  switch (stage) {
    case Stage::kIndexScore:
    case Stage::kAttend: return PoolUse::kRead;
    case Stage::kEngramRows:
    case Stage::kKvNew:
    case Stage::kContextNew: return PoolUse::kWrite;  // and read
    default: return PoolUse::kNone;
  }
}

PoolUse pool_use(const program::Program& program, const cpu::CallRange& range) {
  PoolUse use = PoolUse::kNone;
  for (int call_idx = range.first; call_idx < range.last; ++call_idx)
    use = std::max(use, pool_use(program.calls[static_cast<size_t>(call_idx)].stage));
  return use;
}

Status take_results(cpu::Machine& machine, gpu::Rank& rank, cpu::RankState& state, const cpu::CallRange& range) {
  const uint32_t exact = machine.num_ranks() > 1 ? machine.plan().tag(machine.inputs->epoch, range.first) : 0;
  const Epoch epoch{machine.inputs->epoch, machine.plan().tag_bits(), exact};
  for (const auto& [region, copy] : copies_written(machine.layout(), range)) {
    std::vector<uint64_t> pairs;
    TRY(rank.read_region(region, copy, pairs));
    for (cpu::RankState& other : machine.ranks) {
      const bool pushed = program::decl(region).scope == Scope::kAllRanks;
      if (pushed || &other == &state) take_pairs(*other.regions, region, copy, pairs, epoch);
    }
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<GpuMirror>> GpuMirror::make(gpu::Device& device, const weights::Checkpoint& checkpoint,
                                                   const cpu::CpuBackend& backend, Cut cut,
                                                   const gpu::KernelMaker& maker) {
  gpu::RankOptions options;
  options.tp = backend.options().tp;
  options.num_pages = backend.options().num_pages;
  options.num_slots = backend.options().num_slots;
  options.max_context = backend.options().max_context;
  std::vector<std::unique_ptr<gpu::Rank>> ranks;
  for (options.rank = 0; options.rank < options.tp; ++options.rank) {
    TRY_ASSIGN(ranks.emplace_back(), gpu::Rank::make(device, checkpoint, options, maker));
  }
  return std::make_unique<GpuMirror>(std::move(ranks), cut);
}

Status GpuMirror::run_rank(cpu::Machine& machine, int rank_idx, const cpu::CallRange& range) {
  gpu::Rank& rank = *ranks_[static_cast<size_t>(rank_idx)];
  cpu::RankState& state = machine.ranks[static_cast<size_t>(rank_idx)];
  const program::Program& program = machine.program();
  const PoolUse pools = pool_use(program, range);
  TRY(rank.begin_step(*machine.inputs, machine.inputs->epoch));
  for (const auto& [region, copy] : copies_read(machine.layout(), range))
    TRY(rank.write_region(region, copy, pairs_of(*state.regions, region, copy)));
  if (pools != PoolUse::kNone) TRY(rank.write_pools(*state.pools));
  for (const cpu::CallRange& part : gpu::cut_calls(program, range, cut_)) TRY(rank.launch(part.first, part.last));
  TRY(rank.finish());
  if (pools == PoolUse::kWrite) TRY(rank.read_pools(*state.pools));
  return take_results(machine, rank, state, range);
}

Status GpuMirror::run(cpu::Machine& machine, const cpu::CallRange& range) {
  if (ranks_.size() == 1) return run_rank(machine, 0, range);
  for (int call_idx = range.first; call_idx < range.last; ++call_idx) {
    for (int rank_idx = 0; rank_idx < static_cast<int>(ranks_.size()); ++rank_idx)
      TRY(run_rank(machine, rank_idx, {call_idx, call_idx + 1}));
  }
  return {};
}

}  // namespace monostep::apps
