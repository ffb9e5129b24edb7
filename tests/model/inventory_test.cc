// Tests of the tensor list: the released totals of model.md 1.4, the recorded lists of the golden checkpoints, and
// geometries without a draft, Engram or vision part.
#include "model/inventory.h"

#include <gtest/gtest.h>
#include <simdjson.h>

#include <map>
#include <set>

namespace monostep::model {
namespace {

struct Total {
  int64_t tensors = 0, parameters = 0, bytes = 0;
  bool operator==(const Total&) const = default;
};

void PrintTo(const Total& total, std::ostream* out) {
  *out << total.tensors << " tensors, " << total.parameters << " parameters, " << total.bytes << " bytes";
}

void add(Total& total, const TensorSpec& spec) {
  total.tensors += 1;
  total.parameters += spec.num_parameters();
  total.bytes += spec.num_bytes();
}

TEST(Inventory, the_released_totals_by_class_are_exact) {
  const std::map<Class, Total> expected = {
      {Class::kEmbed, {1, 661913600, 1323827200}},
      {Class::kHead, {1, 661913600, 1323827200}},
      {Class::kAttention, {440, 5064624640, 5069578240}},
      {Class::kRoutedExperts, {92160, 543581798400, 288777830400}},
      {Class::kSharedExperts, {240, 1415577600, 1416960000}},
      {Class::kRouter, {120, 78673920, 157409280}},
      {Class::kHyper, {240, 39323760, 157295040}},
      {Class::kCompressors, {11, 18352128, 36704256}},
      {Class::kIndexers, {32, 43516416, 45130752}},
      {Class::kNorms, {161, 486400, 972800}},
      {Class::kEngramTables, {4, 196613849600, 202758032400}},
      {Class::kEngramLinear, {8, 314654720, 315043840}},
      {Class::kDraft, {2401, 14225362530, 7932874632}},
      {Class::kVision, {266, 485268480, 970536960}},
  };
  std::map<Class, Total> found;
  Total all, draft_experts;
  for (const TensorSpec& spec : tensor_inventory(named_geometry("flash").value())) {
    add(found[spec.tensor_class], spec);
    add(all, spec);
    if (spec.draft_expert) add(draft_experts, spec);
  }
  for (const auto& [tensor_class, total] : expected) EXPECT_EQ(found[tensor_class], total) << class_name(tensor_class);
  EXPECT_EQ(found.size(), expected.size());
  EXPECT_EQ(draft_experts, (Total{2304, 13589544960, 7219445760}));
  EXPECT_EQ(all, (Total{96085, 763205315794, 510286023000}));
}

class InventoryOfGolden : public testing::TestWithParam<const char*> {};

TEST_P(InventoryOfGolden, names_dtypes_shapes_and_order_are_the_recorded_ones) {
  const std::string path = std::string(MONOSTEP_SOURCE_DIR "/tests/golden/") + GetParam() + "/tensors.json";
  simdjson::dom::parser parser;
  simdjson::dom::object tensors;
  ASSERT_FALSE(parser.load(path)["tensors"].get(tensors));
  const std::vector<TensorSpec> specs = tensor_inventory(named_geometry(GetParam()).value());
  ASSERT_EQ(specs.size(), tensors.size());
  size_t idx = 0;
  for (const auto field : tensors) {
    const TensorSpec& spec = specs[idx++];
    std::vector<int64_t> shape;
    for (const auto extent : field.value.at(1)) shape.push_back(extent.get_int64());
    ASSERT_EQ(spec.name, field.key);
    EXPECT_EQ(dtype_tag(spec.dtype), field.value.at(0).get_string().value()) << spec.name;
    EXPECT_EQ(spec.shape, shape) << spec.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, InventoryOfGolden, testing::Values("micro", "clone40", "realdims"));

bool any_name_has(const Geometry& geometry, std::string_view part) {
  for (const TensorSpec& spec : tensor_inventory(geometry)) {
    if (spec.name.find(part) != std::string::npos) return true;
  }
  return false;
}

TEST(Inventory, parts_that_the_geometry_lacks_have_no_tensors) {
  Geometry geometry = named_geometry("micro").value();
  EXPECT_TRUE(any_name_has(geometry, "mtp."));
  EXPECT_TRUE(any_name_has(geometry, "engram"));
  EXPECT_FALSE(any_name_has(geometry, "vision."));
  geometry.num_nextn_predict_layers = 0;
  geometry.compress_ratios.resize(static_cast<size_t>(geometry.num_hidden_layers));
  geometry.engram_layer_ids.clear();
  geometry.engram_num_embeddings.clear();
  EXPECT_FALSE(any_name_has(geometry, "mtp."));
  EXPECT_FALSE(any_name_has(geometry, "engram"));
}

TEST(Inventory, one_draft_layer_has_both_ends_of_the_draft) {
  Geometry geometry = named_geometry("micro").value();
  geometry.num_nextn_predict_layers = 1;
  geometry.compress_ratios.pop_back();
  EXPECT_TRUE(any_name_has(geometry, "mtp.0.main_proj.weight"));
  EXPECT_TRUE(any_name_has(geometry, "mtp.0.confidence_head.proj.weight"));
}

TEST(Inventory, sizes_beyond_63_bits_stop_at_a_limit) {
  Geometry geometry = named_geometry("micro").value();
  geometry.num_attention_heads = geometry.head_dim = geometry.q_lora_rank = INT32_MAX;
  for (const TensorSpec& spec : tensor_inventory(geometry)) {
    EXPECT_GT(spec.num_bytes(), 0) << spec.name;
    const bool huge = spec.name.ends_with("attn.wq_b.weight");
    EXPECT_TRUE(!huge || spec.num_elements() == int64_t{1} << 60) << spec.name << spec.num_elements();
  }
}

TEST(Inventory, names_are_unique) {
  std::set<std::string> names;
  for (const TensorSpec& spec : tensor_inventory(named_geometry("clone40").value())) {
    EXPECT_TRUE(names.insert(spec.name).second) << spec.name;
  }
}

}  // namespace
}  // namespace monostep::model
