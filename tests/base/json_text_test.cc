// Tests of the JSON writers: escapes in both forms, ill-formed UTF-8, numbers that read back.
#include "base/json_text.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <simdjson.h>

#include <limits>

namespace monostep {
namespace {

std::string written(std::string_view text, bool ascii) {
  std::string out;
  append_json_string(out, text, ascii);
  return out;
}

std::string number(double value) {
  std::string out;
  append_json_number(out, value);
  return out;
}

TEST(JsonText, controls_quotes_and_backslashes_are_escaped_in_both_forms) {
  const std::string text("a\"b\\c\n\r\t\b\f\x01\x1f/\0", 14);
  const std::string expected = R"("a\"b\\c\n\r\t\b\f\u0001\u001f/\u0000")";
  EXPECT_EQ(written(text, false), expected);
  EXPECT_EQ(written(text, true), expected);
}

TEST(JsonText, ascii_form_escapes_everything_above_tilde) {
  EXPECT_EQ(written("~\x7f\u00e9\uff5c\U0001f600", true), R"("~\u007f\u00e9\uff5c\ud83d\ude00")");
  EXPECT_EQ(written("~\u00e9\uff5c\U0001f600", false), "\"~\u00e9\uff5c\U0001f600\"");
}

TEST(JsonText, each_maximal_ill_formed_part_becomes_one_replacement) {
  // A stray continuation, a cut three-byte form before an ASCII letter, an overlong form (two parts), a surrogate
  // (three parts), a value above U+10FFFF (four parts), a cut four-byte form at the end.
  EXPECT_EQ(written("\x80|", true), R"("\ufffd|")");
  EXPECT_EQ(written("\xe2\x82z", true), R"("\ufffdz")");
  EXPECT_EQ(written("\xc0\xaf", true), R"("\ufffd\ufffd")");
  EXPECT_EQ(written("\xed\xa0\x80", true), R"("\ufffd\ufffd\ufffd")");
  EXPECT_EQ(written("\xf4\x90\x80\x80", true), R"("\ufffd\ufffd\ufffd\ufffd")");
  EXPECT_EQ(written("\xf0\x9f\x98", true), R"("\ufffd")");
  EXPECT_EQ(written("\xf0\x9f\x98", false), "\"\xef\xbf\xbd\"");
}

TEST(JsonText, any_byte_string_is_written_as_json_that_parses_alike_in_both_forms) {
  EXPECT_TRUE(rc::check("both forms parse to the same text", [](const std::string& text) {
    simdjson::dom::parser parser;
    std::string_view plain, escaped;
    const std::string plain_json = "[" + written(text, false) + "]", ascii_json = "[" + written(text, true) + "]";
    RC_ASSERT(!parser.parse(plain_json).at(0).get(plain));
    const std::string first(plain);
    RC_ASSERT(!parser.parse(ascii_json).at(0).get(escaped));
    RC_ASSERT(first == escaped);
    for (const char letter : ascii_json) RC_ASSERT(letter >= 0x20 && letter <= 0x7e);
  }));
}

TEST(JsonText, numbers_are_the_shortest_that_read_back) {
  EXPECT_EQ(number(0), "0.0");
  EXPECT_EQ(number(-1), "-1.0");
  EXPECT_EQ(number(100000), "100000.0");
  EXPECT_EQ(number(0.1), "0.1");
  EXPECT_EQ(number(1e-6), "1e-06");
  EXPECT_EQ(number(1e-20), "1e-20");
  EXPECT_EQ(number(1e22), "1e+22");
  EXPECT_TRUE(
      rc::check("reads back", [](double value) { RC_ASSERT(std::strtod(number(value).c_str(), nullptr) == value); }));
}

TEST(JsonText, values_without_a_json_form_become_null) {
  EXPECT_EQ(number(std::numeric_limits<double>::infinity()), "null");
  EXPECT_EQ(number(std::numeric_limits<double>::quiet_NaN()), "null");
}

TEST(JsonText, integers_keep_all_digits) {
  std::string out;
  append_json_integer(out, std::numeric_limits<int64_t>::min());
  EXPECT_EQ(out, "-9223372036854775808");
}

}  // namespace
}  // namespace monostep
