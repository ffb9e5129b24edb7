// Stages of the routed experts: w1 and w3 of the distinct experts, w2 of all experts and the shared one. The sums of
// several passes (an expert's chunk times up to eight rows) wait in shared memory and are added up behind one barrier.
// Formulas: model.md 3.7.
#pragma once

#include "gpu/device/routing.h"
#include "gpu/device/stage_linear.h"

namespace monostep::gpu {

// Passes whose partial sums wait to be added up: two sets, so that one barrier a set is enough.
class ExpertBatch {
 public:
  ExpertBatch(Cta& cta, char* partials) : cta_(cta), partials_(reinterpret_cast<float*>(partials)) {}

  // Multiplies a chunk for `count` pairs from `first_pair` on whose inputs are rows map[0..count); calls
  // add_up(pass, sums, place) for passes that must make room. False: given up.
  template <Storage kStorage, typename Shape, typename AddUp>
  bool multiply(const Chunk& chunk, const char* bytes, const Inputs& inputs, const int16_t* map, int first_pair,
                int count, const AddUp& add_up) {
    bool alive = true;
    for (int begin = 0; begin < count; begin += kPassRows) {
      const int rows = count - begin < kPassRows ? count - begin : kPassRows;
      if (kStorage == Storage::kFp4 && rows <= kPassRows / 2) {
        multiply_pass<kStorage, false, true, Shape>(cta_, bytes, inputs, map + begin, rows, sums(size_));
      } else {
        multiply_pass<kStorage, false, false, Shape>(cta_, bytes, inputs, map + begin, rows, sums(size_));
      }
      const int tile_split = chunk.tile * (constants::kHidden / constants::kHiddenSlice) + chunk.piece;
      if (cta_.thread == 0) cta_.shared.passes[set_][size_] = {chunk.task, tile_split, first_pair + begin, rows};
      if (++size_ == kExpertPasses) alive = flush(add_up) && alive;
    }
    return alive;
  }

  // Adds up what waits. False: given up.
  template <typename AddUp>
  bool flush(const AddUp& add_up) {
    const bool alive = cta_.sync_alive();
    for (int i = 0; alive && i < size_; ++i) add_up(cta_.shared.passes[set_][i], sums(i), i);
    set_ ^= 1;
    size_ = 0;
    return alive;
  }

 private:
  float* sums(int pass) const { return partials_ + (set_ * kExpertPasses + pass) * kPartials; }

