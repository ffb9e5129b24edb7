// Implements the JSON writers of json_text.h: escaping, replacement of ill-formed UTF-8, shortest numbers.
#include "base/json_text.h"

#include <charconv>
#include <cmath>
#include <system_error>

#include "base/check.h"
#include "base/utf8.h"

namespace monostep {
namespace {

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
  while (!utf8.empty()) {
    const Utf8Unit unit = next_utf8(utf8);
    const bool valid = unit.kind == Utf8Unit::Kind::kCodePoint;
    const uint32_t code_point = valid ? unit.code_point : kReplacementCodePoint;
    if (append_short_escape(out, code_point)) {
    } else if (ascii && code_point > 0xffff) {
      append_escape(out, 0xd800 + ((code_point - 0x10000) >> 10));
      append_escape(out, 0xdc00 + ((code_point - 0x10000) & 0x3ff));
    } else if (ascii && code_point > 0x7e) {
      append_escape(out, code_point);
    } else {
      out += valid ? utf8.substr(0, unit.num_bytes) : kReplacement;
    }
    utf8.remove_prefix(unit.num_bytes);
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
