// Writes and opens packed files (weights/packed_cache.h).
#include "weights/packed_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <set>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/check.h"
#include "base/integer.h"
#include "base/sha256.h"
#include "weights/checkpoint_index.h"
#include "weights/pack.h"
#include "weights/parallel.h"
#include "weights/safetensors.h"

namespace monostep::weights {
namespace {

constexpr int64_t kPartBytes = PackedCache::kPartBytes;
constexpr int64_t kPageBytes = 4096;  // where a map may start
constexpr size_t kDigestChars = 64;   // SHA-256, lower-case hex
constexpr std::string_view kMagic = "MSTPPACK";

struct Header {
  char magic[8];
  uint32_t version;
  uint32_t tp;
  uint32_t rank;
  uint32_t zero;
  uint64_t packed_bytes;
  char checkpoint_digest[kDigestChars];
  char runs_digest[kDigestChars];
  char header_digest[kDigestChars];  // of all bytes before the data, this field taken as zeros
};
static_assert(sizeof(Header) == 32 + 3 * kDigestChars);

int64_t num_parts(const PackedKey& key) { return ceil_div(key.packed_bytes, kPartBytes); }
int64_t data_offset(const PackedKey& key) {
  return round_up(static_cast<int64_t>(sizeof(Header) + static_cast<size_t>(num_parts(key)) * kDigestChars),
                  kPageBytes);
}
int64_t file_bytes(const PackedKey& key) { return data_offset(key) + key.packed_bytes; }

std::span<const std::byte> part_of(std::span<const std::byte> data, size_t part) {
  const size_t begin = part * kPartBytes;
  return data.subspan(begin, std::min<size_t>(kPartBytes, data.size() - begin));
}

Header header_of(const PackedKey& key) {
  CHECK(key.checkpoint_digest.size() == kDigestChars && key.runs_digest.size() == kDigestChars, "SHA-256 in hex");
  Header header = {};
  std::memcpy(header.magic, kMagic.data(), sizeof(header.magic));
  header.version = kPackVersion;
  header.tp = static_cast<uint32_t>(key.tp);
  header.rank = static_cast<uint32_t>(key.rank);
  header.packed_bytes = static_cast<uint64_t>(key.packed_bytes);
  std::memcpy(header.checkpoint_digest, key.checkpoint_digest.data(), kDigestChars);
  std::memcpy(header.runs_digest, key.runs_digest.data(), kDigestChars);
  return header;
}

// `start`: everything before the data.
std::string header_digest(std::span<const std::byte> start) {
  std::vector<std::byte> bytes(start.begin(), start.end());
  std::memset(bytes.data() + offsetof(Header, header_digest), 0, kDigestChars);
  return sha256_hex(bytes);
}

Error system_error(Code code, const std::filesystem::path& path, std::string_view what, int number) {
  return {code, fmt::format("{}: {}", what, std::strerror(number)), path.string()};
}

Error differs(const std::filesystem::path& path, std::string_view what, std::string_view expected,
              std::string_view found) {
  return {Code::kCorrupt, fmt::format("{} differs: expected {}, found {}", what, expected, found), path.string()};
}

// A new file under a temporary name, mapped for writing; removed unless it was renamed.
class NewFile {
 public:
  NewFile(std::filesystem::path path, int64_t num_bytes)
      : path_(std::move(path)), temporary_(path_.string() + ".tmp"), num_bytes_(static_cast<size_t>(num_bytes)) {}
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  ~NewFile() {
    if (map_ != MAP_FAILED) ::munmap(map_, num_bytes_);
    if (owned_) ::unlink(temporary_.c_str());
    if (descriptor_ >= 0) ::close(descriptor_);
  }

