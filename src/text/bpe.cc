// The merge loop of bpe.h: a linked list of symbols and a heap of candidate pairs. Stale candidates stay in the heap
// and are dropped when they come up.
#include "text/bpe.h"

#include <algorithm>

#include "base/check.h"

namespace monostep::text {
namespace {

constexpr int32_t kDead = -1;
constexpr uint32_t kEnd = ~0u;

}  // namespace

void PieceMerger::append_ids(std::string_view piece, std::vector<int32_t>* ids) {
  CHECK(piece.size() < kEnd, "a piece has fewer than 2^32 - 1 bytes");
  start(piece);
  const auto later = [](const Candidate& a, const Candidate& b) { return a.order > b.order; };
  std::make_heap(candidates_.begin(), candidates_.end(), later);
  while (!candidates_.empty()) {
    std::pop_heap(candidates_.begin(), candidates_.end(), later);
    const Candidate candidate = candidates_.back();
    candidates_.pop_back();
    const size_t num_before = candidates_.size();
    merge(candidate);
    for (size_t count = num_before + 1; count <= candidates_.size(); ++count) {
      std::push_heap(candidates_.begin(), candidates_.begin() + static_cast<ptrdiff_t>(count), later);
    }
  }
  for (uint32_t symbol_idx = 0; symbol_idx != kEnd; symbol_idx = symbols_[symbol_idx].next) {
    ids->push_back(symbols_[symbol_idx].id);
  }
}

void PieceMerger::start(std::string_view piece) {
  const uint32_t num_symbols = static_cast<uint32_t>(piece.size());
  symbols_.resize(num_symbols);
  for (uint32_t symbol_idx = 0; symbol_idx < num_symbols; ++symbol_idx) {
    const uint32_t next = symbol_idx + 1 == num_symbols ? kEnd : symbol_idx + 1;
    symbols_[symbol_idx] = {rules_.byte_ids[static_cast<uint8_t>(piece[symbol_idx])], symbol_idx - 1, next};
  }
  candidates_.clear();
  for (uint32_t symbol_idx = 0; symbol_idx < num_symbols; ++symbol_idx) add_candidate(symbol_idx);
}

// Offers the pair that starts at `left_idx` for merging, if there is a rule for it.
void PieceMerger::add_candidate(uint32_t left_idx) {
  const Symbol& left = symbols_[left_idx];
  if (left.next == kEnd) return;
  const uint64_t pair = MergeRules::pair_key(left.id, symbols_[left.next].id);
  const uint32_t rank = rules_.ranks.find(pair);
  if (rank != KeyTable::kNone) candidates_.push_back({static_cast<uint64_t>(rank) << 32 | left_idx, pair});
}

void PieceMerger::merge(const Candidate& candidate) {
  const uint32_t left_idx = static_cast<uint32_t>(candidate.order);
  Symbol& left = symbols_[left_idx];
  if (left.id == kDead || left.next == kEnd) return;
  Symbol& right = symbols_[left.next];
  if (MergeRules::pair_key(left.id, right.id) != candidate.pair) return;
  left.id = rules_.merged_ids[candidate.order >> 32];
  left.next = right.next;
  right.id = kDead;
  if (left.next != kEnd) symbols_[left.next].prev = left_idx;
  if (left_idx != 0) add_candidate(left.prev);
  add_candidate(left_idx);
}

}  // namespace monostep::text
