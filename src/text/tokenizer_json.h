// Reads tokenizer.json (the format of the Hugging Face tokenizers library) into plain data. It accepts one kind of
// tokenizer, that of the released checkpoint: byte-level BPE behind the three splits of pieces.h, without normaliser.
// Whatever would change the ids and is not of that kind is refused by the name of its key. Called by tokenizer.cc.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/added_tokens.h"
#include "text/bpe.h"

namespace monostep::text {

// Bounds on what is read: about five times the released file in each respect.
inline constexpr size_t kMaxTokenizerBytes = 32 << 20;
inline constexpr int32_t kMaxTokenIds = 1 << 20;
inline constexpr size_t kMaxAddedTokenBytes = 1 << 10;
inline constexpr size_t kMaxAddedTokensBytes = 1 << 20;

struct TokenizerFile {
  std::vector<std::string> token_bytes;  // [highest id + 1]; empty where the id has no token
  MergeRules rules;
  std::vector<AddedToken> added_tokens;
};

// `place` is the file's name for messages.
Result<TokenizerFile> parse_tokenizer_json(std::string_view json, const std::string& place);

}  // namespace monostep::text
