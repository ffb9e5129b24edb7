// New cache rows: kKvNew (window row, and at a KV owner the compressed row and the index key of the group that a row
// closes) and kContextNew (context rows of the draft layers). Tasks: rows; draft layers x rows. Reads the partial sums
// of wkv and the compressor (and the verdicts in the draft), writes the new rows' regions, and in place the rings,
// pages and pending pairs of live rows. Sums of squares and the index key's products are taken in fp64. Formulas:
// model.md 3.5 and 3.6.
#pragma once

#include "gpu/device/numerics.h"
#include "gpu/device/stages.h"

namespace monostep::gpu {

struct KvScratch {
  double partials[kWarps];
  float window[constants::kHeadDim];
  float own[2][constants::kHeadDim];    // compressor kv and gate of the row; own[0] becomes the latent
  float other[2][constants::kHeadDim];  // of the row before, ratio 2
  float key[constants::kIndexHeadDim];
  uint32_t latent[constants::kHeadDim / 2];  // bf16 pairs before RoPE
  CosSin angles[kRopePairs];                 // of the row
  CosSin group_angles[kRopePairs];           // of the first token of the group
};
static_assert(sizeof(KvScratch) <= kv_scratch(constants::kHeadDim, constants::kIndexHeadDim, constants::kRopeDim));
static_assert(sizeof(KvScratch) <= constants::kScratchBytes);

// Norm, RoPE, ring record (null: none) and put of a window row whose sums and angles are in the scratch.
inline void finish_window_row(const Cta& cta, KvScratch& scratch, uint64_t norm, uint8_t* record, const Sink& sink,
                              int64_t granule) {
  norm_row(cta, scratch.window, constants::kHeadDim, norm, scratch.partials);
  rotate_row(cta, scratch.window, constants::kHeadDim, scratch.angles);
  cta.sync();
  pack_row<WindowFormat>(cta, scratch.window, constants::kHeadDim, record, sink, granule * (constants::kHeadDim / 2));
}

// A live row of kKvNew.
struct KvRow {
  int row;
  int position;
  int request_idx;
};

// Sums of compressor kv (and gate, ratio 2) of a row of the step.
template <Stage S>
inline void load_compressor(const StageContext<S>& ctx, int row, float (&out)[2][constants::kHeadDim]) {
  const Words words = ctx.template read<Region::kAttnInPart>();
  const CallRecord& record = ctx.record;
  load_sums<constants::kHeadDim>(ctx.cta, {words, record.tile_of[2], record.reader_splits}, row, out[0]);
  if (record.ratio == 2)
    load_sums<constants::kHeadDim>(ctx.cta, {words, record.tile_of[3], record.reader_splits}, row, out[1]);
}

// What a row needs of its partner, the even position before it: sums of this step, else the pending pair.
inline void load_partner(const StageContext<Stage::kKvNew>& ctx, const KvRow& row, KvScratch& scratch) {
  const RequestRecord& request = ctx.request(row.request_idx);
  const int position = row.position - 1;
  if (position >= request.first_position) {
    load_compressor(ctx, request.first_row + position - request.first_position, scratch.other);
    return;
  }
  const float* pending = pending_pair(ctx.cta, request, ctx.record.owner_idx, position);
  for (int pair = ctx.cta.thread; pair < constants::kHeadDim / 2; pair += kConsumers) {
    for (int idx = 2 * pair; idx < 2 * pair + 2; ++idx) {
      scratch.other[0][idx] = pending[idx];
      scratch.other[1][idx] = pending[constants::kHeadDim + idx];
    }
  }
}

// A row that opens a ratio-2 group leaves its projections in the slot.
inline void store_pending(const StageContext<Stage::kKvNew>& ctx, const KvRow& row, const KvScratch& scratch) {
  float* pending = pending_pair(ctx.cta, ctx.request(row.request_idx), ctx.record.owner_idx, row.position);
  for (int pair = ctx.cta.thread; pair < constants::kHeadDim / 2; pair += kConsumers) {
    for (int idx = 2 * pair; idx < 2 * pair + 2; ++idx) {
      pending[idx] = scratch.own[0][idx];
      pending[constants::kHeadDim + idx] = scratch.own[1][idx];
    }
  }
}

// own[0] = the two tokens' kv, weighted by the softmax over their gates; by the owners of the pairs.
inline void pool_pair(const Cta& cta, KvScratch& scratch) {
  for (int pair = cta.thread; pair < constants::kHeadDim / 2; pair += kConsumers) {
    for (int idx = 2 * pair; idx < 2 * pair + 2; ++idx) {
      const float most = fmaxf(scratch.own[1][idx], scratch.other[1][idx]);
      const float first = exp_f32(scratch.other[1][idx] - most);
      const float second = exp_f32(scratch.own[1][idx] - most);
      scratch.own[0][idx] =
          scratch.other[0][idx] * (first / (first + second)) + scratch.own[0][idx] * (second / (first + second));
    }
  }
}

// key = indexer.wk latent, one warp a tile; each column's 32-group sums are added in fp64.
inline void multiply_index_key(const Cta& cta, const SectionRecord& section, KvScratch& scratch) {
  const int g = cta.lane >> 2;
  const int t = cta.lane & 3;
  for (int tile = cta.warp; tile < constants::kIndexHeadDim / kTile; tile += kWarps) {
    const auto* codes = reinterpret_cast<const char*>(section.chunks) + int64_t{tile} * section.chunk_bytes;
    double low = 0;
    double high = 0;
#pragma unroll 4
    for (int group = 0; group < constants::kHeadDim / kGroup; ++group) {
      uint32_t b[4];  // the latent is column 0, the others are empty
#pragma unroll
      for (int i = 0; i < 4; ++i) b[i] = g == 0 ? scratch.latent[group * (kGroup / 2) + i * 4 + t] : 0;
      float d[4];
      add_group<Storage::kBf16, true>(codes + group * group_code_bytes(Storage::kBf16), cta.lane, b, d);
      low += static_cast<double>(d[0]);
      high += static_cast<double>(d[2]);
    }
    if (t == 0) {
      scratch.key[tile * kTile + g] = static_cast<float>(low);
      scratch.key[tile * kTile + g + 8] = static_cast<float>(high);
    }
  }
}

// The compressed row and the index key of the group that a row closes; kv sums are in the scratch.
inline void finish_group(const StageContext<Stage::kKvNew>& ctx, const KvRow& row, KvScratch& scratch) {
  const Cta& cta = ctx.cta;
  const CallRecord& record = ctx.record;
  const int group = row.position / record.ratio;
  if (record.ratio == 2) pool_pair(cta, scratch);
  float* latent = scratch.own[0];
  norm_row(cta, latent, constants::kHeadDim, record.vectors[1], scratch.partials);
  for (int pair = cta.thread; pair < constants::kHeadDim / 2; pair += kConsumers)
    scratch.latent[pair] = bf16_pair(latent[2 * pair], latent[2 * pair + 1]);
  rotate_row(cta, latent, constants::kHeadDim, scratch.group_angles);
  cta.sync();
  pack_row<CompressedFormat>(cta, latent, constants::kHeadDim, compressed_record(cta, row.request_idx, record, group),
                             ctx.write<Region::kCompressedNew>(), int64_t{row.row} * (constants::kHeadDim / 2));
  multiply_index_key(cta, record.sections[0], scratch);
  cta.sync();
  norm_row(cta, scratch.key, constants::kIndexHeadDim, record.vectors[2], scratch.partials);
  rotate_row(cta, scratch.key, constants::kIndexHeadDim, scratch.group_angles);
  cta.sync();
  pack_row<IndexFormat>(cta, scratch.key, constants::kIndexHeadDim, index_record(cta, row.request_idx, record, group),
                        ctx.write<Region::kIndexKeyNew>(), int64_t{row.row} * (constants::kIndexHeadDim / 2));
}

// All that one row of kKvNew makes. False: given up.
inline bool make_kv_row(const StageContext<Stage::kKvNew>& ctx, int row_idx, KvScratch& scratch) {
  const Cta& cta = ctx.cta;
  const CallRecord& record = ctx.record;
  KvRow row{row_idx, 0, ctx.request_of(row_idx)};
  const bool owner = record.tile_of[2] >= 0;
  load_sums<constants::kHeadDim>(cta, {ctx.read<Region::kAttnInPart>(), record.tile_of[1], record.reader_splits},
                                 row_idx, scratch.window);
  if (record.draft) {
    const int last = wait_last_position(cta, ctx.read<Region::kVerdictOut>(), row.request_idx);
    row.position = last + 1 + row_idx % constants::kDraftLength;
  } else {
    row.position = cta.shared.step.rows[row_idx].position;
  }
  const bool closes = owner && (row.position + 1) % record.ratio == 0;
  if (owner) load_compressor(ctx, row_idx, scratch.own);
  if (closes && record.ratio == 2) load_partner(ctx, row, scratch);
  if (!cta.sync_alive()) return false;
  load_angles(cta, record.ratio, row.position, scratch.angles);
  if (closes) load_angles(cta, record.ratio, row.position / record.ratio * record.ratio, scratch.group_angles);
  if (owner && !closes) store_pending(ctx, row, scratch);
  cta.sync();
  // The draft block's rows are seen in this step alone.
  uint8_t* ring = record.draft ? nullptr : ring_record(cta, ctx.request(row.request_idx), record.layer, row.position);
  finish_window_row(cta, scratch, record.vectors[0], ring, ctx.write<Region::kWindowNew>(), row_idx);
  if (closes) finish_group(ctx, row, scratch);
  cta.sync();  // the scratch is free
  return true;
}

template <>
inline bool run_stage(StageContext<Stage::kKvNew>& ctx) {
  KvScratch& scratch = *ctx.cta.scratch<KvScratch>();
  for (int task = ctx.first_task(); task < ctx.record.num_tasks; task += ctx.task_stride()) {
    if (ctx.live(task) && !make_kv_row(ctx, task, scratch)) return false;
  }
  return true;
}

// One context row of one draft layer. False: given up.
inline bool make_context_row(const StageContext<Stage::kContextNew>& ctx, int draft_idx, int row_idx,
                             KvScratch& scratch) {
  const Cta& cta = ctx.cta;
  const CallRecord& record = ctx.record;
  const RowRecord& row = cta.shared.step.rows[row_idx];
  load_sums<constants::kHeadDim>(
      cta, {ctx.read<Region::kContextPart>(), draft_idx * record.tiles, record.reader_splits}, row_idx, scratch.window);
  load_angles(cta, 0, row.position, scratch.angles);
  if (!cta.sync_alive()) return false;
  uint8_t* ring = ring_record(cta, ctx.request(row.request), constants::kNumLayers + draft_idx, row.position);
  finish_window_row(cta, scratch, record.vectors[draft_idx], ring, ctx.write<Region::kContextNewOut>(),
                    int64_t{draft_idx} * constants::kRows + row_idx);
  cta.sync();
  return true;
}

template <>
inline bool run_stage(StageContext<Stage::kContextNew>& ctx) {
  KvScratch& scratch = *ctx.cta.scratch<KvScratch>();
  const StepRecord& step = ctx.cta.shared.step;
  for (int task = ctx.first_task(); task < ctx.record.num_tasks; task += ctx.task_stride()) {
    const int row = task % constants::kBand;
    if (row >= step.num_rows || (ctx.request(step.rows[row].request).flags & kRequestContext) == 0) continue;
    if (!make_context_row(ctx, task / constants::kBand, row, scratch)) return false;
  }
  return true;
}

}  // namespace monostep::gpu
