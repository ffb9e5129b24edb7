// SHA-256 (OpenSSL): digests of files and tensors, as lower-case hex. Used for the released tokenizer, caches and
// tests.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace monostep {

std::string sha256_hex(std::span<const std::byte> bytes);

inline std::string sha256_hex(std::string_view text) { return sha256_hex(std::as_bytes(std::span(text))); }

}  // namespace monostep
