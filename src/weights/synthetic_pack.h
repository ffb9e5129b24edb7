// A rank's packed weights made by the golden recipe where they lie, without a checkpoint: the records that the fill
// kernel works through, and the same fill on the host. The bytes are those that pack_rank makes of the checkpoint that
// make-model writes for the geometry and seed. Called by the GPU backend for synthetic shards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "program/layout.h"
#include "weights/fill_record.h"

namespace monostep::weights {

// One record an expert of a run, ascending and without gaps. Refuses the shards that pack_rank refuses.
Result<std::vector<FillRecord>> fill_records(const program::Layout& layout, uint64_t seed, int rank);

// Fills the words of a record, from `first_word` on.
void fill_words(const FillRecord& record, int64_t first_word, std::span<std::byte> out);

}  // namespace monostep::weights
