// The alphabet of byte_symbols.h: the visible characters of Latin-1 stand for themselves; the other bytes, in ascending
// order, are the characters from U+0100 on.
#include "text/byte_symbols.h"

#include <algorithm>
#include <array>

#include "base/utf8.h"

namespace monostep::text {
namespace {

constexpr int kNumSymbols = 0x100 + 68;  // 68 bytes are not visible

constexpr bool is_visible(int byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff);
}

// The byte of each symbol's code point, or -1.
constexpr std::array<int16_t, kNumSymbols> make_alphabet() {
  std::array<int16_t, kNumSymbols> byte_of = {};
  byte_of.fill(-1);
  int next_symbol = 0x100;
  for (int byte = 0; byte < 0x100; ++byte)
    byte_of[is_visible(byte) ? byte : next_symbol++] = static_cast<int16_t>(byte);
  return byte_of;
}

constexpr std::array<int16_t, kNumSymbols> kByteOfSymbol = make_alphabet();

}  // namespace

std::optional<std::string> bytes_of_symbols(std::string_view spelling) {
  std::string bytes;
  while (!spelling.empty()) {
    const Utf8Unit unit = next_utf8(spelling);
    const bool known = unit.kind == Utf8Unit::Kind::kCodePoint && unit.code_point < kNumSymbols;
    if (!known || kByteOfSymbol[unit.code_point] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kByteOfSymbol[unit.code_point]));
    spelling.remove_prefix(unit.num_bytes);
  }
  return bytes;
}

std::string symbol_of_byte(uint8_t byte) {
  const auto code_point = std::find(kByteOfSymbol.begin(), kByteOfSymbol.end(), byte) - kByteOfSymbol.begin();
  if (code_point < 0x80) return {static_cast<char>(code_point)};
  return {static_cast<char>(0xc0 | code_point >> 6), static_cast<char>(0x80 | (code_point & 0x3f))};
}

}  // namespace monostep::text
