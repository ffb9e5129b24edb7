// Stages of the routed experts: routing of every row (recomputed by each CTA from the router's sums), w1 and w3 of the
// distinct experts, w2 of all experts and the shared one. Formulas: model.md 3.7.
#pragma once

#include "base/math.h"
#include "gpu/device/stage_linear.h"

namespace monostep::gpu {

MONOSTEP_NOINLINE inline float router_score(float logit) { return sqrtf(softplus_f32(logit)); }
MONOSTEP_NOINLINE inline float sigmoid(float x) { return sigmoid_f32(x); }

// The routing of one row by one warp: lane l holds experts 2 l + 64 i and the next. Ties: lower id.
class RowRouter {
 public:
  static constexpr int kPerLane = constants::kMaxExperts / 64;

  RowRouter(const Cta& cta, int num_experts) : cta_(cta), num_experts_(num_experts) {}

  // Scores sqrt(softplus(logit)), and the biased ones that decide.
  void score(const RouterSums& sums, int row, uint64_t bias) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int expert = 2 * cta_.lane + 64 * i;
      float logits[2];
      sums.pair(cta_, row, expert, expert < num_experts_, logits);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const bool valid = expert + j < num_experts_;
        score_[i][j] = valid ? router_score(logits[j]) : 0.0f;
        key_[i][j] = valid ? score_[i][j] + reinterpret_cast<const float*>(bias)[expert + j] : -INFINITY;
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

// Sets the bits of the experts that the mapped rows take.
inline void mark_taken(const Cta& cta, int count) {
  for (int i = cta.thread; i < count * constants::kExpertSlots; i += kConsumers) {
    const int expert = cta.shared.row_experts[cta.shared.map[i / constants::kExpertSlots]][i % constants::kExpertSlots];
    if (expert >= 0) atomic_or_shared(&cta.shared.taken[expert / 32], 1u << (expert % 32));
  }
}

// Routes every mapped row unless this launch has done so for the layer, and lets the producer go on. False: given up.
template <Stage S>
inline bool route_rows(StageContext<S>& ctx, int count) {
  Cta& cta = ctx.cta;
  Shared& shared = cta.shared;
  const CallRecord& record = ctx.record;
  if (shared.routed_layer == record.layer) return true;
  if (cta.thread < constants::kMaxExperts / 32) shared.taken[cta.thread] = 0;
  const RouterSums sums{ctx.template read<Region::kFfnInPart>(), 0, record.reader_splits};
  for (int n = cta.warp; n < count; n += kWarps) {
    const int row = shared.map[n];
    const bool image = record.draft == 0 && (shared.step.rows[row].flags & kRowImage) != 0;
    RowRouter router(cta, record.num_experts);
    router.score(sums, row, record.router_bias[image ? 1 : 0]);
    router.select(row, record.experts_per_token);
  }
  if (!cta.sync_alive()) return false;
  mark_taken(cta, count);
  cta.sync();
  if (cta.warp == 0) list_experts(cta);
  if (cta.thread == 0) shared.routed_layer = record.layer;
  cta.sync();
  if (cta.thread == 0) mbarrier_arrive(&shared.routed);
  return true;
}

// The rows of the chunk's expert, in row order, into this warp's map; their number. Slots go beside them.
struct ExpertRows {
  const int16_t* rows;
  const int16_t* slots;
  int count;
};
inline ExpertRows rows_of_expert(const Cta& cta, int mapped, int expert) {
  Shared& shared = cta.shared;
  int16_t* rows = shared.warp_rows[cta.warp];
  int16_t* slots = shared.warp_slots[cta.warp];
  int count = 0;
  for (int begin = 0; begin < mapped; begin += 32) {
    const int n = begin + cta.lane;
    int slot = -1;
    int row = 0;
    if (n < mapped) {
      row = shared.map[n];
      for (int i = 0; i < constants::kExpertSlots; ++i) {
        if (shared.row_experts[row][i] == expert) slot = i;
      }
    }
    const uint32_t mask = ballot(slot >= 0);
    const int at = count + popcount(mask & ((1u << cta.lane) - 1));
    if (slot >= 0) {
      rows[at] = static_cast<int16_t>(row);
      slots[at] = static_cast<int16_t>(slot);
    }
    count += popcount(mask);
  }
  warp_sync();
  return {rows, slots, count};
}

// Word of (w1 or w3, tile x splits + split, row, slot) in kExpertPart; `granules` is tiles x splits.
inline int64_t expert_word(int granules, int part, int tile_split, int row, int slot) {
  const int64_t line = (int64_t{part} * granules + tile_split) * constants::kRows + row;
  return (line * constants::kExpertSlots + slot) * kTile;
}

template <>
inline bool run_stage(StageContext<Stage::kExpertUp>& ctx) {
  constexpr int kWidth = constants::kHiddenSlice;
  Cta& cta = ctx.cta;
  const CallRecord& record = ctx.record;
  const SliceSource source{ctx.read<Region::kFfnU>(), constants::kSliceWidth};
  const int mapped = map_rows(cta, ctx.num_rows(), [&](int row) { return ctx.live(row); });
  if (!row_scales(cta, source, constants::kHidden, mapped) || !route_rows(ctx, mapped)) return false;
  char* scratch = cta.scratch<char>();
  const Inputs inputs = inputs_at(scratch, constants::kRows, kWidth);
  Multiplier multiplier{reinterpret_cast<double*>(scratch + partials_offset(constants::kRows, kWidth))};
  const Sink sink = ctx.write<Region::kExpertPart>();
  const int granules = record.tiles * record.splits;
  int loaded = -1;
  return for_each_chunk<Stage::kExpertUp>(record, cta.shared, cta.idx, cta.count, [&](const Chunk& chunk) {
    if (chunk.piece != loaded) {
      cta.sync();
      load_slice<false, true>(cta, source, record.vectors[0], chunk.piece * kWidth, kWidth, mapped, inputs);
      if (!cta.sync_alive()) return false;
      loaded = chunk.piece;
    }
    const ExpertRows who = rows_of_expert(cta, mapped, cta.shared.experts[chunk.expert]);
    const int tile_split = chunk.tile * record.splits + chunk.piece;
    return multiply_chunk<Storage::kFp4, false>(
        cta, multiplier, chunk.bytes, {kWidth / kGroup, 1, 2}, inputs, who.rows, who.count,
        [&](int part, int n, int column, double value) {
          put_f32(cta, sink, expert_word(granules, part, tile_split, who.rows[n], who.slots[n]) + column,
                  static_cast<float>(value));
        });
  });
}

// a = bf16(w (silu(min(g, limit)) clamp(u, limit))), g and u bf16.
inline float gated(float gate, float up, float weight) {
  const float g = fminf(gate, constants::kSwigluLimit);
  const float u = fminf(fmaxf(up, -constants::kSwigluLimit), constants::kSwigluLimit);
  return round_bf16(weight * (g * sigmoid(g) * u));
}

// Pairs (row, slot) of one expert follow each other in the list of pairs; the shared expert's (every row) come last.
class HiddenPairs {
 public:
  HiddenPairs(const StageContext<Stage::kExpertDown>& ctx, int mapped)
      : ctx_(ctx),
        shared_(ctx.cta.shared),
        mapped_(mapped),
        expert_words_(ctx.read<Region::kExpertPart>()),
        in_words_(ctx.read<Region::kFfnInPart>()) {}

