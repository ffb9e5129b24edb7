// A packed rank holds each weight where program/packing.h says: compared byte for byte with a slow packer that places
// loaded tensors element by element, and read back through the inverse of the fragment order.
#include "weights/pack.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "../base/temp_dir.h"
#include "base/sha256.h"
#include "model/shard.h"
#include "weights/synthetic.h"

namespace monostep::weights {
namespace {

using program::ChunkRun;
using program::Element;
using program::FragmentFormat;
using program::kScaleGroup;
using program::kTile;
using program::Layout;
using program::Order;
using program::Split;
using program::Storage;
using program::Weight;

constexpr std::byte kPoison{0xAB};

model::Geometry named(const std::string& name) { return model::named_geometry(name).value(); }

// Splits over 1, 2, 4 and 8 ranks.
model::Geometry eight_ranks() {
  model::Geometry g = named("micro");
  g.hidden_size = 256;
  g.num_attention_heads = 8;
  g.o_groups = 8;
  g.moe_intermediate_size = 256;
  g.n_routed_experts = 4;
  return g;
}

// Wide enough that K is cut into pieces (main_proj: 1536), and that w2 has one tile a chunk at TP 1, two and four
// above.
model::Geometry wide() {
  model::Geometry g = eight_ranks();
  g.hidden_size = 512;
  g.moe_intermediate_size = 1024;
  g.n_routed_experts = 2;
  g.dspark_n_routed_experts = 2;
  return g;
}

// The released topology with few experts.
model::Geometry small_clone() {
  model::Geometry g = named("clone40");
  g.n_routed_experts = g.num_experts_per_tok = 2;
  g.dspark_n_routed_experts = g.dspark_num_experts_per_tok = 2;
  return g;
}

// engram.wkv has 800 rows: a quarter starts 8 rows behind a multiple of 16.
model::Geometry uneven() {
  model::Geometry g = eight_ranks();
  g.hidden_size = 160;
  return g;
}

Checkpoint made(const model::Geometry& geometry) {
  const TempDir dir;  // the files are mapped, so the folder need not stay
  CHECK(write_checkpoint(geometry, 3, dir / "model").ok(), "the checkpoint is written");
  return Checkpoint::open(dir / "model").value();
}

Layout layout_of(const model::Geometry& geometry, int tp) {
  program::Shape shape;
  shape.max_context = std::min(1024, geometry.max_position_embeddings);
  return Layout(geometry, model::make_shard(geometry, tp).value(), shape);
}

using Bytes = std::vector<std::byte>;

Bytes packed(const Checkpoint& checkpoint, const Layout& layout, int rank) {
  Bytes out(static_cast<size_t>(packed_bytes(packed_runs(layout))), kPoison);
  const Status status = pack_rank(checkpoint, layout, rank, out);
  EXPECT_TRUE(status.ok()) << status.error().message();
  return out;
}

// A tensor with its scales, read element by element.
class Loaded {
 public:
  Loaded(const Checkpoint& checkpoint, const Weight& weight, const model::Shard& shard, int rank, int expert_idx)
      : weight_(weight) {
    name_ = weight.name;
    if (weight.num_experts > 0) name_.replace(name_.find("{}"), 2, std::to_string(expert_idx));
    codes_ = checkpoint.tensor(name_).data;
    if (weight.storage == Storage::kFp8 || weight.storage == Storage::kFp4) {
      scales_ = checkpoint.tensor(name_.substr(0, name_.rfind("weight")) + "scale").data;
    }
    num_rows_ = weight.rows / (weight.split == Split::kRows ? shard.tp : 1);
    num_columns_ = weight.columns / (weight.split == Split::kColumns ? shard.tp : 1);
    first_row_ = weight.split == Split::kRows ? num_rows_ * rank : 0;
    first_column_ = weight.split == Split::kColumns ? num_columns_ * rank : 0;
  }

