// The scanner of pieces.h. Patterns 1 and 2 cut the text into sections; pattern 3 sees each section alone, so its
// look-ahead ends there. Where pattern 3 matches nothing, the characters up to its next match are one piece.
#include "text/pieces.h"

#include "base/utf8.h"

namespace monostep::text {
namespace {

constexpr size_t kMaxNumberChars = 3;

bool is_newline(uint32_t code_point) { return code_point == '\r' || code_point == '\n'; }

bool is_ascii_letter(char byte) { return (byte >= 'A' && byte <= 'Z') || (byte >= 'a' && byte <= 'z'); }

bool is_letter_or_mark(CharClass char_class) {
  return char_class == CharClass::kLetter || char_class == CharClass::kMark;
}

bool is_punctuation(CharClass char_class) {
  return char_class == CharClass::kPunctuation || char_class == CharClass::kSymbol;
}

// The characters of pattern 2.
bool is_cjk(uint32_t code_point) {
  return (code_point >= 0x4e00 && code_point <= 0x9fa5) || (code_point >= 0x3040 && code_point <= 0x30ff);
}

enum class Section { kNumber, kCjk, kPlain };

Section section_kind(uint32_t code_point, CharClass char_class) {
  if (char_class == CharClass::kNumber) return Section::kNumber;
  return is_cjk(code_point) ? Section::kCjk : Section::kPlain;
}

}  // namespace

std::string_view PieceScanner::next() {
  if (section_.empty()) {
    section_ = next_section();
    rest_.remove_prefix(section_.size());
  }
  size_t end = match_word(0);
  if (end == 0) {
    while (end < section_.size() && match_word(end) == end) end += char_at(section_, end).num_bytes;
  }
  const std::string_view piece = section_.substr(0, end);
  section_.remove_prefix(end);
  return piece;
}

PieceScanner::Char PieceScanner::char_at(std::string_view text, size_t at) const {
  const uint8_t first = static_cast<uint8_t>(text[at]);
  if (first < 0x80) return {first, classes_[first], 1};
  const Utf8Unit unit = next_utf8(text.substr(at));
  if (unit.kind != Utf8Unit::Kind::kCodePoint) return {kReplacementCodePoint, CharClass::kOther, unit.num_bytes};
  return {unit.code_point, classes_[unit.code_point], unit.num_bytes};
}

// The longest start of the rest that patterns 1 and 2 leave as one part.
std::string_view PieceScanner::next_section() const {
  Section kind = Section::kPlain;
  size_t num_chars = 0;
  size_t end = 0;
  while (end < rest_.size()) {
    const Char next = char_at(rest_, end);
    const Section next_kind = section_kind(next.code_point, next.char_class);
    if (num_chars == 0) kind = next_kind;
    if (next_kind != kind || (kind == Section::kNumber && num_chars == kMaxNumberChars)) break;
    end += next.num_bytes;
    ++num_chars;
  }
  return rest_.substr(0, end);
}

// The end of pattern 3's match at `begin` of the section, or `begin` where it does not match.
size_t PieceScanner::match_word(size_t begin) const {
  if (begin == section_.size()) return begin;
  if (const size_t end = match_letters(begin); end != begin) return end;
  if (const size_t end = match_punctuation(begin); end != begin) return end;
  return match_space(begin);
}

// The first two alternatives: an ASCII punctuation character and ASCII letters; or letters and marks, with one
// character before them that is no letter, punctuation, symbol or newline. (A mark may be that character: the match is
// the same.)
size_t PieceScanner::match_letters(size_t begin) const {
  const Char first = char_at(section_, begin);
  size_t end = begin + first.num_bytes;
  if (is_punctuation(first.char_class)) {
    if (first.code_point >= 0x80) return begin;
    while (end < section_.size() && is_ascii_letter(section_[end])) ++end;
    return end == begin + 1 ? begin : end;
  }
  if (is_newline(first.code_point)) return begin;
  while (end < section_.size()) {
    const Char next = char_at(section_, end);
    if (!is_letter_or_mark(next.char_class)) break;
    end += next.num_bytes;
  }
  return is_letter_or_mark(first.char_class) || end != begin + first.num_bytes ? end : begin;
}

// The third alternative: an optional space, punctuation and symbols, then newlines.
size_t PieceScanner::match_punctuation(size_t begin) const {
  const size_t punctuation_begin = begin + (section_[begin] == ' ' ? 1 : 0);
  size_t end = punctuation_begin;
  while (end < section_.size()) {
    const Char next = char_at(section_, end);
    if (!is_punctuation(next.char_class)) break;
    end += next.num_bytes;
  }
  if (end == punctuation_begin) return begin;
  while (end < section_.size() && is_newline(static_cast<uint8_t>(section_[end]))) ++end;
  return end;
}

// The last three alternatives: white space up to its last newline; without a newline all of it at the end of the
// section; else all but its last character, which belongs to what follows, or that character where it is the only one.
size_t PieceScanner::match_space(size_t begin) const {
  size_t end = begin;
  size_t newline_end = begin;
  size_t last_begin = begin;
  while (end < section_.size()) {
    const Char next = char_at(section_, end);
    if (next.char_class != CharClass::kSpace) break;
    last_begin = end;
    end += next.num_bytes;
    if (is_newline(next.code_point)) newline_end = end;
  }
  if (newline_end != begin) return newline_end;
  if (end == section_.size() || last_begin == begin) return end;
  return last_begin;
}

}  // namespace monostep::text
