// Fuzzes the reader of a checkpoint's index: any text gives file names that stay beside the index, or an error with
// words; an accepted index survives its writer. Seeds: small indices, one of them with names that must be refused.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "weights/checkpoint_index.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t num_bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes), num_bytes);
  const auto index = monostep::weights::parse_checkpoint_index(text, "fuzz");
  if (!index.ok()) {
    CHECK(!index.error().text.empty(), "an error without words");
    return 0;
  }
  for (const auto& [tensor, file] : index->files) {
    CHECK(!file.empty() && file != ".." && file.find('/') == std::string::npos, "a file name leaves the folder");
  }
  const auto again =
      monostep::weights::parse_checkpoint_index(monostep::weights::checkpoint_index_json(*index), "written");
  CHECK(again.ok() && again->files == index->files && again->total_bytes == index->total_bytes,
        "a written index reads as another index");
  return 0;
}