  const std::string& name() const { return name_; }
  int64_t num_rows() const { return num_rows_; }
  int64_t num_columns() const { return num_columns_; }
  // The code as a number; 0 behind the last row.
  uint32_t code(int64_t row, int64_t column) const {
    if (row >= num_rows_) return 0;
    const int64_t idx = (first_row_ + row) * weight_.columns + first_column_ + column;
    switch (weight_.storage) {
      case Storage::kFp4: return byte(codes_, idx / 2) >> (idx % 2 * 4) & 0xf;
      case Storage::kFp8: return byte(codes_, idx);
      case Storage::kBf16: return byte(codes_, idx * 2) | byte(codes_, idx * 2 + 1) << 8;
      case Storage::kF32: break;
    }
    uint32_t bits = 0;
    for (int part = 0; part < 4; ++part) bits |= byte(codes_, idx * 4 + part) << (8 * part);
    return bits;
  }
  std::byte scale(int64_t row, int64_t column) const {
    const int64_t whole_row = first_row_ + row;
    const int64_t scale_row = weight_.storage == Storage::kFp8 ? whole_row / kScaleGroup : whole_row;
    const int64_t group = (first_column_ + column) / kScaleGroup;
    return scales_[static_cast<size_t>(scale_row * (weight_.columns / kScaleGroup) + group)];
  }
  int code_bytes() const { return weight_.storage == Storage::kF32 ? 4 : weight_.storage == Storage::kBf16 ? 2 : 1; }

