// SHA-256 through OpenSSL's one-call digest.
#include "base/sha256.h"

#include <openssl/evp.h>

#include "base/check.h"

namespace monostep {

std::string sha256_hex(std::span<const std::byte> bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int num_bytes = 0;
  CHECK(EVP_Digest(bytes.data(), bytes.size(), digest, &num_bytes, EVP_sha256(), nullptr) == 1 && num_bytes == 32,
        "SHA-256 of a buffer");
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (unsigned int idx = 0; idx < num_bytes; ++idx) {
    out += kDigits[digest[idx] >> 4];
    out += kDigits[digest[idx] & 0xf];
  }
  return out;
}

}  // namespace monostep
