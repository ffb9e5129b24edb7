// Turns ids into text as they come. Tokens end anywhere inside a character, so bytes that may still become one are held
// back; joined, the pieces handed out are the text of all bytes. Used for every streamed answer and by `monostep
// tokenize`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "text/tokenizer.h"

namespace monostep::text {

enum class SpecialTokens { kKeep, kSkip };

class Detokenizer {
 public:
  // `tokenizer` must outlive the detokenizer.
  Detokenizer(const Tokenizer& tokenizer, SpecialTokens special) : tokenizer_(tokenizer), special_(special) {}

  // The text that is complete with this token: well-formed UTF-8, possibly empty, with one U+FFFD for each maximal
  // ill-formed part of the bytes. An id without token is an error and changes nothing.
  Result<std::string> append(int32_t id);

  // What was held back, as U+FFFD; empty if nothing was. Afterwards a new text may start.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  SpecialTokens special_;
  std::string held_;  // an incomplete character, at most three bytes
};

}  // namespace monostep::text
