// Shared pieces of the stage bodies: sums over K splits in order, normed inputs from slices, live rows, slices of K,
// verdicts.
#include "cpu/stage_common.h"

#include "dense.h"
#include "tiny_models.h"

namespace monostep::cpu {
namespace {

program::Layout micro_layout() {
  const model::Geometry g = micro_geometry();
  return program::Layout(g, model::make_shard(g, 1).value(), {8, 8, kContext});
}

TEST(StageCommon, sums_take_the_splits_in_ascending_order) {
  constexpr int kRows = 2;
  constexpr int kSplits = 3;
  std::vector<float> words(4 * kSplits * kRows * kTile);  // four tiles
  const auto at = [&](int tile, int split, int row, int lane) -> float& {
    return words[static_cast<size_t>(((tile * kSplits + split) * kRows + row) * kTile + lane)];
  };
  // Output 18 of the linear whose first tile is 1 lies in tile 2, lane 2. In another order the small value would be
  // lost.
  at(2, 0, 1, 2) = 1e8f;
  at(2, 1, 1, 2) = -1e8f;
  at(2, 2, 1, 2) = 1.5f;
  at(3, 2, 1, 0) = 7;  // output 32
  float out[15] = {};
  sum_splits({words.data(), kRows, 1, kSplits}, 1, 18, out);
  EXPECT_EQ(out[0], 1.5f);
  EXPECT_EQ(out[1], 0.0f);
  EXPECT_EQ(out[14], 7.0f);
}

TEST(StageCommon, normed_rows_join_the_slices_of_live_rows) {
  const program::Layout layout = micro_layout();
  const int hidden = layout.geometry().hidden_size;
  std::vector<float> u(static_cast<size_t>(layout.rows() * hidden), std::nanf(""));
  std::vector<float> x;
  for (int d = 0; d < hidden; ++d) {
    x.push_back(static_cast<float>(d % 7) - 2.5f);
    u[static_cast<size_t>(((d / layout.slice_width()) * layout.rows() + 2) * layout.slice_width() +
                          d % layout.slice_width())] = x.back();
  }
  std::vector<float> norm(static_cast<size_t>(hidden), 0.5f);
  RowValues rows = normed_rows(layout, u.data(), {Row{2}}, norm);
  std::vector<float> wanted(x.size());
  rms_norm(x, norm, layout.geometry().rms_norm_eps, wanted.data());
  EXPECT_EQ(std::vector<float>(rows.row(2).begin(), rows.row(2).end()), wanted);
  for (const float value : rows.row(1)) EXPECT_EQ(value, 0.0f);
}

TEST(StageCommon, rows_are_found_by_their_place_in_the_regions) {
  const std::vector<Row> rows = {Row{5, 0, 11}, Row{7, 1, 12}};
  EXPECT_EQ(live_row(rows, 7)->token, 12);
  EXPECT_EQ(live_row(rows, 6), nullptr);
  EXPECT_EQ(row_indices(rows), (std::vector<int>{5, 7}));
}

TEST(StageCommon, slices_of_k_cover_it_once) {
  PackedLinear weights;
  weights.k = 192;
  int next = 0;
  for (int split = 0; split < 3; ++split) {
    const TileProduct product = slice_of(weights, 4, split, 3);
    EXPECT_EQ(product.tile, 4);
    EXPECT_EQ(product.k_begin, next);
    next = product.k_end;
  }
  EXPECT_EQ(next, 192);
}

TEST(StageCommon, a_verdict_is_read_as_it_was_written) {
  const program::Layout layout = micro_layout();
  const int words_of_one = layout.geometry().dspark_block_size + 4;
  std::vector<float> words(static_cast<size_t>(2 * words_of_one));
  const int32_t written[] = {2, 3, 41, 100, 101, 102};
  for (size_t idx = 0; idx < 6; ++idx) words[static_cast<size_t>(words_of_one) + idx] = word_of(written[idx]);
  const VerdictView view = verdict_of(layout, words.data(), 1);
  EXPECT_EQ(view.num_accepted, 2);
  EXPECT_EQ(view.num_tokens, 3);
  EXPECT_EQ(view.last_position, 41);
  EXPECT_EQ(view.anchor, 102);
  EXPECT_EQ(verdict_of(layout, words.data(), 0).anchor, 0) << "no token inside a prompt";
}

}  // namespace
}  // namespace monostep::cpu
