// The lengths of attention lists and their parts (model.md 3.5: a window of 128 and up to 512 groups in the release).
#include "program/attention.h"

#include <gtest/gtest.h>

#include "cases.h"

namespace monostep::program {
namespace {

TEST(AttentionList, groups_are_selected_up_to_the_visible_ones) {
  EXPECT_EQ(selected_groups(512, 0, 4000), 0);  // a window layer
  EXPECT_EQ(selected_groups(512, 2, 0), 0);     // the first group closes at position 1
  EXPECT_EQ(selected_groups(512, 2, 1), 1);
  EXPECT_EQ(selected_groups(512, 2, 1022), 511);
  EXPECT_EQ(selected_groups(512, 2, 4000), 512);
  EXPECT_EQ(selected_groups(512, 1, 0), 1);
}

TEST(AttentionList, a_draft_sees_the_committed_positions_of_a_window) {
  EXPECT_EQ(context_entries(128, 0), 1);
  EXPECT_EQ(context_entries(128, 126), 127);
  EXPECT_EQ(context_entries(128, 5000), 128);
}

TEST(AttentionList, only_the_last_part_is_short) {
  EXPECT_EQ(parts_of_list(1), 1);
  EXPECT_EQ(parts_of_list(128), 1);
  EXPECT_EQ(parts_of_list(129), 2);
  EXPECT_EQ(parts_of_list(640), 5);
}

// The order of additions must not depend on the step's sizes: those bound the number of parts, never their places.
TEST(AttentionList, a_layers_parts_hold_its_longest_list) {
  const Layout flash = layout_of("flash", 4);
  EXPECT_EQ(flash.list_parts(0), 1);   // window
  EXPECT_EQ(flash.list_parts(2), 5);   // window and 512 groups
  EXPECT_EQ(flash.list_parts(40), 2);  // window and draft block
  EXPECT_EQ(flash.max_list_parts(), 5);
  EXPECT_EQ(layout_of("flash", 4, 8, 512).list_parts(2), 3);  // at most 256 groups are ever visible
  EXPECT_EQ(layout_of("flash", 4, 48).list_parts(2), 5);
}

}  // namespace
}  // namespace monostep::program
