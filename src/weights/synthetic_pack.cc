// Makes the fill records of a rank and fills on the host (weights/synthetic_pack.h).
#include "weights/synthetic_pack.h"

#include <cstring>
#include <string>
#include <unordered_map>

#include "base/check.h"
#include "model/inventory.h"
#include "weights/pack.h"
#include "weights/recipe.h"

namespace monostep::weights {
namespace {

using program::ChunkRun;
using program::Order;
using program::Split;
using program::Weight;

// The runs' tensors by name.
class Recipes {
 public:
  Recipes(const model::Geometry& geometry, uint64_t seed)
      : geometry_(geometry), seed_(seed), specs_(model::tensor_inventory(geometry)) {
    for (const model::TensorSpec& spec : specs_) by_name_[spec.name] = &spec;
  }

  ValueRule rule(const Weight& weight, int expert_idx) const {
    std::string name = weight.name;
    if (weight.num_experts > 0) name.replace(name.find("{}"), 2, std::to_string(expert_idx));
    const auto found = by_name_.find(name);
    CHECK(found != by_name_.end(), "a tensor of the inventory");
    return value_rule(geometry_, seed_, *found->second);
  }

 private:
  const model::Geometry& geometry_;
  uint64_t seed_;
  std::vector<model::TensorSpec> specs_;
  std::unordered_map<std::string, const model::TensorSpec*> by_name_;
};

FillOrder fill_order(Order order) {
  CHECK(order != Order::kTable, "tables are not packed");
  return order == Order::kFragments ? FillOrder::kFragments
         : order == Order::kSlices  ? FillOrder::kSlices
                                    : FillOrder::kPlain;
}

// What all experts of a run share.
FillRecord record_of(const program::Layout& layout, const ChunkRun& run, int rank) {
  const Weight& weight = run.weights.front();
  FillRecord record;
  record.num_words = run.expert_stride() / 4;
  record.order = fill_order(run.order());
  record.chunk_bytes = run.chunk_bytes;
  record.width = layout.slice_width();
  record.num_rows = rank_rows(weight, layout.shard());
  record.num_columns = rank_columns(weight, layout.shard());
  record.columns = weight.columns;
  if (weight.split == Split::kRows) record.first_row = rank * record.num_rows;
  if (weight.split == Split::kColumns) record.first_column = rank * record.num_columns;
  if (run.order() != Order::kFragments) return record;
  record.width = run.format.width;
  record.tiles = run.format.tiles;
  record.parts = run.format.parts;
  record.num_pieces = run.num_pieces;
  record.tile_code_bytes = run.format.tile_code_bytes();
  record.tile_scale_bytes = run.format.tile_scale_bytes();
  return record;
}

}  // namespace

Result<std::vector<FillRecord>> fill_records(const program::Layout& layout, uint64_t seed, int rank) {
  CHECK(rank >= 0 && rank < layout.shard().tp, "a rank of the shard");
  const Recipes recipes(layout.geometry(), seed);
  std::vector<FillRecord> records;
  for (const ChunkRun& run : packed_runs(layout)) {
    TRY(check_tiles(layout, run, rank));
    FillRecord record = record_of(layout, run, rank);
    for (int expert_idx = 0; expert_idx < run.num_experts; ++expert_idx) {
      record.first_offset = run.offset(expert_idx, 0);
      for (size_t part = 0; part < run.weights.size(); ++part) {
        record.rules[part] = recipes.rule(run.weights[part], expert_idx);
      }
      records.push_back(record);
    }
  }
  return records;
}

void fill_words(const FillRecord& record, int64_t first_word, std::span<std::byte> out) {
  CHECK(out.size() % 4 == 0 && first_word + static_cast<int64_t>(out.size() / 4) <= record.num_words,
        "words of the record");
  for (size_t idx = 0; idx < out.size() / 4; ++idx) {
    const uint32_t word = packed_word(record, first_word + static_cast<int64_t>(idx));
    std::memcpy(out.data() + idx * 4, &word, sizeof(word));
  }
}

}  // namespace monostep::weights
