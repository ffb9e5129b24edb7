// Packs one rank's weights as the GPU streams them: the chunks of program/packing.h, filled straight from the maps of a
// checkpoint. A byte that holds no weight (rows behind a tensor's last one, alignment) is zero, so what such a row
// gives is exactly zero: its codes are, and only FP8 and BF16 tensors have such rows, whose scales are real ones of
// their tile. Called by gpu/load_weights; pack_rank says what a whole packed file is and serves the tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "program/layout.h"
#include "program/packing.h"
#include "weights/checkpoint.h"

namespace monostep::weights {

// The runs of a rank's packed file, each place once and ascending: what later calls read again is left out.
std::vector<program::ChunkRun> packed_runs(const program::Layout& layout);

// Bytes of the packed file that holds the runs.
int64_t packed_bytes(const std::vector<program::ChunkRun>& runs);

// Refuses (kUnsupported, names tensor, rank and row) a shard that cuts an FP8 tensor of the run so that a tile's rows
// take two scales, for which a tile has no room.
Status check_tiles(const program::Layout& layout, const program::ChunkRun& run, int rank);

// Fills `out`, of run.expert_stride() bytes, with the chunks of one expert (0 where the run is no routed expert's).
// The layout is one of the checkpoint's geometry. Refuses as check_tiles does.
Status pack_run(const Checkpoint& checkpoint, const program::Layout& layout, const program::ChunkRun& run, int rank,
                int expert_idx, std::span<std::byte> out);

// Fills `out`, of packed_bytes(packed_runs(layout)) bytes, with all runs of a rank, on several threads. Refuses as
// check_tiles does, before anything is written.
Status pack_rank(const Checkpoint& checkpoint, const program::Layout& layout, int rank, std::span<std::byte> out);

}  // namespace monostep::weights
