// The hash table: what was added is found, nothing else is, and keys that fall together are refused before they slow it
// down.
#include "text/key_table.h"

#include <gtest/gtest.h>

#include <unordered_map>

namespace monostep::text {
namespace {

TEST(KeyTable, finds_what_was_added_and_nothing_else) {
  constexpr uint32_t kNumKeys = 100'000;
  const auto key_of = [](uint64_t key_idx) { return key_idx * key_idx * 0x9e3779b9u; };
  KeyTable table(kNumKeys);
  for (uint32_t key_idx = 1; key_idx <= kNumKeys; ++key_idx) {
    ASSERT_EQ(table.insert(key_of(key_idx), key_idx), KeyTable::Inserted::kNew);
  }
  for (uint32_t key_idx = 1; key_idx <= kNumKeys; ++key_idx) ASSERT_EQ(table.find(key_of(key_idx)), key_idx);
  EXPECT_EQ(table.find(0), KeyTable::kNone);
  for (uint64_t key_idx = 1; key_idx <= kNumKeys; ++key_idx)
    ASSERT_EQ(table.find(key_of(key_idx) + 1), KeyTable::kNone);
}

TEST(KeyTable, an_empty_table_has_no_keys) { EXPECT_EQ(KeyTable().find(0), KeyTable::kNone); }

TEST(KeyTable, a_key_keeps_its_first_value) {
  KeyTable table(2);
  EXPECT_EQ(table.insert(7, 1), KeyTable::Inserted::kNew);
  EXPECT_EQ(table.insert(7, 2), KeyTable::Inserted::kPresent);
  EXPECT_EQ(table.find(7), 1u);
}

// The number whose product with an odd factor is 1, modulo 2^64.
uint64_t inverse_of(uint64_t factor) {
  uint64_t inverse = factor;
  for (int step = 0; step < 6; ++step) inverse *= 2 - factor * inverse;
  return inverse;
}

// The key that the table's mixing turns into `mixed`.
uint64_t unmix(uint64_t mixed) {
  mixed = (mixed ^ (mixed >> 33)) * inverse_of(0xc4ceb9fe1a85ec53ull);
  mixed = (mixed ^ (mixed >> 33)) * inverse_of(0xff51afd7ed558ccdull);
  return mixed ^ (mixed >> 33);
}

TEST(KeyTable, keys_chosen_to_collide_are_refused_after_a_bounded_search) {
  KeyTable table(10'000);
  size_t num_new = 0;
  for (uint64_t key_idx = 0; key_idx < 1000; ++key_idx) {
    const auto inserted = table.insert(unmix(key_idx << 40), 1);
    ASSERT_NE(inserted, KeyTable::Inserted::kPresent);
    num_new += inserted == KeyTable::Inserted::kNew;
  }
  EXPECT_EQ(num_new, 512u);
}

TEST(SpellingKey, spellings_that_differ_in_little_have_different_keys) {
  std::unordered_map<uint64_t, std::string> seen;
  for (int first = 0; first < 256; ++first) {
    for (int second = 0; second < 256; ++second) {
      const std::string spelling = {static_cast<char>(first), static_cast<char>(second)};
      EXPECT_TRUE(seen.emplace(spelling_key(spelling), spelling).second);
    }
  }
  EXPECT_EQ(spelling_key(""), 0xcbf29ce484222325ull);
  EXPECT_EQ(spelling_key("foobar"), 0x85944171f73967e8ull);  // published FNV-1a value
}

}  // namespace
}  // namespace monostep::text
