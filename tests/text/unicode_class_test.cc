// Single code points of each class, at the edges of ranges and among those that older Unicode versions lack.
#include "text/unicode_class.h"

#include <gtest/gtest.h>

namespace monostep::text {
namespace {

TEST(UnicodeClass, code_points_have_their_class) {
  const struct {
    uint32_t code_point;
    CharClass expected;
  } cases[] = {
      {0x0, CharClass::kOther},      {0x9, CharClass::kSpace},
      {0xd, CharClass::kSpace},      {0xe, CharClass::kOther},
      {0x20, CharClass::kSpace},     {'!', CharClass::kPunctuation},
      {'$', CharClass::kSymbol},     {'0', CharClass::kNumber},
      {'A', CharClass::kLetter},     {'z', CharClass::kLetter},
      {'~', CharClass::kSymbol},     {0x7f, CharClass::kOther},
      {0x85, CharClass::kSpace},     {0xad, CharClass::kOther},
      {0xbd, CharClass::kNumber},    {0x301, CharClass::kMark},
      {0x200b, CharClass::kOther},   {0x3000, CharClass::kSpace},
      {0x3040, CharClass::kOther},   {0x4e00, CharClass::kLetter},
      {0xd800, CharClass::kOther},   {0xe000, CharClass::kOther},
      {0xfffd, CharClass::kSymbol},  {0x1f642, CharClass::kSymbol},
      {0xe0100, CharClass::kMark},   {0x10ffff, CharClass::kOther},
      {0x10d4a, CharClass::kLetter},  // Garay, new in Unicode 16
      {0x1fae9, CharClass::kSymbol},  // new in Unicode 16
  };
  for (const auto& test_case : cases) {
    EXPECT_EQ(char_classes()[test_case.code_point], test_case.expected) << std::hex << test_case.code_point;
  }
}

}  // namespace
}  // namespace monostep::text
