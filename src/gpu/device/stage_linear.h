// Stages of linears: input projections, queries, output projections, router and shared expert, head, context. Tasks:
// output tiles x K slices; each writes partial sums [granule = task][row][kTile]. Formulas: model.md 3.5-3.7 and 5.1.
#pragma once

#include "gpu/device/inputs.h"
#include "gpu/device/stages.h"

namespace monostep::gpu {

// How a stage's linears meet their inputs: by the kind of the section, or all alike.
enum class Use { kQuantized, kPlain, kByStorage };  // kByStorage: FP8 sections quantised, BF16 ones plain

// Tasks that take one K slice each: slice_of(chunk) numbers the inputs that a chunk meets, load(inputs, slice, plain)
// stores them, emit(task, row, column, value) takes the sums.
template <int kWidth, Use kUse, Stage S, typename SliceOf, typename Load, typename Emit>
inline bool run_split_linears(StageContext<S>& ctx, int count, const SliceOf& slice_of, const Load& load,
                              const Emit& emit) {
  static_assert(linear_scratch(constants::kRows, kWidth) <= constants::kScratchBytes);
  Cta& cta = ctx.cta;
  const CallRecord& record = ctx.record;
  char* scratch = cta.scratch<char>();
  const Inputs inputs = inputs_at(scratch, constants::kRows, kWidth);
  Multiplier multiplier{reinterpret_cast<double*>(scratch + partials_offset(constants::kRows, kWidth))};
  int loaded = -1;
  return for_each_chunk<S>(record, cta.shared, cta.idx, cta.count, [&](const Chunk& chunk) {
    const bool plain = kUse == Use::kPlain || (kUse == Use::kByStorage && record.sections[chunk.section].storage ==
                                                                              static_cast<int>(Storage::kBf16));
    const int slice = slice_of(chunk);
    const int wanted = slice * 2 + (plain ? 1 : 0);
    if (wanted != loaded) {
      cta.sync();  // nobody reads the slice before
      load(inputs, slice, plain);
      if (!cta.sync_alive()) return false;
      loaded = wanted;
    }
    using Shape = ChunkShape<kWidth / kGroup, 1, 1>;
    const auto take = [&](int, int n, int column, double value) {
      emit(chunk.task, cta.shared.map[n], column, static_cast<float>(value));
    };
    const int16_t* map = cta.shared.map;
    if constexpr (kUse == Use::kQuantized) {
      return multiply_chunk<Storage::kFp8, false, Shape>(cta, multiplier, chunk.bytes, inputs, map, count, take);
    } else if constexpr (kUse == Use::kPlain) {
      return multiply_chunk<Storage::kFp8, true, Shape>(cta, multiplier, chunk.bytes, inputs, map, count, take);
    } else {
      return plain
                 ? multiply_chunk<Storage::kBf16, true, Shape>(cta, multiplier, chunk.bytes, inputs, map, count, take)
                 : multiply_chunk<Storage::kFp8, false, Shape>(cta, multiplier, chunk.bytes, inputs, map, count, take);
    }
  });
}

inline int piece_of(const Chunk& chunk) { return chunk.piece; }

// Writes partial sums of a task's granule.
template <Region R, Stage S>
inline auto partial_sums(const StageContext<S>& ctx, int64_t first_granule = 0, int64_t peer_stride = 0) {
  const Sink sink = ctx.template write<R>();
  const Cta& cta = ctx.cta;
  return [sink, first_granule, peer_stride, &cta](int task, int row, int column, float value) {
    put_f32(cta, sink, ((first_granule + task) * constants::kRows + row) * kTile + column, value, peer_stride);
  };
}

// Names the rows whose norm factors a call needs: kExpertUp takes those of kFfnIn.
template <Stage S>
inline int site_key(const StageContext<S>& ctx) {
  constexpr Stage kSite = S == Stage::kExpertUp ? Stage::kFfnIn : S;
  return ((ctx.record.layer + 1) * 2 + ctx.record.draft) * program::kNumStages + static_cast<int>(kSite);
}

// Linears whose inputs are the normed collapsed streams.
template <Region U, Region Out, Stage S>
inline bool run_site_inputs(StageContext<S>& ctx) {
  const SliceSource source{ctx.template read<U>(), constants::kSliceWidth};
  const int count = map_rows(ctx.cta, ctx.num_rows(), [&](int row) { return ctx.live(row); });
  if (ctx.first_task() >= ctx.record.num_tasks) return true;
  if (!row_scales(ctx.cta, source, constants::kHidden, count, site_key(ctx))) return false;
  const uint64_t norm = ctx.record.vectors[0];
  const auto load = [&](const Inputs& inputs, int piece, bool plain) {
    const int begin = piece * constants::kHiddenSlice;
    if (plain) {
      load_slice<true, true>(ctx.cta, source, norm, begin, constants::kHiddenSlice, count, inputs);
    } else {
      load_slice<false, true>(ctx.cta, source, norm, begin, constants::kHiddenSlice, count, inputs);
    }
  };
  return run_split_linears<constants::kHiddenSlice, Use::kByStorage>(ctx, count, piece_of, load,
                                                                     partial_sums<Out>(ctx));
}

template <>
inline bool run_stage(StageContext<Stage::kAttnIn>& ctx) {
  return run_site_inputs<Region::kAttnU, Region::kAttnInPart>(ctx);
}

template <>
inline bool run_stage(StageContext<Stage::kFfnIn>& ctx) {
  return run_site_inputs<Region::kFfnU, Region::kFfnInPart>(ctx);
}

// Linears whose inputs are normed, quantised sums over K slices.
template <int kInputs, int kWidth, Region Out, Stage S>
inline bool run_normed_sums(StageContext<S>& ctx, const SplitSource& source, int count) {
  if (ctx.first_task() >= ctx.record.num_tasks) return true;
  if (!row_scales(ctx.cta, source, kInputs, count, site_key(ctx))) return false;
  const uint64_t norm = ctx.record.vectors[0];
  const auto load = [&](const Inputs& inputs, int piece, bool) {
    load_slice<false, true>(ctx.cta, source, norm, piece * kWidth, kWidth, count, inputs);
  };
  return run_split_linears<kWidth, Use::kQuantized>(ctx, count, piece_of, load, partial_sums<Out>(ctx));
}

template <>
inline bool run_stage(StageContext<Stage::kQProj>& ctx) {
  const RowSource source{ctx.read<Region::kQIn>(), 0, constants::kQLoraRank};
  const int count = map_rows(ctx.cta, ctx.num_rows(), [&](int row) { return ctx.live(row); });
  const auto load = [&](const Inputs& inputs, int piece, bool) {
    load_slice<false, false>(ctx.cta, source, 0, piece * constants::kQSlice, constants::kQSlice, count, inputs);
  };
  return run_split_linears<constants::kQSlice, Use::kQuantized>(ctx, count, piece_of, load,
                                                                partial_sums<Region::kQPart>(ctx));
}

// Rows of the target whose request keeps draft context.
template <Stage S>
inline int map_context_rows(const StageContext<S>& ctx) {
  return map_rows(ctx.cta, ctx.cta.shared.step.num_rows, [&](int row) {
    return (ctx.request(ctx.cta.shared.step.rows[row].request).flags & kRequestContext) != 0;
  });
}

template <>
inline bool run_stage(StageContext<Stage::kContextProj>& ctx) {
  const SplitSource source{ctx.read<Region::kMainPart>(), 0, ctx.record.reader_splits};
  const int count = map_context_rows(ctx);
  return run_normed_sums<constants::kHidden, constants::kHiddenSlice, Region::kContextPart>(ctx, source, count);
}

// Taps of the layers that feed the draft: each tap's part of the region carries its own layer's tag.
struct TapSource {
  const uint64_t* pairs;
  uint32_t epoch_tag;
  static constexpr int kBatch = 1;

