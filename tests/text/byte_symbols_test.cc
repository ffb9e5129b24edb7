// The byte alphabet against a list of known symbols, and its refusal of other characters.
#include "text/byte_symbols.h"

#include <gtest/gtest.h>

namespace monostep::text {
namespace {

TEST(ByteSymbols, known_symbols_stand_for_their_bytes) {
  EXPECT_EQ(bytes_of_symbols("\u0120a\u010a"), " a\n");
  EXPECT_EQ(bytes_of_symbols("!~\u00a1\u00ac\u00ae\u00ff"), "!~\xa1\xac\xae\xff");
  EXPECT_EQ(bytes_of_symbols("\u0100\u0121\u0122\u0142\u0143"), std::string("\0\x7f\x80\xa0\xad", 5));
  EXPECT_EQ(bytes_of_symbols("\u00e7\u013c\u0126"), "\u7684");
  EXPECT_EQ(bytes_of_symbols(""), "");
}

TEST(ByteSymbols, the_symbol_of_every_byte_stands_for_it) {
  for (int byte = 0; byte < 256; ++byte) {
    EXPECT_EQ(bytes_of_symbols(symbol_of_byte(static_cast<uint8_t>(byte))), std::string(1, static_cast<char>(byte)));
  }
}

TEST(ByteSymbols, characters_outside_the_alphabet_are_refused) {
  for (const char* spelling : {" ", "a b", "\n", "\u00a0", "\u00ad", "\u0144", "\uff5c", "\U0001f642", "\x80"}) {
    EXPECT_EQ(bytes_of_symbols(spelling), std::nullopt) << spelling;
  }
}

}  // namespace
}  // namespace monostep::text
