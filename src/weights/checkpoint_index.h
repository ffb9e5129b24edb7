// The index of a checkpoint (model.safetensors.index.json): which file holds which tensor. Parsed for the loader (and a
// fuzz target), written by make-model.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/result.h"

namespace monostep::weights {

inline constexpr std::string_view kIndexName = "model.safetensors.index.json";

struct CheckpointIndex {
  uint64_t total_bytes = 0;                  // metadata.total_size: the tensors' bytes
  std::map<std::string, std::string> files;  // tensor name -> file name beside the index
};

// Refuses (kCorrupt) anything else than an object with metadata.total_size and weight_map, duplicate names, and file
// names that are empty, hidden or hold a path separator.
Result<CheckpointIndex> parse_checkpoint_index(std::string_view text, const std::string& place);

std::string checkpoint_index_json(const CheckpointIndex& index);

}  // namespace monostep::weights
