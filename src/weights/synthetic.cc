// Writes checkpoints piece by piece: every piece is a few rows of one tensor, made and written by one thread, so memory
// stays small whatever the tensors' sizes.
#include "weights/synthetic.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/integer.h"
#include "base/mapped_file.h"
#include "weights/byte_tokenizer.h"
#include "weights/checkpoint_index.h"
#include "weights/parallel.h"
#include "weights/recipe.h"
#include "weights/safetensors.h"
#include "weights/token_classes.h"

namespace monostep::weights {
namespace {

constexpr int64_t kPieceBytes = 4 << 20;

Error write_error(const std::filesystem::path& path, int number) {
  return {Code::kExhausted, std::string("cannot write the file: ") + std::strerror(number), path.string()};
}

struct Piece {
  const model::TensorSpec* spec = nullptr;
  int64_t row_begin = 0;
  int64_t num_bytes = 0;
  int64_t file_offset = 0;
};

// Pieces of whole rows that cover the file's tensors.
std::vector<Piece> cut_pieces(const ShardFile& file, int64_t data_offset) {
  std::vector<Piece> pieces;
  for (const model::TensorSpec& spec : file.specs) {
    const RowExtent extent = row_extent(spec);
    const int64_t rows_per_piece = std::max<int64_t>(kPieceBytes / extent.row_bytes, 1);
    for (int64_t row = 0; row < extent.num_rows; row += rows_per_piece) {
      const int64_t num_rows = std::min(rows_per_piece, extent.num_rows - row);
      pieces.push_back({&spec, row, num_rows * extent.row_bytes, data_offset + row * extent.row_bytes});
    }
    data_offset += spec.num_bytes();
  }
  return pieces;
}

// False with errno set where the system refuses.
bool write_at(int descriptor, std::span<const std::byte> bytes, int64_t offset) {
  while (!bytes.empty()) {
    const ssize_t num_written = ::pwrite(descriptor, bytes.data(), bytes.size(), offset);
    if (num_written < 0 && errno == EINTR) continue;
    if (num_written < 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(num_written));
    offset += num_written;
  }
  return true;
}

std::string header_of(const ShardFile& file) {
  std::vector<SafetensorsEntry> entries;
  for (const model::TensorSpec& spec : file.specs) {
    entries.push_back({spec.name, std::string(model::dtype_tag(spec.dtype)), spec.shape, 0, 0});
  }
  return safetensors_header_bytes(entries);
}

Status write_shard(const model::Geometry& geometry, uint64_t seed, const ShardFile& file,
                   const std::filesystem::path& path) {
  const std::string header = header_of(file);
  TRY(write_text_file(path, header));
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (descriptor < 0) return write_error(path, errno);
  const std::vector<Piece> pieces = cut_pieces(file, static_cast<int64_t>(header.size()));
  std::atomic<int> failure = 0;
  parallel_for(pieces.size(), [&](size_t idx) {
    if (failure != 0) return;
    const Piece& piece = pieces[idx];
    std::vector<std::byte> bytes(static_cast<size_t>(piece.num_bytes));
    recipe_rows(geometry, seed, *piece.spec, piece.row_begin, bytes);
    if (!write_at(descriptor, bytes, piece.file_offset)) failure = errno;
  });
  if (::close(descriptor) != 0 && failure == 0) failure = errno;
  if (failure != 0) return write_error(path, failure);
  return {};
}

Status write_index(const std::vector<ShardFile>& files, const std::filesystem::path& dir) {
  CheckpointIndex index;
  for (const ShardFile& file : files) {
    for (const model::TensorSpec& spec : file.specs) {
      index.files[spec.name] = file.name;
      index.total_bytes += static_cast<uint64_t>(spec.num_bytes());
    }
  }
  return write_text_file(dir / kIndexName, checkpoint_index_json(index));
}

// Stand-in classes: id mod number of classes.
Status write_classes(const model::Geometry& geometry, const std::filesystem::path& dir) {
  if (geometry.engram_layer_ids.empty()) return {};
  std::vector<int32_t> classes(static_cast<size_t>(geometry.vocab_size));
  for (int token = 0; token < geometry.vocab_size; ++token) {
    classes[static_cast<size_t>(token)] = token % geometry.engram_compressed_vocab_size;
  }
  const TensorToWrite tensor = {"token_classes", "I32", {geometry.vocab_size}, std::as_bytes(std::span(classes))};
  return write_safetensors(dir / kClassesName, std::span(&tensor, 1));
}

Status write_tokenizer(const model::Geometry& geometry, const std::filesystem::path& dir) {
  if (!byte_tokenizer_fits(geometry)) return {};
  TRY(write_text_file(dir / kTokenizerName, byte_tokenizer_json(geometry)));
  return write_text_file(dir / "tokenizer_config.json", byte_tokenizer_config_json(geometry));
}

Status make_directory(const std::filesystem::path& dir) {
  std::error_code failure;
  std::filesystem::create_directories(dir / "inference", failure);
  if (!failure) return {};
  return Error{Code::kExhausted, "cannot make the directory: " + failure.message(), dir.string()};
}

Status check_empty(const std::filesystem::path& dir) {
  std::error_code failure;
  if (!std::filesystem::exists(dir, failure)) return {};
  if (std::filesystem::is_directory(dir, failure) && std::filesystem::is_empty(dir, failure) && !failure) return {};
  return Error{Code::kInvalidArgument, "expected a new or empty directory", dir.string()};
}

Status check_space(const model::Geometry& geometry, const std::filesystem::path& dir) {
  double num_bytes = 0;  // the sum of any config's sizes may leave 63 bits
  for (const model::TensorSpec& spec : model::tensor_inventory(geometry)) {
    num_bytes += static_cast<double>(spec.num_bytes());
  }
  std::error_code failure;
  const std::filesystem::space_info space = std::filesystem::space(dir, failure);
  if (failure || static_cast<double>(space.available) >= num_bytes) return {};
  return Error{Code::kExhausted,
               fmt::format("expected {:.0f} bytes of free disk, found {}", num_bytes, space.available), dir.string()};
}

}  // namespace

Status write_checkpoint(const model::Geometry& geometry, uint64_t seed, const std::filesystem::path& dir) {
  TRY(check_empty(dir));
  TRY(make_directory(dir));
  TRY(check_space(geometry, dir));
  const std::vector<ShardFile> files = shard_files(geometry);
  for (const ShardFile& file : files) TRY(write_shard(geometry, seed, file, dir / file.name));
  TRY(write_index(files, dir));
  TRY(write_classes(geometry, dir));
  TRY(write_tokenizer(geometry, dir));
  TRY(write_text_file(dir / "inference" / "config.json", model::flat_config_json(geometry)));
  return write_text_file(dir / "config.json", model::nested_config_json(geometry));
}

std::vector<ShardFile> shard_files(const model::Geometry& geometry) {
  const int half = geometry.num_hidden_layers / 2;
  const int num_tables = static_cast<int>(geometry.engram_layer_ids.size());
  std::vector<ShardFile> files(static_cast<size_t>(4 + num_tables));
  for (model::TensorSpec& spec : model::tensor_inventory(geometry)) {
    int file_idx = spec.layer_idx < half ? 0 : 1;
    if (spec.tensor_class == model::Class::kDraft) file_idx = 2;
    if (spec.tensor_class == model::Class::kVision) file_idx = 3 + num_tables;
    if (spec.tensor_class == model::Class::kEngramTables) {
      const auto& ids = geometry.engram_layer_ids;
      file_idx = 3 + static_cast<int>(std::find(ids.begin(), ids.end(), spec.layer_idx) - ids.begin());
    }
    files[static_cast<size_t>(file_idx)].specs.push_back(std::move(spec));
  }
  std::erase_if(files, [](const ShardFile& file) { return file.specs.empty(); });
  for (size_t idx = 0; idx < files.size(); ++idx) {
    char name[64];
    std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", idx + 1, files.size());
    files[idx].name = name;
  }
  return files;
}

}  // namespace monostep::weights
