// Engram n-gram hashing: primes, offsets, multipliers and row numbers (model.md 3.8). Exact integer arithmetic; any
// deviation gives plausible but wrong rows. Used by the step builder, the CPU stage, the synthetic weights and (as
// data) the GPU.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "model/geometry.h"

namespace monostep::model {

inline constexpr int kDeadClass = -1;  // class of a position inside an image span

struct EngramTable {                 // one Engram layer
  std::vector<int64_t> primes;       // [columns], column = (n-2)*heads + head
  std::vector<int64_t> offsets;      // [columns], sum of the primes of the columns before
  std::vector<int64_t> multipliers;  // [max_ngram_size], look-back 0..
  int64_t num_rows = 0;              // sum of the primes
};

// Tables of all Engram layers in order of engram_layer_ids.
std::vector<EngramTable> engram_tables(const Geometry& geometry);

// Row numbers of one position. `classes` is the position's token class and those before it: classes[k] is the class of
// p-k (kDeadClass inside an image span, pad_class where p-k < 0); size max_ngram_size. `rows` has one entry a column.
void engram_rows(const EngramTable& table, int num_heads, int pad_class, std::span<const int> classes,
                 std::span<int64_t> rows);

}  // namespace monostep::model
