// Token classes of the Engram hash (model.md 3.8): the class of every token id. They come from
// token_classes.safetensors beside the checkpoint, or, for the released tokenizer, from a table embedded in the
// program. Called by the loader.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/geometry.h"

namespace monostep::weights {

inline constexpr std::string_view kClassesName = "token_classes.safetensors";
inline constexpr std::string_view kTokenizerName = "tokenizer.json";

// One class an id, each in [0, engram_compressed_vocab_size). Empty for a geometry without Engram tables.
Result<std::vector<int32_t>> load_token_classes(const std::filesystem::path& dir, const model::Geometry& geometry);

// The embedded table of the released tokenizer.
std::vector<int32_t> released_token_classes();

}  // namespace monostep::weights
