// Writes a synthetic checkpoint in the released format: shards, index, both configs, token classes, byte-level
// tokenizer. Called by `monostep make-model` and by tests. The bytes are those of the golden recipe (recipe.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/geometry.h"
#include "model/inventory.h"

namespace monostep::weights {

struct ShardFile {
  std::string name;  // model-00001-of-00005.safetensors
  std::vector<model::TensorSpec> specs;
};

// First half of the layers with the top-level tensors, the rest, the draft, one file for each Engram table, the vision
// tower. A file that would be empty is left out.
std::vector<ShardFile> shard_files(const model::Geometry& geometry);

// `dir` is made; it must not exist or be empty (kInvalidArgument).
Status write_checkpoint(const model::Geometry& geometry, uint64_t seed, const std::filesystem::path& dir);

}  // namespace monostep::weights
