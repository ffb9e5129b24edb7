// The vocabulary, merges and added tokens of tokenizer.json: what is accepted, and each damage by name.
#include "text/tokenizer_json.h"

#include <gtest/gtest.h>

#include "golden_tokenizer.h"
#include "tiny_tokenizer.h"

namespace monostep::text {
namespace {

struct Damage {
  const char* name;  // of the test
  std::string part, replacement, message;
};

void PrintTo(const Damage& damage, std::ostream* out) { *out << damage.name; }

class RefusedFile : public testing::TestWithParam<Damage> {};

TEST_P(RefusedFile, is_named) {
  EXPECT_EQ(refusal_of(tiny_tokenizer_with(GetParam().part, GetParam().replacement)), GetParam().message);
}

const std::string kBeginToken = added_token_json(kTinyBegin, "<s>", false, true);
const std::string kMerges = "[\"a b\",[\"ab\",\"c\"],\"\\u0120 a\"]";

INSTANTIATE_TEST_SUITE_P(
    Vocabulary, RefusedFile,
    testing::Values(
        Damage{"missing", R"("vocab":{)", R"("words":{)", "f.model.vocab: is missing, expected an object (corrupt)"},
        Damage{"empty_spelling", R"("abc":260)", R"("":260)",
               "f.model.vocab: an entry has an empty spelling (corrupt)"},
        Damage{"repeated_spelling", R"("abc":260)", R"("ab":260)", "f.model.vocab: \"ab\" is there twice (corrupt)"},
        Damage{"repeated_id", R"("abc":260)", R"("abc":259)",
               "f.model.vocab: \"ab\" and \"abc\" share the id 259 (corrupt)"},
        Damage{"negative_id", R"("abc":260)", R"("abc":-1)",
               "f.model.vocab[\"abc\"]: expected an id in [0, 1048576), found -1 (corrupt)"},
        Damage{"huge_id", R"("abc":260)", R"("abc":1048576)",
               "f.model.vocab[\"abc\"]: expected an id in [0, 1048576), found 1048576 (corrupt)"},
        Damage{"id_type", R"("abc":260)", R"("abc":"260")", "f.model.vocab[\"abc\"]: expected an integer (corrupt)"},
        Damage{"byte_missing", R"("A":68,)", "", "f.model.vocab: no entry for the byte 0x41 (corrupt)"}),
    [](const testing::TestParamInfo<Damage>& test) { return std::string(test.param.name); });

INSTANTIATE_TEST_SUITE_P(
    Merges, RefusedFile,
    testing::Values(
        Damage{"missing", R"("merges":)", R"("joins":)", "f.model.merges: is missing, expected an array (corrupt)"},
        Damage{"type", kMerges, "[7]", "f.model.merges[0]: expected a string (corrupt)"},
        Damage{"no_space", kMerges, R"(["ab"])",
               "f.model.merges[0]: expected two parts with one space between them, found \"ab\" (corrupt)"},
        Damage{"two_spaces", kMerges, R"(["a b c"])",
               "f.model.merges[0]: expected two parts with one space between them, found \"a b c\" (corrupt)"},
        Damage{"three_parts", kMerges, R"([["a","b","c"]])", "f.model.merges[0]: expected 2 parts, found 3 (corrupt)"},
        Damage{"part_type", kMerges, R"([["a",1]])", "f.model.merges[0][1]: expected a string (corrupt)"},
        Damage{"left_unknown", kMerges, R"(["a b","zz b"])",
               "f.model.merges[1]: \"zz\" is not in the vocabulary (corrupt)"},
        Damage{"right_unknown", kMerges, R"(["a zz"])", "f.model.merges[0]: \"zz\" is not in the vocabulary (corrupt)"},
        Damage{"result_unknown", kMerges, R"(["a c"])", "f.model.merges[0]: \"ac\" is not in the vocabulary (corrupt)"},
        Damage{"repeated", kMerges, R"(["a b",["a","b"]])",
               "f.model.merges[1]: the same merge is there twice (corrupt)"}),
    [](const testing::TestParamInfo<Damage>& test) { return std::string(test.param.name); });

INSTANTIATE_TEST_SUITE_P(
    AddedTokens, RefusedFile,
    testing::Values(Damage{"list_type", "\"added_tokens\":[" + kBeginToken, "\"added_tokens\":7,\"x\":[" + kBeginToken,
                           "f.added_tokens: expected an array (corrupt)"},
                    Damage{"token_type", kBeginToken, "7",
                           "f.added_tokens[0].id: is missing, expected an integer (corrupt)"},
                    Damage{"negative_id", R"({"id":0,)", R"({"id":-1,)",
                           "f.added_tokens[0].id: expected an id in [0, 1048576), found -1 (corrupt)"},
                    Damage{"content_missing", R"("content":"<s>")", R"("x":"<s>")",
                           "f.added_tokens[0].content: is missing, expected a string (corrupt)"},
                    Damage{"content_empty", R"("content":"<s>")", R"("content":"")",
                           "f.added_tokens[0].content: expected 1 to 1024 bytes, found 0 (corrupt)"},
                    Damage{"content_long", R"("content":"<s>")", "\"content\":\"" + std::string(1025, 'x') + "\"",
                           "f.added_tokens[0].content: expected 1 to 1024 bytes, found 1025 (corrupt)"},
                    Damage{"single_word", R"("<s>","single_word":false)", R"("<s>","single_word":true)",
                           "f.added_tokens[0].single_word: only false is supported (unsupported)"},
                    Damage{"lstrip", R"("<s>","single_word":false,"lstrip":false)", R"("<s>","lstrip":true)",
                           "f.added_tokens[0].lstrip: only false is supported (unsupported)"},
                    Damage{"rstrip", R"("<s>","single_word":false,"lstrip":false,"rstrip":false)",
                           R"("<s>","rstrip":true)", "f.added_tokens[0].rstrip: only false is supported (unsupported)"},
                    Damage{"normalized_missing", R"("normalized":false,"special":true)", R"("special":true)",
                           "f.added_tokens[0].normalized: is missing, expected true or false (corrupt)"},
                    Damage{"special_type", R"("normalized":false,"special":true)", R"("normalized":false,"special":1)",
                           "f.added_tokens[0].special: expected true or false (corrupt)"},
                    Damage{"repeated_spelling", R"("content":"<call>")", R"("content":"<s>")",
                           "f.added_tokens: \"<s>\" is there twice (corrupt)"},
                    Damage{"id_of_another_added", R"({"id":270,)", R"({"id":0,)",
                           "f.added_tokens[1]: \"<call>\" has the id 0 of another token (corrupt)"},
                    Damage{"id_of_an_entry", R"({"id":270,)", R"({"id":259,)",
                           "f.added_tokens[1]: \"<call>\" has the id 259 of another token (corrupt)"},
                    Damage{"other_id_in_the_vocabulary", R"("abc":260,)", R"("abc":260,"<call>":271,)",
                           "f.added_tokens[1]: \"<call>\" has the id 270 here and 271 in the vocabulary (corrupt)"}),
    [](const testing::TestParamInfo<Damage>& test) { return std::string(test.param.name); });

TEST(TokenizerJson, the_tiny_file_is_read) {
  const auto file = parse_tokenizer_json(tiny_tokenizer_json(), "f");
  ASSERT_TRUE(file.ok()) << file.error().message();
  EXPECT_EQ(file->token_bytes.size(), 301u);
  EXPECT_EQ(file->token_bytes[kTinySpaceA], " a");
  EXPECT_EQ(file->token_bytes[kTinyHole], "");
  EXPECT_EQ(file->rules.byte_ids[' '], ' ' + 3);
  EXPECT_EQ(file->rules.merged_ids, (std::vector<int32_t>{kTinyAb, kTinyAbc, kTinySpaceA}));
  EXPECT_EQ(file->added_tokens.size(), 3u);
}

TEST(TokenizerJson, merges_and_added_tokens_may_be_empty) {
  EXPECT_EQ(refusal_of(tiny_tokenizer_with(kMerges, "[]")), "");
  EXPECT_EQ(refusal_of(tiny_tokenizer_with("\"added_tokens\":[", "\"x\":[")), "");
}

TEST(TokenizerJson, an_entry_outside_the_byte_alphabet_stands_for_itself) {
  const auto file = parse_tokenizer_json(tiny_tokenizer_with(R"("abc":260,)", R"("abc":260,"x y":280,)"), "f");
  ASSERT_TRUE(file.ok()) << file.error().message();
  EXPECT_EQ(file->token_bytes[280], "x y");
}

TEST(TokenizerJson, text_that_is_not_json_is_refused) {
  EXPECT_EQ(refusal_of("{\"model\"").substr(0, 12), "f: not JSON:");
  EXPECT_EQ(refusal_of("").substr(0, 12), "f: not JSON:");
  EXPECT_EQ(refusal_of("{\"model\":\"\xff\"}").substr(0, 12), "f: not JSON:");
  EXPECT_EQ(refusal_of(std::string(100'000, '[')).substr(0, 12), "f: not JSON:");
}

TEST(TokenizerJson, a_file_above_the_bounds_is_refused) {
  EXPECT_EQ(refusal_of(std::string(kMaxTokenizerBytes + 1, ' ')),
            "f: expected at most 33554432 bytes, found 33554433 (corrupt)");
  std::string merges = "[\"a b\"";
  for (int32_t merge_idx = 0; merge_idx < kMaxTokenIds; ++merge_idx) merges += ",\"a b\"";
  EXPECT_EQ(refusal_of(tiny_tokenizer_with(kMerges, merges + "]")),
            "f.model.merges: expected at most 1048576 merges, found 1048577 (corrupt)");
  std::string tokens;
  for (int32_t token_idx = 0; token_idx < 1100; ++token_idx) {
    const std::string number = std::to_string(1000 + token_idx);
    tokens += added_token_json(1000 + token_idx, number + std::string(1000, 'x'), false, false) + ",";
  }
  EXPECT_EQ(refusal_of(tiny_tokenizer_with("\"added_tokens\":[", "\"added_tokens\":[" + tokens)),
            "f.added_tokens[1044]: the spellings have more than 1048576 bytes (corrupt)");
}

TEST(TokenizerJson, every_cut_of_a_file_is_refused) {
  const std::string json = tiny_tokenizer_json();
  for (size_t num_bytes = 0; num_bytes < json.size(); num_bytes += 7) {
    EXPECT_NE(refusal_of(json.substr(0, num_bytes)), "") << num_bytes;
  }
}

TEST(TokenizerJson, the_released_file_has_its_counts) {
  const auto file = parse_tokenizer_json(read_golden_gz("tokenizer.json.gz"), "tokenizer.json");
  ASSERT_TRUE(file.ok()) << file.error().message();
  EXPECT_EQ(file->token_bytes.size(), 129'280u);
  EXPECT_EQ(file->rules.merged_ids.size(), 127'741u);
  EXPECT_EQ(file->added_tokens.size(), 1'283u);
  size_t num_special = 0;
  for (const AddedToken& token : file->added_tokens) num_special += token.special;
  EXPECT_EQ(num_special, 1'229u);
}

}  // namespace
}  // namespace monostep::text
