// The safetensors container: 8 bytes of header length, a JSON header, packed tensor data. SafetensorsFile reads one by
// memory map; write_safetensors writes one. Used for checkpoints, token classes, recorded runs and traces; the header
// parser is also a fuzz target. Sources: model.md 2.1; dependencies.md 2.5.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/mapped_file.h"
#include "base/result.h"

namespace monostep::weights {

// The format's own limit on the header's length.
inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;

struct SafetensorsEntry {
  std::string name;
  std::string dtype;           // the header's tag: F8_E4M3, BF16, I32, ...
  std::vector<int64_t> shape;  // each extent >= 0; empty for a scalar
  uint64_t begin = 0;          // bytes from the start of the data
  uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // in the header's order
  uint64_t data_offset = 0;               // bytes from the start of the file to the data
};

// Parses the header of a file of `file_bytes` bytes. `start` holds the file's first bytes: at least the header where
// the file is long enough. Refuses (kCorrupt): a short file, a header that is not JSON of this form, an unknown dtype
// tag, a duplicate name, a byte count that does not fit the shape, offsets out of range, overlaps, gaps and trailing
// bytes.
Result<SafetensorsHeader> parse_safetensors_header(std::span<const std::byte> start, uint64_t file_bytes,
                                                   const std::string& place);

class SafetensorsFile {
 public:
  static Result<SafetensorsFile> open(const std::filesystem::path& path);

  const std::vector<SafetensorsEntry>& entries() const { return header_.entries; }
  // Null where the file holds no such tensor.
  const SafetensorsEntry* find(std::string_view name) const;
  // The tensor's bytes in the map. Not aligned in general: read wider elements by memcpy.
  std::span<const std::byte> data(const SafetensorsEntry& entry) const;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  MappedFile file_;
  SafetensorsHeader header_;
  std::unordered_map<std::string, size_t> index_;  // name -> position in entries
};

struct TensorToWrite {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;
};

// The bytes before the data: length and compact JSON ({"__metadata__":{"format":"pt"},...}), padded with spaces to a
// multiple of 8. Takes the names, dtypes and shapes; the data follow in this order without gaps.
std::string safetensors_header_bytes(std::span<const SafetensorsEntry> entries);

// CHECKs that each tensor's bytes fit its dtype and shape.
Status write_safetensors(const std::filesystem::path& path, std::span<const TensorToWrite> tensors);

// "[2,3]", for messages.
std::string shape_text(std::span<const int64_t> shape);

// A name from a file as it may stand in a message: controls and everything outside ASCII escaped.
std::string name_text(std::string_view name);

}  // namespace monostep::weights
