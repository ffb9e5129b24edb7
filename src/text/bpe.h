// Byte-pair merging: the ids of one piece of text. Starts from one symbol a byte and joins, again and again, the
// neighbours whose merge comes first in the file's list (the leftmost of equals). Called by tokenizer.cc.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "text/key_table.h"

namespace monostep::text {

// The rules, shared by all encodings.
struct MergeRules {
  std::array<int32_t, 256> byte_ids = {};  // the id of each single byte
  KeyTable ranks;                          // pair_key(left, right) -> rank, lower merges first
  std::vector<int32_t> merged_ids;         // [rank] the id of the joined pair

  static uint64_t pair_key(int32_t left, int32_t right) {
    return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
  }
};

// Merges pieces one after the other, with buffers that are kept. O(n log n) for a piece of n bytes, n < 2^32.
class PieceMerger {
 public:
  explicit PieceMerger(const MergeRules& rules) : rules_(rules) {}

  // Appends the ids of `piece`, which is not empty.
  void append_ids(std::string_view piece, std::vector<int32_t>* ids);

 private:
  struct Symbol {
    int32_t id = 0;  // kDead once joined to its left neighbour
    uint32_t prev = 0;
    uint32_t next = 0;
  };
  struct Candidate {
    uint64_t order = 0;  // rank << 32 | position of the left symbol: smaller is merged first
    uint64_t pair = 0;   // the two ids it was made for; it is stale when they have changed
  };

  void start(std::string_view piece);
  void add_candidate(uint32_t left_idx);
  void merge(const Candidate& candidate);

  const MergeRules& rules_;
  std::vector<Symbol> symbols_;        // [bytes of the piece]; the first one stays first
  std::vector<Candidate> candidates_;  // a heap, the first to merge on top
};

}  // namespace monostep::text
