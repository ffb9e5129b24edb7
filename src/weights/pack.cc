// The packer (weights/pack.h). Codes move as pairs of K neighbours: a lane of the MMA operand keeps such pairs
// together, so a pair of weight rows becomes four lanes by a fixed small transposition (program::code_offset says the
// order, the tests hold every byte against it).
#include "weights/pack.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "base/check.h"
#include "base/numeric.h"
#include "weights/parallel.h"

namespace monostep::weights {
namespace {

using program::ChunkRun;
using program::FragmentFormat;
using program::kScaleGroup;
using program::kTile;
using program::Layout;
using program::Order;
using program::Split;
using program::Storage;
using program::Weight;

int bits_of(Storage storage) {
  switch (storage) {
    case Storage::kFp4: return 4;
    case Storage::kFp8: return 8;
    case Storage::kBf16: return 16;
    case Storage::kF32: return 32;
  }
  return 0;
}

bool has_scales(const Weight& weight) { return weight.storage == Storage::kFp8 || weight.storage == Storage::kFp4; }

std::string tensor_name(const Weight& weight, int expert_idx) {
  std::string name = weight.name;
  if (weight.num_experts > 0) name.replace(name.find("{}"), 2, std::to_string(expert_idx));
  return name;
}

std::string scale_name(const std::string& tensor) {
  constexpr std::string_view kSuffix = "weight";
  return tensor.substr(0, tensor.size() - kSuffix.size()) + "scale";
}

const std::byte* bytes_of(const Checkpoint& checkpoint, const std::string& name, int64_t num_bytes) {
  const Tensor tensor = checkpoint.tensor(name);
  CHECK(static_cast<int64_t>(tensor.data.size()) == num_bytes, "a tensor of the layout's geometry");
  return tensor.data.data();
}

// A rank's share of a tensor in the checkpoint's map.
struct Share {
  Storage storage = Storage::kBf16;
  int64_t first_row = 0;  // of the whole tensor
  int64_t num_rows = 0;
  const std::byte* codes = nullptr;  // the share's first column in the tensor's row 0
  int64_t row_bytes = 0;             // of the whole tensor
  // FP8: [ceil(rows/32)][columns/32], FP4: [rows][columns/32] E8M0, else null; from the share's first column on.
  const std::byte* scales = nullptr;
  int64_t scale_row_bytes = 0;

