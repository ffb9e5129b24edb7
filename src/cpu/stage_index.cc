// Stages of the indexer: scores of a request's rows over the visible groups, and the selection. Tasks: request x chunk
// of groups (kIndexScore), rows (kIndexSelect). Scores keep the reference's three bf16 roundings; ties go to the
// smaller position. Formulas: model.md 3.6.
#include <cmath>
#include <limits>

#include "cpu/stage_common.h"
#include "cpu/stages.h"

namespace monostep::cpu {
namespace {

using program::kScoreChunk;

int visible_groups(const Row& row, int ratio) { return (row.position + 1) / ratio; }

const Row& last_row(const ContextBase& ctx, int request) {
  const program::StepRequest& owner = ctx.inputs().requests[static_cast<size_t>(request)];
  return ctx.rows()[static_cast<size_t>(owner.first_row + owner.num_rows - 1)];
}

// Quantised index queries and head weights of a row.
struct IndexQuery {
  std::vector<float> queries;  // [heads][dim]
  std::vector<float> weights;  // [heads] bf16
};

IndexQuery index_query(StageContext<Stage::kIndexScore>& ctx, const Row& row) {
  const program::Layout& layout = ctx.layout();
  const model::Geometry& g = ctx.geometry();
  const int layer_idx = ctx.layer_idx();
  IndexQuery out;
  out.queries.resize(static_cast<size_t>(g.index_n_heads * g.index_head_dim));
  const PartialSums q{ctx.read<Region::kQPart>(), layout.rows(),
                      layout.first_tile(Stage::kQProj, Linear::kIndexWqB, layer_idx),
                      layout.stage_splits(Stage::kQProj, layer_idx)};
  sum_splits(q, row.idx, 0, out.queries);
  round_all(out.queries);
  const auto angles = angles_at(ctx.frequencies(), row.position);
  std::vector<uint8_t> record(static_cast<size_t>(model::index_record_bytes(g)));
  for (int head = 0; head < g.index_n_heads; ++head) {
    const auto dim = static_cast<size_t>(g.index_head_dim);
    const std::span<float> query = std::span(out.queries).subspan(static_cast<size_t>(head) * dim, dim);
    rotate(query, angles, false);
    pack_index(query, record.data());
  }
  out.weights.resize(static_cast<size_t>(g.index_n_heads));
  const PartialSums w{ctx.read<Region::kAttnInPart>(), layout.rows(),
                      layout.first_tile(Stage::kAttnIn, Linear::kIndexWeights, layer_idx),
                      layout.stage_splits(Stage::kAttnIn, layer_idx)};
  sum_splits(w, row.idx, 0, out.weights);
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(g.index_head_dim)) /
                                        std::sqrt(static_cast<double>(g.index_n_heads)));
  for (float& weight : out.weights) weight = round_bf16(round_bf16(weight) * scale);
  return out;
}

float score(const IndexQuery& query, const std::vector<float>& key) {
  float sum = 0;
  for (size_t head = 0; head < query.weights.size(); ++head) {
    const float product =
        round_bf16(dot(query.queries.data() + head * key.size(), key.data(), static_cast<int>(key.size())));
    sum += round_bf16(std::max(product, 0.0f) * query.weights[head]);
  }
  return round_bf16(sum);
}

// Index key of a group: from this step's rows, else from its page.
std::vector<float> index_key(StageContext<Stage::kIndexScore>& ctx, const program::StepRequest& request, int group) {
  const int ratio = ctx.role().ratio;
  std::vector<float> key(static_cast<size_t>(ctx.geometry().index_head_dim));
  const int closed_at = group * ratio + ratio - 1;
  if (closed_at >= request.first_position) {
    const int64_t row_idx = request.first_row + closed_at - request.first_position;
    const float* from = ctx.read<Region::kIndexKeyNew>() + row_idx * static_cast<int64_t>(key.size());
    key.assign(from, from + key.size());
    return key;
  }
  kv::Pools& pools = ctx.pools();
  const std::byte* page = pools.page(request.pages[static_cast<size_t>(closed_at / program::kPageTokens)]);
  const int64_t offset =
      pools.page_layout.index_key_offset(ctx.role().owner_idx, group % (program::kPageTokens / ratio));
  unpack_index(reinterpret_cast<const uint8_t*>(page + offset), key);
  return key;
}

bool is_candidate(const StageContext<Stage::kIndexScore>& ctx, const Row& row, int group) {
  const model::Geometry& g = ctx.geometry();
  const float* kept = ctx.read<Region::kCandidates>() + int64_t{row.idx} * g.candidate_topk_blocks;
  const int wanted = group / g.candidate_block_size;
  for (int idx = 0; idx < g.candidate_topk_blocks && int_of(kept[idx]) >= 0; ++idx) {
    if (int_of(kept[idx]) == wanted) return true;
  }
  return false;
}

