// Fuzzes the reader of safetensors headers: any bytes give entries that lie inside the file without gaps, or an error
// with words. Seeds: the headers of small files. The input is the start of a file; its first byte adds bytes of data
// behind it.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "weights/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t num_bytes) {
  if (num_bytes == 0) return 0;
  const std::span<const std::byte> start = std::as_bytes(std::span(bytes + 1, num_bytes - 1));
  const uint64_t file_bytes = start.size() + bytes[0];
  const auto header = monostep::weights::parse_safetensors_header(start, file_bytes, "fuzz");
  if (!header.ok()) {
    CHECK(!header.error().text.empty(), "an error without words");
    return 0;
  }
  CHECK(header->data_offset <= file_bytes, "the data begin behind the end of the file");
  uint64_t num_data_bytes = 0;
  for (const auto& entry : header->entries) {
    CHECK(entry.begin <= entry.end && entry.end <= file_bytes - header->data_offset, "an entry leaves the file");
    num_data_bytes += entry.end - entry.begin;
  }
  CHECK(num_data_bytes == file_bytes - header->data_offset, "the entries do not cover the data");
  return 0;
}
