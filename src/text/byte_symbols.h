// Byte-level spelling: tokenizer.json writes each byte of a vocabulary entry as one printable character (GPT-2's
// alphabet: "Ġ" is a space). Used by tokenizer_json.cc, and by the writer of synthetic tokenizers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace monostep::text {

// The bytes that `spelling` (well-formed UTF-8) stands for; nothing where a character is not of the alphabet.
std::optional<std::string> bytes_of_symbols(std::string_view spelling);

// The character that a byte is written as, in UTF-8.
std::string symbol_of_byte(uint8_t byte);

}  // namespace monostep::text
