// Mirroring of regions and pools (apps/gpu_mirror.h).
#include "apps/gpu_mirror.h"

#include <bit>

#include "base/numeric.h"

namespace monostep::apps {
namespace {

using program::Region;
using program::Scope;
using program::Word;

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

// Takes over what carries a tag of the step: words, and the tags of their granules.
void take_pairs(cpu::RegionStore& store, Region region, int copy, std::span<const uint64_t> pairs, uint32_t tag) {
  const std::span<float> words = store.words(region, copy);
  const std::span<std::atomic<uint32_t>> tags = store.tags(region, copy);
  const bool halves = program::decl(region).word == Word::kBF16;
  for (size_t idx = 0; idx < pairs.size(); ++idx) {
    if (static_cast<uint32_t>(pairs[idx] >> 32) != tag) continue;
    const auto value = static_cast<uint32_t>(pairs[idx]);
    const size_t at = halves ? 2 * idx : idx;
    if (halves) {
      words[at] = bf16_value(static_cast<uint16_t>(value));
      if (at + 1 < words.size()) words[at + 1] = bf16_value(static_cast<uint16_t>(value >> 16));
    } else {
      words[at] = std::bit_cast<float>(value);
    }
    tags[granule_at(store, region, at)].store(tag);
  }
}

program::RegionSet reads_of(const program::Program& program, const cpu::CallRange& range) {
  program::RegionSet set = 0;
  for (int idx = range.first; idx < range.last; ++idx) set |= program.calls[static_cast<size_t>(idx)].reads;
  return set;
}

}  // namespace

Status GpuMirror::launch(gpu::Rank& rank, const cpu::CallRange& range) const {
  if (cut_ == Cut::kStep) return rank.launch(range.first, range.last);
  const std::vector<program::Call>& calls = rank.band().layout.program().calls;
  int first = range.first;
  while (first < range.last) {
    int last = first + 1;
    while (cut_ == Cut::kLayer && last < range.last &&
           calls[static_cast<size_t>(last)].layer == calls[static_cast<size_t>(first)].layer)
      ++last;
    TRY(rank.launch(first, last));
    first = last;
  }
  return {};
}

Status GpuMirror::run_rank(cpu::Machine& machine, int rank_idx, const cpu::CallRange& range) {
  gpu::Rank& rank = *ranks_[static_cast<size_t>(rank_idx)];
  cpu::RankState& state = machine.ranks[static_cast<size_t>(rank_idx)];
  cpu::RegionStore& store = *state.regions;
  const program::Program& program = machine.program();
  TRY(rank.begin_step(*machine.inputs, machine.inputs->epoch));
  const program::RegionSet reads = reads_of(program, range);
  for (int idx = 0; idx < program::kNumRegions; ++idx) {
    const auto region = static_cast<Region>(idx);
    if ((reads & program::bit(region)) == 0) continue;
    for (int copy = 0; copy < machine.layout().num_copies(region); ++copy)
      TRY(rank.write_region(region, copy, pairs_of(store, region, copy)));
  }
  TRY(rank.write_pools(*state.pools));
  TRY(launch(rank, range));
  TRY(rank.finish());
  TRY(rank.read_pools(*state.pools));
  for (int call_idx = range.first; call_idx < range.last; ++call_idx) {
    const program::Call& call = program.calls[static_cast<size_t>(call_idx)];
    for (int idx = 0; idx < program::kNumRegions; ++idx) {
      const auto region = static_cast<Region>(idx);
      if ((call.writes & program::bit(region)) == 0) continue;
      const int copy = program::copy_of(program, machine.layout().geometry(), region, call);
      std::vector<uint64_t> pairs;
      TRY(rank.read_region(region, copy, pairs));
      const uint32_t tag = machine.plan().tag(machine.inputs->epoch, call_idx);
      for (cpu::RankState& other : machine.ranks) {
        const bool pushed = program::decl(region).scope == Scope::kAllRanks;
        if (pushed || &other == &state) take_pairs(*other.regions, region, copy, pairs, tag);
      }
    }
  }
  return {};
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
