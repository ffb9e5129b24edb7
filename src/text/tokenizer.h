// The model's tokenizer: text to ids and ids to bytes, equal to the official library on the released tokenizer.json.
// Immutable once loaded, so any number of threads may use it. Used by the prompt encoder, the detokenizer and `monostep
// tokenize`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/tokenizer_json.h"

namespace monostep::text {

class Tokenizer {
 public:
  // Reads a tokenizer.json; parse() takes its contents, with the name to use in messages.
  static Result<Tokenizer> load(const std::string& path);
  static Result<Tokenizer> parse(std::string_view json, const std::string& place);

  // The ids of `text`. With `honour_special` the spellings of added tokens become their ids; without, the whole text is
  // plain. Never adds a token of its own. Bytes that are not UTF-8 are kept, so the bytes of the ids are always those
  // of the text.
  std::vector<int32_t> encode(std::string_view text, bool honour_special) const;

  // The bytes of a token (the spelling of an added one), never empty; an error where the id has no token.
  Result<std::string_view> bytes_of(int64_t id) const;

  // One more than the highest id. A model's vocabulary may be larger.
  int32_t num_ids() const { return static_cast<int32_t>(token_bytes_.size()); }

  // Whether the id is a special token in the file's sense: what "skip special tokens" leaves out.
  bool is_special(int32_t id) const;

  // The id of an added token.
  std::optional<int32_t> id_of(std::string_view spelling) const;

 private:
  Tokenizer(TokenizerFile file, AddedTokenFinder first, AddedTokenFinder second);

  void append_plain(std::string_view text, PieceMerger* merger, std::vector<int32_t>* ids) const;
  void append_with_added(std::string_view text, size_t pass, PieceMerger* merger, std::vector<int32_t>* ids) const;

  std::vector<std::string> token_bytes_;  // [num_ids]; empty: no token
  MergeRules rules_;
  std::vector<bool> special_;              // [num_ids]
  std::vector<AddedTokenFinder> finders_;  // one a pass: the tokens that are not normalized, then those that are
};

}  // namespace monostep::text
