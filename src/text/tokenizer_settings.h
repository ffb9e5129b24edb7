// The settings of a tokenizer.json that would change the ids: each must have the value that the released file has, or
// be refused by name. Called by tokenizer_json.cc before it reads the vocabulary.
#pragma once

#include "base/result.h"
#include "text/json_node.h"

namespace monostep::text {

// An absent key has its neutral value.
Status expect_null(const Node& node);
Status expect_false(const Node& node);

// Checks everything but the vocabulary, the merges and the added tokens. `root` is the whole file.
Status check_tokenizer_settings(const Node& root);

}  // namespace monostep::text
