// The recorded tokenizer and cases in tests/golden/tokenizer, unpacked. The tokenizer is loaded once a test program.
#pragma once

#include <gtest/gtest.h>
#include <zlib.h>

#include <cstddef>
#include <string>

#include "text/tokenizer.h"

namespace monostep::text {

inline std::string read_golden_gz(const std::string& name) {
  const std::string path = std::string(MONOSTEP_SOURCE_DIR) + "/tests/golden/tokenizer/" + name;
  const gzFile file = gzopen(path.c_str(), "rb");
  EXPECT_NE(file, nullptr) << path;
  if (file == nullptr) return {};
  std::string out;
  char chunk[1 << 16];
  for (int num_read = gzread(file, chunk, sizeof chunk); num_read > 0; num_read = gzread(file, chunk, sizeof chunk)) {
    out.append(chunk, static_cast<size_t>(num_read));
  }
  gzclose(file);
  return out;
}

inline const Tokenizer& golden_tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::parse(read_golden_gz("tokenizer.json.gz"), "tokenizer.json").value();
  return tokenizer;
}

}  // namespace monostep::text
