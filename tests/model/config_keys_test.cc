// The table of config keys: names in both spellings and which keys a file needs.
#include "model/config_keys.h"

#include <gtest/gtest.h>

#include <set>

namespace monostep::model {
namespace {

TEST(ConfigKeys, names_follow_the_spelling) {
  EXPECT_EQ(key_name("hidden_size", Spelling::kNested), "hidden_size");
  EXPECT_EQ(key_name("hidden_size", Spelling::kFlat), "dim");
  EXPECT_EQ(key_name("rope_scaling.factor", Spelling::kFlat), "rope_factor");
  EXPECT_EQ(key_name("vision_config.hidden_size", Spelling::kFlat), "vision_dim");
}

TEST(ConfigKeys, no_name_is_used_twice_in_a_spelling) {
  std::set<std::string_view> nested;
  std::set<std::string_view> flat;
  const auto insert = [&](const Key& key, const auto&) -> Status {
    EXPECT_TRUE(nested.insert(key.nested).second) << key.nested;
    EXPECT_TRUE(flat.insert(key.flat).second) << key.flat;
    return {};
  };
  EXPECT_TRUE(visit_keys(static_cast<const Geometry&>(Geometry{}), insert).ok());
  EXPECT_TRUE(visit_vision_keys(static_cast<const Vision&>(Vision{}), insert).ok());
}

TEST(ConfigKeys, engram_and_draft_keys_are_needed_where_there_are_such_layers) {
  Geometry geometry;
  EXPECT_FALSE(is_needed(Need::kWithEngram, geometry, Spelling::kNested));
  EXPECT_FALSE(is_needed(Need::kWithDraft, geometry, Spelling::kNested));
  geometry.engram_layer_ids = {0};
  geometry.num_nextn_predict_layers = 1;
  EXPECT_TRUE(is_needed(Need::kWithEngram, geometry, Spelling::kNested));
  EXPECT_TRUE(is_needed(Need::kWithDraft, geometry, Spelling::kNested));
}

TEST(ConfigKeys, a_visit_ends_at_the_first_failure) {
  int num_visits = 0;
  const auto fail = [&](const Key&, const auto&) -> Status {
    ++num_visits;
    return Error{Code::kInternal, "stop", ""};
  };
  EXPECT_FALSE(visit_keys(static_cast<const Geometry&>(Geometry{}), fail).ok());
  EXPECT_EQ(num_visits, 1);
}

TEST(ConfigKeys, a_flat_file_stretches_as_yarn_does_but_not_below_the_references_default) {
  EXPECT_EQ(default_max_positions({.factor = 16, .original_max_position_embeddings = 65536}), 1048576);
  EXPECT_EQ(default_max_positions({.factor = 4, .original_max_position_embeddings = 32}), 4096);
  EXPECT_EQ(default_max_positions({.factor = 1e300, .original_max_position_embeddings = 32}), INT32_MAX);
}

}  // namespace
}  // namespace monostep::model
