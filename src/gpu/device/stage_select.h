// Index selection: the best groups of a row and, at the candidate source, the candidates that it keeps. Tasks: rows.
// Reads the row's scores; writes ids ascending, -1 behind. Exact: bf16 scores become 16-bit keys in their order, a
// histogram of the upper twelve bits and one of the lower four give the key of the last one taken, and the items are
// compacted in their order; of equal scores the smaller position is taken. -inf is never taken. As many scores as the
// scratch takes are held in it, the others are read again. Formulas: model.md 3.6.
#pragma once

#include "gpu/device/numerics.h"
#include "gpu/device/stages.h"

namespace monostep::gpu {

inline constexpr uint32_t kLowestKey = 0x7f;  // of -inf: what is above counts
inline constexpr uint32_t kForcedKey = 0xffff;
inline constexpr int kLaneItems = 4;  // neighbouring items of a lane
inline constexpr int kPieceItems = 32 * kLaneItems;
inline constexpr int kHighBins = 4096;
inline constexpr int kBinStride = kHighBins / kTile + 1;
inline constexpr int kScorePieces = 4;

struct SelectState {
  int bins[kTile * kBinStride];  // items of each upper part, see bin_place
  int low_bins[kWarps][kTile];   // of each warp: items of the last upper part, by their lower part
  int above[kWarps];             // of each warp: items beyond it
  int warp_sums[kWarps];
  int bin;   // the last upper part of which something is taken
  int left;  // how many of it
};
inline constexpr int kStateBytes = (static_cast<int>(sizeof(SelectState)) + 15) / 16 * 16;
// Words of scores that the scratch holds; whole batches of the warps.
inline constexpr int kHeldWords =
    (constants::kScratchBytes - kStateBytes) / 4 / (kScorePieces * kPieceItems / 2) * (kScorePieces * kPieceItems / 2);
static_assert(kHeldWords > 0);

// Neighbouring upper parts fall on different banks when they are counted, and when thread i adds those of its sixteen.
constexpr int bin_place(int bin) { return bin % kTile * kBinStride + bin / kTile; }

// A bf16 score as an unsigned key in the order of the scores; both zeros are one.
inline uint32_t key_of(uint32_t bits) {
  if (bits == 0x8000u) bits = 0;
  return (bits & 0x8000u) != 0 ? ~bits & 0xffffu : bits | 0x8000u;
}

// The scores of a row: the first held_words words in shared memory, all in their region.
struct RowScores {
  Words words;
  int64_t first_word;
  int count;
  const uint32_t* held;
  int held_words;

  // N pieces of two words from word `word(i)` on; pieces behind the last score are not read.
  template <int N, typename Place>
  void load(const Cta& cta, uint32_t (&raw)[N][2], int last_word, const Place& place) const {
    if (last_word < held_words) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        raw[i][0] = held[place(i)];
        raw[i][1] = held[place(i) + 1];
      }
      return;
    }
    wait_words2(cta, words, raw,
                [&](int i) { return 2 * place(i) < count ? static_cast<uint32_t>(first_word + place(i)) : kNoWord; });
  }
};

// Items of the selection: single scores.
struct ScoreItems {
  RowScores scores;
  static constexpr int kPieces = kScorePieces;
  int count() const { return scores.count; }

  // keys[i][j] of item base + i kPieceItems + 4 lane + j; 0 behind the last.
  void load(const Cta& cta, int base, uint32_t (&keys)[kPieces][kLaneItems]) const {
    uint32_t raw[kPieces][2];
    const int first = base / 2 + cta.lane * 2;
    scores.load(cta, raw, (base + kPieces * kPieceItems) / 2 - 1, [&](int i) { return first + i * (kPieceItems / 2); });
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
#pragma unroll
      for (int j = 0; j < kLaneItems; ++j) {
        const int item = base + i * kPieceItems + cta.lane * kLaneItems + j;
        const uint32_t word = raw[i][j / 2];
        keys[i][j] = item < scores.count ? key_of(j % 2 == 0 ? word & 0xffffu : word >> 16) : 0;
      }
    }
  }
};

