// Expert routing, recomputed by each CTA from the router's sums: one warp a row; then the ascending list of distinct
// experts, by which the producer goes on. Ties: lower id. Formulas: model.md 3.7.
#pragma once

#include "base/math.h"
#include "gpu/device/numerics.h"

namespace monostep::gpu {

MONOSTEP_NOINLINE inline float router_score(float logit) { return sqrtf(softplus_f32(logit)); }

// The routing of one row by one warp: lane l holds experts 2 l + 64 i and the next. Ties: lower id.
class RowRouter {
 public:
  static constexpr int kPerLane = constants::kMaxExperts / 64;
  static constexpr int kAtOnce = kPerLane % 3 == 0 ? 3 : kPerLane % 2 == 0 ? 2 : 1;  // loads that are outstanding

  RowRouter(const Cta& cta, int num_experts) : cta_(cta), num_experts_(num_experts) {}

  // Scores sqrt(softplus(logit)), and the biased ones that decide.
  void score(const SplitSums& sums, int row, uint64_t bias) {
#pragma unroll
    for (int begin = 0; begin < kPerLane; begin += kAtOnce) {
      float logits[kAtOnce][2];
      wait_sums<kAtOnce, 4>(cta_, sums, logits, [&](int i) {
        const int expert = 2 * cta_.lane + 64 * (begin + i);
        return SumPlace{expert < num_experts_ ? row : -1, expert};
      });
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        take_logits(begin + i, logits[i], bias);
      }
    }
  }

  // The `count` best, ascending by id, with their normalised weights, into shared memory.
  void select(int row, int count) {
    int16_t* ids = cta_.shared.row_experts[row];
    float* weights = cta_.shared.row_weights[row];
    if (cta_.lane < kMaxSlots) ids[cta_.lane] = -1;
    warp_sync();
    for (int pick = 0; pick < count; ++pick) {
      float key = -INFINITY;
      float score = 0;
      int expert = num_experts_;
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          if (key_[i][j] > key || expert == num_experts_) {
            if (key_[i][j] == -INFINITY) continue;
            key = key_[i][j];
            score = score_[i][j];
            expert = 2 * cta_.lane + 64 * i + j;
          }
        }
      }
#pragma unroll
      for (int mask = 16; mask > 0; mask >>= 1) {
        const float other_key = shuffle_xor(key, mask);
        const float other_score = shuffle_xor(score, mask);
        const int other = shuffle_xor(expert, mask);
        if (other_key > key || (other_key == key && other < expert)) {
          key = other_key;
          score = other_score;
          expert = other;
        }
      }
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          if (2 * cta_.lane + 64 * i + j == expert) key_[i][j] = -INFINITY;
        }
      }
      if (cta_.lane == 0) insert(ids, weights, pick, expert < num_experts_ ? expert : pick, score);
      warp_sync();
    }
    if (cta_.lane == 0) normalize(weights, count);
  }

 private:
  void take_logits(int i, const float (&logits)[2], uint64_t bias) {
    const int expert = 2 * cta_.lane + 64 * i;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const bool valid = expert + j < num_experts_;
      score_[i][j] = valid ? router_score(logits[j]) : 0.0f;
      key_[i][j] = valid ? score_[i][j] + reinterpret_cast<const float*>(bias)[expert + j] : -INFINITY;
    }
  }

  static void insert(int16_t* ids, float* weights, int size, int expert, float score) {
    int at = size;
    for (; at > 0 && ids[at - 1] > expert; --at) {
      ids[at] = ids[at - 1];
      weights[at] = weights[at - 1];
    }
    ids[at] = static_cast<int16_t>(expert);
    weights[at] = score;
  }
  static void normalize(float* weights, int count) {
    float sum = 0;
    for (int i = 0; i < count; ++i) sum += weights[i];
    for (int i = 0; i < count; ++i) weights[i] = weights[i] / (sum + 1e-20f) * constants::kRoutedScale;
  }

  const Cta& cta_;
  int num_experts_;
  float score_[kPerLane][2];
  float key_[kPerLane][2];
};

// The ascending list of the experts that any live row takes, from the bit mask in shared memory, by one warp.
inline void list_experts(const Cta& cta) {
  Shared& shared = cta.shared;
  int before = 0;
  for (int begin = 0; begin < constants::kMaxExperts / 32; begin += 32) {
    const int idx = begin + cta.lane;
    const uint32_t mask = idx < constants::kMaxExperts / 32 ? shared.taken[idx] : 0;
    int ahead = popcount(mask);
#pragma unroll
    for (int delta = 1; delta < 32; delta *= 2) {
      const uint32_t below = shuffle_up(static_cast<uint32_t>(ahead), delta);
      if (cta.lane >= delta) ahead += static_cast<int>(below);
    }
    int at = before + ahead - popcount(mask);
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
      shared.experts[at++] = static_cast<uint16_t>(idx * 32 + find_first(rest));
    }
    before += shuffle(ahead, 31);
  }
  if (cta.lane == 0) shared.num_experts = before;
}

