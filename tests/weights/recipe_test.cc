// Tests of the synthetic weights against the recorded digests of the golden checkpoints: all tensors of micro and
// clone40, one of each kind of realdims (its whole is 3.6 GB).
#include "weights/recipe.h"

#include <gtest/gtest.h>
#include <simdjson.h>

#include <map>
#include <set>

#include "base/sha256.h"

namespace monostep::weights {
namespace {

struct Golden {
  uint64_t seed = 0;
  std::map<std::string, std::string> digests;  // tensor name -> SHA-256
};

Golden golden(const std::string& name) {
  Golden out;
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  EXPECT_FALSE(parser.load(MONOSTEP_SOURCE_DIR "/tests/golden/" + name + "/tensors.json").get(root));
  out.seed = root["seed"].get_uint64();
  for (const auto field : root["tensors"].get_object()) {
    out.digests[std::string(field.key)] = field.value.at(2).get_string().value();
  }
  return out;
}

std::string digest(const model::Geometry& geometry, uint64_t seed, const model::TensorSpec& spec) {
  const std::vector<std::byte> bytes = recipe_tensor(geometry, seed, spec);
  return sha256_hex(std::span<const std::byte>(bytes));
}

class RecipeOfGolden : public testing::TestWithParam<const char*> {};

TEST_P(RecipeOfGolden, every_tensor_has_its_recorded_digest) {
  const Golden expected = golden(GetParam());
  const model::Geometry geometry = model::named_geometry(GetParam()).value();
  size_t num_equal = 0;
  for (const model::TensorSpec& spec : model::tensor_inventory(geometry)) {
    ASSERT_TRUE(expected.digests.count(spec.name)) << spec.name;
    EXPECT_EQ(digest(geometry, expected.seed, spec), expected.digests.at(spec.name)) << spec.name;
    ++num_equal;
  }
  EXPECT_EQ(num_equal, expected.digests.size());
}

INSTANTIATE_TEST_SUITE_P(Golden, RecipeOfGolden, testing::Values("micro", "clone40"));

// The name without its layer's and expert's number: tensors of one kind share it.
std::string kind_of(const std::string& name) {
  std::string kind;
  for (size_t at = 0; at < name.size();) {
    const size_t end = std::min(name.find('.', at), name.size());
    const std::string part = name.substr(at, end - at);
    kind += "." + (part.find_first_not_of("0123456789") == part.npos ? "#" : part);
    at = end + 1;
  }
  return kind;
}

TEST(Recipe, one_tensor_of_each_kind_of_realdims_has_its_recorded_digest) {
  const Golden expected = golden("realdims");
  const model::Geometry geometry = model::named_geometry("realdims").value();
  std::set<std::string> seen;
  for (const model::TensorSpec& spec : model::tensor_inventory(geometry)) {
    if (!seen.insert(kind_of(spec.name)).second) continue;
    EXPECT_EQ(digest(geometry, expected.seed, spec), expected.digests.at(spec.name)) << spec.name;
  }
  std::set<std::string> kinds;
  for (const auto& [name, sha256] : expected.digests) kinds.insert(kind_of(name));
  EXPECT_EQ(seen, kinds);
}

TEST(Recipe, another_seed_gives_another_tensor) {
  const Golden expected = golden("micro");
  const model::Geometry geometry = model::named_geometry("micro").value();
  const model::TensorSpec spec = model::tensor_inventory(geometry).front();
  EXPECT_NE(digest(geometry, expected.seed + 1, spec), expected.digests.at(spec.name));
}

TEST(Recipe, the_stream_has_the_published_words) {
  const Stream stream("0:embed.weight");
  EXPECT_EQ(stream.word(0), 0x4ebbcc05b4e8f2fcu);
  EXPECT_EQ(stream.word(1), 0x026645792d49f242u);
  EXPECT_EQ(stream.word(2), 0xdba86753cd15ceb9u);
  EXPECT_EQ(stream.half(0), 0xb4e8f2fcu);
  EXPECT_EQ(stream.half(1), 0x4ebbcc05u);
  EXPECT_EQ(stream.byte(0), 0xfcu);
  EXPECT_EQ(stream.byte(7), 0x4eu);
  EXPECT_EQ(stream.byte(8), 0x42u);
}

TEST(Recipe, any_rows_made_alone_equal_those_of_the_whole_tensor) {
  const model::Geometry geometry = model::named_geometry("micro").value();
  for (const model::TensorSpec& spec : model::tensor_inventory(geometry)) {
    const RowExtent extent = row_extent(spec);
    if (extent.num_rows < 3) continue;
    const std::vector<std::byte> whole = recipe_tensor(geometry, 3, spec);
    std::vector<std::byte> part(static_cast<size_t>(2 * extent.row_bytes));
    recipe_rows(geometry, 3, spec, 1, part);
    ASSERT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + extent.row_bytes)) << spec.name;
  }
}

}  // namespace
}  // namespace monostep::weights