// Items of the selection: candidates of kCandidateSize neighbouring groups by their best score, the newest always.
struct CandidateItems {
  RowScores scores;
  static constexpr int kPieces = 1;
  int count() const { return (scores.count + constants::kCandidateSize - 1) / constants::kCandidateSize; }

  uint32_t key(const Cta& cta, int item) const {
    if (item >= count()) return 0;
    if (item == count() - 1) return kForcedKey;
    const int begin = item * constants::kCandidateSize;
    const int end = begin + constants::kCandidateSize;
    uint32_t most = 0;
    for (int word = begin / 4 * 2; word * 2 < end; word += 4) {
      uint32_t raw[2][2];
      scores.load(cta, raw, word + 3, [&](int i) { return word + 2 * i; });
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int group = word * 2 + i;
        const uint32_t both = raw[i / 4][i / 2 % 2];
        const uint32_t key = key_of(i % 2 == 0 ? both & 0xffffu : both >> 16);
        if (group >= begin && group < end && key > most) most = key;
      }
    }
    return most;
  }

  void load(const Cta& cta, int base, uint32_t (&keys)[kPieces][kLaneItems]) const {
#pragma unroll
    for (int j = 0; j < kLaneItems; ++j) keys[0][j] = key(cta, base + cta.lane * kLaneItems + j);
  }
};

// The run of items of a warp, whole batches; the warps' runs are in the order of the items.
struct ItemRange {
  int begin;
  int end;
};
template <typename Items>
inline ItemRange warp_items(const Cta& cta, const Items& items) {
  constexpr int kBatch = Items::kPieces * kPieceItems;
  const int batches = (items.count() + kBatch - 1) / kBatch;
  const int each = (batches + kWarps - 1) / kWarps * kBatch;
  const int end = (cta.warp + 1) * each;
  return {cta.warp * each, end < batches * kBatch ? end : batches * kBatch};
}

// Inclusive sum over the lanes before and this one.
inline uint32_t warp_prefix(const Cta& cta, uint32_t value) {
#pragma unroll
  for (int delta = 1; delta < 32; delta *= 2) {
    const uint32_t below = shuffle_up(value, delta);
    if (cta.lane >= delta) value += below;
  }
  return value;
}

// Counts the items by the upper twelve bits of their keys.
template <typename Items>
inline void count_high(const Cta& cta, const Items& items, SelectState& state) {
  const ItemRange range = warp_items(cta, items);
  for (int base = range.begin; base < range.end; base += Items::kPieces * kPieceItems) {
    uint32_t keys[Items::kPieces][kLaneItems];
    items.load(cta, base, keys);
#pragma unroll
    for (int i = 0; i < Items::kPieces * kLaneItems; ++i) {
      const uint32_t key = keys[i / kLaneItems][i % kLaneItems];
      if (key > kLowestKey) atomic_add_shared(&state.bins[bin_place(static_cast<int>(key >> 4))], 1);
    }
  }
}

// The upper part at which `wanted` items are reached from the top; with fewer items, one that no counted item has.
inline void find_bin(const Cta& cta, int wanted, SelectState& state) {
  const int top = kConsumers - 1 - cta.thread;  // sixteen upper parts from 16 top on
  int total = 0;
#pragma unroll
  for (int i = 0; i < kTile; ++i) total += state.bins[bin_place(top * kTile + i)];
  const auto inclusive = static_cast<int>(warp_prefix(cta, static_cast<uint32_t>(total)));
  if (cta.lane == 31) state.warp_sums[cta.warp] = inclusive;
  cta.sync();
  int before = inclusive - total;
  int all = 0;
  for (int warp = 0; warp < kWarps; ++warp) {
    if (warp < cta.warp) before += state.warp_sums[warp];
    all += state.warp_sums[warp];
  }
  if (all <= wanted) {
    if (cta.thread == 0) {
      state.bin = kLowestKey >> 4;
      state.left = 0;
    }
  } else if (before < wanted && wanted <= before + total) {
    int bin = top * kTile + kTile - 1;
    while (before + state.bins[bin_place(bin)] < wanted) before += state.bins[bin_place(bin--)];
    state.bin = bin;
    state.left = wanted - before;
  }
}

