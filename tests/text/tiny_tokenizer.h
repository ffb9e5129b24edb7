// A small tokenizer.json for tests: the released file's settings, the 256 byte symbols (byte b has the id b + 3), three
// merges and three added tokens, one of them far above the others. Tests damage its text and look at what is refused.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json_text.h"
#include "text/pieces.h"
#include "text/tokenizer.h"

namespace monostep::text {

inline constexpr int32_t kTinyAb = 259;      // "ab", merge 0
inline constexpr int32_t kTinyAbc = 260;     // "abc" = "ab" + "c", merge 1
inline constexpr int32_t kTinySpaceA = 261;  // " a", merge 2
inline constexpr int32_t kTinyBegin = 0;     // "<s>": special
inline constexpr int32_t kTinyCall = 270;    // "<call>": neither special nor normalized
inline constexpr int32_t kTinyThink = 300;   // "<think>": normalized, not special
inline constexpr int32_t kTinyHole = 280;    // no token

inline int32_t tiny_byte(char byte) { return static_cast<uint8_t>(byte) + 3; }

inline std::string json_string(std::string_view text) {
  std::string out;
  append_json_string(out, text, true);
  return out;
}

// The symbol of a byte in quotes: visible characters of Latin-1 stand for themselves, the others count up from U+0100.
inline std::string byte_symbol_json(int byte) {
  const auto visible = [](int b) { return (b > 0x20 && b < 0x7f) || (b > 0xa0 && b != 0xad); };
  int code_point = 0x100;
  for (int other = 0; other < byte; ++other) code_point += visible(other) ? 0 : 1;
  if (visible(byte)) code_point = byte;
  if (code_point < 0x80) return json_string(std::string(1, static_cast<char>(code_point)));
  const char utf8[] = {static_cast<char>(0xc0 | code_point >> 6), static_cast<char>(0x80 | (code_point & 0x3f)), 0};
  return json_string(utf8);
}

inline std::string split_json(std::string_view pattern) {
  return "{\"type\":\"Split\",\"pattern\":{\"Regex\":" + json_string(pattern) +
         "},\"behavior\":\"Isolated\",\"invert\":false}";
}

inline std::string added_token_json(int32_t id, std::string_view spelling, bool normalized, bool special) {
  const auto word = [](bool value) { return std::string(value ? "true" : "false"); };
  return "{\"id\":" + std::to_string(id) + ",\"content\":" + json_string(spelling) +
         ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":" + word(normalized) +
         ",\"special\":" + word(special) + "}";
}

inline std::string tiny_tokenizer_json() {
  std::string vocab;
  for (int byte = 0; byte < 256; ++byte) vocab += byte_symbol_json(byte) + ":" + std::to_string(byte + 3) + ",";
  return "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[" +
         added_token_json(kTinyBegin, "<s>", false, true) + "," + added_token_json(kTinyCall, "<call>", false, false) +
         "," + added_token_json(kTinyThink, "<think>", true, false) +
         "],\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[]},"
         "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[" +
         split_json(kNumberPattern) + "," + split_json(kCjkPattern) + "," + split_json(kWordPattern) +
         ",{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false}]},"
         "\"post_processor\":{\"type\":\"ByteLevel\"},\"decoder\":{\"type\":\"ByteLevel\"},"
         "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":null,"
         "\"end_of_word_suffix\":null,\"fuse_unk\":false,\"byte_fallback\":false,\"vocab\":{" +
         vocab + "\"ab\":259,\"abc\":260,\"\\u0120a\":261},\"merges\":[\"a b\",[\"ab\",\"c\"],\"\\u0120 a\"]}}";
}

// The tiny file with one part replaced; the part must be there exactly once.
inline std::string tiny_tokenizer_with(std::string_view part, std::string_view replacement) {
  std::string json = tiny_tokenizer_json();
  const size_t begin = json.find(part);
  EXPECT_NE(begin, std::string::npos) << part;
  EXPECT_EQ(json.find(part, begin + 1), std::string::npos) << part;
  return begin == std::string::npos ? json : json.replace(begin, part.size(), replacement);
}

// The message with which a file is refused; empty if it is accepted.
inline std::string refusal_of(std::string_view json) {
  const auto tokenizer = Tokenizer::parse(json, "f");
  return tokenizer.ok() ? std::string() : tokenizer.error().message();
}

inline Tokenizer tiny_tokenizer() { return Tokenizer::parse(tiny_tokenizer_json(), "tiny").value(); }

}  // namespace monostep::text