  template <int N>
  void octets(const Cta& cta, const int (&rows)[N], const int (&begins)[N], float (&out)[N][kOctet]) const {
    const int tap = begins[0] / constants::kHidden;
    const SliceSource source{{pairs, epoch_tag | static_cast<uint32_t>(constants::kTapOrdinals[tap])},
                             constants::kSliceWidth};
    source.octets(cta, rows, begins, out);
  }
};

template <>
inline bool run_stage(StageContext<Stage::kMainProj>& ctx) {
  const TapSource source{ctx.read<Region::kTaps>().pairs, ctx.tag(0)};
  const int count = map_context_rows(ctx);
  const auto load = [&](const Inputs& inputs, int piece, bool) {
    load_slice<false, false>(ctx.cta, source, 0, piece * constants::kMainSlice, constants::kMainSlice, count, inputs);
  };
  return run_split_linears<constants::kMainSlice, Use::kQuantized>(ctx, count, piece_of, load,
                                                                   partial_sums<Region::kMainPart>(ctx));
}

template <>
inline bool run_stage(StageContext<Stage::kEngramKv>& ctx) {
  const RowSource source{ctx.read<Region::kEngramRowsOut>(), 0, constants::kEngramColumns * constants::kEngramHeadDim};
  const int count = map_rows(ctx.cta, ctx.num_rows(), [&](int row) { return ctx.live(row); });
  const auto load = [&](const Inputs& inputs, int piece, bool) {
    load_slice<false, false>(ctx.cta, source, 0, piece * constants::kEngramSlice, constants::kEngramSlice, count,
                             inputs);
  };
  const int64_t tasks = ctx.record.num_tasks;
  const auto emit =
      partial_sums<Region::kEngramKvOut>(ctx, ctx.cta.params.rank * tasks, tasks * constants::kRows * kTile);
  return run_split_linears<constants::kEngramSlice, Use::kQuantized>(ctx, count, piece_of, load, emit);
}

template <>
inline bool run_stage(StageContext<Stage::kWoA>& ctx) {
  constexpr int kGroupWidth = constants::kHeadsPerGroup * constants::kHeadDim;
  const int count = map_rows(ctx.cta, ctx.num_rows(), [&](int row) { return ctx.live(row); });
  const Words words = ctx.read<Region::kAttnOut>();
  // Inputs differ by output group.
  const int splits = ctx.record.splits;
  const auto slice_of = [&](const Chunk& chunk) {
    return chunk.tile / (constants::kOLoraRank / kTile) * splits + chunk.piece;
  };
  const auto load = [&](const Inputs& inputs, int slice, bool) {
    const int64_t group = slice / splits;
    const RowSource source{words, group * constants::kRows * (kGroupWidth / 2), kGroupWidth};
    load_slice<true, false>(ctx.cta, source, 0, slice % splits * constants::kWoASlice, constants::kWoASlice, count,
                            inputs);
  };
  return run_split_linears<constants::kWoASlice, Use::kPlain>(ctx, count, slice_of, load,
                                                              partial_sums<Region::kOaPart>(ctx));
}

// Tasks that sum whole K: batches of tasks, K slices outside, sums in shared memory between the slices.
template <int kWidth, Storage kStorage, Stage S, typename Load, typename Emit>
inline bool run_whole_linears(StageContext<S>& ctx, int count, const Load& load, const Emit& emit) {
  constexpr bool kPlain = kStorage == Storage::kBf16;
  constexpr int kSumsOffset = linear_scratch(constants::kRows, kWidth);
  static_assert(whole_scratch(constants::kRows, kWidth, constants::kTaskBatch) <= constants::kScratchBytes);
  Cta& cta = ctx.cta;
  const CallRecord& record = ctx.record;
  char* scratch = cta.scratch<char>();
  const Inputs inputs = inputs_at(scratch, constants::kRows, kWidth);
  Multiplier multiplier{reinterpret_cast<double*>(scratch + partials_offset(constants::kRows, kWidth))};
  auto* sums = reinterpret_cast<double*>(scratch + kSumsOffset);
  const int pieces = record.sections[0].num_pieces;
  const TaskRange tasks = tasks_of(record, cta.idx, cta.count);
  int loaded = -1;
  return for_each_chunk<S>(record, cta.shared, cta.idx, cta.count, [&](const Chunk& chunk) {
    if (chunk.piece != loaded) {
      cta.sync();
      load(inputs, chunk.piece);
      if (!cta.sync_alive()) return false;
      loaded = chunk.piece;
    }
    using Shape = ChunkShape<kWidth / kGroup, 1, 1>;
    const int place = (chunk.task - tasks.first) / tasks.stride % constants::kTaskBatch;
    const auto take = [&](int, int n, int column, double value) {
      double& sum = sums[(place * constants::kRows + n) * kTile + column];
      if (chunk.piece > 0)
        value = kPlain ? sum + value : static_cast<double>(static_cast<float>(sum) + static_cast<float>(value));
      if (chunk.piece + 1 < pieces) {
        sum = value;
      } else {
        emit(chunk.task, n, column, static_cast<float>(value));
      }
    };
    return multiply_chunk<kStorage, kPlain, Shape>(cta, multiplier, chunk.bytes, inputs, cta.shared.map, count, take);
  });
}

template <>
inline bool run_stage(StageContext<Stage::kWoB>& ctx) {
  const RowSource source{ctx.read<Region::kOIn>(), 0, constants::kRankGroups * constants::kOLoraRank};
  const int count = map_rows(ctx.cta, ctx.num_rows(), [&](int row) { return ctx.live(row); });
  const auto load = [&](const Inputs& inputs, int piece) {
    load_slice<false, false>(ctx.cta, source, 0, piece * constants::kWoBSlice, constants::kWoBSlice, count, inputs);
  };
  const int64_t tasks = ctx.record.num_tasks;
  const auto put =
      partial_sums<Region::kAttnExchange>(ctx, ctx.cta.params.rank * tasks, tasks * constants::kRows * kTile);
  return run_whole_linears<constants::kWoBSlice, Storage::kFp8>(
      ctx, count, load,
      [&](int task, int n, int column, float value) { put(task, ctx.cta.shared.map[n], column, value); });
}

template <>
inline bool run_stage(StageContext<Stage::kHead>& ctx) {
  const SliceSource source{ctx.read<Region::kHeadU>(), constants::kSliceWidth};
  const int count = map_rows(ctx.cta, ctx.num_rows(), [&](int row) {
    return ctx.live(row) && (ctx.record.draft || (ctx.cta.shared.step.rows[row].flags & kRowNeedsLogits) != 0);
  });
  if (ctx.first_task() >= ctx.record.num_tasks) return true;
  if (!row_scales(ctx.cta, source, constants::kHidden, count, site_key(ctx))) return false;
  const auto load = [&](const Inputs& inputs, int piece) {
    load_slice<true, true>(ctx.cta, source, ctx.record.vectors[0], piece * constants::kHiddenSlice,
                           constants::kHiddenSlice, count, inputs);
  };
  const int64_t tasks = ctx.record.num_tasks;
  const auto put = partial_sums<Region::kLogits>(ctx, ctx.cta.params.rank * tasks, tasks * constants::kRows * kTile);
  return run_whole_linears<constants::kHiddenSlice, Storage::kBf16>(
      ctx, count, load,
      [&](int task, int n, int column, float value) { put(task, ctx.cta.shared.map[n], column, value); });
}

}  // namespace monostep::gpu
