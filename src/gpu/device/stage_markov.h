// The Markov chain over the draft positions, and what it gives. kMarkov (one call a position; tasks: vocabulary tiles)
// reads kLogits, the previous position's kMarkovTop or kVerdictOut, writes kDraftLogits and kMarkovTop. kDraftOut
// (tasks: requests) reads kMarkovTop, kHeadU and kVerdictOut, writes kDraft. Logits and confidences are bounded, ids
// exact given the logits. Formulas: model.md 5.1.
#pragma once

#include "gpu/device/inputs.h"
#include "gpu/device/sampling.h"
#include "gpu/device/stages.h"

namespace monostep::gpu {

static_assert(constants::kMarkovSlice == constants::kMarkovRank, "a Markov embedding is one slice of inputs");

// The token behind which a request drafts: the last one that its verdict emits.
template <Stage S>
inline int anchor_of(const StageContext<S>& ctx, int request) {
  const Words verdict = ctx.template read<Region::kVerdictOut>();
  const int64_t at = int64_t{request} * (constants::kDraftLength + 4);
  const auto count = static_cast<int>(wait_word(ctx.cta, verdict, at + 1));
  if (count <= 0 || count > constants::kDraftLength + 1) return 0;  // none, or given up
  return static_cast<int>(wait_word(ctx.cta, verdict, at + 2 + count));
}

// The best of a request over all tiles of all ranks at a draft position, one share a warp.
template <Stage S>
inline void share_picks(const StageContext<S>& ctx, int position, int request, Best (&shares)[kWarps]) {
  constexpr int kBatch = 4;
  constexpr int kGranules = constants::kTp * constants::kHeadTiles;
  const Cta& cta = ctx.cta;
  const Words tops = ctx.template read_from<Region::kMarkovTop>(position, static_cast<uint32_t>(position + 2));
  Best best;
  for (int base = cta.thread; base < kGranules; base += kConsumers * kBatch) {
    uint32_t raw[kBatch][2];
    wait_words2(cta, tops, raw, [&](int i) {
      const int granule = base + i * kConsumers;
      return granule < kGranules ? static_cast<uint32_t>((granule * constants::kMaxRequests + request) * 2) : kNoWord;
    });
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (base + i * kConsumers < kGranules) best.take({std::bit_cast<float>(raw[i][0]), static_cast<int>(raw[i][1])});
    }
  }
  best = warp_best(best);
  if (cta.lane == 0) shares[cta.warp] = best;
}
inline int pick_of(const Best (&shares)[kWarps]) {
  Best best;
  for (int warp = 0; warp < kWarps; ++warp) best.take(shares[warp]);
  return best.id < constants::kVocab ? best.id : 0;  // logits that are not finite may find no token
}

inline const char* markov_row(const Cta& cta, int token) {
  return reinterpret_cast<const char*>(cta.params.markov_embed) + int64_t{token} * constants::kMarkovRank * 2;
}

struct MarkovScratch {
  int tokens[constants::kMaxRequests];  // before the position, by place in the map
  Best shares[constants::kMaxRequests][kWarps];
  float logits[constants::kMaxRequests][kTile];
};
inline constexpr int kMarkovInputs = linear_scratch(constants::kMaxRequests, constants::kMarkovSlice);
static_assert(kMarkovInputs + static_cast<int>(sizeof(MarkovScratch)) <= constants::kScratchBytes);

inline MarkovScratch& markov_scratch(const Cta& cta) {
  return *reinterpret_cast<MarkovScratch*>(cta.scratch<char>() + kMarkovInputs);
}

