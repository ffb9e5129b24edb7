// UTF-8 units: every code point, and the maximal parts of ill-formed text as in the Unicode standard, section 3.9.
#include "base/utf8.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace monostep {
namespace {

using Kind = Utf8Unit::Kind;

std::string encode(uint32_t code_point) {
  const auto tail = [&](int shift) { return static_cast<char>(0x80 | ((code_point >> shift) & 0x3f)); };
  if (code_point < 0x80) return {static_cast<char>(code_point)};
  if (code_point < 0x800) return {static_cast<char>(0xc0 | code_point >> 6), tail(0)};
  if (code_point < 0x10000) return {static_cast<char>(0xe0 | code_point >> 12), tail(6), tail(0)};
  return {static_cast<char>(0xf0 | code_point >> 18), tail(12), tail(6), tail(0)};
}

TEST(Utf8, every_code_point_but_surrogates_is_decoded) {
  for (uint32_t code_point = 0; code_point < 0x110000; ++code_point) {
    const std::string bytes = encode(code_point) + "x";
    const Utf8Unit unit = next_utf8(bytes);
    if (code_point >= 0xd800 && code_point < 0xe000) {
      ASSERT_EQ(unit.kind, Kind::kIllFormed) << std::hex << code_point;
      ASSERT_EQ(unit.num_bytes, 1u);
      continue;
    }
    ASSERT_EQ(unit.kind, Kind::kCodePoint) << std::hex << code_point;
    ASSERT_EQ(unit.code_point, code_point);
    ASSERT_EQ(unit.num_bytes, bytes.size() - 1);
  }
}

TEST(Utf8, every_cut_code_point_is_incomplete) {
  for (const uint32_t code_point : {0x80u, 0x7ffu, 0x800u, 0xd7ffu, 0xe000u, 0xffffu, 0x10000u, 0x10ffffu}) {
    const std::string bytes = encode(code_point);
    for (size_t num_bytes = 1; num_bytes < bytes.size(); ++num_bytes) {
      const Utf8Unit unit = next_utf8(bytes.substr(0, num_bytes));
      EXPECT_EQ(unit.kind, Kind::kIncomplete) << std::hex << code_point;
      EXPECT_EQ(unit.num_bytes, num_bytes);
    }
  }
}

TEST(Utf8, ill_formed_text_is_cut_into_maximal_parts) {
  const struct {
    std::string bytes;
    std::vector<size_t> part_bytes;
  } cases[] = {
      {"\xc0\xaf", {1, 1}},                // long form of '/'
      {"\xe0\x80\xbf", {1, 1, 1}},         // long form in three bytes
      {"\xed\xa0\x80", {1, 1, 1}},         // a surrogate
      {"\xf4\x90\x80\x80", {1, 1, 1, 1}},  // past U+10FFFF
      {"\xf0\x80\x80\x41", {1, 1, 1, 1}},  // long form in four bytes, then a letter
      {"\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41", {2, 1, 3, 2, 1}},
      {"\xff\x41\x80\xc2\x41", {1, 1, 1, 1, 1}},
  };
  for (const auto& test_case : cases) {
    std::string_view rest = test_case.bytes;
    for (const size_t num_bytes : test_case.part_bytes) {
      const Utf8Unit unit = next_utf8(rest);
      EXPECT_EQ(unit.num_bytes, num_bytes);
      EXPECT_EQ(unit.kind, rest[0] == 'A' ? Kind::kCodePoint : Kind::kIllFormed);
      rest.remove_prefix(unit.num_bytes);
    }
    EXPECT_TRUE(rest.empty());
  }
}

}  // namespace
}  // namespace monostep