// One warp: experts and weights of a row into shared memory.
template <Stage S>
inline void route_row(const StageContext<S>& ctx, int row) {
  const CallRecord& record = ctx.record;
  const SplitSums sums{ctx.template read<Region::kFfnInPart>(), 0, record.reader_splits};
  const bool image = record.draft == 0 && (ctx.cta.shared.step.rows[row].flags & kRowImage) != 0;
  RowRouter router(ctx.cta, record.num_experts);
  router.score(sums, row, record.router_bias[image ? 1 : 0]);
  router.select(row, record.experts_per_token);
}

// Routes one row of a live step unless this launch has routed the layer; all consumers meet in it. False: given up.
template <Stage S>
inline bool route_one_row(const StageContext<S>& ctx, int row) {
  const Cta& cta = ctx.cta;
  const CallRecord& record = ctx.record;
  if (cta.shared.routed_layer == record.layer) return true;
  cta.sync();  // nobody reads the row's weights any more
  if (cta.warp == 0) route_row(ctx, row);
  return cta.sync_alive();
}

// Sets the bits of the experts that the mapped rows take.
inline void mark_taken(const Cta& cta, int count) {
  for (int i = cta.thread; i < count * constants::kExpertSlots; i += kConsumers) {
    const int expert = cta.shared.row_experts[cta.shared.map[i / constants::kExpertSlots]][i % constants::kExpertSlots];
    if (expert >= 0) atomic_or_shared(&cta.shared.taken[expert / 32], 1u << (expert % 32));
  }
}

// One warp: the mapped rows that take an expert, in row order; calls take(n, row, slot) for each, and gives their
// number.
template <typename Take>
inline int for_rows_of(const Cta& cta, int mapped, int expert, const Take& take) {
  int count = 0;
  for (int begin = 0; begin < mapped; begin += 32) {
    const int n = begin + cta.lane;
    int slot = -1;
    const int row = n < mapped ? cta.shared.map[n] : 0;
    for (int i = 0; i < constants::kExpertSlots; ++i) {
      if (n < mapped && cta.shared.row_experts[row][i] == expert) slot = i;
    }
    const uint32_t mask = ballot(slot >= 0);
    if (slot >= 0) take(count + popcount(mask & ((1u << cta.lane) - 1)), row, slot);
    count += popcount(mask);
  }
  return count;
}

// The list of (row, slot) pairs, those of one expert behind each other, experts ascending; the shared expert's pairs
// (every mapped row) come last. All consumers meet in it.
inline void list_pairs(const Cta& cta, int mapped) {
  Shared& shared = cta.shared;
  const int places = shared.num_experts;
  for (int place = cta.warp; place < places; place += kWarps) {
    const int count = for_rows_of(cta, mapped, shared.experts[place], [](int, int, int) {});
    if (cta.lane == 0) shared.pair_begin[place] = static_cast<int16_t>(count);
  }
  cta.sync();
  if (cta.thread == 0) {
    int begin = 0;
    for (int place = 0; place < places; ++place) {
      const int count = shared.pair_begin[place];
      shared.pair_begin[place] = static_cast<int16_t>(begin);
      begin += count;
    }
    shared.pair_begin[places] = static_cast<int16_t>(begin);
    shared.pair_begin[places + 1] = static_cast<int16_t>(begin + mapped);
  }
  cta.sync();
  const auto set = [&](int pair, int row, int slot) {
    shared.pair_row[pair] = static_cast<int16_t>(row);
    shared.pair_slot[pair] = static_cast<int16_t>(slot);
  };
  for (int place = cta.warp; place < places; place += kWarps) {
    const int begin = shared.pair_begin[place];
    for_rows_of(cta, mapped, shared.experts[place], [&](int n, int row, int slot) { set(begin + n, row, slot); });
  }
  for (int n = cta.thread; n < mapped; n += kConsumers)
    set(shared.pair_begin[places] + n, shared.map[n], constants::kExpertSlots);
  cta.sync();
}

// Routes every mapped row unless this launch has done so for the layer, and lets the producer go on. False: given up.
template <Stage S>
inline bool route_rows(StageContext<S>& ctx, int count) {
  Cta& cta = ctx.cta;
  Shared& shared = cta.shared;
  const CallRecord& record = ctx.record;
  if (shared.routed_layer == record.layer) return true;
  if (cta.thread < constants::kMaxExperts / 32) shared.taken[cta.thread] = 0;
  for (int n = cta.warp; n < count; n += kWarps) route_row(ctx, shared.map[n]);
  if (!cta.sync_alive()) return false;
  mark_taken(cta, count);
  cta.sync();
  if (cta.warp == 0) list_experts(cta);
  if (cta.thread == 0) shared.routed_layer = record.layer;
  cta.sync();
  if (cta.thread == 0) mbarrier_arrive(&shared.routed);
  list_pairs(cta, count);
  return true;
}

// Word of (w1 or w3, tile x splits + split, row, slot) in kExpertPart; `granules` is tiles x splits.
inline int64_t expert_word(int granules, int part, int tile_split, int row, int slot) {
  const int64_t line = (int64_t{part} * granules + tile_split) * constants::kRows + row;
  return (line * constants::kExpertSlots + slot) * kTile;
}

}  // namespace monostep::gpu
