// Implements the JSON writers of json_text.h: escaping, UTF-8 checking, shortest numbers.
#include "base/json_text.h"

#include <charconv>
#include <cmath>
#include <cstddef>
#include <system_error>

#include "base/check.h"

namespace monostep {
namespace {

constexpr uint32_t kReplacement = 0xfffd;

struct CodePoint {
  uint32_t value = kReplacement;
  size_t num_bytes = 1;
  bool valid = false;
};

struct LeadByte {
  size_t num_bytes = 0;  // 0: no lead byte
  uint32_t bits = 0;     // payload of the lead byte
  uint8_t low = 0x80;    // range of the second byte (excludes overlong forms, surrogates and values above U+10FFFF)
  uint8_t high = 0xbf;
};

LeadByte lead_byte(uint8_t byte) {
  if (byte >= 0xc2 && byte <= 0xdf) return {2, byte & 0x1fu, 0x80, 0xbf};
  if (byte == 0xe0) return {3, 0, 0xa0, 0xbf};
  if (byte == 0xed) return {3, 0xd, 0x80, 0x9f};
  if (byte >= 0xe1 && byte <= 0xef) return {3, byte & 0xfu, 0x80, 0xbf};
  if (byte == 0xf0) return {4, 0, 0x90, 0xbf};
  if (byte == 0xf4) return {4, 4, 0x80, 0x8f};
  if (byte >= 0xf1 && byte <= 0xf3) return {4, byte & 7u, 0x80, 0xbf};
  return {};
}

// The code point at `at`, or the length of the maximal ill-formed part there.
CodePoint decode(std::string_view text, size_t at) {
  const auto byte_at = [&](size_t idx) { return static_cast<uint8_t>(text[idx]); };
  if (byte_at(at) < 0x80) return {byte_at(at), 1, true};
  const LeadByte lead = lead_byte(byte_at(at));
  uint32_t value = lead.bits;
  size_t count = 1;
  for (; count < lead.num_bytes; ++count) {
    if (at + count == text.size()) return {kReplacement, count, false};
    const uint8_t next = byte_at(at + count);
    const bool in_range = count == 1 ? next >= lead.low && next <= lead.high : next >= 0x80 && next <= 0xbf;
    if (!in_range) return {kReplacement, count, false};
    value = value << 6 | (next & 0x3fu);
  }
  if (lead.num_bytes == 0) return {};
  return {value, count, true};
}

void append_escape(std::string& out, uint32_t unit) {
  static constexpr char kDigits[] = "0123456789abcdef";
  out += "\\u";
  for (int shift = 12; shift >= 0; shift -= 4) out += kDigits[unit >> shift & 0xf];
}

// Appends what must be escaped in either form; false where `value` may stand as it is.
bool append_short_escape(std::string& out, uint32_t value) {
  switch (value) {
    case '"': out += "\\\""; return true;
    case '\\': out += "\\\\"; return true;
    case '\b': out += "\\b"; return true;
    case '\f': out += "\\f"; return true;
    case '\n': out += "\\n"; return true;
    case '\r': out += "\\r"; return true;
    case '\t': out += "\\t"; return true;
    default: break;
  }
  if (value >= 0x20) return false;
  append_escape(out, value);
  return true;
}

}  // namespace

void append_json_string(std::string& out, std::string_view utf8, bool ascii) {
  out += '"';
  for (size_t at = 0; at < utf8.size();) {
    const CodePoint point = decode(utf8, at);
    if (append_short_escape(out, point.value)) {
    } else if (ascii && point.value > 0xffff) {
      append_escape(out, 0xd800 + ((point.value - 0x10000) >> 10));
      append_escape(out, 0xdc00 + ((point.value - 0x10000) & 0x3ff));
    } else if (ascii && point.value > 0x7e) {
      append_escape(out, point.value);
    } else if (point.valid) {
      out += utf8.substr(at, point.num_bytes);
    } else {
      out += "\xef\xbf\xbd";
    }
    at += point.num_bytes;
  }
  out += '"';
}

void append_json_integer(std::string& out, int64_t value) { out += std::to_string(value); }

void append_json_number(std::string& out, double value) {
  if (!std::isfinite(value)) {
    out += "null";
    return;
  }
  const double size = std::fabs(value);
  const bool plain = size == 0 || (size >= 1e-4 && size < 1e16);
  char text[64];
  const auto format = plain ? std::chars_format::fixed : std::chars_format::scientific;
  const auto [end, code] = std::to_chars(text, text + sizeof text, value, format);
  CHECK(code == std::errc(), "the shortest form of a double has at most 24 characters");
  const std::string_view written(text, static_cast<size_t>(end - text));
  out += written;
  if (written.find_first_of(".e") == std::string_view::npos) out += ".0";
}

}  // namespace monostep
