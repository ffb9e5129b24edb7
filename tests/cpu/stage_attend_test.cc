// Attention against a plain reimplementation in double from what the stages read: the list of a row (window at the
// start and past the ring, selected groups, the draft's context), sink and inverse RoPE; and its parts.
#include <algorithm>

#include "cpu/stage_common.h"
#include "dense.h"
#include "program/attention.h"
#include "tiny_models.h"

namespace monostep::cpu {
namespace {

using Rows = std::vector<std::vector<float>>;

struct Caches {  // what the steps of a sequence of a model put, by layer and position or group
  const weights::Checkpoint& model = micro();
  std::vector<Rows> window = std::vector<Rows>(8, Rows(kContext));
  std::vector<Rows> context = std::vector<Rows>(8, Rows(kContext));
  std::vector<Rows> compressed = std::vector<Rows>(8, Rows(kContext));
};

std::vector<float> row_at(const float* words, int64_t row, int width) {
  return {words + row * width, words + (row + 1) * width};
}

// Query of a head before RoPE, rotated here.
std::vector<float> query_of(Walk& walk, const program::Layout& layout, int layer_idx, int row, int head, int position) {
  const model::Geometry& g = layout.geometry();
  const model::RopeTables tables = model::rope_tables(g);
  std::vector<float> query(static_cast<size_t>(g.head_dim));
  sum_splits({walk.region(Region::kQPart, Stage::kQProj, layer_idx), layout.rows(), 0,
              layout.stage_splits(Stage::kQProj, layer_idx)},
             row, head * g.head_dim, query);
  round_all(query);
  const bool plain = layout.program().roles[static_cast<size_t>(layer_idx)].ratio == 0;
  rotate(query, angles_at(plain ? tables.base : tables.yarn, position), false);
  return query;
}

// Softmax over the list and the sink, in double; then the inverse rotation.
std::vector<float> attend(const std::vector<float>& query, const Rows& keys, double sink,
                          const std::vector<model::CosSin>& angles) {
  std::vector<double> scores;
  double most = sink;
  for (const std::vector<float>& key : keys) {
    double sum = 0;
    for (size_t idx = 0; idx < key.size(); ++idx) sum += double{query[idx]} * key[idx];
    scores.push_back(sum / std::sqrt(static_cast<double>(query.size())));
    most = std::max(most, scores.back());
  }
  double total = std::exp(sink - most);
  std::vector<double> out(query.size());
  for (size_t entry = 0; entry < keys.size(); ++entry) {
    const double weight = std::exp(scores[entry] - most);
    total += weight;
    for (size_t idx = 0; idx < out.size(); ++idx) out[idx] += weight * keys[entry][idx];
  }
  for (double& value : out) value /= total;
  std::vector<float> result = rounded(out);
  rotate(result, angles, true);
  return result;
}

struct AttentionCase {
  int layer_idx = 0;
  int row = 0;
  int position = 0;
  const weights::Checkpoint& model = micro();
};

void expect_attention(Walk& walk, const program::Layout& layout, const AttentionCase& at, const Rows& keys) {
  const model::Geometry& g = layout.geometry();
  const model::RopeTables tables = model::rope_tables(g);
  const bool plain = layout.program().roles[static_cast<size_t>(at.layer_idx)].ratio == 0;
  const auto angles = angles_at(plain ? tables.base : tables.yarn, at.position);
  const Dense sink = dense(at.model, g.prefix(at.layer_idx) + "attn.attn_sink");
  const float* out = walk.region(Region::kAttnOut, Stage::kAttnMerge, at.layer_idx);
  const int heads = layout.heads_per_group();
  for (int head = 0; head < g.num_attention_heads; ++head) {
    const std::vector<float> query = query_of(walk, layout, at.layer_idx, at.row, head, at.position);
    const std::vector<float> wanted = attend(query, keys, sink.values[static_cast<size_t>(head)], angles);
    const int64_t line = (int64_t{head / heads} * layout.rows() + at.row) * heads + head % heads;
    EXPECT_LT(relative_error(row_at(out, line, g.head_dim), wanted), 0.01)
        << "layer " << at.layer_idx << " position " << at.position << " head " << head;
  }
}

void collect_rows(Walk& walk, const program::Layout& layout, int layer_idx, const Part& part, Caches& caches) {
  const model::Geometry& g = layout.geometry();
  const auto layer = static_cast<size_t>(layer_idx);
  const model::Role& role = layout.program().roles[layer];
  for (int row = 0; row < static_cast<int>(part.tokens.size()); ++row) {
    const int position = part.first + row;
    caches.window[layer][static_cast<size_t>(position)] =
        row_at(walk.region(Region::kWindowNew, Stage::kKvNew, layer_idx), row, g.head_dim);
    if (role.mode != model::Mode::kFull || (position + 1) % role.ratio != 0) continue;
    caches.compressed[layer][static_cast<size_t>(position / role.ratio)] =
        row_at(walk.region(Region::kCompressedNew, Stage::kKvNew, layer_idx), row, g.head_dim);
  }
}

// Window positions oldest to newest, then the selected groups.
Rows list_of(Walk& walk, const program::Layout& layout, const AttentionCase& at, const Caches& caches) {
  const model::Geometry& g = layout.geometry();
  const model::Role& role = layout.program().roles[static_cast<size_t>(at.layer_idx)];
  Rows keys;
  for (int position = std::max(0, at.position - g.sliding_window + 1); position <= at.position; ++position) {
    keys.push_back(caches.window[static_cast<size_t>(at.layer_idx)][static_cast<size_t>(position)]);
  }
  if (role.ratio == 0) return keys;
  const float* topk =
      walk.region(Region::kTopk, Stage::kIndexSelect, role.index_source) + int64_t{at.row} * g.index_topk;
  const int wanted = std::min(g.index_topk, (at.position + 1) / role.ratio);
  for (int idx = 0; idx < g.index_topk; ++idx) {
    EXPECT_EQ(int_of(topk[idx]) >= 0, idx < wanted) << "layer " << at.layer_idx << " position " << at.position;
    if (idx < wanted)
      keys.push_back(caches.compressed[static_cast<size_t>(role.kv_owner)][static_cast<size_t>(int_of(topk[idx]))]);
  }
  return keys;
}

void check_step(CpuBackend& backend, const Part& part, Caches& caches) {
  Walk walk(backend, step_of({part}));
  const program::Layout& layout = backend.machine().layout();
  const model::Geometry& g = layout.geometry();
  for (int layer_idx = 0; layer_idx < g.num_hidden_layers; ++layer_idx) {
    walk.through(Stage::kAttnMerge, layer_idx);
    collect_rows(walk, layout, layer_idx, part, caches);
    for (int row = 0; row < static_cast<int>(part.tokens.size()); ++row) {
      const AttentionCase at{layer_idx, row, part.first + row, caches.model};
      expect_attention(walk, layout, at, list_of(walk, layout, at, caches));
    }
  }
  walk.to(backend.machine().program().section_begin(program::Section::kDraft));
  for (int layer_idx = g.num_hidden_layers; layer_idx < g.num_layers(); ++layer_idx) {
    const int64_t first = int64_t{layer_idx - g.num_hidden_layers} * layout.rows();
    for (int row = 0; row < static_cast<int>(part.tokens.size()); ++row) {
      caches.context[static_cast<size_t>(layer_idx)][static_cast<size_t>(part.first + row)] =
          row_at(walk.region(Region::kContextNewOut, Stage::kContextNew, -1), first + row, g.head_dim);
    }
  }
  const int last = part.first + static_cast<int>(part.tokens.size()) - 1;
  for (int layer_idx = g.num_hidden_layers; layer_idx < g.num_layers(); ++layer_idx) {
    walk.through(Stage::kAttnMerge, layer_idx);
    Rows keys;  // every row sees the window of the context and the whole draft block
    for (int position = std::max(0, last - g.sliding_window + 1); position <= last; ++position) {
      keys.push_back(caches.context[static_cast<size_t>(layer_idx)][static_cast<size_t>(position)]);
    }
    for (int row = 0; row < g.dspark_block_size; ++row) {
      keys.push_back(row_at(walk.region(Region::kWindowNew, Stage::kKvNew, layer_idx), row, g.head_dim));
    }
    for (int row = 0; row < g.dspark_block_size; ++row)
      expect_attention(walk, layout, {layer_idx, row, last + 1 + row, caches.model}, keys);
  }
}

TEST(StageAttend, every_row_attends_to_its_window_its_groups_and_the_sink) {
  const auto backend = made_backend(micro(), small_options());
  Caches caches;
  const std::vector<int32_t> tokens = prompt(72);
  // The start, the first wrap of the window, odd and even chunk ends, then past the ring of 16 + 47 rows.
  int first = 0;
  for (const int count : {1, 2, 14, 3, 24, 21, 1, 6}) {
    Part part{0, {tokens.begin() + first, tokens.begin() + first + count}, first};
    check_step(*backend, part, caches);
    first += count;
  }
}

// 126 window rows and up to 127 groups; the draft's 126 and 5 end behind the first part, too.
TEST(StageAttend, lists_of_several_parts_are_added_up) {
  const auto backend = made_backend(long_lists(), small_options());
  Caches caches{.model = long_lists()};
  int first = 0;
  for (const int count : {2, 7, 48, 30, 36, 4}) {
    const std::vector<int32_t> tokens = prompt(first + count);
    check_step(*backend, {0, {tokens.begin() + first, tokens.end()}, first}, caches);
    first += count;
  }
}

// Lists of 127, 128 and 129 entries.
TEST(StageAttend, parts_behind_a_lists_end_are_not_put) {
  const auto backend = made_backend(long_lists(), small_options());
  Walk walk(*backend, step_of({{0, prompt(3)}}));
  walk.through(Stage::kAttnMerge, 3);
  Machine& machine = backend->machine();
  const int call_idx = machine.program().find(Stage::kAttend, 3);
  const uint32_t tag = machine.plan().tag(machine.inputs->epoch, call_idx);
  const int rows = machine.layout().rows();
  std::vector<int> put;
  for (int granule = 0; granule < machine.layout().num_granules(Region::kAttnPart); ++granule) {
    if (machine.ranks[0].regions->tag(Region::kAttnPart, 0, granule).load() == tag) put.push_back(granule);
  }
  // [part][group][row]
  EXPECT_EQ(put, (std::vector<int>{0, 1, 2, rows, rows + 1, rows + 2, 2 * rows + 2, 3 * rows + 2}));
}

TEST(StageAttend, the_attention_comparison_sees_a_missing_entry) {  // positive control
  const auto backend = made_backend(micro(), small_options());
  Caches caches;
  const Part part{0, prompt(12)};
  Walk walk(*backend, step_of({part}));
  const program::Layout& layout = backend->machine().layout();
  walk.through(Stage::kAttnMerge, 0);
  collect_rows(walk, layout, 0, part, caches);
  const auto angles = angles_at(model::rope_tables(layout.geometry()).base, 11);
  Rows keys = list_of(walk, layout, {0, 11, 11}, caches);
  const std::vector<float> query = query_of(walk, layout, 0, 11, 0, 11);
  const std::vector<float> whole = attend(query, keys, 0, angles);
  keys.erase(keys.begin());
  EXPECT_GT(relative_error(attend(query, keys, 0, angles), whole), 0.02);
}

}  // namespace
}  // namespace monostep::cpu