// Counts each warp's items beyond the last upper part, and those of it by their lower four bits.
template <typename Items>
inline void count_low(const Cta& cta, const Items& items, SelectState& state) {
  const ItemRange range = warp_items(cta, items);
  const auto bin = static_cast<uint32_t>(state.bin);
  int above = 0;
  for (int base = range.begin; base < range.end; base += Items::kPieces * kPieceItems) {
    uint32_t keys[Items::kPieces][kLaneItems];
    items.load(cta, base, keys);
#pragma unroll
    for (int i = 0; i < Items::kPieces * kLaneItems; ++i) {
      const uint32_t key = keys[i / kLaneItems][i % kLaneItems];
      above += key >> 4 > bin ? 1 : 0;
      if (key > kLowestKey && key >> 4 == bin) atomic_add_shared(&state.low_bins[cta.warp][key & 15], 1);
    }
  }
#pragma unroll
  for (int mask = 16; mask > 0; mask >>= 1) above += shuffle_xor(above, mask);
  if (cta.lane == 0) state.above[cta.warp] = above;
}

// What is taken: keys beyond `key`, and the first `ties` items that have it; and this warp's place in the output.
struct Cut {
  uint32_t key;
  int ties;
  int taken;         // of all
  uint32_t greater;  // items beyond the key before this warp's
  uint32_t equal;    // items with the key before this warp's
};
inline Cut find_cut(const Cta& cta, const SelectState& state) {
  int low = kTile;
  int reached = 0;  // items of the upper part with lower parts from `low` on
  int equal = 0;
  do {
    --low;
    equal = 0;
    for (int warp = 0; warp < kWarps; ++warp) equal += state.low_bins[warp][low];
    reached += equal;
  } while (low > 0 && reached < state.left);
  Cut cut{static_cast<uint32_t>(state.bin << 4 | low), state.left - (reached - equal), 0, 0, 0};
  for (int warp = 0; warp < kWarps; ++warp) {
    int greater = state.above[warp];
    for (int above = low + 1; above < kTile; ++above) greater += state.low_bins[warp][above];
    cut.taken += greater;
    if (warp >= cta.warp) continue;
    cut.greater += static_cast<uint32_t>(greater);
    cut.equal += static_cast<uint32_t>(state.low_bins[warp][low]);
  }
  cut.taken += cut.ties;
  return cut;
}

// Puts the taken items of this warp's run as words first_word + place.
template <typename Items>
inline void put_taken(const Cta& cta, const Items& items, Cut cut, const Sink& sink, int64_t first_word) {
  const ItemRange range = warp_items(cta, items);
  const auto ties = static_cast<uint32_t>(cut.ties);
  for (int base = range.begin; base < range.end; base += Items::kPieces * kPieceItems) {
    uint32_t keys[Items::kPieces][kLaneItems];
    items.load(cta, base, keys);
#pragma unroll
    for (int i = 0; i < Items::kPieces; ++i) {
      uint32_t counts = 0;  // of the lane: beyond the key, and with it in the upper half
#pragma unroll
      for (int j = 0; j < kLaneItems; ++j)
        counts += keys[i][j] > cut.key ? 1u : keys[i][j] == cut.key && ties > 0 ? 0x10000u : 0u;
      if (ballot(counts != 0) == 0) continue;
      const uint32_t inclusive = warp_prefix(cta, counts);
      uint32_t greater = cut.greater + ((inclusive - counts) & 0xffffu);
      uint32_t equal = cut.equal + ((inclusive - counts) >> 16);
      const int item = base + i * kPieceItems + cta.lane * kLaneItems;
#pragma unroll
      for (int j = 0; j < kLaneItems; ++j) {
        const bool beyond = keys[i][j] > cut.key;
        const bool tied = keys[i][j] == cut.key && equal < ties;
        if (beyond || tied)
          put_word(cta, sink, first_word + greater + (equal < ties ? equal : ties), static_cast<uint32_t>(item + j));
        greater += beyond ? 1 : 0;
        equal += tied ? 1 : 0;
      }
      const uint32_t total = shuffle(inclusive, 31);
      cut.greater += total & 0xffffu;
      cut.equal += total >> 16;
    }
  }
}

