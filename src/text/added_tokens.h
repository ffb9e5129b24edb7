// Finds the spellings of added tokens in a text: leftmost first, the longest of those that start at one place. Built by
// tokenizer.cc, once for the tokens that are matched before normalising and once for the others.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/key_table.h"

namespace monostep::text {

struct AddedToken {
  int32_t id = 0;
  std::string spelling;     // not empty
  bool normalized = false;  // matched after all tokens that are not
  bool special = false;     // left out of decoded text when special tokens are skipped
};

class AddedTokenFinder {
 public:
  // Nothing where the table of the spellings' tree is crowded (KeyTable::insert).
  static std::optional<AddedTokenFinder> create(const std::vector<AddedToken>& tokens);

  struct Match {
    size_t begin = 0;
    size_t end = 0;
    int32_t id = 0;
  };

  // The first match that starts at `from` or later. At most `longest spelling` steps for each byte of the text.
  std::optional<Match> find(std::string_view text, size_t from) const;

 private:
  explicit AddedTokenFinder(size_t max_edges) : edges_(max_edges), id_of_node_{kNoToken} {}

  static constexpr int32_t kNoToken = -1;

  bool insert(const AddedToken& token);
  std::optional<Match> longest_at(std::string_view text, size_t begin) const;

  std::array<bool, 256> starts_ = {};  // whether a spelling starts with the byte
  KeyTable edges_;                     // node << 8 | byte -> node; the root is 0
  std::vector<int32_t> id_of_node_;    // [node] the token that ends there, or kNoToken
};

}  // namespace monostep::text
