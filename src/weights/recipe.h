// Synthetic weights: the bytes of every tensor of a geometry and a seed by the golden recipe (random codes, scales and
// values from hashed streams, addressed by element, so any part of a tensor can be made alone). Called by make-model
// and tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/geometry.h"
#include "model/inventory.h"
#include "weights/fill_record.h"

namespace monostep::weights {

// A stream of random words, addressed by index: splitmix64 started at the FNV-1a hash of a text.
class Stream {
 public:
  explicit Stream(std::string_view text);
  uint64_t start() const { return start_; }
  uint64_t word(uint64_t idx) const { return stream_word(start_, idx); }
  uint32_t half(uint64_t idx) const { return stream_half(start_, idx); }
  uint8_t byte(uint64_t idx) const { return static_cast<uint8_t>(stream_byte(start_, idx)); }

 private:
  uint64_t start_;
};

// A tensor seen as rows: a vector is one row. Columns are stored elements (a packed FP4 byte is one).
struct RowExtent {
  int64_t num_rows = 1;
  int64_t num_columns = 1;
  int64_t row_bytes = 0;
};
RowExtent row_extent(const model::TensorSpec& spec);

// The rule and the streams of a tensor that is no scale plane; a quantised tensor's covers its scales too.
ValueRule value_rule(const model::Geometry& geometry, uint64_t seed, const model::TensorSpec& spec);

// Fills `out` with whole rows of the tensor, from `row_begin` on. `spec` is one of tensor_inventory(geometry).
void recipe_rows(const model::Geometry& geometry, uint64_t seed, const model::TensorSpec& spec, int64_t row_begin,
                 std::span<std::byte> out);

// The whole tensor.
std::vector<std::byte> recipe_tensor(const model::Geometry& geometry, uint64_t seed, const model::TensorSpec& spec);

}  // namespace monostep::weights
