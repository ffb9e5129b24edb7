// Reads or unpacks the token classes and checks their number and range.
#include "weights/token_classes.h"

#include <zlib.h>

#include <cstring>

#include "base/mapped_file.h"
#include "base/sha256.h"
#include "weights/safetensors.h"

// The embedded table: int32 little endian, one a token id, gzip. MONOSTEP_CLASS_TABLE is the file's path
// (CMakeLists.txt).
asm(".section .rodata\n"
    ".global monostep_class_table_begin, monostep_class_table_end\n"
    "monostep_class_table_begin:\n"
    ".incbin \"" MONOSTEP_CLASS_TABLE
    "\"\n"
    "monostep_class_table_end:\n"
    ".previous\n");
extern "C" const unsigned char monostep_class_table_begin[];
extern "C" const unsigned char monostep_class_table_end[];

namespace monostep::weights {
namespace {

constexpr int kReleasedVocabSize = 129280;
constexpr int kReleasedNumClasses = 99092;
constexpr std::string_view kReleasedTokenizer = "c90dfa01249db1be4245780a052ede752e1361c612ac6d08e2bdada7d599476b";
constexpr std::string_view kReleasedClasses = "c60a86322ec17b4142bfef3c57a8d81fb428550cdf487f88a4320cb59fe46481";

Error corrupt(const std::filesystem::path& path, std::string text) {
  return {Code::kCorrupt, std::move(text), path.string() + ": token_classes"};
}

Result<std::vector<int32_t>> read_classes(const std::filesystem::path& path, const model::Geometry& geometry) {
  TRY_ASSIGN(const SafetensorsFile file, SafetensorsFile::open(path));
  const SafetensorsEntry* entry = file.find("token_classes");
  if (entry == nullptr) return corrupt(path, "expected this tensor, found none of the name");
  if (entry->dtype != "I32" || entry->shape != std::vector<int64_t>{geometry.vocab_size}) {
    return corrupt(path, "expected I32 [" + std::to_string(geometry.vocab_size) + "], found " + entry->dtype + " " +
                             shape_text(entry->shape));
  }
  std::vector<int32_t> classes(static_cast<size_t>(geometry.vocab_size));
  std::memcpy(classes.data(), file.data(*entry).data(), classes.size() * sizeof(int32_t));
  for (size_t token = 0; token < classes.size(); ++token) {
    if (classes[token] < 0 || classes[token] >= geometry.engram_compressed_vocab_size) {
      return corrupt(path, "expected classes below engram_compressed_vocab_size " +
                               std::to_string(geometry.engram_compressed_vocab_size) + ", found " +
                               std::to_string(classes[token]) + " for token " + std::to_string(token));
    }
  }
  return classes;
}

bool is_released(const std::filesystem::path& tokenizer, const model::Geometry& geometry) {
  if (geometry.vocab_size != kReleasedVocabSize || geometry.engram_compressed_vocab_size != kReleasedNumClasses) {
    return false;
  }
  const Result<MappedFile> file = MappedFile::open(tokenizer);
  return file.ok() && sha256_hex(file->bytes()) == kReleasedTokenizer;
}

}  // namespace

Result<std::vector<int32_t>> load_token_classes(const std::filesystem::path& dir, const model::Geometry& geometry) {
  if (geometry.engram_layer_ids.empty()) return std::vector<int32_t>();
  std::error_code ignored;
  const std::filesystem::path path = dir / kClassesName;
  if (std::filesystem::exists(path, ignored)) return read_classes(path, geometry);
  if (is_released(dir / kTokenizerName, geometry)) return released_token_classes();
  return Error{
      Code::kNotFound,
      "expected the token classes of the Engram hash, found no such file, and tokenizer.json is not the released "
      "one; tools/engram_classes.py makes the file from tokenizer.json",
      path.string()};
}

std::vector<int32_t> released_token_classes() {
  std::vector<int32_t> classes(kReleasedVocabSize);
  z_stream stream = {};
  stream.next_in = const_cast<unsigned char*>(monostep_class_table_begin);
  stream.avail_in = static_cast<unsigned int>(monostep_class_table_end - monostep_class_table_begin);
  stream.next_out = reinterpret_cast<unsigned char*>(classes.data());
  stream.avail_out = static_cast<unsigned int>(classes.size() * sizeof(int32_t));
  constexpr int kGzip = 16 + MAX_WBITS;
  CHECK(inflateInit2(&stream, kGzip) == Z_OK, "zlib starts");
  CHECK(inflate(&stream, Z_FINISH) == Z_STREAM_END && stream.avail_out == 0, "the embedded class table unpacks");
  inflateEnd(&stream);
  CHECK(sha256_hex(std::as_bytes(std::span(classes))) == kReleasedClasses, "the embedded class table's digest");
  return classes;
}

}  // namespace monostep::weights
