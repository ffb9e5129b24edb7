// Splits over ranks and the bytes of packed records.
#include "model/shard.h"

#include <gtest/gtest.h>

namespace monostep::model {
namespace {

Geometry named(std::string_view name) { return named_geometry(name).value(); }

class FlashShard : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Tp, FlashShard, testing::Values(1, 2, 4, 8), testing::PrintToStringParamName());

TEST_P(FlashShard, shares_add_up_to_the_whole) {
  const int tp = GetParam();
  const Geometry geometry = named("flash");
  const Result<Shard> shard = make_shard(geometry, tp);
  ASSERT_TRUE(shard.ok()) << shard.error().message();
  EXPECT_EQ(shard->tp, tp);
  EXPECT_EQ(shard->num_heads * tp, 64);
  EXPECT_EQ(shard->num_o_groups * tp, 8);
  EXPECT_EQ(shard->expert_width * tp, 2304);
  EXPECT_EQ(shard->expert_width % 32, 0);
  EXPECT_EQ(shard->vocab_rows * tp, 129280);
  EXPECT_EQ(shard->engram_rows * tp, 25600);
}

class RefusedTp : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Tp, RefusedTp, testing::Values(0, 3, 5, 6, 7, 16, 64));

TEST_P(RefusedTp, other_sizes_are_refused_by_name) {
  const Result<Shard> shard = make_shard(named("flash"), GetParam());
  ASSERT_FALSE(shard.ok());
  EXPECT_EQ(shard.error().code, Code::kInvalidArgument);
  EXPECT_EQ(shard.error().place, "tp");
  EXPECT_NE(shard.error().text.find(std::to_string(GetParam())), std::string::npos);
}

TEST(Shard, a_negative_size_is_refused) { EXPECT_FALSE(make_shard(named("flash"), -1).ok()); }

// A refused size names the width that does not split and its value.
void expect_refusal(const Geometry& geometry, int tp, const std::string& words) {
  const Result<Shard> shard = make_shard(geometry, tp);
  ASSERT_FALSE(shard.ok());
  EXPECT_EQ(shard.error().code, Code::kInvalidArgument);
  EXPECT_NE(shard.error().text.find(words), std::string::npos) << shard.error().message();
}

TEST(Shard, heads_that_do_not_split_are_refused) {
  Geometry geometry = named("flash");
  geometry.num_attention_heads = 60;
  expect_refusal(geometry, 8, "num_attention_heads = 60");
}

TEST(Shard, output_groups_that_do_not_split_are_refused) { expect_refusal(named("micro"), 4, "o_groups = 2"); }

TEST(Shard, a_vocabulary_that_does_not_split_is_refused) {
  Geometry geometry = named("flash");
  geometry.vocab_size = 129281;
  expect_refusal(geometry, 2, "vocab_size = 129281");
}

TEST(Shard, an_expert_width_that_splits_a_group_is_refused) {
  Geometry geometry = named("clone40");
  geometry.moe_intermediate_size = 224;
  expect_refusal(geometry, 2, "moe_intermediate_size = 224");
}

TEST(Shard, engram_rows_need_no_whole_groups) {
  Geometry geometry = named("clone40");
  geometry.hidden_size = 32;
  ASSERT_TRUE(make_shard(geometry, 8).ok());
  EXPECT_EQ(make_shard(geometry, 8)->engram_rows, 20);
}
TEST(Shard, clone40_splits_over_eight_ranks) {
  const Result<Shard> shard = make_shard(named("clone40"), 8);
  ASSERT_TRUE(shard.ok());
  EXPECT_EQ(shard->num_heads, 2);
  EXPECT_EQ(shard->num_o_groups, 1);
  EXPECT_EQ(shard->expert_width, 32);
  EXPECT_EQ(shard->vocab_rows, 64);
  EXPECT_EQ(shard->engram_rows, 160);
}

TEST(Shard, without_engram_there_are_no_engram_rows) {
  Geometry geometry = named("micro");
  geometry.engram_layer_ids.clear();
  geometry.engram_num_embeddings.clear();
  EXPECT_EQ(make_shard(geometry, 2)->engram_rows, 0);
}

TEST(Records, flash_rows_have_528_288_and_68_bytes) {
  const Geometry geometry = named("flash");
  EXPECT_EQ(window_record_bytes(geometry), 528);
  EXPECT_EQ(compressed_record_bytes(geometry), 288);
  EXPECT_EQ(index_record_bytes(geometry), 68);
}

TEST(Records, a_token_of_flash_keeps_890_bytes) {
  const Geometry geometry = named("flash");
  int half_bytes = 0;  // of two tokens
  for (const int source : geometry.kv_source_layer_ids) {
    half_bytes +=
        (compressed_record_bytes(geometry) + index_record_bytes(geometry)) * 2 / geometry.compress_ratios[source];
  }
  EXPECT_EQ(half_bytes, 2 * 890);
}

TEST(Records, micro_rows_follow_their_widths) {
  const Geometry geometry = named("micro");
  EXPECT_EQ(window_record_bytes(geometry), 66);
  EXPECT_EQ(compressed_record_bytes(geometry), 36);
  EXPECT_EQ(index_record_bytes(geometry), 17);
}

}  // namespace
}  // namespace monostep::model
