// The three splits on texts for each alternative and each boundary between them.
#include "text/pieces.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <string>
#include <vector>

namespace monostep::text {
namespace {

using Pieces = std::vector<std::string>;

Pieces pieces_of(std::string_view text) {
  Pieces pieces;
  PieceScanner scanner(text);
  for (std::string_view piece = scanner.next(); !piece.empty(); piece = scanner.next()) pieces.emplace_back(piece);
  return pieces;
}

TEST(Pieces, an_empty_text_has_none) { EXPECT_EQ(pieces_of(""), Pieces{}); }

TEST(Pieces, numbers_are_cut_after_three_and_stand_alone) {
  EXPECT_EQ(pieces_of("1234567"), (Pieces{"123", "456", "7"}));
  EXPECT_EQ(pieces_of("a1b22"), (Pieces{"a", "1", "b", "22"}));
  EXPECT_EQ(pieces_of("x 12"), (Pieces{"x", " ", "12"}));
  EXPECT_EQ(pieces_of("\u0663\u00bd\u00b25"), (Pieces{"\u0663\u00bd\u00b2", "5"}));
}

TEST(Pieces, white_space_before_a_number_ends_its_section) {
  // The look-ahead sees the end of the section, not the number.
  EXPECT_EQ(pieces_of("  12"), (Pieces{"  ", "12"}));
  EXPECT_EQ(pieces_of("  ab"), (Pieces{" ", " ab"}));
}

TEST(Pieces, chinese_and_kana_stand_apart_from_other_letters) {
  EXPECT_EQ(pieces_of("abc\u7684\u3042de"), (Pieces{"abc", "\u7684\u3042", "de"}));
  EXPECT_EQ(pieces_of("\u9fa5\u9fa6"), (Pieces{"\u9fa5", "\u9fa6"}));
  EXPECT_EQ(pieces_of(" \u7684"), (Pieces{" ", "\u7684"}));
  EXPECT_EQ(pieces_of("\u30a2\u30fb\u30a4"), (Pieces{"\u30a2", "\u30fb", "\u30a4"}));  // the dot is punctuation
  EXPECT_EQ(pieces_of("\u3040\u304b"), (Pieces{"\u3040\u304b"}));                      // unassigned, then a letter
}

TEST(Pieces, ascii_punctuation_joins_the_ascii_letters_after_it) {
  EXPECT_EQ(pieces_of("it's"), (Pieces{"it", "'s"}));
  EXPECT_EQ(pieces_of("..ab"), (Pieces{"..", "ab"}));
  EXPECT_EQ(pieces_of(".ab\u00e9c"), (Pieces{".ab", "\u00e9c"}));
  EXPECT_EQ(pieces_of(".\u00e9"), (Pieces{".", "\u00e9"}));
  EXPECT_EQ(pieces_of("\u2026ab"), (Pieces{"\u2026", "ab"}));
}

TEST(Pieces, words_take_one_character_before_them) {
  EXPECT_EQ(pieces_of("one two\tthree"), (Pieces{"one", " two", "\tthree"}));
  EXPECT_EQ(pieces_of(std::string_view("\0\0a", 3)), (Pieces{std::string(1, '\0'), std::string("\0a", 2)}));
  EXPECT_EQ(pieces_of("\u0301a"), (Pieces{"\u0301a"}));
  EXPECT_EQ(pieces_of(" \u0301"), (Pieces{" \u0301"}));
  EXPECT_EQ(pieces_of("e\u0301\u0301x"), (Pieces{"e\u0301\u0301x"}));
  EXPECT_EQ(pieces_of("\na"), (Pieces{"\n", "a"}));
}

TEST(Pieces, punctuation_takes_a_space_before_and_newlines_after) {
  EXPECT_EQ(pieces_of("a != b"), (Pieces{"a", " !=", " b"}));
  EXPECT_EQ(pieces_of("a;\r\n\nb"), (Pieces{"a", ";\r\n\n", "b"}));
  EXPECT_EQ(pieces_of("\t;"), (Pieces{"\t", ";"}));
  EXPECT_EQ(pieces_of("; \n"), (Pieces{";", " \n"}));
}

TEST(Pieces, white_space_goes_up_to_its_last_newline) {
  EXPECT_EQ(pieces_of(" \n \n  a"), (Pieces{" \n \n", " ", " a"}));
  EXPECT_EQ(pieces_of("a \r\n"), (Pieces{"a", " \r\n"}));
  EXPECT_EQ(pieces_of("a  "), (Pieces{"a", "  "}));
  EXPECT_EQ(pieces_of("a   b"), (Pieces{"a", "  ", " b"}));
  EXPECT_EQ(pieces_of("a\t\t;"), (Pieces{"a", "\t", "\t", ";"}));
  EXPECT_EQ(pieces_of("\u3000\u00a0;"), (Pieces{"\u3000", "\u00a0", ";"}));
}

TEST(Pieces, characters_that_no_pattern_matches_are_one_piece) {
  EXPECT_EQ(pieces_of("\x01\x02\x03"), (Pieces{"\x01\x02\x03"}));
  EXPECT_EQ(pieces_of("\x01\x02 a"), (Pieces{"\x01\x02", " a"}));
  EXPECT_EQ(pieces_of("\U000e0001\U0010ffff"), (Pieces{"\U000e0001\U0010ffff"}));
}

TEST(Pieces, ill_formed_text_is_kept) {
  EXPECT_EQ(pieces_of("a\xff\xfe"), (Pieces{"a", "\xff\xfe"}));
  EXPECT_EQ(pieces_of("\xe7\x9a"), (Pieces{"\xe7\x9a"}));
}

TEST(Pieces, joined_they_are_the_text) {
  EXPECT_TRUE(rc::check("any bytes", [](const std::string& text) {
    std::string joined;
    for (const std::string& piece : pieces_of(text)) joined += piece;
    RC_ASSERT(joined == text);
  }));
  EXPECT_TRUE(rc::check("characters of all classes", [] {
    const auto parts = *rc::gen::container<std::vector<std::string>>(
        rc::gen::elementOf(Pieces{"a", "Z", "\u00e9", "\u0301", "1", "\u0663", ".", "$", " ", "\t", "\n", "\r",
                                  "\u7684", "\u30fb", "\x01", "\U0001f642", "\u3000", "\xff"}));
    std::string text;
    for (const std::string& part : parts) text += part;
    std::string joined;
    for (const std::string& piece : pieces_of(text)) joined += piece;
    RC_ASSERT(joined == text);
  }));
}

}  // namespace
}  // namespace monostep::text
