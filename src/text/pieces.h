// The tokenizer's pre-tokenizer: cuts a text into the pieces inside which byte pairs are merged. The released
// tokenizer.json states it as three regular expressions, applied one after the other to what the one before left
// ("isolated" splits); the scanner here is written for exactly these three. Called by tokenizer.cc; tokenizer_json.cc
// refuses any others.
#pragma once

#include <string_view>

#include "text/unicode_class.h"

namespace monostep::text {

// 1: numbers, in groups of at most three.
inline constexpr std::string_view kNumberPattern = "\\p{N}{1,3}";
// 2: runs of Chinese characters and kana.
inline constexpr std::string_view kCjkPattern = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+";
// 3: words, punctuation and white space.
inline constexpr std::string_view kWordPattern =
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
    " ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+";

// Yields the pieces of a text in order; joined they are the text. Linear in the text, allocates nothing. Ill-formed
// UTF-8 is carried along as characters of class kOther.
class PieceScanner {
 public:
  explicit PieceScanner(std::string_view text) : rest_(text), classes_(char_classes()) {}

  // The next piece, which is never empty; an empty view at the end of the text.
  std::string_view next();

 private:
  struct Char {
    uint32_t code_point = 0;
    CharClass char_class = CharClass::kOther;
    size_t num_bytes = 0;
  };

  Char char_at(std::string_view text, size_t at) const;
  std::string_view next_section() const;
  size_t match_word(size_t begin) const;
  size_t match_letters(size_t begin) const;
  size_t match_punctuation(size_t begin) const;
  size_t match_space(size_t begin) const;

  std::string_view rest_;     // what no section was taken of yet
  std::string_view section_;  // what patterns 1 and 2 left as one part, less the pieces taken of it
  const CharClass* classes_;
};

}  // namespace monostep::text