bool poll_score(StageContext<Stage::kIndexScore>& ctx) {
  const program::Layout& layout = ctx.layout();
  const int layer_idx = ctx.layer_idx();
  const int tiles = layout.size(Linear::kIndexWqB, layer_idx).tiles();
  const int q_splits = layout.stage_splits(Stage::kQProj, layer_idx);
  if (!ctx.poll_range<Region::kQPart>(layout.first_tile(Stage::kQProj, Linear::kIndexWqB, layer_idx) * q_splits,
                                      tiles * q_splits))
    return false;
  const int weight_tiles = layout.size(Linear::kIndexWeights, layer_idx).tiles();
  const int splits = layout.stage_splits(Stage::kAttnIn, layer_idx);
  const int first_tile = layout.first_tile(Stage::kAttnIn, Linear::kIndexWeights, layer_idx);
  if (!ctx.poll_range<Region::kAttnInPart>(first_tile * splits, weight_tiles * splits)) return false;
  if (ctx.role().candidates_from >= 0 && !ctx.poll_rows<Region::kCandidates>(ctx.rows())) return false;
  return ctx.poll_rows<Region::kIndexKeyNew>(ctx.rows());
}

}  // namespace

template <>
void run_stage(StageContext<Stage::kIndexScore>& ctx) {
  if (!poll_score(ctx)) return;
  const int chunks = ctx.layout().score_chunks(ctx.layer_idx());
  const int ratio = ctx.role().ratio;
  const int64_t stride = ctx.layout().max_groups(1);
  std::vector<IndexQuery> queries(static_cast<size_t>(ctx.layout().rows()));  // made once a row
  float* out = ctx.write<Region::kScores>();
  for (const int task : ctx.tasks()) {
    const int request_idx = task / chunks;
    const int begin = task % chunks * kScoreChunk;
    if (request_idx >= static_cast<int>(ctx.inputs().requests.size())) continue;
    const program::StepRequest& request = ctx.inputs().requests[static_cast<size_t>(request_idx)];
    const int end = std::min(begin + kScoreChunk, visible_groups(last_row(ctx, request_idx), ratio));
    if (begin >= end) continue;
    for (int group = begin; group < end; ++group) {
      const std::vector<float> key = index_key(ctx, request, group);
      for (int row_idx = request.first_row; row_idx < request.first_row + request.num_rows; ++row_idx) {
        const Row& row = ctx.rows()[static_cast<size_t>(row_idx)];
        if (group >= visible_groups(row, ratio)) continue;
        float& to = out[row_idx * stride + group];
        if (ctx.role().candidates_from >= 0 && !is_candidate(ctx, row, group)) {
          to = -std::numeric_limits<float>::infinity();
          continue;
        }
        IndexQuery& query = queries[static_cast<size_t>(row_idx)];
        if (query.queries.empty()) query = index_query(ctx, row);
        to = score(query, key);
      }
    }
    ctx.put<Region::kScores>(task);
  }
}

namespace {

// The `count` best of scores[0..], ascending index, -1 behind; -inf is never taken. Ties: smaller index.
std::vector<int> best(std::span<const float> scores, int count) {
  std::vector<int> order;
  for (size_t idx = 0; idx < scores.size(); ++idx) {
    if (scores[idx] > -std::numeric_limits<float>::infinity()) order.push_back(static_cast<int>(idx));
  }
  const auto better = [&](int a, int b) {
    const float left = scores[static_cast<size_t>(a)];
    const float right = scores[static_cast<size_t>(b)];
    return left > right || (left == right && a < b);
  };
  const size_t kept = std::min(order.size(), static_cast<size_t>(count));
  if (kept < order.size())
    std::nth_element(order.begin(), order.begin() + static_cast<int64_t>(kept), order.end(), better);
  order.resize(kept);
  std::sort(order.begin(), order.end());
  order.resize(static_cast<size_t>(count), -1);
  return order;
}

void store_ids(const std::vector<int>& ids, float* out) {
  for (size_t idx = 0; idx < ids.size(); ++idx) out[idx] = word_of(ids[idx]);
}

// Kept candidate groups of groups: the best by their largest score, the newest always.
std::vector<int> candidates(const model::Geometry& g, std::span<const float> scores) {
  const auto size = static_cast<size_t>(g.candidate_block_size);
  std::vector<float> most(ceil_div(scores.size(), size), -std::numeric_limits<float>::infinity());
  for (size_t group = 0; group < scores.size(); ++group)
    most[group / size] = std::max(most[group / size], scores[group]);
  if (!most.empty()) most.back() = std::numeric_limits<float>::infinity();
  return best(most, g.candidate_topk_blocks);
}

}  // namespace

template <>
void run_stage(StageContext<Stage::kIndexSelect>& ctx) {
  const model::Geometry& g = ctx.geometry();
  const int chunks = ctx.layout().score_chunks(ctx.layer_idx());
  const int64_t stride = ctx.layout().max_groups(1);
  float* topk = ctx.write<Region::kTopk>();
  for (const int task : ctx.tasks()) {
    const Row* row = live_row(ctx.rows(), task);
    if (row == nullptr) continue;
    const int visible = visible_groups(*row, ctx.role().ratio);
    if (!ctx.poll_range<Region::kScores>(row->request * chunks, ceil_div(visible, kScoreChunk))) return;
    const std::span<const float> scores(ctx.read<Region::kScores>() + row->idx * stride, static_cast<size_t>(visible));
    store_ids(best(scores, g.index_topk), topk + int64_t{row->idx} * g.index_topk);
    ctx.put<Region::kTopk>(row->idx);
    if (!ctx.role().candidate_source) continue;
    store_ids(candidates(g, scores), ctx.write<Region::kCandidates>() + int64_t{row->idx} * g.candidate_topk_blocks);
    ctx.put<Region::kCandidates>(row->idx);
  }
}

}  // namespace monostep::cpu
