// Philox4x32-10 against the known-answer vectors that Random123 publishes (kat_vectors).
#include "base/philox.h"

#include <gtest/gtest.h>

namespace monostep {
namespace {

TEST(Philox, gives_the_published_known_answers) {
  EXPECT_EQ(philox4x32_10({0, 0, 0, 0}, {0, 0}), (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32_10({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, every_counter_and_key_word_changes_the_answer) {
  const PhiloxCounter plain = philox4x32_10({1, 2, 3, 4}, {5, 6});
  for (size_t word_idx = 0; word_idx < 4; ++word_idx) {
    PhiloxCounter counter = {1, 2, 3, 4};
    counter[word_idx] ^= 0x80000000u;
    EXPECT_NE(philox4x32_10(counter, {5, 6}), plain) << word_idx;
  }
  EXPECT_NE(philox4x32_10({1, 2, 3, 4}, {4, 6}), plain);
  EXPECT_NE(philox4x32_10({1, 2, 3, 4}, {5, 7}), plain);
}

}  // namespace
}  // namespace monostep
