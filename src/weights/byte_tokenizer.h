// The tokenizer of synthetic checkpoints: byte-level, no merges, so every byte is one id. Written by make-model in the
// Hugging Face format with the released pre-tokenizer and spellings of the special tokens.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/geometry.h"

namespace monostep::weights {

struct SpecialToken {
  int id = 0;
  std::string_view text;
  bool special = false;  // the file's own flag: left out of decoded text on request
};

// The tokens at the ids that the config names, then, where the vocabulary has room for all of them beside the 256
// bytes, the turn and thinking tokens. Ascending ids.
std::vector<SpecialToken> special_tokens(const model::Geometry& geometry);

// Whether the vocabulary holds 256 bytes and the special tokens that the config names.
bool byte_tokenizer_fits(const model::Geometry& geometry);

// Precondition of both: byte_tokenizer_fits(geometry).
std::string byte_tokenizer_json(const model::Geometry& geometry);         // tokenizer.json
std::string byte_tokenizer_config_json(const model::Geometry& geometry);  // tokenizer_config.json

}  // namespace monostep::weights
