// Which tensors each call reads, and where every weight of a rank lies when it is packed for the GPU: bulk copies
// ("chunks") in consumption order, each with the codes of kTile weight rows by one K slice in MMA fragment order, then
// their scale bytes. Pure functions of the layout's geometry and shard. Read by the plan, the time model, the packer
// and the GPU's constants header.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "program/layout.h"

namespace monostep::program {

inline constexpr int kChunkAlign = 64;       // bytes; smaller alignments cost bandwidth (measured on H200)
inline constexpr int kMinChunkBytes = 8192;  // one producer thread keeps up with HBM from here (measured on H200)
inline constexpr int kScaleGroup = 32;       // elements along K that share a scale; FP8 scales also span 32 rows

enum class Split : uint8_t { kNone, kRows, kColumns };  // what a rank holds of a tensor
enum class Order : uint8_t {
  kFragments,  // chunks of kTile rows by a K slice, in MMA order
  kSlices,     // hc_*_fn: one chunk a slice of the hidden dimension, f32 [row][stream][slice column]
  kPlain,      // vectors: one chunk, as in the file
  kTable,      // rows that are looked up by id: not packed, not streamed
};

// A tensor that a call reads.
struct Weight {
  std::string name;  // with ".weight"; of routed experts with "{}" for the expert's id
  Storage storage = Storage::kBf16;
  Order order = Order::kPlain;
  Split split = Split::kNone;
  int64_t rows = 1;  // of the whole tensor; 1 for a vector
  int64_t columns = 0;
  int num_experts = 0;  // 0: not a routed expert's
  int first_tile = 0;   // kFragments: its first tile among the call's tiles
};
std::vector<Weight> weights_of(const Layout& layout, const Call& call);

// A rank's share of a tensor (of one expert's), as the checkpoint stores it: codes with their scale planes.
int64_t rank_rows(const Weight& weight, const model::Shard& shard);
int64_t rank_columns(const Weight& weight, const model::Shard& shard);
int64_t code_bytes(const Weight& weight, const model::Shard& shard);
int64_t scale_bytes(const Weight& weight, const model::Shard& shard);
inline int64_t rank_bytes(const Weight& weight, const model::Shard& shard) {
  return code_bytes(weight, shard) + scale_bytes(weight, shard);
}
// Bytes of one row of a table, with its scales.
int64_t table_row_bytes(const Weight& weight);

// The inside of a chunk of fragments: `tiles` neighbouring tiles of `parts` tensors (2: w1 beside w3). First all codes
// [tile][part][fragments], then all scales [tile][part][group] (FP8) or [tile][part][group][row] (FP4), then padding.
struct FragmentFormat {
  Storage storage = Storage::kFp8;
  int width = 0;  // K elements
  int tiles = 1;
  int parts = 1;
  bool operator==(const FragmentFormat&) const = default;

  int tile_code_bytes() const;  // of one tile of one part
  int tile_scale_bytes() const;
  int chunk_bytes() const;  // padded to kChunkAlign
};

// Where an element's code is. The order is that of the A operand of m16n8k16: lane = (row mod 8) x 4 + (k mod 8) / 2
// holds rows row mod 8 and +8 at k, k + 1, k + 8, k + 9. A lane's FP8 and FP4 codes of 32 K elements are neighbours (16
// and 8 bytes), its BF16 codes of 16 (16 bytes). Two FP4 codes a byte, even k in the low nibble; then the bits of each
// four bytes are spread (base/numeric.h).
struct Element {
  int part = 0;
  int tile = 0;
  int row = 0;  // inside the tile
  int k = 0;    // inside the slice; the even one of a byte's two FP4 codes
  bool operator==(const Element&) const = default;
};
int code_offset(const FragmentFormat& format, const Element& element);   // first byte of the code
Element element_at(const FragmentFormat& format, int byte_offset);       // its inverse, from the first byte of a code
int scale_offset(const FragmentFormat& format, const Element& element);  // FP8 and FP4 only

// The chunks of one tensor (w1 and w3 of an expert: of two) of one call. Calls that read the same tensor share its
// place.
struct ChunkRun {
  int call_idx = 0;
  std::vector<Weight> weights;  // the parts
  FragmentFormat format;        // kFragments only
  int num_tiles = 0;            // kFragments: tiles of the run, the last one padded with zero rows
  int num_pieces = 1;           // K slices of a tile; a task of a stage that splits K takes one, else all, ascending
  int num_chunks = 1;           // of one expert; chunk = (tile / format.tiles) x num_pieces + piece
  int num_experts = 1;
  int chunk_bytes = 0;
  int64_t first_offset = 0;  // bytes, in the rank's packed file

  Order order() const { return weights.front().order; }
  int64_t expert_stride() const { return int64_t{num_chunks} * chunk_bytes; }
  int64_t offset(int expert_idx, int chunk) const {
    return first_offset + expert_idx * expert_stride() + int64_t{chunk} * chunk_bytes;
  }
  int64_t packed_bytes() const { return num_experts * expert_stride(); }
};

// Neighbouring tiles of a stage that share a chunk, and so a CTA: more than one only where expert-down's chunks were
// small.
int tiles_per_chunk(const Layout& layout, Stage stage);

// All runs of a step in consumption order: calls in program order, inside a call as its tasks take them.
std::vector<ChunkRun> chunk_runs(const Layout& layout);

// Sums over the packed file of a rank (each tensor once).
struct PackedSize {
  int64_t packed_bytes = 0;    // the file
  int64_t source_bytes = 0;    // codes and scales of the rank's share, as the checkpoint stores them
  int64_t repeated_bytes = 0;  // FP8 scales that two tiles of 16 rows carry each
  int64_t padding_bytes = 0;   // rows behind the last one, and alignment
  int smallest_quantized = 0;  // bytes of the smallest FP8 or FP4 chunk; 0 where there is none
  int num_small = 0;           // FP8 and FP4 runs with chunks below kMinChunkBytes
};
PackedSize packed_size(const Layout& layout, const std::vector<ChunkRun>& runs);

}  // namespace monostep::program
