// Index stages: scores against a plain reimplementation, masking by candidates, and the selection's rules on chosen
// scores: ties to the smaller group, nothing at minus infinity, the newest candidate always kept.
#include <cmath>
#include <limits>

#include "cpu/stage_common.h"
#include "dense.h"
#include "tiny_models.h"

namespace monostep::cpu {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

struct Selection {
  std::vector<int> groups;      // -1 behind
  std::vector<int> candidates;  // -1 behind
};

// What kIndexSelect of micro's layer 3 (ratio 1, candidate source) makes of the scores of one row that sees them all.
Selection select(CpuBackend& backend, const std::vector<float>& scores) {
  const int position = static_cast<int>(scores.size()) - 1;
  EXPECT_TRUE(backend.begin_step(step_of({{0, prompt(1), position}})).ok());
  Probe probe(backend);
  const std::span<float> words = probe.row_words(Region::kScores, Stage::kIndexScore, 3, 0);
  std::copy(scores.begin(), scores.end(), words.begin());
  probe.mark_put(Stage::kIndexScore, 3);
  const int call_idx = backend.machine().program().find(Stage::kIndexSelect, 3);
  EXPECT_TRUE(backend.run({call_idx, call_idx + 1}).ok());
  Selection out;
  for (const float word : probe.row_words(Region::kTopk, Stage::kIndexSelect, 3, 0)) out.groups.push_back(int_of(word));
  for (const float word : probe.row_words(Region::kCandidates, Stage::kIndexSelect, 3, 0))
    out.candidates.push_back(int_of(word));
  return out;
}

TEST(StageIndex, ties_go_to_the_smaller_group_and_the_list_ascends) {
  const auto backend = made_backend(micro(), small_options());
  std::vector<float> scores(40, 1.0f);
  EXPECT_EQ(select(*backend, scores).groups, (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7}));
  scores[30] = 2;
  scores[12] = 3;
  EXPECT_EQ(select(*backend, scores).groups, (std::vector<int>{0, 1, 2, 3, 4, 5, 12, 30}));
  scores[0] = 0;
  scores[39] = -0.0f;
  EXPECT_EQ(select(*backend, scores).groups, (std::vector<int>{1, 2, 3, 4, 5, 6, 12, 30}));
}

TEST(StageIndex, fewer_groups_than_places_are_all_selected) {
  const auto backend = made_backend(micro(), small_options());
  EXPECT_EQ(select(*backend, {-5, -7, -6}).groups, (std::vector<int>{0, 1, 2, -1, -1, -1, -1, -1}));
}

TEST(StageIndex, minus_infinity_is_never_selected) {
  const auto backend = made_backend(micro(), small_options());
  std::vector<float> scores(40, kNever);
  scores[9] = -1e30f;
  scores[33] = 4;
  EXPECT_EQ(select(*backend, scores).groups, (std::vector<int>{9, 33, -1, -1, -1, -1, -1, -1}));
}

TEST(StageIndex, candidates_are_the_best_by_their_largest_score_and_the_newest) {
  const auto backend = made_backend(micro(), small_options());
  std::vector<float> scores(42, 0.0f);  // eleven candidate places of four groups; the last one holds two
  EXPECT_EQ(select(*backend, scores).candidates, (std::vector<int>{0, 1, 2, 10}));  // ties, and the newest forced
  scores[41] = -100;
  scores[40] = -100;
  scores[23] = 1;  // place 5
  scores[31] = 2;  // place 7
  EXPECT_EQ(select(*backend, scores).candidates, (std::vector<int>{0, 5, 7, 10}));
  std::vector<float> few(6, 0.0f);
  EXPECT_EQ(select(*backend, few).candidates, (std::vector<int>{0, 1, -1, -1}));
  std::vector<float> dead(42, kNever);
  dead[13] = 0;
  EXPECT_EQ(select(*backend, dead).candidates, (std::vector<int>{3, 10, -1, -1}));
}

TEST(StageIndex, the_selection_is_not_restricted_at_the_candidate_source) {
  const auto backend = made_backend(micro(), small_options());
  std::vector<float> scores(42, 0.0f);
  for (int place = 0; place < 8; ++place) scores[static_cast<size_t>(place * 4)] = 8.0f - static_cast<float>(place);
  const Selection out = select(*backend, scores);
  EXPECT_EQ(out.groups, (std::vector<int>{0, 4, 8, 12, 16, 20, 24, 28}));
  EXPECT_EQ(out.candidates, (std::vector<int>{0, 1, 2, 10}));
}

// The whole chain on a prompt in two steps: scores and masks of every row.
struct Queries {
  std::vector<std::vector<float>> heads;
  std::vector<float> weights;
};

