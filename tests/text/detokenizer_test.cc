// Streaming decode: every recorded case, held-back characters, ill-formed bytes, special tokens left out.
#include "text/detokenizer.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <simdjson.h>

#include <vector>

#include "base/utf8.h"
#include "golden_tokenizer.h"
#include "tiny_tokenizer.h"

namespace monostep::text {
namespace {

using Ids = std::vector<int32_t>;

// The pieces handed out for each id, and what finish() adds, in brackets.
std::string steps(const Tokenizer& tokenizer, const Ids& ids, SpecialTokens special = SpecialTokens::kKeep) {
  Detokenizer detokenizer(tokenizer, special);
  std::string out;
  for (const int32_t id : ids) out += "[" + detokenizer.append(id).value() + "]";
  return out + "[" + detokenizer.finish() + "]";
}

std::string text_of(const Tokenizer& tokenizer, const Ids& ids, SpecialTokens special = SpecialTokens::kKeep) {
  Detokenizer detokenizer(tokenizer, special);
  std::string out;
  for (const int32_t id : ids) out += detokenizer.append(id).value();
  return out + detokenizer.finish();
}

Ids byte_ids(std::string_view bytes) {
  Ids ids;
  for (const char byte : bytes) ids.push_back(tiny_byte(byte));
  return ids;
}

std::string from_hex(std::string_view hex) {
  std::string bytes;
  for (size_t at = 0; at < hex.size(); at += 2) {
    bytes.push_back(static_cast<char>(std::stoi(std::string(hex.substr(at, 2)), nullptr, 16)));
  }
  return bytes;
}

void expect_recorded_text(simdjson::dom::element recorded) {
  Ids ids;
  std::string bytes;
  for (const int64_t id : recorded["ids"].get_array()) {
    ids.push_back(static_cast<int32_t>(id));
    bytes += golden_tokenizer().bytes_of(ids.back()).value();
  }
  EXPECT_EQ(bytes, from_hex(recorded["bytes"]));
  std::string_view text = bytes;
  if (recorded["text"].get(text) != simdjson::SUCCESS) text = bytes;
  EXPECT_EQ(text_of(golden_tokenizer(), ids), text);
  std::string_view without_special = text;
  if (recorded["text_without_special"].get(without_special) != simdjson::SUCCESS) without_special = text;
  EXPECT_EQ(text_of(golden_tokenizer(), ids, SpecialTokens::kSkip), without_special);
}

TEST(GoldenDetokenizer, every_recorded_case_has_the_official_bytes_and_text) {
  const std::string lines = read_golden_gz("detok.jsonl.gz");
  simdjson::dom::parser parser;
  size_t num_cases = 0;
  for (size_t begin = 0; begin < lines.size(); ++num_cases) {
    const size_t end = lines.find('\n', begin);
    const simdjson::dom::element recorded = parser.parse(lines.substr(begin, end - begin));
    SCOPED_TRACE(std::string_view(recorded["id"]));
    expect_recorded_text(recorded);
    begin = end + 1;
  }
  EXPECT_EQ(num_cases, 1'156u);
}

TEST(Detokenizer, a_character_is_held_until_it_is_complete) {
  const Tokenizer tokenizer = tiny_tokenizer();
  EXPECT_EQ(steps(tokenizer, byte_ids("a\u7684b")), "[a][][][\u7684][b][]");
  EXPECT_EQ(steps(tokenizer, byte_ids("\U0001f642")), "[][][][\U0001f642][]");
}

TEST(Detokenizer, an_unfinished_character_is_replaced_once) {
  const Tokenizer tokenizer = tiny_tokenizer();
  EXPECT_EQ(steps(tokenizer, byte_ids("a\xf0\x9f\x99")), "[a][][][][\ufffd]");
  EXPECT_EQ(steps(tokenizer, byte_ids("\xe7\x9a"
                                      "a\xe7\x9a\x84")),
            "[][][\ufffd"
            "a][][][\u7684][]");
}

TEST(Detokenizer, each_maximal_ill_formed_part_is_replaced_once) {
  const Tokenizer tokenizer = tiny_tokenizer();
  EXPECT_EQ(text_of(tokenizer, byte_ids("\x80\xff")), "\ufffd\ufffd");
  EXPECT_EQ(text_of(tokenizer, byte_ids("\xf0\x9f\x99\xe7\x9a\x80\xc0")), "\ufffd\u7680\ufffd");
  EXPECT_EQ(text_of(tokenizer, byte_ids("\xed\xa0\x80")), "\ufffd\ufffd\ufffd");
}

TEST(Detokenizer, a_token_after_an_unfinished_character_ends_it) {
  Ids ids = byte_ids("\xe7\x9a");
  ids.push_back(kTinyThink);
  EXPECT_EQ(steps(tiny_tokenizer(), ids), "[][][\ufffd<think>][]");
}

TEST(Detokenizer, special_tokens_are_left_out_where_asked) {
  const Tokenizer tokenizer = tiny_tokenizer();
  const Ids ids = {kTinyBegin, kTinyAb, kTinyThink, kTinyCall};
  EXPECT_EQ(text_of(tokenizer, ids, SpecialTokens::kKeep), "<s>ab<think><call>");
  EXPECT_EQ(text_of(tokenizer, ids, SpecialTokens::kSkip), "ab<think><call>");
}

TEST(Detokenizer, a_skipped_token_inside_a_character_does_not_end_it) {
  const Ids ids = {tiny_byte('\xc3'), kTinyBegin, tiny_byte('\xa9')};
  EXPECT_EQ(text_of(tiny_tokenizer(), ids, SpecialTokens::kSkip), "\u00e9");
}

TEST(Detokenizer, an_id_without_token_is_refused_and_changes_nothing) {
  const Tokenizer tokenizer = tiny_tokenizer();
  Detokenizer detokenizer(tokenizer, SpecialTokens::kKeep);
  EXPECT_EQ(detokenizer.append(tiny_byte('\xc3')).value(), "");
  EXPECT_FALSE(detokenizer.append(kTinyHole).ok());
  EXPECT_FALSE(detokenizer.append(-1).ok());
  EXPECT_FALSE(detokenizer.append(301).ok());
  EXPECT_EQ(detokenizer.append(tiny_byte('\xa9')).value(), "\u00e9");
}

TEST(Detokenizer, after_finish_a_new_text_may_start) {
  const Tokenizer tokenizer = tiny_tokenizer();
  Detokenizer detokenizer(tokenizer, SpecialTokens::kKeep);
  EXPECT_EQ(detokenizer.append(tiny_byte('\xc3')).value(), "");
  EXPECT_EQ(detokenizer.finish(), "\ufffd");
  EXPECT_EQ(detokenizer.append(tiny_byte('a')).value(), "a");
  EXPECT_EQ(detokenizer.finish(), "");
}

TEST(Detokenizer, what_is_handed_out_is_always_complete) {
  const Tokenizer tokenizer = tiny_tokenizer();
  EXPECT_TRUE(rc::check("bytes that often form characters", [&] {
    const auto bytes = *rc::gen::container<std::string>(
        rc::gen::element('a', '\x80', '\x9f', '\xbf', '\xc3', '\xe0', '\xe7', '\xed', '\xf0', '\xf4', '\xff'));
    Detokenizer detokenizer(tokenizer, SpecialTokens::kKeep);
    for (const int32_t id : byte_ids(bytes)) {
      const std::string piece = detokenizer.append(id).value();
      for (std::string_view rest = piece; !rest.empty(); rest.remove_prefix(next_utf8(rest).num_bytes)) {
        RC_ASSERT(next_utf8(rest).kind == Utf8Unit::Kind::kCodePoint);
      }
    }
  }));
}

}  // namespace
}  // namespace monostep::text
