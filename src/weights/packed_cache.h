// PackedCache: one rank's packed weights on disk, so that only the first start of a checkpoint packs. A file is a
// header, a digest of each part of the data, zeros to a multiple of 4096 bytes, then the bytes of pack_rank. Written
// beside its name and renamed when whole and on disk; opened only where the header is that of the expected key, by
// memory map. Numbers are little-endian. Called by the GPU backend at load.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>

#include "base/mapped_file.h"
#include "base/result.h"
#include "program/layout.h"
#include "weights/checkpoint.h"

namespace monostep::weights {

// Of the header and of the bytes behind it; goes up when either changes without a change of the runs.
inline constexpr uint32_t kPackVersion = 2;

// What a packed rank is made from. Two equal keys have equal data.
struct PackedKey {
  // SHA-256 of the geometry's config, the index, and size and last write time of each file that the index names: the
  // index alone says nothing of values.
  std::string checkpoint_digest;
  std::string runs_digest;  // SHA-256 of the tensors, forms and offsets of the packed file
  int tp = 1;
  int rank = 0;
  int64_t packed_bytes = 0;
};
// Errors: those of reading the index again, kNotFound (a file that has gone).
Result<PackedKey> packed_key(const Checkpoint& checkpoint, const program::Layout& layout, int rank);

// Name of the file of a key, inside the cache's folder: from a digest of the key and the version.
std::string packed_file_name(const PackedKey& key);

class PackedCache {
 public:
  // Fills the data of the new file.
  using Fill = std::function<Status(std::span<std::byte> out)>;
  // Makes the folder where it is missing and writes dir/packed_file_name(key), replacing one that is there. Errors: the
  // fill's, kExhausted (no room: the file may take half of what is free), kUnavailable (another process writes the
  // file); no file is left behind then. `fill` is not called where the file cannot be made.
  static Status write(const std::filesystem::path& dir, const PackedKey& key, const Fill& fill);

  // Errors: kNotFound (no such file), kCorrupt (another size or header, named with expected and found): pack again.
  static Result<PackedCache> open(const std::filesystem::path& path, const PackedKey& expected);

  // The packed bytes, from a page's start on.
  std::span<const std::byte> data() const { return data_; }

  // The data lie under one digest each part; open() does not read them.
  static constexpr int64_t kPartBytes = 64 << 20;
  size_t num_parts() const;

  // Copies a part into `out`, which has its size, and compares its digest: kCorrupt names the damaged bytes. May be
  // called from several threads.
  Status read_part(size_t part, std::span<std::byte> out) const;

  // Reads all data and compares their digests: kCorrupt names the first damaged bytes.
  Status verify() const;

 private:
  bool holds(size_t part, std::span<const std::byte> bytes) const;
  Error damaged(size_t part) const;

  std::filesystem::path path_;
  MappedFile file_;
  std::span<const std::byte> data_;
};

}  // namespace monostep::weights
