// Expands the generated ranges (unicode_table.cc) into one byte a code point, for lookups without a search.
#include "text/unicode_class.h"

#include <algorithm>
#include <vector>

namespace monostep::text {
namespace {

std::vector<CharClass> expand_ranges() {
  std::vector<CharClass> classes(kNumCodePoints);
  for (size_t range_idx = 0; range_idx < kNumUnicodeRanges; ++range_idx) {
    const bool last = range_idx + 1 == kNumUnicodeRanges;
    const uint32_t begin = kUnicodeRanges[range_idx] >> 8;
    const uint32_t end = last ? kNumCodePoints : kUnicodeRanges[range_idx + 1] >> 8;
    std::fill(classes.begin() + begin, classes.begin() + end, static_cast<CharClass>(kUnicodeRanges[range_idx] & 0xff));
  }
  return classes;
}

}  // namespace

const CharClass* char_classes() {
  static const std::vector<CharClass> classes = expand_ranges();
  return classes.data();
}

}  // namespace monostep::text
