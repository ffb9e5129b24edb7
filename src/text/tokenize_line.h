// The JSON lines of `monostep tokenize`: one request object in, one answer object out. Called by apps/tokenize.cc.
//   {"text": "...", "special": true}  ->  {"ids":[...]}            "special" is optional, true by default
//   (Tokenizer::encode)
//   {"ids": [...]}                    ->  {"text":"...","bytes_hex":"..."}
//   anything else                     ->  {"error":"..."}
// Other keys are ignored. Answers are ASCII.
#pragma once

#include <string>
#include <string_view>

#include "text/tokenizer.h"

namespace monostep::text {

// The answer to one line, without a newline. Any bytes may come.
std::string answer_tokenize_line(const Tokenizer& tokenizer, std::string_view line);

}  // namespace monostep::text
