// Weights that are made where they lie are, byte for byte, those packed from the checkpoint that make-model writes.
#include "weights/synthetic_pack.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "../base/temp_dir.h"
#include "model/shard.h"
#include "weights/pack.h"
#include "weights/synthetic.h"

namespace monostep::weights {
namespace {

constexpr uint64_t kSeed = 5;

program::Layout layout_of(const model::Geometry& geometry, int tp) {
  program::Shape shape;
  shape.max_context = 1024;
  return {geometry, model::make_shard(geometry, tp).value(), shape};
}

std::vector<std::byte> filled(const program::Layout& layout, uint64_t seed, int rank) {
  std::vector<std::byte> out(static_cast<size_t>(packed_bytes(packed_runs(layout))), std::byte{0xAB});
  int64_t end = 0;
  const std::vector<FillRecord> records = fill_records(layout, seed, rank).value();
  for (const FillRecord& record : records) {
    EXPECT_EQ(record.first_offset, end);
    end += record.num_words * 4;
    fill_words(record, 0, std::span(out).subspan(static_cast<size_t>(record.first_offset), record.num_words * 4));
  }
  EXPECT_EQ(end, static_cast<int64_t>(out.size()));
  return out;
}

// The tensor that holds the first byte in which two packed files differ; empty where none does.
std::string first_difference(const program::Layout& layout, const std::vector<std::byte>& a,
                             const std::vector<std::byte>& b) {
  if (a.size() != b.size()) return "another size";
  const auto offset = std::mismatch(a.begin(), a.end(), b.begin()).first - a.begin();
  for (const program::ChunkRun& run : packed_runs(layout)) {
    if (offset < run.first_offset || offset >= run.first_offset + run.packed_bytes()) continue;
    return run.weights.front().name + " at byte " + std::to_string(offset - run.first_offset);
  }
  return "";
}

void expect_equal_to_packed(const model::Geometry& geometry) {
  const TempDir dir;
  ASSERT_TRUE(write_checkpoint(geometry, kSeed, dir / "model").ok());
  const Checkpoint checkpoint = Checkpoint::open(dir / "model").value();
  for (const int tp : {1, 2, 4, 8}) {
    if (!model::make_shard(geometry, tp).ok()) continue;
    const program::Layout layout = layout_of(geometry, tp);
    for (int rank = 0; rank < tp; ++rank) {
      std::vector<std::byte> packed(static_cast<size_t>(packed_bytes(packed_runs(layout))));
      ASSERT_TRUE(pack_rank(checkpoint, layout, rank, packed).ok());
      EXPECT_EQ(first_difference(layout, filled(layout, kSeed, rank), packed), "") << "rank " << rank << " of " << tp;
    }
  }
}

TEST(SyntheticPack, micro_is_that_of_the_checkpoint) { expect_equal_to_packed(model::named_geometry("micro").value()); }

TEST(SyntheticPack, the_released_topology_is_that_of_the_checkpoint) {
  model::Geometry geometry = model::named_geometry("clone40").value();
  geometry.n_routed_experts = geometry.num_experts_per_tok = 2;
  geometry.dspark_n_routed_experts = geometry.dspark_num_experts_per_tok = 2;
  expect_equal_to_packed(geometry);
}

TEST(SyntheticPack, pieces_of_k_and_chunks_of_several_tiles_are_those_of_the_checkpoint) {
  model::Geometry geometry = model::named_geometry("micro").value();
  geometry.hidden_size = 512;
  geometry.num_attention_heads = geometry.o_groups = 8;
  geometry.moe_intermediate_size = 1024;
  geometry.n_routed_experts = geometry.dspark_n_routed_experts = 2;
  expect_equal_to_packed(geometry);
}

TEST(SyntheticPack, another_seed_or_rank_gives_other_bytes) {
  const program::Layout layout = layout_of(model::named_geometry("micro").value(), 2);
  EXPECT_NE(first_difference(layout, filled(layout, 5, 0), filled(layout, 6, 0)), "");
  EXPECT_NE(first_difference(layout, filled(layout, 5, 0), filled(layout, 5, 1)), "");
}

TEST(SyntheticPack, any_words_of_a_record_can_be_made_alone) {
  const program::Layout layout = layout_of(model::named_geometry("micro").value(), 1);
  const std::vector<FillRecord> records = fill_records(layout, kSeed, 0).value();
  const FillRecord& record = *std::ranges::max_element(records, {}, &FillRecord::num_words);
  std::vector<std::byte> whole(static_cast<size_t>(record.num_words) * 4), part(64);
  fill_words(record, 0, whole);
  fill_words(record, 1001, part);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 1001 * 4));
}

TEST(SyntheticPack, a_shard_that_cannot_be_packed_is_refused) {
  model::Geometry geometry = model::named_geometry("micro").value();
  geometry.hidden_size = 160;  // engram.wkv has 800 rows: a quarter starts 8 rows behind a multiple of 16
  geometry.num_attention_heads = geometry.o_groups = 8;
  geometry.moe_intermediate_size = 256;
  const auto records = fill_records(layout_of(geometry, 4), kSeed, 1);
  ASSERT_FALSE(records.ok());
  EXPECT_EQ(records.error().code, Code::kUnsupported);
}

}  // namespace
}  // namespace monostep::weights