  Cta& cta_;
  float* partials_;
  int set_ = 0;
  int size_ = 0;
};

template <>
inline bool run_stage(StageContext<Stage::kExpertUp>& ctx) {
  constexpr int kWidth = constants::kHiddenSlice;
  using Shape = ChunkShape<kWidth / kGroup, 1, 2>;
  static_assert(up_scratch(constants::kRows, kWidth) <= constants::kScratchBytes);
  Cta& cta = ctx.cta;
  const CallRecord& record = ctx.record;
  const Shared& shared = cta.shared;
  const SliceSource source{ctx.read<Region::kFfnU>(), constants::kSliceWidth};
  const int mapped = map_rows(cta, ctx.num_rows(), [&](int row) { return ctx.live(row); });
  if (!row_scales(cta, source, constants::kHidden, mapped, site_key(ctx)) || !route_rows(ctx, mapped)) return false;
  char* scratch = cta.scratch<char>();
  const Inputs inputs = inputs_at(scratch, constants::kRows, kWidth);
  ExpertBatch batch(cta, scratch + partials_offset(constants::kRows, kWidth));
  const Sink sink = ctx.write<Region::kExpertPart>();
  constexpr int kSplits = constants::kHidden / kWidth;
  constexpr int kGranules = (constants::kExpertWidth + kTile - 1) / kTile * kSplits;
  const auto add_up = [&](const ExpertPass& pass, const float* sums, int place) {
    // Most passes have a row or two: passes that wait together begin at different warps.
    const int first = (cta.thread + kConsumers - place * (kConsumers / kExpertPasses)) % kConsumers;
    for (int i = first; i < pass.count * 2 * kTile; i += kConsumers) {
      const int n = i / (2 * kTile);
      const int part = i / kTile % 2;
      const int pair = pass.first_pair + n;
      const int64_t word = expert_word(kGranules, part, pass.tile_split, shared.pair_row[pair], shared.pair_slot[pair]);
      put_f32(cta, sink, word + i % kTile, sum_partials<Shape>(sums, part, n, i % kTile));
    }
  };
  int loaded = -1;
  const bool alive = for_each_chunk<Stage::kExpertUp>(record, shared, cta.idx, cta.count, [&](const Chunk& chunk) {
    if (chunk.piece != loaded) {
      if (!batch.flush(add_up)) return false;
      load_slice<false, true>(cta, source, record.vectors[0], chunk.piece * kWidth, kWidth, mapped, inputs);
      if (!cta.sync_alive()) return false;
      loaded = chunk.piece;
    }
    const int first = shared.pair_begin[chunk.expert];
    const char* bytes = next_chunk(cta, chunk.bytes);
    const bool alive = batch.multiply<Storage::kFp4, Shape>(chunk, bytes, inputs, shared.pair_row + first, first,
                                                            shared.pair_begin[chunk.expert + 1] - first, add_up);
    release_chunk(cta);
    return alive;
  });
  return alive && batch.flush(add_up);
}

// Hidden activations of the pairs (row, slot) that experts take.
class HiddenPairs {
 public:
  explicit HiddenPairs(const StageContext<Stage::kExpertDown>& ctx)
      : cta_(ctx.cta), shared_(ctx.cta.shared), source_{ctx.read<Region::kExpertIn>(), 0, constants::kExpertWidth} {}

  int begin(int place) const { return shared_.pair_begin[place]; }

  // Where the pairs end that are held together: behind `last`, a pair of `place`, further places while they fit.
  int held_end(int place, int last) const {
    const int first = begin(place);
    if (last < begin(place + 1) || last - first > constants::kPairCapacity) return last;
    int end = place + 1;
    while (end <= shared_.num_experts && begin(end + 1) - first <= constants::kPairCapacity) ++end;
    return begin(end) > last ? begin(end) : last;
  }

  // Activations of pairs [first, last) into rows 0.. of the inputs, quantised.
  void load(int first, int last, const Inputs& inputs) const {
    constexpr int kOctets = constants::kExpertWidth / kOctet;
    constexpr int kItems = RowSource::kBatch;
    const int total = (last - first) * kOctets;
    for (int base = 0; base < total; base += kConsumers * kItems) {
      int lines[kItems];
      int rows[kItems];
      int begins[kItems];
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        const int item = base + i * kConsumers + cta_.thread;
        const bool valid = item < total;
        const int pair = first + (valid ? item / kOctets : 0);
        rows[i] = valid ? item / kOctets : -1;
        lines[i] = valid ? shared_.pair_row[pair] * (constants::kExpertSlots + 1) + shared_.pair_slot[pair] : -1;
        begins[i] = item % kOctets * kOctet;
      }
      float values[kItems][kOctet];
      source_.octets(cta_, lines, begins, values);
#pragma unroll
      for (int i = 0; i < kItems; ++i) store_octet<false>(inputs, rows[i], begins[i], values[i]);
    }
  }

