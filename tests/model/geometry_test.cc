// Layer roles of the released and the tiny topologies, and of topologies that no released file has.
#include "model/geometry.h"

#include <gtest/gtest.h>

namespace monostep::model {
namespace {

std::vector<Role> named_roles(std::string_view name) { return layer_roles(named_geometry(name).value()); }

Geometry micro() { return named_geometry("micro").value(); }

TEST(Roles, the_window_layers_of_flash_have_no_owner) {
  const std::vector<Role> roles = named_roles("flash");
  ASSERT_EQ(roles.size(), 43u);
  for (const int layer_idx : {0, 1, 40, 41, 42}) {
    EXPECT_EQ(roles[layer_idx].mode, Mode::kWindow) << layer_idx;
    EXPECT_EQ(roles[layer_idx].kv_owner, -1) << layer_idx;
    EXPECT_EQ(roles[layer_idx].index_source, -1) << layer_idx;
    EXPECT_EQ(roles[layer_idx].draft, layer_idx >= 40) << layer_idx;
  }
}

TEST(Roles, flash_has_four_full_and_four_reindex_layers) {
  const std::vector<Role> roles = named_roles("flash");
  std::vector<int> full;
  std::vector<int> reindex;
  for (int layer_idx = 0; layer_idx < 43; ++layer_idx) {
    if (roles[layer_idx].mode == Mode::kFull) full.push_back(layer_idx);
    if (roles[layer_idx].mode == Mode::kReindex) reindex.push_back(layer_idx);
  }
  EXPECT_EQ(full, (std::vector<int>{2, 8, 14, 20}));
  EXPECT_EQ(reindex, (std::vector<int>{24, 28, 32, 36}));
}

TEST(Roles, owners_and_index_sources_of_flash_are_the_latest_ones) {
  const std::vector<Role> roles = named_roles("flash");
  for (int layer_idx = 2; layer_idx < 40; ++layer_idx) {
    const int owner = layer_idx < 8 ? 2 : layer_idx < 14 ? 8 : layer_idx < 20 ? 14 : 20;
    const int source = layer_idx < 24 ? owner : layer_idx / 4 * 4 < 36 ? layer_idx / 4 * 4 : 36;
    EXPECT_EQ(roles[layer_idx].kv_owner, owner) << layer_idx;
    EXPECT_EQ(roles[layer_idx].index_source, source) << layer_idx;
    EXPECT_EQ(roles[layer_idx].owner_idx, (owner - 2) / 6) << layer_idx;
    EXPECT_EQ(roles[layer_idx].ratio, layer_idx < 20 ? 2 : 1) << layer_idx;
  }
}

TEST(Roles, candidates_of_flash_come_from_layer_20_and_bind_the_reindex_layers_alone) {
  const std::vector<Role> roles = named_roles("flash");
  for (int layer_idx = 0; layer_idx < 43; ++layer_idx) {
    EXPECT_EQ(roles[layer_idx].candidate_source, layer_idx == 20) << layer_idx;
    EXPECT_EQ(roles[layer_idx].candidates_from, roles[layer_idx].mode == Mode::kReindex ? 20 : -1) << layer_idx;
  }
}

TEST(Roles, flash_has_engram_at_1_and_14_and_taps_at_37_to_39) {
  const std::vector<Role> roles = named_roles("flash");
  for (int layer_idx = 0; layer_idx < 43; ++layer_idx) {
    EXPECT_EQ(roles[layer_idx].engram_idx, layer_idx == 1 ? 0 : layer_idx == 14 ? 1 : -1) << layer_idx;
    EXPECT_EQ(roles[layer_idx].tap_idx, layer_idx >= 37 && layer_idx < 40 ? layer_idx - 37 : -1) << layer_idx;
  }
}

TEST(Roles, clone40_has_the_roles_of_flash) { EXPECT_EQ(named_roles("clone40"), named_roles("flash")); }

TEST(Roles, micro_is_as_its_figure) {
  const std::vector<Role> roles = named_roles("micro");
  const std::vector<Role> expected = {
      {.engram_idx = 0},
      {.mode = Mode::kFull, .ratio = 2, .kv_owner = 1, .owner_idx = 0, .index_source = 1},
      {.mode = Mode::kReuse, .ratio = 2, .kv_owner = 1, .owner_idx = 0, .index_source = 1, .engram_idx = 1},
      {.mode = Mode::kFull,
       .ratio = 1,
       .kv_owner = 3,
       .owner_idx = 1,
       .index_source = 3,
       .candidate_source = true,
       .tap_idx = 0},
      {.mode = Mode::kReuse, .ratio = 1, .kv_owner = 3, .owner_idx = 1, .index_source = 3, .tap_idx = 1},
      {.mode = Mode::kReindex,
       .ratio = 1,
       .kv_owner = 3,
       .owner_idx = 1,
       .index_source = 5,
       .candidates_from = 3,
       .tap_idx = 2},
      {.draft = true},
      {.draft = true},
  };
  EXPECT_EQ(roles, expected);
}

TEST(Roles, demo_has_every_mode_and_candidates) {
  const std::vector<Role> roles = named_roles("demo");
  std::vector<Mode> modes;
  for (const Role& role : roles) modes.push_back(role.mode);
  EXPECT_EQ(modes, (std::vector<Mode>{Mode::kWindow, Mode::kWindow, Mode::kFull, Mode::kReuse, Mode::kFull,
                                      Mode::kReuse, Mode::kReindex, Mode::kReuse, Mode::kWindow, Mode::kWindow}));
  EXPECT_EQ(roles[6].candidates_from, 4);
  EXPECT_EQ(roles[7].index_source, 6);
}

TEST(Roles, ratio_1_may_come_before_ratio_2_with_three_sources) {
  Geometry geometry = micro();
  geometry.compress_ratios = {1, 1, 2, 2, 1, 1, 0, 0};
  geometry.kv_source_layer_ids = {0, 2, 4};
  geometry.index_source_layer_ids = {0, 1, 2, 4};
  geometry.candidate_source_layer_id = -1;
  ASSERT_TRUE(validate(geometry, "test").ok());
  const std::vector<Role> roles = layer_roles(geometry);
  EXPECT_EQ(roles[0].mode, Mode::kFull);
  EXPECT_EQ(roles[1].mode, Mode::kReindex);
  EXPECT_EQ(roles[1].candidates_from, -1);
  EXPECT_EQ(roles[3].kv_owner, 2);
  EXPECT_EQ(roles[3].ratio, 2);
  EXPECT_EQ(roles[5].owner_idx, 2);
}

TEST(Roles, a_reindex_layer_before_the_candidate_source_is_not_bound_by_it) {
  Geometry geometry = micro();
  geometry.index_source_layer_ids = {1, 3, 4, 5};
  geometry.candidate_source_layer_id = 4;
  ASSERT_TRUE(validate(geometry, "test").ok());
  const std::vector<Role> roles = layer_roles(geometry);
  EXPECT_FALSE(roles[3].candidate_source);
  EXPECT_EQ(roles[4].mode, Mode::kReindex);
  EXPECT_TRUE(roles[4].candidate_source);
  EXPECT_EQ(roles[4].candidates_from, -1);
  EXPECT_EQ(roles[5].candidates_from, 4);
}

TEST(Roles, a_window_layer_among_compressed_ones_has_no_owner) {
  Geometry geometry = micro();
  geometry.compress_ratios[4] = 0;
  ASSERT_TRUE(validate(geometry, "test").ok());
  EXPECT_EQ(layer_roles(geometry)[4].mode, Mode::kWindow);
  EXPECT_EQ(layer_roles(geometry)[4].kv_owner, -1);
  EXPECT_EQ(layer_roles(geometry)[5].kv_owner, 3);
}

TEST(Geometry, prefixes_name_backbone_and_draft_layers) {
  const Geometry geometry = named_geometry("flash").value();
  EXPECT_EQ(geometry.prefix(0), "layers.0.");
  EXPECT_EQ(geometry.prefix(39), "layers.39.");
  EXPECT_EQ(geometry.prefix(40), "mtp.0.");
  EXPECT_EQ(geometry.prefix(42), "mtp.2.");
}

TEST(Geometry, draft_layers_have_their_own_experts) {
  const Geometry geometry = named_geometry("flash").value();
  EXPECT_EQ(geometry.num_experts(39), 384);
  EXPECT_EQ(geometry.experts_per_token(39), 6);
  EXPECT_EQ(geometry.num_experts(40), 128);
  EXPECT_EQ(geometry.experts_per_token(40), 3);
}

TEST(Geometry, modes_have_different_names) {
  EXPECT_EQ(mode_name(Mode::kWindow), "window");
  EXPECT_EQ(mode_name(Mode::kFull), "full");
  EXPECT_EQ(mode_name(Mode::kReindex), "reindex");
  EXPECT_EQ(mode_name(Mode::kReuse), "reuse");
}

}  // namespace
}  // namespace monostep::model