  // Lists the pairs of all places; all consumers meet in it.
  void list() {
    const Cta& cta = ctx_.cta;
    const int places = shared_.num_experts;
    if (cta.warp == 0) {
      int begin = 0;
      for (int place = 0; place < places; ++place) {
        const ExpertRows who = rows_of_expert(cta, mapped_, shared_.experts[place]);
        if (cta.lane == 0) shared_.pair_begin[place] = static_cast<int16_t>(begin);
        for (int n = cta.lane; n < who.count; n += 32) set(begin + n, who.rows[n], who.slots[n]);
        begin += who.count;
      }
      for (int n = cta.lane; n < mapped_; n += 32) set(begin + n, shared_.map[n], constants::kExpertSlots);
      if (cta.lane == 0) {
        shared_.pair_begin[places] = static_cast<int16_t>(begin);
        shared_.pair_begin[places + 1] = static_cast<int16_t>(begin + mapped_);
      }
    }
    cta.sync();
  }
  int begin(int place) const { return shared_.pair_begin[place]; }
  int row(int pair) const { return shared_.pair_row[pair]; }

  // The first place behind `place` whose pairs do not fit beside those from `place` on.
  int batch_end(int place) const {
    int end = place + 1;
    while (end <= shared_.num_experts && begin(end + 1) - begin(place) <= constants::kPairCapacity) ++end;
    return end;
  }

