// Parameter and byte totals of a tensor inventory: by class (the rows of model.md 1.4) and for one rank under tensor
// parallelism. Used by `inspect`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/geometry.h"
#include "model/inventory.h"
#include "model/shard.h"

namespace monostep::weights {

struct ClassTotal {
  std::string name;
  int64_t num_tensors = 0;
  int64_t num_parameters = 0;
  int64_t num_bytes = 0;
};

// One row a class that occurs, in the order of model::Class, a row "draft experts" (a part of "draft") after it, and
// "all".
std::vector<ClassTotal> class_totals(const std::vector<model::TensorSpec>& specs);

// The shape that one rank holds of a tensor (model/shard.h says which widths are split).
std::vector<int64_t> rank_shape(const model::TensorSpec& spec, const model::Geometry& geometry,
                                const model::Shard& shard);

struct RankBytes {
  int64_t split = 0;       // this rank's part of the split tensors
  int64_t replicated = 0;  // tensors that every rank holds whole
};

// What one rank holds: everything but the vision tower and the Engram tables.
RankBytes rank_bytes(const std::vector<model::TensorSpec>& specs, const model::Geometry& geometry,
                     const model::Shard& shard);

}  // namespace monostep::weights
