// Reads and checks tokenizer.json; the top function is the order of the checks. simdjson's DOM, whose strings are
// checked UTF-8.
#include "text/tokenizer_json.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "text/byte_symbols.h"
#include "text/json_node.h"
#include "text/tokenizer_settings.h"

namespace monostep::text {
namespace {

Result<int32_t> read_id(const Node& node) {
  TRY_ASSIGN(const int64_t id, read_integer(node));
  if (id < 0 || id >= kMaxTokenIds) {
    return corrupt(fmt::format("expected an id in [0, {}), found {}", kMaxTokenIds, id), node.place);
  }
  return static_cast<int32_t>(id);
}

// The vocabulary's spellings as the file has them, both ways. The views live as long as the parsed document.
struct Spellings {
  std::vector<std::string_view> of_id;  // [highest id + 1]; empty: no entry
  KeyTable ids;                         // spelling_key -> id

  std::optional<int32_t> find(std::string_view spelling) const {
    const uint32_t id = ids.find(spelling_key(spelling));
    if (id == KeyTable::kNone || of_id[id] != spelling) return std::nullopt;
    return static_cast<int32_t>(id);
  }

  Status insert(std::string_view spelling, int32_t id, const std::string& place) {
    const size_t slot_idx = static_cast<size_t>(id);
    if (spelling.empty()) return corrupt("an entry has an empty spelling", place);
    if (of_id.size() <= slot_idx) of_id.resize(slot_idx + 1);
    if (!of_id[slot_idx].empty()) {
      return corrupt(fmt::format("{} and {} share the id {}", shown(of_id[slot_idx]), shown(spelling), id), place);
    }
    switch (ids.insert(spelling_key(spelling), static_cast<uint32_t>(id))) {
      case KeyTable::Inserted::kNew: break;
      case KeyTable::Inserted::kPresent: return corrupt(fmt::format("{} is there twice", shown(spelling)), place);
      case KeyTable::Inserted::kCrowded: return corrupt("the spellings crowd one part of the table", place);
    }
    of_id[slot_idx] = spelling;
    return {};
  }
};

Result<Spellings> read_vocab(const Node& vocab) {
  TRY_ASSIGN(const dom::object object, read_object(vocab));
  size_t num_entries = 0;
  for ([[maybe_unused]] const auto field : object) ++num_entries;
  if (num_entries > kMaxTokenIds) {
    return corrupt(fmt::format("expected at most {} entries, found {}", kMaxTokenIds, num_entries), vocab.place);
  }
  Spellings spellings;
  spellings.ids = KeyTable(num_entries);
  for (const auto field : object) {
    const auto id = read_id(Node{field.value, ""});
    if (!id.ok()) return corrupt(id.error().text, fmt::format("{}[{}]", vocab.place, shown(field.key)));
    TRY(spellings.insert(field.key, *id, vocab.place));
  }
  return spellings;
}

// Fills the bytes of the vocabulary's tokens. An entry with a character outside the byte alphabet stands for itself, as
// in the official library; merging never makes it.
Status set_token_bytes(const Spellings& spellings, const Node& vocab, TokenizerFile* file) {
  std::array<bool, 256> found = {};
  file->token_bytes.resize(spellings.of_id.size());
  for (size_t id = 0; id < spellings.of_id.size(); ++id) {
    const auto bytes = bytes_of_symbols(spellings.of_id[id]);
    file->token_bytes[id] = bytes ? *bytes : std::string(spellings.of_id[id]);
    if (!bytes || bytes->size() != 1) continue;
    const size_t byte = static_cast<uint8_t>(bytes->front());
    found[byte] = true;
    file->rules.byte_ids[byte] = static_cast<int32_t>(id);
  }
  const auto missing = std::find(found.begin(), found.end(), false);
  if (missing == found.end()) return {};
  return corrupt(fmt::format("no entry for the byte 0x{:02x}", missing - found.begin()), vocab.place);
}

struct MergeSpelling {
  std::string_view left, right;
};

// A merge is ["a","b"], or "a b" in older files.
Result<MergeSpelling> read_merge(const Node& node) {
  dom::array parts;
  if (node.element->get_array().get(parts) == simdjson::SUCCESS) {
    if (parts.size() != 2) return corrupt(fmt::format("expected 2 parts, found {}", parts.size()), node.place);
    std::string_view sides[2];
    size_t side_idx = 0;
    TRY(for_each_item(node, parts, [&](const Node& part) -> Status {
      TRY_ASSIGN(sides[side_idx++], read_string(part));
      return {};
    }));
    return MergeSpelling{sides[0], sides[1]};
  }
  TRY_ASSIGN(const std::string_view both, read_string(node));
  const size_t space = both.find(' ');
  if (space == std::string_view::npos || both.find(' ', space + 1) != std::string_view::npos) {
    return corrupt(fmt::format("expected two parts with one space between them, found {}", shown(both)), node.place);
  }
  return MergeSpelling{both.substr(0, space), both.substr(space + 1)};
}

Result<int32_t> vocab_id(const Spellings& spellings, std::string_view spelling, const std::string& place) {
  if (const auto id = spellings.find(spelling)) return *id;
  return corrupt(fmt::format("{} is not in the vocabulary", shown(spelling)), place);
}

Status add_merge(const Node& node, const Spellings& spellings, MergeRules* rules) {
  TRY_ASSIGN(const MergeSpelling merge, read_merge(node));
  TRY_ASSIGN(const int32_t left, vocab_id(spellings, merge.left, node.place));
  TRY_ASSIGN(const int32_t right, vocab_id(spellings, merge.right, node.place));
  const std::string joined = std::string(merge.left).append(merge.right);
  TRY_ASSIGN(const int32_t merged, vocab_id(spellings, joined, node.place));
  const uint32_t rank = static_cast<uint32_t>(rules->merged_ids.size());
  switch (rules->ranks.insert(MergeRules::pair_key(left, right), rank)) {
    case KeyTable::Inserted::kNew: break;
    case KeyTable::Inserted::kPresent: return corrupt("the same merge is there twice", node.place);
    case KeyTable::Inserted::kCrowded: return corrupt("the merges crowd one part of the table", node.place);
  }
  rules->merged_ids.push_back(merged);
  return {};
}

Status read_merges(const Node& merges, const Spellings& spellings, MergeRules* rules) {
  TRY_ASSIGN(const dom::array array, read_array(merges));
  size_t num_merges = 0;  // array.size() saturates at 2^24 - 1
  for ([[maybe_unused]] const dom::element element : array) ++num_merges;
  if (num_merges > kMaxTokenIds) {
    return corrupt(fmt::format("expected at most {} merges, found {}", kMaxTokenIds, num_merges), merges.place);
  }
  rules->ranks = KeyTable(num_merges);
  rules->merged_ids.reserve(num_merges);
  return for_each_item(merges, array, [&](const Node& merge) { return add_merge(merge, spellings, rules); });
}

Result<AddedToken> read_added_token(const Node& node) {
  AddedToken token;
  TRY_ASSIGN(token.id, read_id(child(node, "id")));
  TRY_ASSIGN(const std::string_view spelling, read_string(child(node, "content")));
  if (spelling.empty() || spelling.size() > kMaxAddedTokenBytes) {
    return corrupt(fmt::format("expected 1 to {} bytes, found {}", kMaxAddedTokenBytes, spelling.size()),
                   child(node, "content").place);
  }
  token.spelling = spelling;
  TRY(expect_false(child(node, "single_word")));
  TRY(expect_false(child(node, "lstrip")));
  TRY(expect_false(child(node, "rstrip")));
  TRY_ASSIGN(token.normalized, read_bool(child(node, "normalized")));
  TRY_ASSIGN(token.special, read_bool(child(node, "special")));
  return token;
}

// An added token may also be a vocabulary entry, then under the same id; else its id is free.
Status place_added_token(AddedToken token, const Spellings& spellings, TokenizerFile* file) {
  const size_t slot_idx = static_cast<size_t>(token.id);
  if (file->token_bytes.size() <= slot_idx) file->token_bytes.resize(slot_idx + 1);
  const auto entry = spellings.find(token.spelling);
  if (entry && *entry != token.id) {
    return corrupt(
        fmt::format("{} has the id {} here and {} in the vocabulary", shown(token.spelling), token.id, *entry), "");
  }
  if (!entry && !file->token_bytes[slot_idx].empty()) {
    return corrupt(fmt::format("{} has the id {} of another token", shown(token.spelling), token.id), "");
  }
  if (!entry) file->token_bytes[slot_idx] = token.spelling;
  file->added_tokens.push_back(std::move(token));
  return {};
}

// Two added tokens with one spelling would differ only in which id wins.
Status refuse_repeated_spellings(const std::vector<AddedToken>& tokens, const std::string& place) {
  std::vector<std::string_view> sorted;
  sorted.reserve(tokens.size());
  for (const AddedToken& token : tokens) sorted.push_back(token.spelling);
  std::sort(sorted.begin(), sorted.end());
  const auto repeated = std::adjacent_find(sorted.begin(), sorted.end());
  if (repeated == sorted.end()) return {};
  return corrupt(fmt::format("{} is there twice", shown(*repeated)), place);
}

Status read_added_tokens(const Node& added, const Spellings& spellings, TokenizerFile* file) {
  if (added.is_null()) return {};
  TRY_ASSIGN(const dom::array array, read_array(added));
  size_t total_bytes = 0;
  TRY(for_each_item(added, array, [&](const Node& node) -> Status {
    TRY_ASSIGN(AddedToken token, read_added_token(node));
    total_bytes += token.spelling.size();
    if (total_bytes > kMaxAddedTokensBytes) {
      return corrupt(fmt::format("the spellings have more than {} bytes", kMaxAddedTokensBytes), "");
    }
    return place_added_token(std::move(token), spellings, file);
  }));
  return refuse_repeated_spellings(file->added_tokens, added.place);
}

}  // namespace

Result<TokenizerFile> parse_tokenizer_json(std::string_view json, const std::string& place) {
  if (json.size() > kMaxTokenizerBytes) {
    return corrupt(fmt::format("expected at most {} bytes, found {}", kMaxTokenizerBytes, json.size()), place);
  }
  dom::parser parser;
  dom::element document;
  if (const auto code = parser.parse(json.data(), json.size()).get(document); code != simdjson::SUCCESS) {
    return corrupt(fmt::format("not JSON: {}", simdjson::error_message(code)), place);
  }
  const Node root{document, place};
  const Node model = child(root, "model");
  TRY(check_tokenizer_settings(root));
  TokenizerFile file;
  TRY_ASSIGN(const Spellings spellings, read_vocab(child(model, "vocab")));
  TRY(set_token_bytes(spellings, child(model, "vocab"), &file));
  TRY(read_merges(child(model, "merges"), spellings, &file.rules));
  TRY(read_added_tokens(child(root, "added_tokens"), spellings, &file));
  return file;
}

}  // namespace monostep::text
