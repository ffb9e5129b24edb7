// The named geometries obey the rules and equal the golden configs.
#include <gtest/gtest.h>

#include "config_text.h"
#include "model/geometry.h"
#include "model/inventory.h"
#include "model/shard.h"

namespace monostep::model {
namespace {

class Named : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Geometries, Named, testing::ValuesIn(geometry_names()),
                         [](const auto& info) { return info.param; });

TEST_P(Named, obeys_every_rule) {
  const Result<Geometry> geometry = named_geometry(GetParam());
  ASSERT_TRUE(geometry.ok());
  const Status status = validate(*geometry, GetParam());
  EXPECT_TRUE(status.ok()) << status.error().message();
}

class Golden : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Geometries, Golden, testing::Values("micro", "clone40", "realdims"),
                         [](const auto& info) { return info.param; });

TEST_P(Golden, equals_its_golden_config) {
  const Result<Geometry> read = load_geometry(data_dir(GetParam()));
  ASSERT_TRUE(read.ok()) << read.error().message();
  EXPECT_EQ(*read, named_geometry(GetParam()).value());
}

TEST(NamedGeometry, an_unknown_name_is_refused_with_the_known_ones) {
  const Result<Geometry> geometry = named_geometry("Flash");
  ASSERT_FALSE(geometry.ok());
  EXPECT_EQ(geometry.error().code, Code::kNotFound);
  EXPECT_NE(geometry.error().text.find("flash, micro, clone40, realdims, demo"), std::string::npos);
}

TEST(NamedGeometry, demo_fits_into_a_repository) {
  constexpr int64_t kMaxBytes = 8 << 20;
  int64_t num_bytes = 0;
  for (const TensorSpec& tensor : tensor_inventory(named_geometry("demo").value())) num_bytes += tensor.num_bytes();
  EXPECT_LE(num_bytes, kMaxBytes);
}

TEST(NamedGeometry, demo_splits_over_1_2_and_4_ranks) {
  const Geometry geometry = named_geometry("demo").value();
  for (const int tp : {1, 2, 4}) EXPECT_TRUE(make_shard(geometry, tp).ok()) << tp;
}

TEST(NamedGeometry, demo_selects_fewer_positions_than_a_context_has) {
  const Geometry geometry = named_geometry("demo").value();
  EXPECT_LE(4 * geometry.index_topk, geometry.max_position_embeddings);
  EXPECT_LE(4 * geometry.candidate_topk_blocks * geometry.candidate_block_size, geometry.max_position_embeddings);
  EXPECT_LE(geometry.engram_compressed_vocab_size, geometry.vocab_size);
}

}  // namespace
}  // namespace monostep::model
