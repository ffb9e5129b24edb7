// Maps files with open, fstat and mmap; reads and writes whole files with the same calls.
#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace monostep {
namespace {

Error system_error(Code code, const std::filesystem::path& path, std::string_view what) {
  return {code, std::string(what) + ": " + std::strerror(errno), path.string()};
}

// A descriptor that closes itself.
struct Descriptor {
  int number = -1;
  ~Descriptor() {
    if (number >= 0) ::close(number);
  }
};

Result<size_t> regular_file_bytes(int descriptor, const std::filesystem::path& path) {
  struct stat status = {};
  if (::fstat(descriptor, &status) != 0) return system_error(Code::kNotFound, path, "cannot read the file's size");
  if (!S_ISREG(status.st_mode)) return Error{Code::kInvalidArgument, "expected a regular file", path.string()};
  return static_cast<size_t>(status.st_size);
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a pipe must not wait for a writer; it changes nothing for regular files.
  const Descriptor descriptor{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (descriptor.number < 0) return system_error(Code::kNotFound, path, "cannot open the file");
  TRY_ASSIGN(const size_t num_bytes, regular_file_bytes(descriptor.number, path));
  MappedFile file;
  if (num_bytes == 0) return file;
  void* map = ::mmap(nullptr, num_bytes, PROT_READ, MAP_SHARED, descriptor.number, 0);
  if (map == MAP_FAILED) return system_error(Code::kExhausted, path, "cannot map the file");
  file.bytes_ = {static_cast<const std::byte*>(map), num_bytes};
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

Result<std::string> read_text_file(const std::filesystem::path& path, size_t max_bytes) {
  TRY_ASSIGN(const MappedFile file, MappedFile::open(path));
  if (file.bytes().size() > max_bytes) {
    return Error{
        Code::kCorrupt,
        "expected at most " + std::to_string(max_bytes) + " bytes, found " + std::to_string(file.bytes().size()),
        path.string()};
  }
  return std::string(file.text());
}

Status write_text_file(const std::filesystem::path& path, std::string_view text) {
  const Descriptor descriptor{::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)};
  if (descriptor.number < 0) return system_error(Code::kExhausted, path, "cannot create the file");
  while (!text.empty()) {
    const ssize_t num_written = ::write(descriptor.number, text.data(), text.size());
    if (num_written < 0 && errno == EINTR) continue;
    if (num_written < 0) return system_error(Code::kExhausted, path, "cannot write the file");
    text.remove_prefix(static_cast<size_t>(num_written));
  }
  return {};
}

}  // namespace monostep
