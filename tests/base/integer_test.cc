// ceil_div and round_up against their definitions.
#include "base/integer.h"

#include <gtest/gtest.h>

namespace monostep {
namespace {

TEST(Integer, ceil_div_is_the_smallest_count_that_covers) {
  for (int value = 0; value < 200; ++value) {
    for (int by = 1; by < 20; ++by) {
      const int count = ceil_div(value, by);
      EXPECT_GE(count * by, value);
      EXPECT_TRUE(count == 0 ? value == 0 : (count - 1) * by < value) << value << " by " << by;
    }
  }
}

TEST(Integer, round_up_is_the_next_multiple) {
  EXPECT_EQ(round_up(0, 64), 0);
  EXPECT_EQ(round_up(1, 64), 64);
  EXPECT_EQ(round_up(64, 64), 64);
  EXPECT_EQ(round_up<int64_t>(int64_t{1} << 40 | 1, 64), (int64_t{1} << 40) + 64);
}

}  // namespace
}  // namespace monostep
