// The decoder of utf8.h: table 3-7 of the Unicode standard (well-formed UTF-8 byte sequences).
#include "base/utf8.h"

namespace monostep {
namespace {

struct Lead {
  size_t num_bytes = 0;  // 0: not a lead byte
  uint8_t second_min = 0x80;
  uint8_t second_max = 0xbf;
};

// Only the second byte's range depends on the lead byte: it excludes long forms, surrogates and values past U+10FFFF.
Lead classify_lead(uint8_t byte) {
  if (byte < 0xc2 || byte > 0xf4) return {};
  if (byte < 0xe0) return {.num_bytes = 2};
  if (byte < 0xf0) {
    return {.num_bytes = 3,
            .second_min = static_cast<uint8_t>(byte == 0xe0 ? 0xa0 : 0x80),
            .second_max = static_cast<uint8_t>(byte == 0xed ? 0x9f : 0xbf)};
  }
  return {.num_bytes = 4,
          .second_min = static_cast<uint8_t>(byte == 0xf0 ? 0x90 : 0x80),
          .second_max = static_cast<uint8_t>(byte == 0xf4 ? 0x8f : 0xbf)};
}

}  // namespace

Utf8Unit next_utf8(std::string_view text) {
  using Kind = Utf8Unit::Kind;
  const uint8_t first = static_cast<uint8_t>(text[0]);
  if (first < 0x80) return {Kind::kCodePoint, first, 1};
  const Lead lead = classify_lead(first);
  if (lead.num_bytes == 0) return {Kind::kIllFormed, 0, 1};
  uint32_t code_point = first & (0xff >> (lead.num_bytes + 1));
  for (size_t byte_idx = 1; byte_idx < lead.num_bytes; ++byte_idx) {
    if (byte_idx == text.size()) return {Kind::kIncomplete, 0, byte_idx};
    const uint8_t byte = static_cast<uint8_t>(text[byte_idx]);
    const uint8_t min = byte_idx == 1 ? lead.second_min : 0x80;
    const uint8_t max = byte_idx == 1 ? lead.second_max : 0xbf;
    if (byte < min || byte > max) return {Kind::kIllFormed, 0, byte_idx};
    code_point = code_point << 6 | (byte & 0x3f);
  }
  return {Kind::kCodePoint, code_point, lead.num_bytes};
}

}  // namespace monostep
