// The tokenizer of tokenizer.h: added tokens are cut out first, in two passes; pieces.h cuts what is left; bpe.h merges
// the pieces.
#include "text/tokenizer.h"

#include <fmt/format.h>

#include <utility>

#include "base/mapped_file.h"
#include "text/pieces.h"

namespace monostep::text {

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool honour_special) const {
  std::vector<int32_t> ids;
  PieceMerger merger(rules_);
  if (honour_special) {
    append_with_added(text, 0, &merger, &ids);
  } else {
    append_plain(text, &merger, &ids);
  }
  return ids;
}

// Cuts the added tokens of one pass out of `text`; what lies between them goes to the next pass.
void Tokenizer::append_with_added(std::string_view text, size_t pass, PieceMerger* merger,
                                  std::vector<int32_t>* ids) const {
  if (pass == finders_.size()) return append_plain(text, merger, ids);
  size_t begin = 0;
  while (const auto match = finders_[pass].find(text, begin)) {
    append_with_added(text.substr(begin, match->begin - begin), pass + 1, merger, ids);
    ids->push_back(match->id);
    begin = match->end;
  }
  append_with_added(text.substr(begin), pass + 1, merger, ids);
}

void Tokenizer::append_plain(std::string_view text, PieceMerger* merger, std::vector<int32_t>* ids) const {
  PieceScanner scanner(text);
  for (std::string_view piece = scanner.next(); !piece.empty(); piece = scanner.next()) merger->append_ids(piece, ids);
}

Result<std::string_view> Tokenizer::bytes_of(int64_t id) const {
  if (id < 0 || id >= num_ids()) {
    return Error{Code::kInvalidArgument, fmt::format("expected a token id in [0, {}), found {}", num_ids(), id), ""};
  }
  const std::string& bytes = token_bytes_[static_cast<size_t>(id)];
  if (bytes.empty()) return Error{Code::kInvalidArgument, fmt::format("token id {} has no token", id), ""};
  return std::string_view(bytes);
}

bool Tokenizer::is_special(int32_t id) const { return id >= 0 && id < num_ids() && special_[static_cast<size_t>(id)]; }

std::optional<int32_t> Tokenizer::id_of(std::string_view spelling) const {
  for (const AddedTokenFinder& finder : finders_) {
    const auto match = finder.find(spelling, 0);
    if (match && match->begin == 0 && match->end == spelling.size()) return match->id;
  }
  return std::nullopt;
}

Result<Tokenizer> Tokenizer::load(const std::string& path) {
  TRY_ASSIGN(const std::string json, read_text_file(path, kMaxTokenizerBytes));
  return parse(json, path);
}

Result<Tokenizer> Tokenizer::parse(std::string_view json, const std::string& place) {
  TRY_ASSIGN(TokenizerFile file, parse_tokenizer_json(json, place));
  std::vector<AddedToken> first;
  std::vector<AddedToken> second;
  for (const AddedToken& token : file.added_tokens) (token.normalized ? second : first).push_back(token);
  auto first_finder = AddedTokenFinder::create(first);
  auto second_finder = AddedTokenFinder::create(second);
  if (!first_finder || !second_finder) {
    return Error{Code::kCorrupt, "the spellings crowd one part of the table", place + ": added_tokens"};
  }
  return Tokenizer(std::move(file), *std::move(first_finder), *std::move(second_finder));
}

Tokenizer::Tokenizer(TokenizerFile file, AddedTokenFinder first, AddedTokenFinder second)
    : token_bytes_(std::move(file.token_bytes)), rules_(std::move(file.rules)), special_(token_bytes_.size()) {
  finders_.push_back(std::move(first));
  finders_.push_back(std::move(second));
  for (const AddedToken& token : file.added_tokens) special_[static_cast<size_t>(token.id)] = token.special;
}

}  // namespace monostep::text