// The tokens before the call's position, of the mapped requests. False: given up.
inline bool previous_tokens(const StageContext<Stage::kMarkov>& ctx, int count) {
  const Cta& cta = ctx.cta;
  MarkovScratch& scratch = markov_scratch(cta);
  const int position = ctx.record.layer;
  if (position == 0) {
    if (cta.thread < count) scratch.tokens[cta.thread] = anchor_of(ctx, cta.shared.map[cta.thread]);
    return cta.sync_alive();
  }
  for (int n = 0; n < count; ++n) share_picks(ctx, position - 1, cta.shared.map[n], scratch.shares[n]);
  if (!cta.sync_alive()) return false;
  if (cta.thread < count) scratch.tokens[cta.thread] = pick_of(scratch.shares[cta.thread]);
  cta.sync();
  return true;
}

// The embeddings of the previous tokens as plain inputs, one row a request.
inline void load_embeddings(const Cta& cta, const Inputs& inputs, int count) {
  constexpr int kOctets = constants::kMarkovSlice / kOctet;
  for (int item = cta.thread; item < count * kOctets; item += kConsumers) {
    const int n = item / kOctets;
    const int at = item % kOctets;
    const Word4 pairs =
        load_constant(reinterpret_cast<const Word4*>(markov_row(cta, markov_scratch(cta).tokens[n])) + at);
    uint32_t* to = inputs.pairs + cta.shared.map[n] * inputs.row_words + at / 4 * (kGroup / 2) + at % 4;
    to[0] = pairs.x;
    to[4] = pairs.y;
    to[8] = pairs.z;
    to[12] = pairs.w;
  }
  cta.sync();
}

// One thread: the best of a mapped request's logits in a tile.
inline void put_top(const StageContext<Stage::kMarkov>& ctx, int tile, int n) {
  const Cta& cta = ctx.cta;
  const int first = tile * kTile;
  Best best;
  for (int column = 0; column < kTile && first + column < constants::kRankVocab; ++column)
    best.take({markov_scratch(cta).logits[n][column], cta.params.rank * constants::kRankVocab + first + column});
  constexpr int64_t kRankWords = int64_t{constants::kHeadTiles} * constants::kMaxRequests * 2;
  const Sink sink = ctx.write<Region::kMarkovTop>();
  const int64_t at = cta.params.rank * kRankWords + (int64_t{tile} * constants::kMaxRequests + cta.shared.map[n]) * 2;
  put_f32(cta, sink, at, best.value, kRankWords);
  put_word(cta, sink, at + 1, static_cast<uint32_t>(best.id), kRankWords);
}

template <>
inline bool run_stage(StageContext<Stage::kMarkov>& ctx) {
  Cta& cta = ctx.cta;
  const CallRecord& record = ctx.record;
  const int16_t* map = cta.shared.map;
  const int count =
      map_rows(cta, constants::kMaxRequests, [&](int request) { return ctx.live(request * constants::kDraftLength); });
  if (ctx.first_task() >= record.num_tasks) return true;
  if (!previous_tokens(ctx, count)) return false;
  char* at = cta.scratch<char>();
  const Inputs inputs = inputs_at(at, constants::kMaxRequests, constants::kMarkovSlice);
  Multiplier multiplier{
      reinterpret_cast<double*>(at + partials_offset(constants::kMaxRequests, constants::kMarkovSlice))};
  load_embeddings(cta, inputs, count);
  const Words logits = ctx.read<Region::kLogits>();
  const Sink sink = ctx.write<Region::kDraftLogits>();
  return for_each_chunk<Stage::kMarkov>(record, cta.shared, cta.idx, cta.count, [&](const Chunk& chunk) {
    const auto emit = [&](int, int n, int column, double product) {
      const int granule = cta.params.rank * constants::kHeadTiles + chunk.task;
      const int row = map[n] * constants::kDraftLength + record.layer;
      const float base = wait_f32(cta, logits, (int64_t{granule} * constants::kRows + row) * kTile + column);
      const float logit = base + static_cast<float>(product);
      markov_scratch(cta).logits[n][column] = logit;
      put_f32(cta, sink, (int64_t{chunk.task} * constants::kMaxRequests + map[n]) * kTile + column, logit);
    };
    if (!multiply_chunk<Storage::kBf16, true, ChunkShape<constants::kMarkovSlice / kGroup, 1, 1>>(
            cta, multiplier, chunk.bytes, inputs, map, count, emit))
      return false;
    if (!cta.sync_alive()) return false;
    if (cta.thread < count) put_top(ctx, chunk.task, cta.thread);
    return true;
  });
}

