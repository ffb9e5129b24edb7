// Merging: order of merges, the leftmost of equals, equality with the obvious loop on random rules, and long pieces.
#include "text/bpe.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <chrono>
#include <map>
#include <string>
#include <utility>

namespace monostep::text {
namespace {

using Ids = std::vector<int32_t>;

struct Merge {
  int32_t left, right, merged;
};

// Byte b has the id b.
MergeRules rules_of(const std::vector<Merge>& merges) {
  MergeRules rules;
  for (int byte = 0; byte < 256; ++byte) rules.byte_ids[static_cast<size_t>(byte)] = byte;
  rules.ranks = KeyTable(merges.size());
  for (const Merge& merge : merges) {
    rules.ranks.insert(MergeRules::pair_key(merge.left, merge.right), static_cast<uint32_t>(rules.merged_ids.size()));
    rules.merged_ids.push_back(merge.merged);
  }
  return rules;
}

Ids ids_of(const MergeRules& rules, std::string_view piece) {
  Ids ids;
  PieceMerger(rules).append_ids(piece, &ids);
  return ids;
}

// The definition: while any pair has a rule, join the leftmost pair of the lowest rank.
Ids ids_by_definition(const MergeRules& rules, std::string_view piece) {
  Ids ids;
  for (const char byte : piece) ids.push_back(static_cast<uint8_t>(byte));
  for (;;) {
    uint32_t best_rank = KeyTable::kNone;
    size_t best_idx = 0;
    for (size_t left_idx = 0; left_idx + 1 < ids.size(); ++left_idx) {
      const uint32_t rank = rules.ranks.find(MergeRules::pair_key(ids[left_idx], ids[left_idx + 1]));
      if (rank < best_rank) best_rank = rank, best_idx = left_idx;
    }
    if (best_rank == KeyTable::kNone) return ids;
    ids[best_idx] = rules.merged_ids[best_rank];
    ids.erase(ids.begin() + static_cast<ptrdiff_t>(best_idx) + 1);
  }
}

TEST(Bpe, without_merges_each_byte_is_a_token) {
  EXPECT_EQ(ids_of(rules_of({}), "ab\xff"), (Ids{'a', 'b', 0xff}));
  EXPECT_EQ(ids_of(rules_of({}), "a"), (Ids{'a'}));
}

TEST(Bpe, the_earlier_merge_goes_first) {
  const auto bc_first = rules_of({{'b', 'c', 300}, {'a', 'b', 301}});
  EXPECT_EQ(ids_of(bc_first, "abc"), (Ids{'a', 300}));
  const auto ab_first = rules_of({{'a', 'b', 301}, {'b', 'c', 300}});
  EXPECT_EQ(ids_of(ab_first, "abc"), (Ids{301, 'c'}));
}

TEST(Bpe, the_leftmost_of_equal_merges_goes_first) {
  EXPECT_EQ(ids_of(rules_of({{'a', 'a', 300}}), "aaa"), (Ids{300, 'a'}));
  EXPECT_EQ(ids_of(rules_of({{'a', 'a', 300}, {300, 300, 301}}), "aaaaaaa"), (Ids{301, 300, 'a'}));
}

TEST(Bpe, one_merger_takes_piece_after_piece) {
  const MergeRules rules = rules_of({{'a', 'b', 300}});
  PieceMerger merger(rules);
  Ids ids;
  merger.append_ids("abab", &ids);
  merger.append_ids("ba", &ids);
  EXPECT_EQ(ids, (Ids{300, 300, 'b', 'a'}));
}

TEST(Bpe, random_rules_merge_as_the_definition_says) {
  EXPECT_TRUE(rc::check("heap and definition", [] {
    std::vector<Merge> merges;
    std::vector<int32_t> symbols = {'a', 'b', 'c'};
    std::map<std::pair<int32_t, int32_t>, bool> used;
    const int num_merges = *rc::gen::inRange(0, 30);
    for (int merge_idx = 0; merge_idx < num_merges; ++merge_idx) {
      const int32_t left = *rc::gen::elementOf(symbols);
      const int32_t right = *rc::gen::elementOf(symbols);
      if (!used.emplace(std::make_pair(left, right), true).second) continue;
      merges.push_back({left, right, 300 + merge_idx});
      symbols.push_back(300 + merge_idx);
    }
    const auto piece = *rc::gen::nonEmpty(rc::gen::container<std::string>(rc::gen::element('a', 'b', 'c')));
    const MergeRules rules = rules_of(merges);
    RC_ASSERT(ids_of(rules, piece) == ids_by_definition(rules, piece));
  }));
}

TEST(Bpe, a_piece_of_a_million_letters_does_not_take_quadratic_time) {
  const MergeRules rules = rules_of({{'a', 'a', 300}, {300, 300, 301}, {301, 301, 302}});
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(ids_of(rules, std::string(1 << 20, 'a')), Ids(1 << 17, 302));
  // Takes about 0.3 s; a quadratic loop would take hours.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
}

}  // namespace
}  // namespace monostep::text