  // Hidden activations of pairs [first, last) into rows 0.. of the inputs, quantised.
  void load(int first, int last, const Inputs& inputs) const {
    const Cta& cta = ctx_.cta;
    constexpr int kOctets = constants::kExpertWidth / kOctet;
    const int total = (last - first) * kOctets;
    for (int base = 0; base < total; base += kConsumers) {
      const int item = base + cta.thread;
      const bool valid = item < total;
      float values[kOctet] = {};
      if (valid) octet(first + item / kOctets, item % kOctets * kOctet, values);
      store_octet<false>(inputs, valid ? item / kOctets : -1, item % kOctets * kOctet, values);
    }
  }

 private:
  void set(int pair, int row, int slot) {
    shared_.pair_row[pair] = static_cast<int16_t>(row);
    shared_.pair_slot[pair] = static_cast<int16_t>(slot);
  }

  void octet(int pair, int begin, float (&out)[kOctet]) const {
    const int row = shared_.pair_row[pair];
    const int slot = shared_.pair_slot[pair];
    const bool shared_expert = slot == constants::kExpertSlots;
    float gate[kOctet];
    float up[kOctet];
    sums(shared_expert, 0, row, slot, begin, gate);
    sums(shared_expert, 1, row, slot, begin, up);
    const float weight = shared_expert ? 1.0f : shared_.row_weights[row][slot];
#pragma unroll
    for (int i = 0; i < kOctet; ++i) out[i] = gated(gate[i], up[i], weight);
  }

  // g (part 0) or u (part 1) of a pair: bf16 of the sum over K slices, ascending.
  void sums(bool shared_expert, int part, int row, int slot, int begin, float (&out)[kOctet]) const {
    const CallRecord& record = ctx_.record;
    const Words& words = shared_expert ? in_words_ : expert_words_;
    const int splits = shared_expert ? record.reader_splits : record.expert_splits;
    float sum[kOctet];
    for (int split = 0; split < splits; ++split) {
      const int tile_split = begin / kTile * splits + split;
      int64_t at = begin % kTile;
      if (shared_expert) {
        at += ((int64_t{record.tile_of[1 + part]} * splits + tile_split) * constants::kRows + row) * kTile;
      } else {
        at += expert_word(record.expert_tiles, part, tile_split, row, slot);
      }
      uint32_t raw[4][2];
      wait_words2(ctx_.cta, words, raw, [&](int i) { return at + 2 * i; });
#pragma unroll
      for (int i = 0; i < kOctet; ++i) {
        const float value = std::bit_cast<float>(raw[i / 2][i % 2]);
        sum[i] = split == 0 ? value : sum[i] + value;
      }
    }
#pragma unroll
    for (int i = 0; i < kOctet; ++i) out[i] = round_bf16(sum[i]);
  }