// One warp: the dot product of the confidence head with a draft row's hidden state and the token's embedding before it,
// in fp64.
inline float confidence(const StageContext<Stage::kDraftOut>& ctx, int row, int token) {
  const Cta& cta = ctx.cta;
  const SliceSource source{ctx.read<Region::kHeadU>(), constants::kSliceWidth};
  constexpr int kBatch = SliceSource::kBatch;
  const uint64_t weights = ctx.record.vectors[0];
  double sum = 0;
  for (int base = cta.lane * kOctet; base < constants::kHidden; base += 32 * kOctet * kBatch) {
    int rows[kBatch];
    int begins[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      begins[i] = base + i * 32 * kOctet;
      rows[i] = begins[i] < constants::kHidden ? row : -1;
    }
    float values[kBatch][kOctet];
    source.octets(cta, rows, begins, values);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (rows[i] < 0) continue;
#pragma unroll
      for (int j = 0; j < kOctet; ++j)
        sum += static_cast<double>(values[i][j]) * static_cast<double>(vector_bf16(weights, begins[i] + j));
    }
  }
  const auto embedding = reinterpret_cast<uint64_t>(markov_row(cta, token));
  for (int idx = cta.lane; idx < constants::kMarkovRank; idx += 32)
    sum += static_cast<double>(vector_bf16(embedding, idx)) *
           static_cast<double>(vector_bf16(weights, constants::kHidden + idx));
  return static_cast<float>(warp_sum(sum));
}

struct DraftOutScratch {
  int tokens[constants::kDraftLength + 1];  // the anchor, then the drafts
  Best shares[constants::kDraftLength][kWarps];
};
static_assert(sizeof(DraftOutScratch) <= constants::kScratchBytes);

// The anchor and the drafts of a request into the scratch. False: given up.
inline bool collect_drafts(const StageContext<Stage::kDraftOut>& ctx, int request) {
  const Cta& cta = ctx.cta;
  auto& scratch = *cta.scratch<DraftOutScratch>();
  if (cta.thread == 0) scratch.tokens[0] = anchor_of(ctx, request);
  for (int position = 0; position < constants::kDraftLength; ++position)
    share_picks(ctx, position, request, scratch.shares[position]);
  if (!cta.sync_alive()) return false;
  if (cta.thread < constants::kDraftLength) scratch.tokens[cta.thread + 1] = pick_of(scratch.shares[cta.thread]);
  cta.sync();
  return true;
}

template <>
inline bool run_stage(StageContext<Stage::kDraftOut>& ctx) {
  Cta& cta = ctx.cta;
  const Sink sink = ctx.write<Region::kDraft>();
  const int* tokens = cta.scratch<DraftOutScratch>()->tokens;
  for (int request = ctx.first_task(); request < cta.shared.step.num_requests; request += ctx.task_stride()) {
    if ((ctx.request(request).flags & kRequestDraft) == 0) continue;
    if (!collect_drafts(ctx, request)) return false;
    const int at = request * 2 * constants::kDraftLength;
    for (int position = cta.warp; position < constants::kDraftLength; position += kWarps) {
      const float value = confidence(ctx, request * constants::kDraftLength + position, tokens[position]);
      if (cta.lane != 0) continue;
      put_word(cta, sink, at + position, static_cast<uint32_t>(tokens[position + 1]));
      put_f32(cta, sink, at + constants::kDraftLength + position, value);
    }
    if (!cta.sync_alive()) return false;  // and nobody reads the scratch any more
  }
  return true;
}

}  // namespace monostep::gpu
