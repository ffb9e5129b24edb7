// Fragment order is a bijection, and the packed file of a rank holds every weight byte of its share exactly once.
#include "program/packing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "cases.h"
#include "model/inventory.h"

namespace monostep::program {
namespace {

int codes_of(const FragmentFormat& format) { return kTile * format.width * format.tiles * format.parts; }

// Every format in use by a known geometry.
std::vector<FragmentFormat> formats_in_use() {
  std::vector<FragmentFormat> formats;
  for_each_layout({8}, [&](const std::string&, const Layout& layout) {
    for (const ChunkRun& run : chunk_runs(layout)) {
      if (run.order() != Order::kFragments) continue;
      if (std::find(formats.begin(), formats.end(), run.format) == formats.end()) formats.push_back(run.format);
    }
  });
  return formats;
}

template <typename Visit>
void for_each_element(const FragmentFormat& format, Visit&& visit) {
  for (int tile = 0; tile < format.tiles; ++tile) {
    for (int part = 0; part < format.parts; ++part) {
      for (int row = 0; row < kTile; ++row) {
        for (int k = 0; k < format.width; ++k) visit(Element{part, tile, row, k});
      }
    }
  }
}

TEST(Fragments, every_code_has_its_own_place_and_comes_back) {
  for (const FragmentFormat& format : formats_in_use()) {
    std::map<int, int> uses;  // [first byte] codes
    int wrong = 0;
    for_each_element(format, [&](const Element& element) {
      const int offset = code_offset(format, element);
      ++uses[offset];
      Element wanted = element;
      if (format.storage == Storage::kFp4) wanted.k &= ~1;
      wrong += !(element_at(format, offset) == wanted);
    });
    const int codes_a_byte = format.storage == Storage::kFp4 ? 2 : 1;
    const int bytes_a_code = format.storage == Storage::kBf16 ? 2 : 1;
    EXPECT_EQ(wrong, 0) << format.width;
    EXPECT_EQ(static_cast<int>(uses.size()) * codes_a_byte, codes_of(format));
    for (const auto& [offset, count] : uses) {
      ASSERT_EQ(count, codes_a_byte);
      ASSERT_EQ(offset % bytes_a_code, 0);
      ASSERT_LE(offset + bytes_a_code, format.tiles * format.parts * format.tile_code_bytes());
    }
  }
}

TEST(Fragments, scales_lie_behind_the_codes_and_share_no_byte) {
  for (const FragmentFormat& format : formats_in_use()) {
    if (format.storage == Storage::kBf16) continue;
    std::map<int, std::set<std::array<int, 4>>> owners;  // [byte] groups of elements
    for_each_element(format, [&](const Element& element) {
      const int row = format.storage == Storage::kFp4 ? element.row : 0;
      owners[scale_offset(format, element)].insert({element.tile, element.part, row, element.k / kScaleGroup});
    });
    const int first = format.tiles * format.parts * format.tile_code_bytes();
    const int num_scales = format.tiles * format.parts * format.tile_scale_bytes();
    EXPECT_EQ(owners.begin()->first, first);
    EXPECT_EQ(owners.rbegin()->first, first + num_scales - 1);
    EXPECT_EQ(static_cast<int>(owners.size()), num_scales);
    for (const auto& [offset, groups] : owners) ASSERT_EQ(groups.size(), 1u);
    EXPECT_GE(format.chunk_bytes(), first + num_scales);
    EXPECT_EQ(format.chunk_bytes() % kChunkAlign, 0);
  }
}

// The A operand of m16n8k16 by its definition: lane 4g + t holds a0..a7 = (g, 2t), (g, 2t+1), (g+8, 2t), (g+8, 2t+1),
// and the same rows at k + 8.
TEST(Fragments, a_lane_holds_the_operand_of_the_instruction) {
  const FragmentFormat format{Storage::kFp8, 64, 1, 1};
  for (int lane = 0; lane < 32; ++lane) {
    for (int value = 0; value < 8; ++value) {
      const int row = lane / 4 + value / 2 % 2 * 8;
      const int k = lane % 4 * 2 + value % 2 + value / 4 * 8;
      EXPECT_EQ(code_offset(format, {0, 0, row, k}), lane * 16 + value);
      EXPECT_EQ(code_offset(format, {0, 0, row, 16 + k}), lane * 16 + 8 + value);
      EXPECT_EQ(code_offset(format, {0, 0, row, 32 + k}), 512 + lane * 16 + value);
      EXPECT_EQ(code_offset({Storage::kBf16, 64, 1, 1}, {0, 0, row, 16 + k}), 512 + lane * 16 + value * 2);
      EXPECT_EQ(code_offset({Storage::kFp4, 64, 1, 1}, {0, 0, row, 16 + k}), lane * 8 + 4 + value / 2);
    }
  }
}

// Bytes of a rank's share of each tensor of the inventory, by the rules of the shard, told apart by name alone.
std::map<std::string, int64_t> rank_inventory(const model::Geometry& geometry, int tp) {
  const auto ends_with_any = [](const std::string& name, const std::vector<std::string>& tensors) {
    for (const std::string& tensor : tensors) {
      const std::string dotted = "." + name;
      for (const char* plane : {"", ".weight", ".scale"}) {
        if (dotted.ends_with("." + tensor + plane)) return true;
      }
    }
    return false;
  };
  std::map<std::string, int64_t> bytes;
  for (const model::TensorSpec& spec : model::tensor_inventory(geometry)) {
    if (spec.tensor_class == model::Class::kVision) continue;
    const bool rows =
        ends_with_any(spec.name, {"wq_b", "wo_a", "w1", "w3", "head", "markov_head.head", "engram.wkv", "attn_sink"}) &&
        !ends_with_any(spec.name, {"indexer.wq_b"});
    const bool columns = ends_with_any(spec.name, {"wo_b", "w2"});
    bytes[spec.name] = spec.num_bytes() / (rows || columns ? tp : 1);
  }
  return bytes;
}

void add_weight(const Weight& weight, const model::Shard& shard, std::map<std::string, int64_t>& bytes) {
  for (int expert_idx = 0; expert_idx < std::max(weight.num_experts, 1); ++expert_idx) {
    std::string name = weight.name;
    if (weight.num_experts > 0) name.replace(name.find("{}"), 2, std::to_string(expert_idx));
    bytes[name] = code_bytes(weight, shard);
    if (scale_bytes(weight, shard) == 0) continue;
    bytes[name.substr(0, name.size() - std::string("weight").size()) + "scale"] = scale_bytes(weight, shard);
  }
}

TEST(Packing, a_rank_reads_its_share_of_every_tensor_of_the_inventory) {
  for_each_layout({8}, [](const std::string& name, const Layout& layout) {
    std::map<std::string, int64_t> read;
    for (const Call& call : layout.program().calls) {
      for (const Weight& weight : weights_of(layout, call)) add_weight(weight, layout.shard(), read);
    }
    EXPECT_EQ(read, rank_inventory(layout.geometry(), layout.shard().tp)) << name;
  });
}

TEST(Packing, an_engram_table_belongs_to_its_look_up_and_is_not_streamed) {
  const Layout layout = layout_of("flash", 4);
  const auto weights = [&](Stage stage) {
    return weights_of(layout, layout.program().calls[static_cast<size_t>(layout.program().find(stage, 14))]);
  };
  ASSERT_EQ(weights(Stage::kEngramRows).size(), 1u);
  EXPECT_EQ(weights(Stage::kEngramRows)[0].order, Order::kTable);
  EXPECT_EQ(table_row_bytes(weights(Stage::kEngramRows)[0]), 264);
  ASSERT_EQ(weights(Stage::kEngramKv).size(), 1u);
  EXPECT_EQ(weights(Stage::kEngramKv)[0].order, Order::kFragments);
}

TEST(Packing, the_query_norm_belongs_to_the_call_that_norms) {
  const Layout layout = layout_of("flash", 4);
  const auto names = [&](Stage stage) {
    std::vector<std::string> out;
    for (const Weight& weight :
         weights_of(layout, layout.program().calls[static_cast<size_t>(layout.program().find(stage, 0))])) {
      out.push_back(weight.name);
    }
    return out;
  };
  EXPECT_EQ(names(Stage::kQNorm), std::vector<std::string>{"layers.0.attn.q_norm.weight"});
  EXPECT_EQ(names(Stage::kQProj), std::vector<std::string>{"layers.0.attn.wq_b.weight"});
  EXPECT_TRUE(names(Stage::kOSum).empty());
  EXPECT_TRUE(names(Stage::kExpertAct).empty());  // the router's bias comes with kExpertUp
}

TEST(Packing, every_weight_byte_is_in_exactly_one_chunk) {
  for_each_layout({8}, [](const std::string& name, const Layout& layout) {
    std::map<std::string, int64_t> streamed;
    for (const Call& call : layout.program().calls) {
      for (const Weight& weight : weights_of(layout, call)) {
        if (weight.order != Order::kTable) add_weight(weight, layout.shard(), streamed);
      }
    }
    int64_t wanted = 0;
    for (const auto& [tensor, bytes] : streamed) wanted += bytes;
    const std::vector<ChunkRun> runs = chunk_runs(layout);
    const PackedSize size = packed_size(layout, runs);
    EXPECT_EQ(size.source_bytes, wanted) << name;
    EXPECT_EQ(size.packed_bytes, size.source_bytes + size.repeated_bytes + size.padding_bytes) << name;

    std::map<int64_t, int64_t> extents;       // [first] end of each tensor's place
    std::map<std::string, int64_t> place_of;  // a tensor keeps its place and its form whoever reads it
    for (const ChunkRun& run : runs) {
      EXPECT_EQ(run.first_offset % kChunkAlign, 0);
      EXPECT_EQ(run.chunk_bytes % kChunkAlign, 0);
      const int64_t end = run.first_offset + run.packed_bytes();
      EXPECT_EQ(extents.try_emplace(run.first_offset, end).first->second, end) << run.weights.front().name;
      for (const Weight& weight : run.weights) {
        EXPECT_EQ(place_of.try_emplace(weight.name, run.first_offset).first->second, run.first_offset) << weight.name;
      }
    }
    int64_t end = 0;
    for (const auto& [first, last] : extents) {
      ASSERT_EQ(first, end) << name;
      end = last;
    }
    EXPECT_EQ(end, size.packed_bytes);
  });
}

// Codes, scales (FP8 scales once a tile) and the rows that fill the last tile: nothing else is in a run of fragments
// but the alignment behind each chunk.
TEST(Packing, the_bytes_of_a_run_are_its_codes_and_scales) {
  for_each_layout({8}, [](const std::string& name, const Layout& layout) {
    for (const ChunkRun& run : chunk_runs(layout)) {
      if (run.order() != Order::kFragments) continue;
      const Weight& weight = run.weights.front();
      EXPECT_EQ(run.num_tiles, ceil_div<int64_t>(rank_rows(weight, layout.shard()), kTile)) << weight.name;
      EXPECT_EQ(run.num_tiles % run.format.tiles, 0) << weight.name;
      EXPECT_EQ(run.format.width * run.num_pieces, rank_columns(weight, layout.shard())) << name << " " << weight.name;
      const int64_t used =
          int64_t{run.format.tiles} * run.format.parts * (run.format.tile_code_bytes() + run.format.tile_scale_bytes());
      EXPECT_LT(run.chunk_bytes - used, kChunkAlign) << weight.name;
      const int64_t tiles_bytes = int64_t{run.num_tiles} * run.num_pieces * run.format.tile_code_bytes();
      EXPECT_EQ(tiles_bytes, round_up<int64_t>(rank_rows(weight, layout.shard()), kTile) *
                                 code_bytes(weight, layout.shard()) / rank_rows(weight, layout.shard()))
          << weight.name;
    }
  });
}

TEST(Packing, the_released_chunks_of_fp8_and_fp4_are_large_enough_at_every_tp) {
  for (const int tp : {1, 2, 4, 8}) {
    const Layout layout = layout_of("flash", tp);
    const PackedSize size = packed_size(layout, chunk_runs(layout));
    EXPECT_EQ(size.num_small, 0) << tp;
    EXPECT_GE(size.smallest_quantized, kMinChunkBytes) << tp;
  }
  EXPECT_EQ(tiles_per_chunk(layout_of("flash", 2), Stage::kExpertDown), 1);
  EXPECT_EQ(tiles_per_chunk(layout_of("flash", 4), Stage::kExpertDown), 2);
  EXPECT_EQ(tiles_per_chunk(layout_of("flash", 8), Stage::kExpertDown), 4);
  const Layout small = layout_of("micro", 1);
  EXPECT_GT(packed_size(small, chunk_runs(small)).num_small, 0);  // small sizes are counted
}

TEST(Packing, runs_follow_the_program_and_the_tasks) {
  const Layout layout = layout_of("flash", 4);
  int last_call = 0;
  for (const ChunkRun& run : chunk_runs(layout)) {
    EXPECT_GE(run.call_idx, last_call);
    last_call = run.call_idx;
    const Call& call = layout.program().calls[static_cast<size_t>(run.call_idx)];
    if (run.order() != Order::kFragments || call.stage == Stage::kKvNew) continue;
    const int splits = layout.stage_splits(call.stage, std::max(call.stage == Stage::kMarkov ? 0 : call.layer, 0));
    EXPECT_TRUE(splits == 1 || splits == run.num_pieces) << run.weights.front().name;
    EXPECT_LE((run.weights.front().first_tile + run.num_tiles) * splits, layout.num_tasks(call))
        << run.weights.front().name;
  }
}

}  // namespace
}  // namespace monostep::program