Queries queries_of(Walk& walk, const program::Layout& layout, int layer_idx, int row, int position) {
  const model::Geometry& g = layout.geometry();
  const auto angles = angles_at(model::rope_tables(g).yarn, position);
  const PartialSums q{walk.region(Region::kQPart, Stage::kQProj, layer_idx), layout.rows(),
                      layout.first_tile(Stage::kQProj, Linear::kIndexWqB, layer_idx),
                      layout.stage_splits(Stage::kQProj, layer_idx)};
  Queries out;
  std::vector<uint8_t> record(static_cast<size_t>(model::index_record_bytes(g)));
  for (int head = 0; head < g.index_n_heads; ++head) {
    std::vector<float>& values = out.heads.emplace_back(static_cast<size_t>(g.index_head_dim));
    sum_splits(q, row, head * g.index_head_dim, values);
    round_all(values);
    rotate(values, angles, false);
    pack_index(values, record.data());
  }
  out.weights.resize(static_cast<size_t>(g.index_n_heads));
  sum_splits({walk.region(Region::kAttnInPart, Stage::kAttnIn, layer_idx), layout.rows(),
              layout.first_tile(Stage::kAttnIn, Linear::kIndexWeights, layer_idx),
              layout.stage_splits(Stage::kAttnIn, layer_idx)},
             row, 0, out.weights);
  return out;
}

// With the three roundings to bf16 (model.md 3.6.3).
float score_of(const Queries& queries, const std::vector<float>& key) {
  const double scale = 1 / std::sqrt(static_cast<double>(key.size() * queries.heads.size()));
  double sum = 0;
  for (size_t head = 0; head < queries.heads.size(); ++head) {
    double product = 0;
    for (size_t idx = 0; idx < key.size(); ++idx) product += double{queries.heads[head][idx]} * key[idx];
    const float weight = round_bf16(static_cast<float>(round_bf16(queries.weights[head]) * scale));
    sum += round_bf16(std::max(round_bf16(static_cast<float>(product)), 0.0f) * weight);
  }
  return round_bf16(static_cast<float>(sum));
}

void expect_scores(Walk& walk, CpuBackend& backend, int layer_idx, const Part& part,
                   const std::vector<std::vector<float>>& keys) {
  const program::Layout& layout = backend.machine().layout();
  const model::Geometry& g = layout.geometry();
  const model::Role& role = layout.program().roles[static_cast<size_t>(layer_idx)];
  Probe probe(backend);
  for (int row = 0; row < static_cast<int>(part.tokens.size()); ++row) {
    const int position = part.first + row;
    const Queries queries = queries_of(walk, layout, layer_idx, row, position);
    const std::span<float> scores = probe.row_words(Region::kScores, Stage::kIndexScore, layer_idx, row);
    std::vector<bool> kept(static_cast<size_t>(kContext), role.candidates_from < 0);
    if (role.candidates_from >= 0) {
      for (const float word : probe.row_words(Region::kCandidates, Stage::kIndexSelect, role.candidates_from, row)) {
        for (int idx = 0; int_of(word) >= 0 && idx < g.candidate_block_size; ++idx) {
          kept[static_cast<size_t>(int_of(word) * g.candidate_block_size + idx)] = true;
        }
      }
    }
    for (int group = 0; group < (position + 1) / role.ratio; ++group) {
      const float got = scores[static_cast<size_t>(group)];
      if (!kept[static_cast<size_t>(group)]) {
        EXPECT_EQ(got, kNever) << "layer " << layer_idx << " position " << position << " group " << group;
        continue;
      }
      const float wanted = score_of(queries, keys[static_cast<size_t>(group)]);
      EXPECT_NEAR(got, wanted, std::fabs(wanted) * 0x1p-7 + 1e-6)
          << "layer " << layer_idx << " position " << position << " group " << group;
    }
  }
}

TEST(StageIndex, scores_follow_the_formula_and_the_candidates) {
  const auto backend = made_backend(micro(), small_options());
  const std::vector<int32_t> tokens = prompt(45);
  std::map<int, std::vector<std::vector<float>>> keys;  // by owner
  for (const auto& [first, count] : std::vector<std::pair<int, int>>{{0, 37}, {37, 8}}) {
    const Part part{0, {tokens.begin() + first, tokens.begin() + first + count}, first};
    Walk walk(*backend, step_of({part}));
    const model::Geometry& g = backend->machine().layout().geometry();
    Probe probe(*backend);
    for (const int layer_idx : {1, 3, 5}) {
      walk.through(Stage::kIndexScore, layer_idx);
      const model::Role& role = backend->machine().program().roles[static_cast<size_t>(layer_idx)];
      std::vector<std::vector<float>>& of_owner = keys[role.kv_owner];
      for (int row = 0; row < count && role.mode == model::Mode::kFull; ++row) {
        if ((first + row + 1) % role.ratio != 0) continue;
        const std::span<float> key = probe.row_words(Region::kIndexKeyNew, Stage::kKvNew, layer_idx, row);
        of_owner.emplace_back(key.begin(), key.begin() + g.index_head_dim);
      }
      expect_scores(walk, *backend, layer_idx, part, of_owner);
    }
  }
  EXPECT_EQ(keys[1].size(), 22u);
  EXPECT_EQ(keys[3].size(), 45u);
}

}  // namespace
}  // namespace monostep::cpu