  const std::byte* code_row(int64_t row) const { return codes + (first_row + row) * row_bytes; }
  const std::byte* scale_row(int64_t row) const {
    const int64_t whole_row = first_row + row;
    return scales + (storage == Storage::kFp8 ? whole_row / kScaleGroup : whole_row) * scale_row_bytes;
  }
};

int64_t first_row(const Weight& weight, const model::Shard& shard, int rank) {
  return weight.split == Split::kRows ? rank * program::rank_rows(weight, shard) : 0;
}

Share share_of(const Checkpoint& checkpoint, const Weight& weight, const model::Shard& shard, int rank,
               int expert_idx) {
  const std::string name = tensor_name(weight, expert_idx);
  const int64_t first_column = weight.split == Split::kColumns ? rank * program::rank_columns(weight, shard) : 0;
  Share share;
  share.storage = weight.storage;
  share.first_row = first_row(weight, shard, rank);
  share.num_rows = program::rank_rows(weight, shard);
  share.row_bytes = weight.columns * bits_of(weight.storage) / 8;
  share.codes = bytes_of(checkpoint, name, weight.rows * share.row_bytes) + first_column * bits_of(weight.storage) / 8;
  if (!has_scales(weight)) return share;
  CHECK(first_column % kScaleGroup == 0, "shards cut quantised columns in whole groups");
  CHECK(weight.storage != Storage::kFp4 || share.num_rows % kTile == 0, "FP4 rows come in whole tiles");
  share.scale_row_bytes = ceil_div<int64_t>(weight.columns, kScaleGroup);
  const int64_t scale_rows =
      weight.storage == Storage::kFp8 ? ceil_div<int64_t>(weight.rows, kScaleGroup) : weight.rows;
  share.scales =
      bytes_of(checkpoint, scale_name(name), scale_rows * share.scale_row_bytes) + first_column / kScaleGroup;
  return share;
}

// Two weight rows of a tile, r and r + 8, into the four lanes that hold them. A lane has 2 x kQuads pairs of a unit: of
// each 8 K elements its pair of row r, then that of row r + 8. `out`: lane 4r of the first unit.
template <typename Pair, int kQuads>
void interleave_rows(const std::byte* low, const std::byte* high, int num_units, std::byte* out) {
  constexpr int kUnitPairs = 4 * kQuads;  // of one row
  for (int unit = 0; unit < num_units; ++unit) {
    Pair from[2][kUnitPairs];
    std::memcpy(from[0], low + unit * sizeof(from[0]), sizeof(from[0]));
    std::memcpy(from[1], high + unit * sizeof(from[1]), sizeof(from[1]));
    Pair to[4][kQuads][2];
    for (int lane = 0; lane < 4; ++lane) {
      for (int quad = 0; quad < kQuads; ++quad) {
        to[lane][quad][0] = from[0][quad * 4 + lane];
        to[lane][quad][1] = from[1][quad * 4 + lane];
      }
    }
    std::memcpy(out + unit * 8 * sizeof(to), to, sizeof(to));  // eight pairs of rows in a unit
  }
}

// The codes of one tile of one part: rows [first, first + kTile) of the share, format.width columns from `k` on.
template <typename Pair, int kQuads>
void pack_codes(const Share& share, const FragmentFormat& format, int64_t first, int64_t k, std::byte* out) {
  static constexpr std::array<std::byte, program::kMaxKSlice * 2> kZeroRow{};
  constexpr int kLaneBytes = 2 * kQuads * static_cast<int>(sizeof(Pair));
  const int64_t first_byte = k * bits_of(format.storage) / 8;
  const auto row = [&](int64_t idx) {
    return idx < share.num_rows ? share.code_row(idx) + first_byte : kZeroRow.data();
  };
  for (int pair = 0; pair < kTile / 2; ++pair) {
    interleave_rows<Pair, kQuads>(row(first + pair), row(first + pair + kTile / 2), format.width / (8 * kQuads),
                                  out + pair * 4 * kLaneBytes);
  }
}

// FP8: [group], FP4: [group][row].
void pack_scales(const Share& share, const FragmentFormat& format, int64_t first, int64_t k, std::byte* out) {
  const int num_groups = format.width / kScaleGroup;
  const int64_t first_group = k / kScaleGroup;
  if (format.storage == Storage::kFp8) {
    std::memcpy(out, share.scale_row(first) + first_group, static_cast<size_t>(num_groups));
    return;
  }
  for (int row = 0; row < kTile; ++row) {
    const std::byte* scales = share.scale_row(first + row) + first_group;
    for (int group = 0; group < num_groups; ++group) out[group * kTile + row] = scales[group];
  }
}

void spread_codes(std::span<std::byte> codes) {
  for (size_t at = 0; at < codes.size(); at += 4) {
    uint32_t word;
    std::memcpy(&word, &codes[at], 4);
    word = spread_e2m1x8(word);
    std::memcpy(&codes[at], &word, 4);
  }
}

void pack_tile(const Share& share, const FragmentFormat& format, int64_t first, int64_t k, std::byte* out) {
  switch (format.storage) {
    case Storage::kFp4:
      pack_codes<uint8_t, 4>(share, format, first, k, out);
      return spread_codes(std::span(out, static_cast<size_t>(format.tile_code_bytes())));
    case Storage::kFp8: return pack_codes<uint16_t, 4>(share, format, first, k, out);
    case Storage::kBf16: return pack_codes<uint32_t, 2>(share, format, first, k, out);
    case Storage::kF32: CHECK(false, "fragments of fp32");
  }
}

void pack_chunk(const std::vector<Share>& parts, const ChunkRun& run, int chunk, std::byte* out) {
  const FragmentFormat& format = run.format;
  const int64_t k = int64_t{chunk % run.num_pieces} * format.width;
  std::byte* codes = out;
  std::byte* scales = out + format.tiles * format.parts * format.tile_code_bytes();
  for (int tile = 0; tile < format.tiles; ++tile) {
    const int64_t first = (int64_t{chunk / run.num_pieces} * format.tiles + tile) * kTile;
    for (const Share& share : parts) {
      pack_tile(share, format, first, k, codes);
      codes += format.tile_code_bytes();
      if (share.scales == nullptr) continue;
      pack_scales(share, format, first, k, scales);
      scales += format.tile_scale_bytes();
    }
  }
  std::memset(scales, 0, static_cast<size_t>(out + run.chunk_bytes - scales));
}

// hc_*_fn: f32 [row][stream][slice column] of one slice.
void pack_slice(const Share& share, const Layout& layout, int slice, std::span<std::byte> out) {
  const int hc_mult = layout.geometry().hc_mult;
  const size_t part_bytes = static_cast<size_t>(layout.slice_width()) * sizeof(float);
  const int64_t stream_bytes = share.row_bytes / hc_mult;
  for (int64_t row = 0; row < share.num_rows; ++row) {
    for (int stream = 0; stream < hc_mult; ++stream) {
      const std::byte* from = share.code_row(row) + stream * stream_bytes + slice * static_cast<int64_t>(part_bytes);
      std::memcpy(out.data(), from, part_bytes);
      out = out.subspan(part_bytes);
    }
  }
  std::memset(out.data(), 0, out.size());
}

void pack_plain(const Share& share, const Weight& weight, const model::Shard& shard, std::span<std::byte> out) {
  CHECK(weight.split == Split::kNone || (weight.split == Split::kColumns && weight.rows == 1), "a share in one piece");
  const auto num_bytes = static_cast<size_t>(program::code_bytes(weight, shard));
  std::memcpy(out.data(), share.codes, num_bytes);
  std::memset(out.data() + num_bytes, 0, out.size() - num_bytes);
}

void fill_run(const Checkpoint& checkpoint, const Layout& layout, const ChunkRun& run, int rank, int expert_idx,
              std::span<std::byte> out) {
  std::vector<Share> parts;
  for (const Weight& weight : run.weights) {
    parts.push_back(share_of(checkpoint, weight, layout.shard(), rank, expert_idx));
  }
  const auto chunk_bytes = static_cast<size_t>(run.chunk_bytes);
  for (int chunk = 0; chunk < run.num_chunks; ++chunk) {
    const std::span<std::byte> target = out.subspan(static_cast<size_t>(chunk) * chunk_bytes, chunk_bytes);
    switch (run.order()) {
      case Order::kFragments: pack_chunk(parts, run, chunk, target.data()); break;
      case Order::kSlices: pack_slice(parts.front(), layout, chunk, target); break;
      case Order::kPlain: pack_plain(parts.front(), run.weights.front(), layout.shard(), target); break;
      case Order::kTable: CHECK(false, "tables are not packed");
    }
  }
}

}  // namespace

Status check_tiles(const Layout& layout, const ChunkRun& run, int rank) {
  if (run.order() != Order::kFragments || run.format.storage != Storage::kFp8) return {};
  for (const Weight& weight : run.weights) {
    const int64_t begin = first_row(weight, layout.shard(), rank);
    const int64_t end = begin + program::rank_rows(weight, layout.shard());
    for (int64_t row = begin; row < end; row += kTile) {
      const int64_t last = std::min(row + kTile, end) - 1;
      if (row / kScaleGroup == last / kScaleGroup) continue;
      return Error{Code::kUnsupported,
                   fmt::format("rank {} of {} has a tile of rows {} to {}, which take two scales; expected shards of "
                               "whole tiles inside groups of {} rows",
                               rank, layout.shard().tp, row, last, kScaleGroup),
                   weight.name};
    }
  }
  return {};
}

std::vector<ChunkRun> packed_runs(const Layout& layout) {
  std::vector<ChunkRun> runs;
  int64_t end = 0;
  for (ChunkRun& run : program::chunk_runs(layout)) {
    if (run.first_offset != end) continue;  // an earlier call's place
    end += run.packed_bytes();
    runs.push_back(std::move(run));
  }
  return runs;
}

int64_t packed_bytes(const std::vector<ChunkRun>& runs) {
  int64_t end = 0;
  for (const ChunkRun& run : runs) end = std::max(end, run.first_offset + run.packed_bytes());
  return end;
}

Status pack_run(const Checkpoint& checkpoint, const Layout& layout, const ChunkRun& run, int rank, int expert_idx,
                std::span<std::byte> out) {
  CHECK(rank >= 0 && rank < layout.shard().tp, "a rank of the shard");
  CHECK(expert_idx >= 0 && expert_idx < run.num_experts, "an expert of the run");
  CHECK(static_cast<int64_t>(out.size()) == run.expert_stride(), "room for one expert's chunks");
  TRY(check_tiles(layout, run, rank));
  fill_run(checkpoint, layout, run, rank, expert_idx, out);
  return {};
}

Status pack_rank(const Checkpoint& checkpoint, const Layout& layout, int rank, std::span<std::byte> out) {
  const std::vector<ChunkRun> runs = packed_runs(layout);
  CHECK(rank >= 0 && rank < layout.shard().tp, "a rank of the shard");
  CHECK(static_cast<int64_t>(out.size()) == packed_bytes(runs), "room for the rank's packed file");
  struct Item {
    const ChunkRun* run;
    int expert_idx;
  };
  std::vector<Item> items;
  for (const ChunkRun& run : runs) {
    TRY(check_tiles(layout, run, rank));
    for (int expert_idx = 0; expert_idx < run.num_experts; ++expert_idx) items.push_back({&run, expert_idx});
  }
  parallel_for(items.size(), [&](size_t idx) {
    const auto [run, expert_idx] = items[idx];
    const auto begin = static_cast<size_t>(run->offset(expert_idx, 0));
    fill_run(checkpoint, layout, *run, rank, expert_idx, out.subspan(begin, static_cast<size_t>(run->expert_stride())));
  });
  return {};
}

}  // namespace monostep::weights