  Status open() {
    descriptor_ = ::open(temporary_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (descriptor_ < 0) return failed("cannot create the file", errno);
    TRY(own());
    if (::ftruncate(descriptor_, 0) != 0) return failed("cannot empty the file", errno);
    // Reserved now, so that a full disk is an error here and not a signal while the map is filled.
    const int error = ::posix_fallocate(descriptor_, 0, static_cast<off_t>(num_bytes_));
    if (error != 0) return failed(fmt::format("cannot reserve {} bytes", num_bytes_), error);
    map_ = ::mmap(nullptr, num_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
    if (map_ == MAP_FAILED) return failed("cannot map the file", errno);
    return {};
  }
  std::span<std::byte> bytes() const { return {static_cast<std::byte*>(map_), num_bytes_}; }
  Status finish() {
    if (::msync(map_, num_bytes_, MS_SYNC) != 0 || ::fsync(descriptor_) != 0) {
      return failed("cannot write the file", errno);
    }
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) return failed("cannot rename the file", errno);
    owned_ = false;
    return {};
  }

 private:
  Error failed(std::string_view what, int number) const {
    return system_error(Code::kExhausted, temporary_, what, number);
  }
  // Locks the file against other writers. The name may have gone to another file between opening and locking: that
  // writer has finished.
  Status own() {
    struct stat locked = {}, named = {};
    owned_ = ::flock(descriptor_, LOCK_EX | LOCK_NB) == 0 && ::fstat(descriptor_, &locked) == 0 &&
             ::stat(temporary_.c_str(), &named) == 0 && locked.st_ino == named.st_ino && locked.st_dev == named.st_dev;
    if (owned_) return {};
    return Error{Code::kUnavailable, "another process writes the file", temporary_.string()};
  }

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  size_t num_bytes_ = 0;
  int descriptor_ = -1;
  bool owned_ = false;
  void* map_ = MAP_FAILED;
};

// Everything before the data, which are complete.
void write_header(const PackedKey& key, std::span<std::byte> file) {
  const std::span<std::byte> start = file.first(static_cast<size_t>(data_offset(key)));
  const std::span<const std::byte> data = file.subspan(start.size());
  parallel_for(static_cast<size_t>(num_parts(key)), [&](size_t part) {
    std::memcpy(start.data() + sizeof(Header) + part * kDigestChars, sha256_hex(part_of(data, part)).data(),
                kDigestChars);
  });
  const Header header = header_of(key);
  std::memcpy(start.data(), &header, sizeof(header));
  std::memcpy(start.data() + offsetof(Header, header_digest), header_digest(start).data(), kDigestChars);
}

Status compare_header(const std::filesystem::path& path, const PackedKey& key, const Header& found) {
  const Header expected = header_of(key);
  const auto text = [](const auto& field) { return name_text({field, sizeof(field)}); };
  const auto compare_text = [&](std::string_view what, const auto& wanted, const auto& seen) -> Status {
    if (std::memcmp(wanted, seen, sizeof(wanted)) == 0) return {};
    return differs(path, what, text(wanted), text(seen));
  };
  const auto compare_number = [&](std::string_view what, uint64_t wanted, uint64_t seen) -> Status {
    if (wanted == seen) return {};
    return differs(path, what, std::to_string(wanted), std::to_string(seen));
  };
  TRY(compare_text("magic", expected.magic, found.magic));
  TRY(compare_number("layout version", expected.version, found.version));
  TRY(compare_text("checkpoint digest", expected.checkpoint_digest, found.checkpoint_digest));
  TRY(compare_number("tp", expected.tp, found.tp));
  TRY(compare_number("rank", expected.rank, found.rank));
  TRY(compare_number("packed bytes", expected.packed_bytes, found.packed_bytes));
  return compare_text("digest of the runs", expected.runs_digest, found.runs_digest);
}

// One line a run: all that its bytes depend on beside the tensors' values.
std::string runs_text(const std::vector<program::ChunkRun>& runs) {
  std::string text;
  for (const program::ChunkRun& run : runs) {
    for (const program::Weight& weight : run.weights) {
      text += fmt::format("{} {} {} {} {} {} ", weight.name, static_cast<int>(weight.storage),
                          static_cast<int>(weight.order), static_cast<int>(weight.split), weight.rows, weight.columns);
    }
    text +=
        fmt::format("{} {} {} {} {} {} {} {} {}\n", run.format.width, run.format.tiles, run.format.parts, run.num_tiles,
                    run.num_pieces, run.num_chunks, run.num_experts, run.chunk_bytes, run.first_offset);
  }
  return text;
}

// Size and last write time of each file that the index names, one a line.
Result<std::string> files_text(const std::filesystem::path& dir, std::string_view index_text) {
  TRY_ASSIGN(const CheckpointIndex index, parse_checkpoint_index(index_text, (dir / kIndexName).string()));
  std::set<std::string> names;
  for (const auto& [tensor, file_name] : index.files) names.insert(file_name);
  std::string text;
  for (const std::string& name : names) {
    std::error_code error;
    const uintmax_t num_bytes = std::filesystem::file_size(dir / name, error);
    if (error) return Error{Code::kNotFound, "cannot read the file's size: " + error.message(), (dir / name).string()};
    const auto written = std::filesystem::last_write_time(dir / name, error);
    if (error) return Error{Code::kNotFound, "cannot read the file's time: " + error.message(), (dir / name).string()};
    text += fmt::format("{} {} {}\n", name, num_bytes,
                        std::chrono::duration_cast<std::chrono::nanoseconds>(written.time_since_epoch()).count());
  }
  return text;
}

}  // namespace

Result<PackedKey> packed_key(const Checkpoint& checkpoint, const program::Layout& layout, int rank) {
  TRY_ASSIGN(const std::string index_text, read_text_file(checkpoint.dir() / kIndexName, kMaxHeaderBytes));
  TRY_ASSIGN(const std::string files, files_text(checkpoint.dir(), index_text));
  const std::vector<program::ChunkRun> runs = packed_runs(layout);
  PackedKey key;
  key.checkpoint_digest = sha256_hex(sha256_hex(model::nested_config_json(checkpoint.geometry())) +
                                     sha256_hex(index_text) + sha256_hex(files));
  key.runs_digest = sha256_hex(runs_text(runs));
  key.tp = layout.shard().tp;
  key.rank = rank;
  key.packed_bytes = packed_bytes(runs);
  return key;
}

std::string packed_file_name(const PackedKey& key) {
  const Header header = header_of(key);
  return "packed-" + sha256_hex(std::as_bytes(std::span(&header, 1))).substr(0, 32) + ".bin";
}

Status PackedCache::write(const std::filesystem::path& dir, const PackedKey& key, const Fill& fill) {
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error) return system_error(Code::kExhausted, dir, "cannot make the folder", error.value());
  const auto num_bytes = static_cast<uint64_t>(file_bytes(key));
  const std::filesystem::space_info space = std::filesystem::space(dir, error);
  if (!error && num_bytes > space.available / 2)
    return Error{Code::kExhausted, fmt::format("{} bytes to write, and {} free", num_bytes, space.available),
                 dir.string()};
  NewFile file(dir / packed_file_name(key), file_bytes(key));
  TRY(file.open());
  TRY(fill(file.bytes().subspan(static_cast<size_t>(data_offset(key)))));
  write_header(key, file.bytes());
  return file.finish();
}

Result<PackedCache> PackedCache::open(const std::filesystem::path& path, const PackedKey& expected) {
  PackedCache cache;
  cache.path_ = path;
  TRY_ASSIGN(cache.file_, MappedFile::open(path));
  const std::span<const std::byte> bytes = cache.file_.bytes();
  const auto wanted_bytes = static_cast<size_t>(file_bytes(expected));
  if (bytes.size() < sizeof(Header)) {
    return differs(path, "size of the file", std::to_string(wanted_bytes), std::to_string(bytes.size()));
  }
  Header header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  TRY(compare_header(path, expected, header));
  if (bytes.size() != wanted_bytes) {
    return differs(path, "size of the file", std::to_string(wanted_bytes), std::to_string(bytes.size()));
  }
  const std::span<const std::byte> start = bytes.first(static_cast<size_t>(data_offset(expected)));
  const std::string digest = header_digest(start);
  const std::string found = name_text({header.header_digest, kDigestChars});
  if (digest != found) return differs(path, "digest of the header", digest, found);
  cache.data_ = bytes.subspan(start.size());
  // Read ahead far: the data are taken once, in order. Only a hint.
  if (!cache.data_.empty()) {
    ::madvise(const_cast<std::byte*>(cache.data_.data()), cache.data_.size(), MADV_SEQUENTIAL);
  }
  return cache;
}

size_t PackedCache::num_parts() const {
  return static_cast<size_t>(ceil_div(static_cast<int64_t>(data_.size()), kPartBytes));
}

bool PackedCache::holds(size_t part, std::span<const std::byte> bytes) const {
  const std::byte* digest = file_.bytes().data() + sizeof(Header) + part * kDigestChars;
  return std::memcmp(sha256_hex(bytes).data(), digest, kDigestChars) == 0;
}

Error PackedCache::damaged(size_t part) const {
  const size_t begin = part * kPartBytes;
  return {Code::kCorrupt,
          fmt::format("data bytes {} to {} differ from their digest", begin, begin + part_of(data_, part).size() - 1),
          path_.string()};
}

Status PackedCache::read_part(size_t part, std::span<std::byte> out) const {
  const std::span<const std::byte> from = part_of(data_, part);
  CHECK(out.size() == from.size(), "room for one part");
  ::madvise(const_cast<std::byte*>(from.data()), from.size(), MADV_WILLNEED);  // all of it at once; only a hint
  std::memcpy(out.data(), from.data(), from.size());
  if (holds(part, out)) return {};
  return damaged(part);
}

Status PackedCache::verify() const {
  const size_t count = num_parts();
  std::atomic<size_t> first_damaged = count;
  parallel_for(count, [&](size_t part) {
    if (holds(part, part_of(data_, part))) return;
    for (size_t seen = first_damaged; part < seen && !first_damaged.compare_exchange_weak(seen, part);) {
    }
  });
  if (first_damaged == count) return {};
  return damaged(first_damaged);
}

}  // namespace monostep::weights