 private:
  static uint32_t byte(std::span<const std::byte> bytes, int64_t idx) {
    return static_cast<uint32_t>(bytes[static_cast<size_t>(idx)]);
  }
  Weight weight_;
  std::string name_;
  std::span<const std::byte> codes_, scales_;
  int64_t num_rows_ = 0, num_columns_ = 0, first_row_ = 0, first_column_ = 0;
};

void put(Bytes& out, int64_t offset, uint32_t code, int num_bytes) {
  for (int part = 0; part < num_bytes; ++part) {
    out[static_cast<size_t>(offset + part)] = static_cast<std::byte>(code >> (8 * part));
  }
}

struct Place {  // of an element of a run of fragments
  int chunk = 0;
  Element element;
};
Place place_of(const ChunkRun& run, int part, int64_t row, int64_t column) {
  const int tile = static_cast<int>(row / kTile);
  Place place;
  place.chunk = tile / run.format.tiles * run.num_pieces + static_cast<int>(column / run.format.width);
  place.element = {part, tile % run.format.tiles, static_cast<int>(row % kTile),
                   static_cast<int>(column % run.format.width)};
  return place;
}

// Where bit `bit` of an FP4 code lies in its word of eight: pair (byte of unspread codes), even or odd place.
int spread_bit(int64_t pair, int64_t odd, int bit) {
  const int magnitudes[] = {9, 6, 3, 0};
  const int signs[] = {15, 12, 14, 13};
  return static_cast<int>(odd) * 16 + (bit == 3 ? signs[pair] : magnitudes[pair] + bit);
}

void place_fragments(const Loaded& tensor, const ChunkRun& run, int part, int expert_idx, Bytes& out) {
  const bool fp4 = run.format.storage == Storage::kFp4;
  for (int64_t row = 0; row < int64_t{run.num_tiles} * kTile; ++row) {
    for (int64_t column = 0; column < tensor.num_columns(); ++column) {
      const Place place = place_of(run, part, row, column);
      const int64_t chunk = run.offset(expert_idx, place.chunk);
      const int64_t offset = chunk + code_offset(run.format, place.element);
      const uint32_t code = tensor.code(row, column);
      if (fp4) {
        for (int bit = 0; bit < 4; ++bit) {
          const int place_bit = spread_bit(offset % 4, column % 2, bit);
          out[static_cast<size_t>(offset / 4 * 4 + place_bit / 8)] |=
              static_cast<std::byte>((code >> bit & 1) << place_bit % 8);
        }
      } else {
        put(out, offset, code, tensor.code_bytes());
      }
      if (run.format.storage == Storage::kBf16 || row >= tensor.num_rows() || column % kScaleGroup != 0) continue;
      out[static_cast<size_t>(chunk + scale_offset(run.format, place.element))] = tensor.scale(row, column);
    }
  }
}

void place_slices(const Loaded& tensor, const ChunkRun& run, const Layout& layout, Bytes& out) {
  const int64_t width = layout.slice_width();
  const int64_t hidden = layout.geometry().hidden_size;
  for (int64_t row = 0; row < tensor.num_rows(); ++row) {
    for (int64_t column = 0; column < tensor.num_columns(); ++column) {
      const int64_t stream = column / hidden;
      const int64_t inside = (row * layout.geometry().hc_mult + stream) * width + column % hidden % width;
      put(out, run.offset(0, static_cast<int>(column % hidden / width)) + inside * 4, tensor.code(row, column), 4);
    }
  }
}

void place_plain(const Loaded& tensor, const ChunkRun& run, Bytes& out) {
  for (int64_t idx = 0; idx < tensor.num_rows() * tensor.num_columns(); ++idx) {
    put(out, run.offset(0, 0) + idx * tensor.code_bytes(),
        tensor.code(idx / tensor.num_columns(), idx % tensor.num_columns()), tensor.code_bytes());
  }
}

// The packed file from loaded tensors, one element at a time; places that two calls share are written once.
Bytes slowly_packed(const Checkpoint& checkpoint, const Layout& layout, int rank) {
  const std::vector<ChunkRun> runs = chunk_runs(layout);
  Bytes out(static_cast<size_t>(packed_size(layout, runs).packed_bytes));
  std::map<int64_t, std::string> done;
  for (const ChunkRun& run : runs) {
    if (!done.try_emplace(run.first_offset, run.weights.front().name).second) continue;
    for (int expert_idx = 0; expert_idx < run.num_experts; ++expert_idx) {
      for (size_t part = 0; part < run.weights.size(); ++part) {
        const Loaded tensor(checkpoint, run.weights[part], layout.shard(), rank, expert_idx);
        switch (run.order()) {
          case Order::kFragments: place_fragments(tensor, run, static_cast<int>(part), expert_idx, out); break;
          case Order::kSlices: place_slices(tensor, run, layout, out); break;
          default: place_plain(tensor, run, out); break;
        }
      }
    }
  }
  return out;
}

// The tensor that holds the first byte in which two packed files differ; empty where none does.
std::string first_difference(const Layout& layout, const Bytes& a, const Bytes& b) {
  if (a.size() != b.size()) return "another size";
  const auto offset = std::mismatch(a.begin(), a.end(), b.begin()).first - a.begin();
  for (const ChunkRun& run : packed_runs(layout)) {
    if (offset < run.first_offset || offset >= run.first_offset + run.packed_bytes()) continue;
    return run.weights.front().name + " at byte " + std::to_string(offset - run.first_offset);
  }
  return "";
}

void expect_equal_to_slow(const model::Geometry& geometry, const Checkpoint& checkpoint) {
  for (const int tp : {1, 2, 4, 8}) {
    if (!model::make_shard(geometry, tp).ok()) continue;
    const Layout layout = layout_of(geometry, tp);
    for (int rank = 0; rank < tp; ++rank) {
      EXPECT_EQ(first_difference(layout, packed(checkpoint, layout, rank), slowly_packed(checkpoint, layout, rank)), "")
          << "rank " << rank << " of " << tp;
    }
  }
}

TEST(Pack, every_byte_of_micro_equals_that_of_the_loaded_tensors) {
  expect_equal_to_slow(named("micro"), made(named("micro")));
}

TEST(Pack, every_byte_of_the_default_model_equals_that_of_the_loaded_tensors) {
  const Checkpoint checkpoint = Checkpoint::open(MONOSTEP_SOURCE_DIR "/models/default").value();
  expect_equal_to_slow(checkpoint.geometry(), checkpoint);
}

TEST(Pack, every_byte_of_the_released_topology_equals_that_of_the_loaded_tensors) {
  expect_equal_to_slow(small_clone(), made(small_clone()));
}

TEST(Pack, every_byte_of_eight_ranks_equals_that_of_the_loaded_tensors) {
  ASSERT_TRUE(model::make_shard(eight_ranks(), 8).ok());
  expect_equal_to_slow(eight_ranks(), made(eight_ranks()));
}

TEST(Pack, every_byte_of_pieces_and_of_chunks_of_several_tiles_equals_that_of_the_loaded_tensors) {
  std::set<int> pieces, tiles;
  for (const int tp : {1, 2, 4}) {
    for (const ChunkRun& run : packed_runs(layout_of(wide(), tp))) {
      pieces.insert(run.num_pieces);
      tiles.insert(run.format.tiles);
    }
  }
  EXPECT_EQ(pieces, (std::set<int>{1, 2}));
  EXPECT_EQ(tiles, (std::set<int>{1, 2, 4}));
  expect_equal_to_slow(wide(), made(wide()));
}

// Reads every code and scale of a packed file back through element_at. Returns the number of codes that are not those
// of the tensor (or, behind its rows, not zero).
int64_t num_wrong_codes(const Checkpoint& checkpoint, const Layout& layout, int rank, const Bytes& file) {
  int64_t wrong = 0;
  for (const ChunkRun& run : packed_runs(layout)) {
    if (run.order() != Order::kFragments) continue;
    const FragmentFormat& format = run.format;
    const int step = format.storage == Storage::kBf16 ? 2 : 1;
    const int end = format.tiles * format.parts * format.tile_code_bytes();
    for (int expert_idx = 0; expert_idx < run.num_experts; ++expert_idx) {
      std::vector<Loaded> parts;
      for (const Weight& weight : run.weights) parts.emplace_back(checkpoint, weight, layout.shard(), rank, expert_idx);
      for (int chunk = 0; chunk < run.num_chunks; ++chunk) {
        for (int offset = 0; offset < end; offset += step) {
          const Element element = element_at(format, offset);
          const Loaded& tensor = parts[static_cast<size_t>(element.part)];
          const int64_t row = (int64_t{chunk / run.num_pieces} * format.tiles + element.tile) * kTile + element.row;
          const int64_t column = int64_t{chunk % run.num_pieces} * format.width + element.k;
          uint32_t wanted = tensor.code(row, column);
          if (format.storage == Storage::kFp4) wanted |= tensor.code(row, column + 1) << 4;
          const auto byte_at = [&](int at) {
            return static_cast<uint32_t>(file[static_cast<size_t>(run.offset(expert_idx, chunk) + at)]);
          };
          uint32_t found = 0;
          if (format.storage == Storage::kFp4) {
            for (int bit = 0; bit < 8; ++bit) {
              const int place_bit = spread_bit(offset % 4, bit / 4, bit % 4);
              found |= (byte_at(offset / 4 * 4 + place_bit / 8) >> place_bit % 8 & 1) << bit;
            }
          } else {
            for (int part = 0; part < step; ++part) found |= byte_at(offset + part) << (8 * part);
          }
          wrong += found != wanted;
        }
      }
    }
  }
  return wrong;
}

TEST(Pack, every_code_reads_back_and_a_changed_one_is_found) {
  for (const model::Geometry& geometry : {named("micro"), wide()}) {
    const Checkpoint checkpoint = made(geometry);
    const Layout layout = layout_of(geometry, 2);
    Bytes file = packed(checkpoint, layout, 1);
    EXPECT_EQ(num_wrong_codes(checkpoint, layout, 1, file), 0);
    const std::vector<ChunkRun> runs = packed_runs(layout);
    const auto run = std::find_if(runs.begin(), runs.end(), [](const ChunkRun& each) { return each.num_experts > 1; });
    file[static_cast<size_t>(run->offset(1, 0)) + 5] ^= std::byte{0x10};
    EXPECT_EQ(num_wrong_codes(checkpoint, layout, 1, file), 1);
    EXPECT_GT(num_wrong_codes(checkpoint, layout, 0, file), 1000);  // another rank's share
  }
}

TEST(Pack, run_by_run_gives_the_bytes_of_the_whole) {
  const Checkpoint checkpoint = made(eight_ranks());
  const Layout layout = layout_of(eight_ranks(), 4);
  const Bytes whole = packed(checkpoint, layout, 3);
  Bytes parts(whole.size(), kPoison);
  for (const ChunkRun& run : chunk_runs(layout)) {  // with the runs that read an earlier call's place
    for (int expert_idx = 0; expert_idx < run.num_experts; ++expert_idx) {
      const auto target = std::span(parts).subspan(static_cast<size_t>(run.offset(expert_idx, 0)),
                                                   static_cast<size_t>(run.expert_stride()));
      ASSERT_TRUE(pack_run(checkpoint, layout, run, 3, expert_idx, target).ok());
    }
  }
  EXPECT_EQ(first_difference(layout, parts, whole), "");
}

// Where these change on purpose, kPackVersion (packed_cache.h) goes up.
TEST(Pack, the_bytes_of_micro_are_the_recorded_ones) {
  const Checkpoint checkpoint = made(named("micro"));
  EXPECT_EQ(sha256_hex(packed(checkpoint, layout_of(named("micro"), 1), 0)),
            "749e3494c89c43af31f0eafa333678d19dc3c55541c67908214ab16a1f095fda");
  EXPECT_EQ(sha256_hex(packed(checkpoint, layout_of(named("micro"), 2), 1)),
            "702756d629b68f28c32c084a330d4d257dd2ae4be199d3cc11393ab522ed3487");
}

TEST(Pack, a_place_that_calls_share_is_packed_once) {
  const Layout layout = layout_of(named("micro"), 1);
  const std::vector<ChunkRun> all = chunk_runs(layout);
  const std::vector<ChunkRun> once = packed_runs(layout);
  EXPECT_LT(once.size(), all.size());
  int64_t end = 0;
  for (const ChunkRun& run : once) {
    EXPECT_EQ(run.first_offset, end) << run.weights.front().name;
    end += run.packed_bytes();
  }
  EXPECT_EQ(packed_bytes(once), end);
  EXPECT_EQ(packed_bytes(all), end);
  EXPECT_EQ(packed_size(layout, all).packed_bytes, end);
}

TEST(Pack, a_tile_that_would_take_two_scales_is_refused_by_tensor_rank_and_row) {
  const Checkpoint checkpoint = made(uneven());
  const Layout layout = layout_of(uneven(), 4);
  Bytes out(static_cast<size_t>(packed_bytes(packed_runs(layout))), kPoison);
  const Status status = pack_rank(checkpoint, layout, 1, out);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, Code::kUnsupported);
  EXPECT_EQ(status.error().place, "layers.0.engram.wkv.weight");
  EXPECT_NE(status.error().text.find("rank 1 of 4 has a tile of rows 216 to 231"), std::string::npos)
      << status.error().text;
  EXPECT_EQ(std::count(out.begin(), out.end(), kPoison), static_cast<int64_t>(out.size()));  // nothing is written

  for (const ChunkRun& run : packed_runs(layout)) {
    if (run.weights.front().name != status.error().place) continue;
    const Status refused = pack_run(checkpoint, layout, run, 1, 0, std::span(out).first(run.expert_stride()));
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().message(), status.error().message());
  }
}

// The first rank's tiles lie inside the groups of rows; the last one has eight rows behind the tensor's.
TEST(Pack, rows_behind_the_last_one_of_fp8_are_zero) {
  const Checkpoint checkpoint = made(uneven());
  const Layout layout = layout_of(uneven(), 4);
  ASSERT_EQ(layout.shard().engram_rows % kTile, 8);
  EXPECT_EQ(first_difference(layout, packed(checkpoint, layout, 0), slowly_packed(checkpoint, layout, 0)), "");
}

}  // namespace
}  // namespace monostep::weights
