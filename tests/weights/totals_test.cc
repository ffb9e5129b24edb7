// Tests of the totals: rows by class and the bytes of one rank.
#include "weights/totals.h"

#include <gtest/gtest.h>

namespace monostep::weights {
namespace {

TEST(Totals, rows_by_class_add_up_to_all_and_the_draft_experts_are_a_part_of_the_draft) {
  const std::vector<ClassTotal> rows = class_totals(model::tensor_inventory(model::named_geometry("flash").value()));
  ASSERT_EQ(rows.size(), 16u);
  ClassTotal sum;
  for (const ClassTotal& row : rows) {
    if (row.name == "all" || row.name == "  of which draft experts") continue;
    sum.num_tensors += row.num_tensors;
    sum.num_parameters += row.num_parameters;
    sum.num_bytes += row.num_bytes;
  }
  EXPECT_EQ(rows.back().name, "all");
  EXPECT_EQ(rows.back().num_tensors, sum.num_tensors);
  EXPECT_EQ(rows.back().num_parameters, sum.num_parameters);
  EXPECT_EQ(rows.back().num_bytes, sum.num_bytes);
  EXPECT_EQ(sum.num_bytes, 510286023000);
}

TEST(Totals, classes_without_tensors_have_no_row) {
  for (const ClassTotal& row : class_totals(model::tensor_inventory(model::named_geometry("micro").value()))) {
    EXPECT_NE(row.name, "vision");
    EXPECT_GT(row.num_tensors, 0);
  }
}

int64_t part_sum(const model::Geometry& geometry, int tp) {
  const RankBytes bytes =
      rank_bytes(model::tensor_inventory(geometry), geometry, model::make_shard(geometry, tp).value());
  return bytes.split * tp + bytes.replicated;
}

// All widths of the release split in whole groups of 32, so the parts are exact shares.
TEST(Totals, the_split_parts_of_all_ranks_are_the_whole) {
  const model::Geometry flash = model::named_geometry("flash").value();
  for (const int tp : {1, 2, 4, 8}) EXPECT_EQ(part_sum(flash, tp), 510286023000 - 202758032400 - 970536960) << tp;
}

TEST(Totals, the_split_tensors_of_the_release_are_the_documented_ones) {
  const model::Geometry flash = model::named_geometry("flash").value();
  const model::Shard shard = model::make_shard(flash, 8).value();
  const auto shape_of = [&](const std::string& name) {
    for (const model::TensorSpec& spec : model::tensor_inventory(flash)) {
      if (spec.name == name) return rank_shape(spec, flash, shard);
    }
    return std::vector<int64_t>();
  };
  using Shape = std::vector<int64_t>;
  EXPECT_EQ(shape_of("layers.3.attn.wq_b.weight"), (Shape{4096, 1280}));
  EXPECT_EQ(shape_of("layers.3.attn.wq_b.scale"), (Shape{128, 40}));
  EXPECT_EQ(shape_of("layers.3.attn.attn_sink"), (Shape{8}));
  EXPECT_EQ(shape_of("layers.3.attn.wo_a.weight"), (Shape{1024, 4096}));
  EXPECT_EQ(shape_of("layers.3.attn.wo_b.weight"), (Shape{5120, 1024}));
  EXPECT_EQ(shape_of("layers.3.attn.wo_b.scale"), (Shape{160, 32}));
  EXPECT_EQ(shape_of("layers.3.ffn.experts.7.w1.weight"), (Shape{288, 2560}));
  EXPECT_EQ(shape_of("layers.3.ffn.experts.7.w1.scale"), (Shape{288, 160}));
  EXPECT_EQ(shape_of("layers.3.ffn.experts.7.w2.weight"), (Shape{5120, 144}));
  EXPECT_EQ(shape_of("layers.3.ffn.experts.7.w2.scale"), (Shape{5120, 9}));
  EXPECT_EQ(shape_of("layers.3.ffn.shared_experts.w3.scale"), (Shape{9, 160}));
  EXPECT_EQ(shape_of("head.weight"), (Shape{16160, 5120}));
  EXPECT_EQ(shape_of("mtp.2.markov_head.head.weight"), (Shape{16160, 256}));
  EXPECT_EQ(shape_of("layers.1.engram.wkv.weight"), (Shape{3200, 6144}));
  EXPECT_EQ(shape_of("layers.2.attn.indexer.wq_b.weight"), (Shape{4096, 1280}));
  EXPECT_EQ(shape_of("embed.weight"), (Shape{129280, 5120}));
}

}  // namespace
}  // namespace monostep::weights
