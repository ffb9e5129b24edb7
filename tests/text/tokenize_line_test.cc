// The JSON lines of `monostep tokenize`: answers of both kinds, and an error for each kind of bad line.
#include "text/tokenize_line.h"

#include <gtest/gtest.h>

#include "tiny_tokenizer.h"

namespace monostep::text {
namespace {

std::string answer(std::string_view line) {
  static const Tokenizer tokenizer = tiny_tokenizer();
  return answer_tokenize_line(tokenizer, line);
}

TEST(TokenizeLine, text_is_answered_with_ids) {
  EXPECT_EQ(answer(R"({"text":"abc<s>"})"), R"({"ids":[260,0]})");
  EXPECT_EQ(answer(R"({"text":"abc<s>","special":true})"), R"({"ids":[260,0]})");
  EXPECT_EQ(answer(R"({"special":false,"text":"<s>"})"), R"({"ids":[63,118,65]})");
  EXPECT_EQ(answer(R"({"text":""})"), R"({"ids":[]})");
  EXPECT_EQ(answer(R"({"text":"\u0000\ud83d\ude42"})"), R"({"ids":[3,243,162,156,133]})");
  EXPECT_EQ(answer(" {\"id\":\"t1\",\"text\":\"ab\"}\r"), R"({"ids":[259]})");
}

TEST(TokenizeLine, ids_are_answered_with_text_and_bytes) {
  EXPECT_EQ(answer(R"({"ids":[260,0,300]})"), R"({"text":"abc<s><think>","bytes_hex":"6162633c733e3c7468696e6b3e"})");
  EXPECT_EQ(answer(R"({"ids":[198,172]})"), R"({"text":"\u00e9","bytes_hex":"c3a9"})");
  EXPECT_EQ(answer(R"({"ids":[198]})"), R"({"text":"\ufffd","bytes_hex":"c3"})");
  EXPECT_EQ(answer(R"({"ids":[3,13]})"), R"({"text":"\u0000\n","bytes_hex":"000a"})");
  EXPECT_EQ(answer(R"({"ids":[]})"), R"({"text":"","bytes_hex":""})");
}

TEST(TokenizeLine, a_request_of_no_or_two_kinds_is_an_error) {
  const std::string neither_or_both = R"({"error":"expected one of \"text\" and \"ids\""})";
  EXPECT_EQ(answer("{}"), neither_or_both);
  EXPECT_EQ(answer(R"({"txet":"a"})"), neither_or_both);
  EXPECT_EQ(answer(R"({"text":"a","ids":[1]})"), neither_or_both);
}

TEST(TokenizeLine, values_of_a_wrong_type_are_an_error) {
  EXPECT_EQ(answer(R"({"text":7})"), R"({"error":"\"text\" is not a string"})");
  EXPECT_EQ(answer(R"({"text":null})"), R"({"error":"\"text\" is not a string"})");
  EXPECT_EQ(answer(R"({"text":"a","special":1})"), R"({"error":"\"special\" is neither true nor false"})");
  EXPECT_EQ(answer(R"({"ids":7})"), R"({"error":"\"ids\" is not an array"})");
  for (const char* item : {"\"a\"", "1.5", "null", "[1]", "18446744073709551615", "1e3"}) {
    EXPECT_EQ(answer("{\"ids\":[3," + std::string(item) + "]}"), R"({"error":"an item of \"ids\" is not an integer"})");
  }
}

TEST(TokenizeLine, ids_without_token_are_an_error) {
  EXPECT_EQ(answer(R"({"ids":[301]})"), R"({"error":"expected a token id in [0, 301), found 301"})");
  EXPECT_EQ(answer(R"({"ids":[-1]})"), R"({"error":"expected a token id in [0, 301), found -1"})");
  EXPECT_EQ(answer(R"({"ids":[4294967299]})"), R"({"error":"expected a token id in [0, 301), found 4294967299"})");
  EXPECT_EQ(answer(R"({"ids":[280]})"), R"({"error":"token id 280 has no token"})");
}

TEST(TokenizeLine, lines_that_are_no_json_object_are_an_error) {
  const std::string_view bad_lines[] = {"",
                                        " ",
                                        "x",
                                        "[]",
                                        "\"a\"",
                                        "7",
                                        "null",
                                        "{",
                                        R"({"text":"a")",
                                        R"({"text":"a"}{})",
                                        R"({"text":"\ud800"})",
                                        R"({"text":"\udc00\ud800"})",
                                        "{\"text\":\"\xff\"}",
                                        "{\"text\":\"\xed\xa0\x80\"}",
                                        "{\"text\":\"\x01\"}",
                                        std::string_view("{\"text\":\"\0\"}", 12)};
  for (const std::string_view line : bad_lines) {
    EXPECT_EQ(answer(line).substr(0, 34), "{\"error\":\"expected a JSON object: ") << line;
  }
  EXPECT_EQ(answer("{\"ids\":" + std::string(100'000, '[')).substr(0, 10), "{\"error\":\"");
}

}  // namespace
}  // namespace monostep::text
