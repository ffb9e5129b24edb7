// The generated class table: its order, and the number of members that each class has in Unicode 16.0.
#include <gtest/gtest.h>

#include <array>

#include "text/unicode_class.h"

namespace monostep::text {
namespace {

TEST(UnicodeTable, ranges_ascend_from_zero_and_change_class_each_time) {
  EXPECT_EQ(kUnicodeRanges[0] >> 8, 0u);
  for (size_t range_idx = 1; range_idx < kNumUnicodeRanges; ++range_idx) {
    const uint32_t before = kUnicodeRanges[range_idx - 1];
    const uint32_t entry = kUnicodeRanges[range_idx];
    EXPECT_LT(before >> 8, entry >> 8);
    EXPECT_NE(before & 0xff, entry & 0xff);
    EXPECT_LE(entry & 0xff, static_cast<uint32_t>(CharClass::kSpace));
  }
  EXPECT_LT(kUnicodeRanges[kNumUnicodeRanges - 1] >> 8, kNumCodePoints);
}

TEST(UnicodeTable, classes_have_the_members_of_unicode_16) {
  std::array<int, 7> num_members = {};
  for (uint32_t code_point = 0; code_point < kNumCodePoints; ++code_point) {
    ++num_members[static_cast<size_t>(char_classes()[code_point])];
  }
  EXPECT_EQ(num_members[static_cast<size_t>(CharClass::kLetter)], 141028);
  EXPECT_EQ(num_members[static_cast<size_t>(CharClass::kMark)], 2501);
  EXPECT_EQ(num_members[static_cast<size_t>(CharClass::kNumber)], 1911);
  EXPECT_EQ(num_members[static_cast<size_t>(CharClass::kPunctuation)], 855);
  EXPECT_EQ(num_members[static_cast<size_t>(CharClass::kSymbol)], 8514);
  EXPECT_EQ(num_members[static_cast<size_t>(CharClass::kSpace)], 25);
}

}  // namespace
}  // namespace monostep::text