// Puts the `wanted` best items, ascending, -1 behind. False: given up.
template <typename Items>
inline bool select(const Cta& cta, const Items& items, int wanted, SelectState& state, const Sink& sink,
                   int64_t first_word) {
  for (int idx = cta.thread; idx < kTile * kBinStride; idx += kConsumers) state.bins[idx] = 0;
  for (int idx = cta.thread; idx < kWarps * kTile; idx += kConsumers) state.low_bins[idx / kTile][idx % kTile] = 0;
  cta.sync();
  count_high(cta, items, state);
  if (!cta.sync_alive()) return false;
  find_bin(cta, wanted, state);
  cta.sync();
  count_low(cta, items, state);
  if (!cta.sync_alive()) return false;
  const Cut cut = find_cut(cta, state);
  put_taken(cta, items, cut, sink, first_word);
  for (int idx = cut.taken + cta.thread; idx < wanted; idx += kConsumers) put_word(cta, sink, first_word + idx, ~0u);
  return cta.sync_alive();
}

// Polls a row's scores; the first ones into shared memory. False: given up.
inline bool hold_scores(const Cta& cta, RowScores& scores, uint32_t* held) {
  constexpr int kAtOnce = 8;
  const int words = (scores.count + 3) / 4 * 2;
  const int fitting = words < kHeldWords ? words : kHeldWords;
  for (int base = 0; base < fitting; base += kConsumers * 2 * kAtOnce) {
    const auto place = [&](int i) { return base + (i * kConsumers + cta.thread) * 2; };
    uint32_t raw[kAtOnce][2];
    wait_words2(cta, scores.words, raw, [&](int i) {
      return place(i) < fitting ? static_cast<uint32_t>(scores.first_word + place(i)) : kNoWord;
    });
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (place(i) >= fitting) continue;
      held[place(i)] = raw[i][0];
      held[place(i) + 1] = raw[i][1];
    }
  }
  scores.held = held;
  scores.held_words = words <= kHeldWords ? kHeldWords : fitting;  // all: what lies behind is not looked at
  return cta.sync_alive();
}

template <>
inline bool run_stage(StageContext<Stage::kIndexSelect>& ctx) {
  Cta& cta = ctx.cta;
  SelectState& state = *cta.scratch<SelectState>();
  auto* held = reinterpret_cast<uint32_t*>(cta.scratch<char>() + kStateBytes);
  for (int task = ctx.first_task(); task < ctx.record.num_tasks; task += ctx.task_stride()) {
    if (!ctx.live(task)) continue;
    const int visible = (cta.shared.step.rows[task].position + 1) / ctx.record.ratio;
    RowScores scores{ctx.read<Region::kScores>(), int64_t{task} * (constants::kMaxGroups / 2), visible, held, 0};
    if (!hold_scores(cta, scores, held)) return false;
    if (!select(cta, ScoreItems{scores}, constants::kIndexTopk, state, ctx.write<Region::kTopk>(),
                int64_t{task} * constants::kIndexTopk))
      return false;
    if (ctx.record.candidate_source == 0) continue;
    if (!select(cta, CandidateItems{scores}, constants::kCandidateGroups, state, ctx.write<Region::kCandidates>(),
                int64_t{task} * constants::kCandidateGroups))
      return false;
  }
  return true;
}

}  // namespace monostep::gpu