  const StageContext<Stage::kExpertDown>& ctx_;
  Shared& shared_;
  int mapped_;
  Words expert_words_;
  Words in_words_;
};

// The sums of this CTA's tiles over all experts: [chunk of the CTA][tile][row][kTile] of shared memory.
struct DownSums {
  float* values;
  float& at(int chunk, int tile, int row, int column) const {
    return values[((chunk * constants::kDownTilesPerChunk + tile) * constants::kRows + row) * kTile + column];
  }
  static constexpr int kValues = constants::kDownTasks * constants::kDownTilesPerChunk * constants::kRows * kTile;
};

constexpr int kDownPartials = partials_offset(constants::kPairCapacity, constants::kExpertWidth);
constexpr int kDownSums = kDownPartials + kPartialBytes;
static_assert(kDownSums + DownSums::kValues * 4 <= constants::kScratchBytes);

inline void put_down_sums(const StageContext<Stage::kExpertDown>& ctx, const DownSums& sums, int mapped) {
  const Cta& cta = ctx.cta;
  const CallRecord& record = ctx.record;
  const int64_t tasks = record.num_tasks;
  const auto put = partial_sums<Region::kFfnExchange>(ctx, cta.params.rank * tasks, tasks * constants::kRows * kTile);
  const TaskRange range = tasks_of(record, cta.idx, cta.count);
  int chunk = 0;
  for (int first = range.first; first < record.num_tasks; first += range.stride, ++chunk) {
    for (int i = cta.thread; i < record.tasks_per_chunk * mapped * kTile; i += kConsumers) {
      const int tile = i / (mapped * kTile);
      const int row = cta.shared.map[i / kTile % mapped];
      put(first + tile, row, i % kTile, sums.at(chunk, tile, row, i % kTile));
    }
  }
}

template <>
inline bool run_stage(StageContext<Stage::kExpertDown>& ctx) {
  Cta& cta = ctx.cta;
  const CallRecord& record = ctx.record;
  const int mapped = map_rows(cta, ctx.num_rows(), [&](int row) { return ctx.live(row); });
  if (!route_rows(ctx, mapped)) return false;
  HiddenPairs pairs(ctx, mapped);
  pairs.list();
  char* scratch = cta.scratch<char>();
  const Inputs inputs = inputs_at(scratch, constants::kPairCapacity, constants::kExpertWidth);
  Multiplier multiplier{reinterpret_cast<double*>(scratch + kDownPartials)};
  const DownSums sums{reinterpret_cast<float*>(scratch + kDownSums)};
  for (int i = cta.thread; i < DownSums::kValues; i += kConsumers) sums.values[i] = 0;
  const TaskRange range = tasks_of(record, cta.idx, cta.count);
  int batch_begin = 0;
  int batch_end = 0;
  const bool alive = for_each_chunk<Stage::kExpertDown>(record, cta.shared, cta.idx, cta.count, [&](const Chunk& chunk) {
    const int place = chunk.expert >= 0 ? chunk.expert : cta.shared.num_experts;
    if (place >= batch_end) {
      batch_begin = place;
      batch_end = pairs.batch_end(place);
      cta.sync();
      pairs.load(pairs.begin(batch_begin), pairs.begin(batch_end), inputs);
      if (!cta.sync_alive()) return false;
    }
    const int first = pairs.begin(place);
    const int chunk_idx = (chunk.task - range.first) / range.stride;
    const int16_t* map = cta.shared.identity + (first - pairs.begin(batch_begin));
    const ChunkShape shape{constants::kDownSlice / kGroup, constants::kDownTilesPerChunk, 1};
    const Inputs part = part_of(inputs, chunk.piece * constants::kDownSlice);
    const int count = pairs.begin(place + 1) - first;
    const auto add = [&](int tile, int n, int column, double value) {
      sums.at(chunk_idx, tile, pairs.row(first + n), column) += static_cast<float>(value);
    };
    return chunk.expert >= 0
               ? multiply_chunk<Storage::kFp4, false>(cta, multiplier, chunk.bytes, shape, part, map, count, add)
               : multiply_chunk<Storage::kFp8, false>(cta, multiplier, chunk.bytes, shape, part, map, count, add);
  });
  if (!alive) return false;
  cta.sync();
  put_down_sums(ctx, sums, mapped);
  return true;
}

}  // namespace monostep::gpu
