// MappedFile: a file's bytes by memory map, read-only, unmapped when the object goes. Used for checkpoints, tokenizers
// and recorded tensors. Also the small readers and writers of whole text files.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace monostep {

class MappedFile {
 public:
  // Errors: kNotFound (no such file, or it may not be read), kInvalidArgument (not a regular file), kExhausted (the
  // system has no room for the map).
  static Result<MappedFile> open(const std::filesystem::path& path);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }
  std::string_view text() const { return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()}; }

 private:
  std::span<const std::byte> bytes_;  // empty for an empty file, which has no map
};

// The whole file, refused (kCorrupt) above `max_bytes`.
Result<std::string> read_text_file(const std::filesystem::path& path, size_t max_bytes);

// Writes the whole file, replacing one that is there; kExhausted where that fails.
Status write_text_file(const std::filesystem::path& path, std::string_view text);

}  // namespace monostep
