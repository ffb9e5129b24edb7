// Checkpoint: a checkpoint directory that is complete or refused. open() reads the config, the index, every file that
// the index names and the token classes, and compares them with the tensor inventory; tensors stay in the memory maps.
// Called by the engines and by `inspect`. Sources: model.md 2.1-2.3.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "model/geometry.h"
#include "model/inventory.h"
#include "weights/checkpoint_index.h"
#include "weights/safetensors.h"

namespace monostep::weights {

struct Tensor {
  model::Dtype dtype = model::Dtype::kBF16;
  std::span<const int64_t> shape;
  std::span<const std::byte> data;  // row-major; not aligned in general: read wider elements by memcpy
};

struct OpenOptions {
  bool scan_values = true;  // refuse NaN codes and non-finite values: reads every byte that is loaded
};

class Checkpoint {
 public:
  // Errors: kNotFound (a file), kCorrupt (any disagreement; the place names file and tensor, the text expected and
  // found).
  static Result<Checkpoint> open(const std::filesystem::path& dir, const OpenOptions& options = {});

  const std::filesystem::path& dir() const { return dir_; }
  const model::Geometry& geometry() const { return geometry_; }
  // All tensors of the checkpoint, the vision tower's too.
  const std::vector<model::TensorSpec>& specs() const { return specs_; }
  // One class a token id; empty where the geometry has no Engram tables.
  const std::vector<int32_t>& token_classes() const { return token_classes_; }
  bool has_tokenizer() const { return has_tokenizer_; }
  int num_files() const { return static_cast<int>(files_.size()); }

  // CHECKs that the inventory has the name.
  Tensor tensor(std::string_view name) const;

 private:
  struct Located {
    const SafetensorsFile* file = nullptr;
    const SafetensorsEntry* entry = nullptr;
  };
  Status open_files(const CheckpointIndex& index);
  Status check_tensors() const;
  Status scan_values() const;
  std::string place(size_t spec_idx) const;

  std::filesystem::path dir_;
  model::Geometry geometry_;
  std::vector<model::TensorSpec> specs_;
  std::unordered_map<std::string, size_t> spec_idx_;  // name -> position in specs_ and located_
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::vector<Located> located_;  // [specs_.size()]
  std::vector<int32_t> token_classes_;
  bool has_tokenizer_ = false;
};

}  // namespace monostep::weights
