// Stages of the head: logits, sampling, verdict. Tasks: vocabulary tiles (kHead), rows (kSample), requests (kVerdict).
// Ids are exact given the logits. Formulas: model.md 3.1 and 5.2; the rules themselves are program/sampling.
#include "cpu/stage_common.h"
#include "cpu/stages.h"
#include "program/sampling.h"

namespace monostep::cpu {
namespace {

// First row of a request that yields a token: the row before its drafts.
int first_sampled_row(const program::StepRequest& request) {
  return request.first_row + request.num_rows - 1 - request.num_drafts;
}

}  // namespace

template <>
void run_stage(StageContext<Stage::kHead>& ctx) {
  const program::Layout& layout = ctx.layout();
  if (!ctx.poll_range<Region::kHeadU>(0, layout.num_slices())) return;
  std::vector<Row> rows;
  for (const Row& row : ctx.rows()) {
    if (ctx.draft() || ctx.inputs().rows[static_cast<size_t>(row.idx)].needs_logits) rows.push_back(row);
  }
  const std::vector<float>& norm = ctx.draft() ? ctx.weights().draft_norm : ctx.weights().norm;
  RowValues hidden = normed_rows(layout, ctx.read<Region::kHeadU>(), rows, norm);
  const Activations inputs = plain(std::move(hidden.values), hidden.width);
  const std::vector<int> indices = row_indices(rows);
  const PackedLinear& head = ctx.weights().head;
  float* out = ctx.write<Region::kLogits>();
  for (const int task : ctx.tasks()) {
    const int granule = ctx.rank() * head.tiles() + task;
    multiply_tile(head, {task, 0, head.k}, inputs, indices, out + int64_t{granule} * layout.rows() * kTile);
    ctx.put<Region::kLogits>(granule);
  }
}

std::vector<float> row_logits(const program::Layout& layout, const float* words, int row) {
  const int per_rank = layout.shard().vocab_rows;
  const int tiles = ceil_div(per_rank, kTile);
  std::vector<float> out(static_cast<size_t>(layout.geometry().vocab_size));
  for (int rank = 0; rank < layout.shard().tp; ++rank) {
    sum_splits({words, layout.rows(), rank * tiles, 1}, row, 0,
               std::span(out).subspan(static_cast<size_t>(rank * per_rank), static_cast<size_t>(per_rank)));
  }
  return out;
}

template <>
void run_stage(StageContext<Stage::kSample>& ctx) {
  if (ctx.rank() != 0) return;  // rank 0's ids count on every rank
  const program::Layout& layout = ctx.layout();
  const int tiles = layout.stage_tiles(Stage::kHead, -1);
  if (!ctx.poll_range<Region::kLogits>(0, layout.shard().tp * tiles)) return;
  float* out = ctx.write<Region::kSampled>();
  for (const int task : ctx.tasks()) {
    const Row* row = live_row(ctx.rows(), task);
    if (row == nullptr) continue;
    const program::StepRequest& request = ctx.inputs().requests[static_cast<size_t>(row->request)];
    if (request.sample && row->idx >= first_sampled_row(request)) {
      const std::vector<float> logits = row_logits(layout, ctx.read<Region::kLogits>(), row->idx);
      out[row->idx] = word_of(program::sample_token(logits, request.sampling, row->position + 1));
    }
    ctx.put<Region::kSampled>(row->idx);
  }
}

template <>
void run_stage(StageContext<Stage::kVerdict>& ctx) {
  if (!ctx.poll_rows<Region::kSampled>(ctx.rows())) return;
  const int words = ctx.geometry().dspark_block_size + 4;
  float* out = ctx.write<Region::kVerdictOut>();
  for (const int task : ctx.tasks()) {
    if (task >= static_cast<int>(ctx.inputs().requests.size())) continue;
    const program::StepRequest& request = ctx.inputs().requests[static_cast<size_t>(task)];
    float* verdict = out + int64_t{task} * words;
    program::Judgement judged;
    if (request.sample) {
      std::vector<int32_t> drafts;
      std::vector<int32_t> sampled;
      for (int row = first_sampled_row(request); row < request.first_row + request.num_rows; ++row) {
        if (row > first_sampled_row(request)) drafts.push_back(ctx.inputs().rows[static_cast<size_t>(row)].token);
        sampled.push_back(int_of(ctx.read<Region::kSampled>()[row]));
      }
      judged = program::judge(request, drafts, sampled);
    }
    const int undecided = request.num_rows - 1 - request.num_drafts;
    verdict[0] = word_of(judged.num_accepted);
    verdict[1] = word_of(static_cast<int32_t>(judged.tokens.size()));
    verdict[2] = word_of(request.first_position + undecided + judged.num_accepted);
    for (size_t idx = 0; idx < judged.tokens.size(); ++idx) verdict[3 + idx] = word_of(judged.tokens[idx]);
    ctx.put<Region::kVerdictOut>(task);
  }
}

}  // namespace monostep::cpu
