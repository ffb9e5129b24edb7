// Search for added tokens: leftmost, then longest; overlaps; the end of the text.
#include "text/added_tokens.h"

#include <gtest/gtest.h>

namespace monostep::text {
namespace {

AddedTokenFinder finder_of(const std::vector<std::string>& spellings) {
  std::vector<AddedToken> tokens;
  for (size_t token_idx = 0; token_idx < spellings.size(); ++token_idx) {
    tokens.push_back({.id = static_cast<int32_t>(100 + token_idx), .spelling = spellings[token_idx]});
  }
  return AddedTokenFinder::create(tokens).value();
}

// "begin-end:id" of each match, one after the other.
std::string matches(const AddedTokenFinder& finder, std::string_view text) {
  std::string out;
  size_t from = 0;
  while (const auto match = finder.find(text, from)) {
    out += std::to_string(match->begin) + "-" + std::to_string(match->end) + ":" + std::to_string(match->id) + " ";
    from = match->end;
  }
  return out;
}

TEST(AddedTokens, no_tokens_match_nothing) { EXPECT_EQ(matches(finder_of({}), "abc"), ""); }

TEST(AddedTokens, each_occurrence_is_found_also_at_the_ends) {
  EXPECT_EQ(matches(finder_of({"<a>", "<b>"}), "<a>x<b><a>"), "0-3:100 4-7:101 7-10:100 ");
}

TEST(AddedTokens, a_cut_spelling_is_no_match) { EXPECT_EQ(matches(finder_of({"<think>"}), "<thin <think"), ""); }

TEST(AddedTokens, a_spelling_after_a_false_start_is_found) {
  EXPECT_EQ(matches(finder_of({"<<a"}), "<<<a"), "1-4:100 ");
}

TEST(AddedTokens, the_longest_of_those_at_one_place_wins) {
  EXPECT_EQ(matches(finder_of({"ab", "abcd", "abc"}), "abcx abcd"), "0-3:102 5-9:101 ");
}

TEST(AddedTokens, the_leftmost_wins_over_a_longer_one_that_overlaps) {
  EXPECT_EQ(matches(finder_of({"ab", "bcde"}), "abcde"), "0-2:100 ");
}

TEST(AddedTokens, a_spelling_that_overlaps_itself_is_taken_first_come) {
  EXPECT_EQ(matches(finder_of({"|D|"}), "|D|D|"), "0-3:100 ");
  EXPECT_EQ(matches(finder_of({"|D|"}), "|D||D|"), "0-3:100 3-6:100 ");
}

}  // namespace
}  // namespace monostep::text
