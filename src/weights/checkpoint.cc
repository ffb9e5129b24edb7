// Opens and checks a checkpoint (checkpoint.h): names both ways, shapes, dtypes, total size, values, token classes.
#include "weights/checkpoint.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/mapped_file.h"
#include "weights/checkpoint_index.h"
#include "weights/parallel.h"
#include "weights/token_classes.h"
#include "weights/value_scan.h"

namespace monostep::weights {
namespace {

Error corrupt(std::string place, std::string text) { return {Code::kCorrupt, std::move(text), std::move(place)}; }

Result<CheckpointIndex> read_index(const std::filesystem::path& dir) {
  const std::filesystem::path path = dir / kIndexName;
  TRY_ASSIGN(const std::string text, read_text_file(path, kMaxHeaderBytes));
  return parse_checkpoint_index(text, path.string());
}

// A config that is refused makes the checkpoint a damaged one, whatever the rule that it breaks.
Result<model::Geometry> read_geometry(const std::filesystem::path& dir) {
  Result<model::Geometry> geometry = model::load_geometry(dir);
  if (geometry.ok() || geometry.error().code != Code::kInvalidArgument) return geometry;
  return corrupt(geometry.error().place, geometry.error().text);
}

using SpecIdx = std::unordered_map<std::string, size_t>;

// The index names exactly the inventory's tensors.
Status check_names(const CheckpointIndex& index, const std::vector<model::TensorSpec>& specs, const SpecIdx& spec_idx,
                   const std::string& place) {
  for (const model::TensorSpec& spec : specs) {
    if (index.files.count(spec.name)) continue;
    return corrupt(place + ": " + spec.name, "missing tensor: expected " + std::string(model::dtype_tag(spec.dtype)) +
                                                 " " + shape_text(spec.shape) + ", found no such name in weight_map");
  }
  for (const auto& [name, file] : index.files) {
    if (spec_idx.count(name)) continue;
    return corrupt(place + ": " + name_text(name),
                   "unknown tensor: expected only tensors of the config, found this one in " + name_text(file));
  }
  return {};
}

// Called when every shape is known to fit its file, so that the sum has 63 bits.
Status check_total(const CheckpointIndex& index, const std::vector<model::TensorSpec>& specs,
                   const std::string& place) {
  uint64_t total_bytes = 0;
  for (const model::TensorSpec& spec : specs) total_bytes += static_cast<uint64_t>(spec.num_bytes());
  if (total_bytes == index.total_bytes) return {};
  return corrupt(place + ": metadata.total_size",
                 "expected " + std::to_string(total_bytes) + " bytes, found " + std::to_string(index.total_bytes));
}

// Every tensor in the file's header is one that the index places there.
Status check_header_names(const SafetensorsFile& file, const std::string& file_name, const CheckpointIndex& index) {
  for (const SafetensorsEntry& entry : file.entries()) {
    const std::string place = file.path().string() + ": " + name_text(entry.name);
    const auto found = index.files.find(entry.name);
    if (found == index.files.end()) {
      return corrupt(place, "unknown tensor: expected only tensors that the index names, found this one");
    }
    if (found->second != file_name) {
      return corrupt(place, "duplicate tensor: expected it in " + found->second + " as the index says, found it here");
    }
  }
  return {};
}

constexpr size_t kScanPartBytes = 1 << 20;  // whole values of every dtype

struct ScanPart {
  size_t spec_idx = 0;
  size_t begin = 0;               // in bytes of the tensor
  std::optional<size_t> refused;  // element of the part
};

Status check_entry(const model::TensorSpec& spec, const SafetensorsEntry& entry, const std::string& place) {
  if (entry.dtype != model::dtype_tag(spec.dtype)) {
    return corrupt(place,
                   "wrong dtype: expected " + std::string(model::dtype_tag(spec.dtype)) + ", found " + entry.dtype);
  }
  if (entry.shape != spec.shape) {
    return corrupt(place, "wrong shape: expected " + shape_text(spec.shape) + ", found " + shape_text(entry.shape));
  }
  return {};
}

}  // namespace

Result<Checkpoint> Checkpoint::open(const std::filesystem::path& dir, const OpenOptions& options) {
  Checkpoint checkpoint;
  checkpoint.dir_ = dir;
  TRY_ASSIGN(checkpoint.geometry_, read_geometry(dir));
  checkpoint.specs_ = model::tensor_inventory(checkpoint.geometry_);
  for (size_t idx = 0; idx < checkpoint.specs_.size(); ++idx) checkpoint.spec_idx_[checkpoint.specs_[idx].name] = idx;
  TRY_ASSIGN(const CheckpointIndex index, read_index(dir));
  TRY(checkpoint.open_files(index));
  TRY(checkpoint.check_tensors());
  TRY(check_total(index, checkpoint.specs_, (dir / kIndexName).string()));
  TRY_ASSIGN(checkpoint.token_classes_, load_token_classes(dir, checkpoint.geometry_));
  if (options.scan_values) TRY(checkpoint.scan_values());
  std::error_code ignored;
  checkpoint.has_tokenizer_ = std::filesystem::exists(dir / kTokenizerName, ignored);
  return checkpoint;
}

Status Checkpoint::open_files(const CheckpointIndex& index) {
  TRY(check_names(index, specs_, spec_idx_, (dir_ / kIndexName).string()));
  std::set<std::string> file_names;
  for (const auto& [name, file_name] : index.files) file_names.insert(file_name);
  std::map<std::string, const SafetensorsFile*> by_name;
  for (const std::string& file_name : file_names) {
    TRY_ASSIGN(SafetensorsFile file, SafetensorsFile::open(dir_ / file_name));
    files_.push_back(std::make_unique<SafetensorsFile>(std::move(file)));
    by_name[file_name] = files_.back().get();
    TRY(check_header_names(*files_.back(), file_name, index));
  }
  located_.resize(specs_.size());
  for (size_t idx = 0; idx < specs_.size(); ++idx) {
    const SafetensorsFile* file = by_name.at(index.files.at(specs_[idx].name));
    located_[idx] = {file, file->find(specs_[idx].name)};
    if (located_[idx].entry == nullptr) {
      return corrupt(place(idx), "missing tensor: expected in this file as the index says, found no such name");
    }
  }
  return {};
}

Status Checkpoint::check_tensors() const {
  for (size_t idx = 0; idx < specs_.size(); ++idx) TRY(check_entry(specs_[idx], *located_[idx].entry, place(idx)));
  return {};
}

// Tensors are scanned in parts, so that the threads share a large one too.
Status Checkpoint::scan_values() const {
  std::vector<ScanPart> parts;
  for (size_t idx = 0; idx < specs_.size(); ++idx) {
    if (specs_[idx].tensor_class == model::Class::kVision) continue;  // not loaded
    const auto num_bytes = static_cast<size_t>(specs_[idx].num_bytes());
    for (size_t begin = 0; begin < num_bytes; begin += kScanPartBytes) parts.push_back({idx, begin, std::nullopt});
  }
  parallel_for(parts.size(), [&](size_t part_idx) {
    ScanPart& part = parts[part_idx];
    const std::span<const std::byte> data = located_[part.spec_idx].file->data(*located_[part.spec_idx].entry);
    const size_t num_bytes = std::min(kScanPartBytes, data.size() - part.begin);
    part.refused = find_refused_value(specs_[part.spec_idx].dtype, data.subspan(part.begin, num_bytes));
  });
  for (const ScanPart& part : parts) {
    if (!part.refused) continue;
    const model::TensorSpec& spec = specs_[part.spec_idx];
    const size_t element_idx = part.begin / static_cast<size_t>(model::dtype_bytes(spec.dtype)) + *part.refused;
    return corrupt(place(part.spec_idx), "expected no " + std::string(refused_value_name(spec.dtype)) +
                                             ", found one at element " + std::to_string(element_idx) + " of " +
                                             shape_text(spec.shape));
  }
  return {};
}

std::string Checkpoint::place(size_t spec_idx) const {
  return located_[spec_idx].file->path().string() + ": " + specs_[spec_idx].name;
}

Tensor Checkpoint::tensor(std::string_view name) const {
  const auto found = spec_idx_.find(std::string(name));
  CHECK(found != spec_idx_.end(), "a tensor that the inventory has");
  const Located& located = located_[found->second];
  const model::TensorSpec& spec = specs_[found->second];
  return {spec.dtype, spec.shape, located.file->data(*located.entry)};
}

}  // namespace monostep::weights
