// The tree of spellings of added_tokens.h.
#include "text/added_tokens.h"

namespace monostep::text {
namespace {

uint64_t edge_key(uint32_t node, char byte) { return static_cast<uint64_t>(node) << 8 | static_cast<uint8_t>(byte); }

}  // namespace

std::optional<AddedTokenFinder> AddedTokenFinder::create(const std::vector<AddedToken>& tokens) {
  size_t max_edges = 0;
  for (const AddedToken& token : tokens) max_edges += token.spelling.size();
  AddedTokenFinder finder(max_edges);
  for (const AddedToken& token : tokens) {
    if (!finder.insert(token)) return std::nullopt;
  }
  return finder;
}

bool AddedTokenFinder::insert(const AddedToken& token) {
  uint32_t node = 0;
  for (const char byte : token.spelling) {
    const uint32_t new_node = static_cast<uint32_t>(id_of_node_.size());
    switch (edges_.insert(edge_key(node, byte), new_node)) {
      case KeyTable::Inserted::kCrowded: return false;
      case KeyTable::Inserted::kPresent: node = edges_.find(edge_key(node, byte)); break;
      case KeyTable::Inserted::kNew:
        node = new_node;
        id_of_node_.push_back(kNoToken);
        break;
    }
  }
  id_of_node_[node] = token.id;
  starts_[static_cast<uint8_t>(token.spelling[0])] = true;
  return true;
}

std::optional<AddedTokenFinder::Match> AddedTokenFinder::find(std::string_view text, size_t from) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (!starts_[static_cast<uint8_t>(text[begin])]) continue;
    if (const auto match = longest_at(text, begin)) return match;
  }
  return std::nullopt;
}

std::optional<AddedTokenFinder::Match> AddedTokenFinder::longest_at(std::string_view text, size_t begin) const {
  std::optional<Match> longest;
  uint32_t node = 0;
  for (size_t at = begin; at < text.size(); ++at) {
    node = edges_.find(edge_key(node, text[at]));
    if (node == KeyTable::kNone) break;
    if (id_of_node_[node] != kNoToken) longest = Match{begin, at + 1, id_of_node_[node]};
  }
  return longest;
}

}  // namespace monostep::text
