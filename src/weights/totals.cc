// Sums over the inventory (totals.h).
#include "weights/totals.h"

#include <array>
#include <string_view>

#include "base/integer.h"

namespace monostep::weights {
namespace {

constexpr int kNumClasses = static_cast<int>(model::Class::kVision) + 1;
constexpr int64_t kGroup = 32;  // rows or columns that share a scale

void add(ClassTotal& total, const model::TensorSpec& spec) {
  ++total.num_tensors;
  total.num_parameters += spec.num_parameters();
  total.num_bytes += spec.num_bytes();
}

enum class Axis { kNone, kRows, kColumns };

struct Split {
  Axis axis = Axis::kNone;
  int64_t extent = 0;  // one rank's rows or columns, in elements of the weight
};

bool ends_with(std::string_view name, std::string_view last, std::string_view other) {
  return name.ends_with(last) || name.ends_with(other);
}

Split split_of(const model::TensorSpec& spec, const model::Geometry& geometry, const model::Shard& shard) {
  const std::string_view name = spec.name;
  const bool expert = name.find(".experts.") != name.npos || name.find(".shared_experts.") != name.npos;
  if (expert && ends_with(name, ".w2.weight", ".w2.scale")) return {Axis::kColumns, shard.expert_width};
  if (expert) return {Axis::kRows, shard.expert_width};
  if (name.find(".indexer.") != name.npos) return {};
  if (name.ends_with(".attn.attn_sink")) return {Axis::kRows, shard.num_heads};
  if (ends_with(name, ".attn.wq_b.weight", ".attn.wq_b.scale")) {
    return {Axis::kRows, int64_t{shard.num_heads} * geometry.head_dim};
  }
  const int64_t output_width = int64_t{shard.num_o_groups} * geometry.o_lora_rank;
  if (ends_with(name, ".attn.wo_a.weight", ".attn.wo_a.scale")) return {Axis::kRows, output_width};
  if (ends_with(name, ".attn.wo_b.weight", ".attn.wo_b.scale")) return {Axis::kColumns, output_width};
  if (name == "head.weight" || name.ends_with(".markov_head.head.weight")) return {Axis::kRows, shard.vocab_rows};
  if (ends_with(name, ".engram.wkv.weight", ".engram.wkv.scale")) return {Axis::kRows, shard.engram_rows};
  return {};
}

}  // namespace

std::vector<ClassTotal> class_totals(const std::vector<model::TensorSpec>& specs) {
  std::array<ClassTotal, kNumClasses> classes;
  ClassTotal draft_experts, all;
  draft_experts.name = "  of which draft experts";
  all.name = "all";
  for (const model::TensorSpec& spec : specs) {
    ClassTotal& total = classes[static_cast<size_t>(spec.tensor_class)];
    total.name = model::class_name(spec.tensor_class);
    add(total, spec);
    add(all, spec);
    if (spec.draft_expert) add(draft_experts, spec);
  }
  std::vector<ClassTotal> rows;
  for (size_t idx = 0; idx < classes.size(); ++idx) {
    if (classes[idx].num_tensors == 0) continue;
    rows.push_back(classes[idx]);
    if (static_cast<model::Class>(idx) == model::Class::kDraft) rows.push_back(draft_experts);
  }
  rows.push_back(all);
  return rows;
}

std::vector<int64_t> rank_shape(const model::TensorSpec& spec, const model::Geometry& geometry,
                                const model::Shard& shard) {
  std::vector<int64_t> shape = spec.shape;
  const Split split = split_of(spec, geometry, shard);
  const bool fp4 = spec.name.find(".experts.") != std::string::npos;
  if (split.axis == Axis::kRows) shape[0] = spec.scale && !fp4 ? ceil_div(split.extent, kGroup) : split.extent;
  if (split.axis == Axis::kColumns) {
    const int64_t per_element = spec.scale ? kGroup : spec.dtype == model::Dtype::kI8 ? 2 : 1;
    shape[1] = ceil_div(split.extent, per_element);
  }
  return shape;
}

RankBytes rank_bytes(const std::vector<model::TensorSpec>& specs, const model::Geometry& geometry,
                     const model::Shard& shard) {
  RankBytes total;
  for (const model::TensorSpec& spec : specs) {
    if (spec.tensor_class == model::Class::kVision || spec.tensor_class == model::Class::kEngramTables) continue;
    model::TensorSpec part = spec;
    part.shape = rank_shape(spec, geometry, shard);
    (split_of(spec, geometry, shard).axis == Axis::kNone ? total.replicated : total.split) += part.num_bytes();
  }
  return total;
}

}  // namespace monostep::weights
