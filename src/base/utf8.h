// One step of UTF-8 decoding, with the Unicode rule for ill-formed text: each maximal ill-formed part counts as one
// unit. Used by the JSON writers, the tokenizer's scanner and the detokenizer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace monostep {

inline constexpr uint32_t kReplacementCodePoint = 0xfffd;
inline constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // the same in UTF-8

struct Utf8Unit {
  enum class Kind : uint8_t {
    kCodePoint,
    kIllFormed,   // these bytes begin no code point, whatever follows
    kIncomplete,  // the text ends inside what may still become a code point
  };
  Kind kind = Kind::kIllFormed;
  uint32_t code_point = 0;  // of kCodePoint
  size_t num_bytes = 1;
};

// The first unit of `text`, which is not empty.
Utf8Unit next_utf8(std::string_view text);

}  // namespace monostep
