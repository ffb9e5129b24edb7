// The whole tokenizer: every recorded case of the official library, and on the tiny file added tokens, holes and round
// trips.
#include "text/tokenizer.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <simdjson.h>

#include <fstream>

#include "base/sha256.h"
#include "golden_tokenizer.h"
#include "tiny_tokenizer.h"

namespace monostep::text {
namespace {

using Ids = std::vector<int32_t>;

std::string bytes_of_ids(const Tokenizer& tokenizer, const Ids& ids) {
  std::string bytes;
  for (const int32_t id : ids) bytes += tokenizer.bytes_of(id).value();
  return bytes;
}

// The text of a recorded case, which long cases give as repeated parts.
std::string case_text(simdjson::dom::element recorded) {
  std::string_view text;
  if (recorded["text"].get(text) == simdjson::SUCCESS) return std::string(text);
  std::string joined;
  for (const simdjson::dom::element part : recorded["parts"].get_array()) {
    const std::string_view unit = part.at(0);
    for (int64_t count = part.at(1); count > 0; --count) joined += unit;
  }
  return joined;
}

void expect_recorded_ids(simdjson::dom::element recorded, const Ids& ids) {
  simdjson::dom::array short_ids;
  if (recorded["ids"].get(short_ids) == simdjson::SUCCESS) {
    Ids expected;
    for (const int64_t id : short_ids) expected.push_back(static_cast<int32_t>(id));
    EXPECT_EQ(ids, expected);
    return;
  }
  EXPECT_EQ(static_cast<int64_t>(ids.size()), int64_t(recorded["num_ids"]));
  EXPECT_EQ(sha256_hex(std::as_bytes(std::span(ids))), std::string_view(recorded["ids_sha256"]));
}

TEST(GoldenTokenizer, every_recorded_text_has_the_official_ids) {
  const std::string lines = read_golden_gz("cases.jsonl.gz");
  simdjson::dom::parser parser;
  size_t num_cases = 0;
  for (size_t begin = 0; begin < lines.size(); ++num_cases) {
    const size_t end = lines.find('\n', begin);
    const simdjson::dom::element recorded = parser.parse(lines.substr(begin, end - begin));
    SCOPED_TRACE(std::string_view(recorded["id"]));
    expect_recorded_ids(recorded, golden_tokenizer().encode(case_text(recorded), bool(recorded["special"])));
    begin = end + 1;
  }
  EXPECT_EQ(num_cases, 3'118u);
}

TEST(GoldenTokenizer, named_tokens_have_their_ids) {
  const Tokenizer& tokenizer = golden_tokenizer();
  EXPECT_EQ(tokenizer.num_ids(), 129'280);
  EXPECT_EQ(tokenizer.id_of("<\uff5cbegin\u2581of\u2581sentence\uff5c>"), 0);
  EXPECT_EQ(tokenizer.id_of("<\uff5cend\u2581of\u2581sentence\uff5c>"), 1);
  EXPECT_EQ(tokenizer.id_of("<\uff5cSystem\uff5c>"), 128'799);
  EXPECT_EQ(tokenizer.id_of("<\uff5cUser\uff5c>"), 128'803);
  EXPECT_EQ(tokenizer.id_of("</think>"), 128'822);
  EXPECT_EQ(tokenizer.id_of("\uff5cDSML\uff5c"), 128'825);
  EXPECT_EQ(tokenizer.id_of("the"), std::nullopt);
  EXPECT_TRUE(tokenizer.is_special(0));
  EXPECT_FALSE(tokenizer.is_special(128'799));
  EXPECT_FALSE(tokenizer.is_special(128'822));
}

TEST(GoldenTokenizer, overlapping_dsml_tokens_go_to_the_first) {
  const Tokenizer& tokenizer = golden_tokenizer();
  const Ids rest = tokenizer.encode("DSML\uff5c", false);
  Ids expected = {128'825};
  expected.insert(expected.end(), rest.begin(), rest.end());
  EXPECT_EQ(tokenizer.encode("\uff5cDSML\uff5cDSML\uff5c", true), expected);
  EXPECT_EQ(tokenizer.encode("\uff5cDSML\uff5c\uff5cDSML\uff5c", true), (Ids{128'825, 128'825}));
}

TEST(GoldenTokenizer, plain_text_comes_back_from_its_ids) {
  EXPECT_TRUE(rc::check("any bytes", [](const std::string& text) {
    RC_ASSERT(bytes_of_ids(golden_tokenizer(), golden_tokenizer().encode(text, false)) == text);
  }));
}

TEST(Tokenizer, merges_follow_the_file) {
  const Tokenizer tokenizer = tiny_tokenizer();
  EXPECT_EQ(tokenizer.encode("", true), Ids{});
  EXPECT_EQ(tokenizer.encode("abc a", true), (Ids{kTinyAbc, kTinySpaceA}));
  EXPECT_EQ(tokenizer.encode("bc", true), (Ids{tiny_byte('b'), tiny_byte('c')}));
  EXPECT_EQ(tokenizer.encode(std::string_view("\0\xff", 2), true), (Ids{tiny_byte('\0'), tiny_byte('\xff')}));
}

TEST(Tokenizer, no_merge_crosses_a_piece) {
  // "a" and "b" would merge, but an apostrophe's letters are a piece of their own.
  const Tokenizer tokenizer = tiny_tokenizer();
  EXPECT_EQ(tokenizer.encode("a'b", true), (Ids{tiny_byte('a'), tiny_byte('\''), tiny_byte('b')}));
  EXPECT_EQ(tokenizer.encode("a<call>b", true), (Ids{tiny_byte('a'), kTinyCall, tiny_byte('b')}));
}

TEST(Tokenizer, spellings_of_added_tokens_count_only_where_they_are_honoured) {
  const Tokenizer tokenizer = tiny_tokenizer();
  EXPECT_EQ(tokenizer.encode("ab<s>ab<think>", true), (Ids{kTinyAb, kTinyBegin, kTinyAb, kTinyThink}));
  EXPECT_EQ(tokenizer.encode("<s>", false), (Ids{tiny_byte('<'), tiny_byte('s'), tiny_byte('>')}));
}

TEST(Tokenizer, tokens_that_are_not_normalized_are_cut_out_first) {
  // "<think" + "><call>" starts further left, but is of the second pass.
  const std::string json = tiny_tokenizer_with(R"("content":"<think>")", R"("content":"<think><")");
  const Tokenizer tokenizer = Tokenizer::parse(json, "f").value();
  EXPECT_EQ(tokenizer.encode("<think><x", true), (Ids{kTinyThink, tiny_byte('x')}));
  const Ids ids = tokenizer.encode("<think><call>", true);
  EXPECT_EQ(ids.size(), 8u);  // seven bytes of "<think>" and the token
  EXPECT_EQ(ids.back(), kTinyCall);
}

TEST(Tokenizer, ids_without_token_are_refused) {
  const Tokenizer tokenizer = tiny_tokenizer();
  EXPECT_EQ(tokenizer.num_ids(), 301);
  EXPECT_EQ(tokenizer.bytes_of(kTinyThink).value(), "<think>");
  EXPECT_EQ(tokenizer.bytes_of(kTinyHole).error().text, "token id 280 has no token");
  EXPECT_EQ(tokenizer.bytes_of(301).error().text, "expected a token id in [0, 301), found 301");
  EXPECT_EQ(tokenizer.bytes_of(-1).error().text, "expected a token id in [0, 301), found -1");
  EXPECT_FALSE(tokenizer.is_special(-1));
  EXPECT_FALSE(tokenizer.is_special(301));
}

TEST(Tokenizer, id_of_wants_the_whole_spelling) {
  const Tokenizer tokenizer = tiny_tokenizer();
  EXPECT_EQ(tokenizer.id_of("<s>"), kTinyBegin);
  EXPECT_EQ(tokenizer.id_of("<think>"), kTinyThink);
  EXPECT_EQ(tokenizer.id_of("<s"), std::nullopt);
  EXPECT_EQ(tokenizer.id_of("<s> "), std::nullopt);
  EXPECT_EQ(tokenizer.id_of(" <s>"), std::nullopt);
  EXPECT_EQ(tokenizer.id_of(""), std::nullopt);
}

TEST(Tokenizer, a_file_is_loaded_and_a_missing_one_named) {
  const std::string path = testing::TempDir() + "tiny_tokenizer.json";
  std::ofstream(path, std::ios::binary) << tiny_tokenizer_json();
  const auto tokenizer = Tokenizer::load(path);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
  EXPECT_EQ(tokenizer->encode("ab", true), Ids{kTinyAb});
  const auto missing = Tokenizer::load(path + ".absent");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, Code::kNotFound);
  EXPECT_EQ(missing.error().place, path + ".absent");
}

}  // namespace
}  // namespace monostep::text