 private:
  const Cta& cta_;
  const Shared& shared_;
  RowSource source_;
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
constexpr int kDownSums = kDownPartials + kExpertPartialBytes;
static_assert(kDownSums + DownSums::kValues * 4 <= constants::kScratchBytes);

inline void put_down_sums(const StageContext<Stage::kExpertDown>& ctx, const DownSums& sums) {
  const Cta& cta = ctx.cta;
  const CallRecord& record = ctx.record;
  const int64_t tasks = record.num_tasks;
  const auto put = partial_sums<Region::kFfnExchange>(ctx, cta.params.rank * tasks, tasks * constants::kRows * kTile);
  const TaskRange range = tasks_of(record, cta.idx, cta.count);
  int chunk = 0;
  for (int first = range.first; first < record.num_tasks; first += range.stride, ++chunk) {
    for (int i = cta.thread; i < constants::kDownTilesPerChunk * constants::kRows * kTile; i += kConsumers) {
      const int tile = i / (constants::kRows * kTile);
      const int row = i / kTile % constants::kRows;
      if (ctx.live(row)) put(first + tile, row, i % kTile, sums.at(chunk, tile, row, i % kTile));
    }
  }
}

template <>
inline bool run_stage(StageContext<Stage::kExpertDown>& ctx) {
  using Shape = ChunkShape<constants::kDownSlice / kGroup, constants::kDownTilesPerChunk, 1>;
  Cta& cta = ctx.cta;
  const CallRecord& record = ctx.record;
  const Shared& shared = cta.shared;
  const int mapped = map_rows(cta, ctx.num_rows(), [&](int row) { return ctx.live(row); });
  if (!route_rows(ctx, mapped)) return false;
  const HiddenPairs pairs(ctx);
  char* scratch = cta.scratch<char>();
  const Inputs inputs = inputs_at(scratch, constants::kPairCapacity, constants::kExpertWidth);
  ExpertBatch batch(cta, scratch + kDownPartials);
  const DownSums sums{reinterpret_cast<float*>(scratch + kDownSums)};
  for (int i = cta.thread; i < DownSums::kValues; i += kConsumers) sums.values[i] = 0;
  const TaskRange range = tasks_of(record, cta.idx, cta.count);
  // A thread always takes the same (tile, row, column), so passes add up in their order.
  const auto add_up = [&](const ExpertPass& pass, const float* partials, int) {
    const int chunk_idx = constants::kDownTasks == 1 ? 0 : (pass.task - range.first) / range.stride;
    for (int i = cta.thread; i < Shape::kUnits * constants::kRows * kTile; i += kConsumers) {
      const int tile = i / (constants::kRows * kTile);
      const int row = i / kTile % constants::kRows;
      for (int n = 0; n < pass.count; ++n) {
        if (shared.pair_row[pass.first_pair + n] == row)
          sums.at(chunk_idx, tile, row, i % kTile) += sum_partials<Shape>(partials, tile, n, i % kTile);
      }
    }
  };
  int held_begin = 0;  // pairs whose inputs are held
  int held_end = 0;
  const bool alive = for_each_chunk<Stage::kExpertDown>(record, shared, cta.idx, cta.count, [&](const Chunk& chunk) {
    const int place = chunk.expert >= 0 ? chunk.expert : shared.num_experts;
    const int end = pairs.begin(place + 1);
    const char* bytes = next_chunk(cta, chunk.bytes);
    bool alive = true;
    for (int first = pairs.begin(place); first < end && alive; first += constants::kPairCapacity) {
      const int last = end - first < constants::kPairCapacity ? end : first + constants::kPairCapacity;
      if (first < held_begin || last > held_end) {
        held_begin = first;
        held_end = pairs.held_end(place, last);
        if (!batch.flush(add_up)) return false;
        pairs.load(held_begin, held_end, inputs);
        if (!cta.sync_alive()) return false;
      }
      const Inputs part = part_of(inputs, chunk.piece * constants::kDownSlice);
      const int16_t* map = shared.identity + (first - held_begin);
      alive = chunk.expert >= 0
                  ? batch.multiply<Storage::kFp4, Shape>(chunk, bytes, part, map, first, last - first, add_up)
                  : batch.multiply<Storage::kFp8, Shape>(chunk, bytes, part, map, first, last - first, add_up);
    }
    release_chunk(cta);
    return alive;
  });
  if (!alive || !batch.flush(add_up)) return false;
  put_down_sums(ctx, sums);
  return true;
}

}  // namespace monostep::gpu
