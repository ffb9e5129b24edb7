// Fuzz target: a hostile tokenizer.json, then text through what it gives. The input up to its first zero byte is the
// file, the rest is the text. Looks for crashes, hangs and text that does not come back. Seeds: fuzz/corpus/tokenizer/.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "text/detokenizer.h"
#include "text/tokenize_line.h"
#include "text/tokenizer.h"

namespace {

using monostep::text::Detokenizer;
using monostep::text::SpecialTokens;
using monostep::text::Tokenizer;

void check_round_trip(const Tokenizer& tokenizer, std::string_view text) {
  std::string bytes;
  Detokenizer detokenizer(tokenizer, SpecialTokens::kKeep);
  for (const int32_t id : tokenizer.encode(text, false)) {
    bytes += tokenizer.bytes_of(id).value();
    CHECK(detokenizer.append(id).ok(), "an encoded id decodes");
  }
  CHECK(bytes == text, "plain text comes back from its ids");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t num_bytes) {
  const std::string_view input(reinterpret_cast<const char*>(bytes), num_bytes);
  const size_t json_bytes = std::min(input.find('\0'), input.size());
  const auto tokenizer = Tokenizer::parse(input.substr(0, json_bytes), "fuzz");
  if (!tokenizer.ok()) return 0;
  const std::string_view text = input.substr(std::min(json_bytes + 1, input.size()));
  check_round_trip(*tokenizer, text);
  for (const int32_t id : tokenizer->encode(text, true))
    CHECK(tokenizer->bytes_of(id).ok(), "an encoded id has a token");
  CHECK(!monostep::text::answer_tokenize_line(*tokenizer, text).empty(), "each line is answered");
  return 0;
}
