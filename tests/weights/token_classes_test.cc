// Tests of the token classes: from the file, from the embedded table of the released tokenizer, or refused.
#include "weights/token_classes.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>

#include "../base/temp_dir.h"
#include "base/mapped_file.h"
#include "weights/safetensors.h"

namespace monostep::weights {
namespace {

model::Geometry micro() { return model::named_geometry("micro").value(); }

void write_classes(const TempDir& dir, const std::vector<int32_t>& classes, const std::string& dtype = "I32") {
  const TensorToWrite tensor = {
      "token_classes", dtype, {static_cast<int64_t>(classes.size())}, std::as_bytes(std::span(classes))};
  ASSERT_TRUE(write_safetensors(dir / kClassesName, std::span(&tensor, 1)).ok());
}

void write_released_tokenizer(const TempDir& dir, const std::string& more = "") {
  const gzFile file = gzopen(MONOSTEP_SOURCE_DIR "/tests/golden/tokenizer/tokenizer.json.gz", "rb");
  ASSERT_NE(file, nullptr);
  std::string text(8 << 20, '\0');
  text.resize(static_cast<size_t>(gzread(file, text.data(), static_cast<unsigned>(text.size()))));
  gzclose(file);
  ASSERT_TRUE(write_text_file(dir / kTokenizerName, text + more).ok());
}

std::string error_of(const TempDir& dir, const model::Geometry& geometry) {
  const auto classes = load_token_classes(dir.path(), geometry);
  return classes.ok() ? "accepted" : classes.error().text;
}

TEST(TokenClasses, the_file_beside_the_checkpoint_is_read) {
  const TempDir dir;
  std::vector<int32_t> classes(128);
  classes[5] = 96;
  write_classes(dir, classes);
  EXPECT_EQ(load_token_classes(dir.path(), micro()).value(), classes);
}

TEST(TokenClasses, a_file_of_another_size_type_or_range_is_refused) {
  const TempDir dir;
  write_classes(dir, std::vector<int32_t>(127));
  EXPECT_EQ(error_of(dir, micro()), "expected I32 [128], found I32 [127]");
  write_classes(dir, std::vector<int32_t>(128), "F32");
  EXPECT_EQ(error_of(dir, micro()), "expected I32 [128], found F32 [128]");
  std::vector<int32_t> classes(128);
  classes[5] = 97;
  write_classes(dir, classes);
  EXPECT_EQ(error_of(dir, micro()), "expected classes below engram_compressed_vocab_size 97, found 97 for token 5");
  classes[5] = -1;
  write_classes(dir, classes);
  EXPECT_EQ(error_of(dir, micro()), "expected classes below engram_compressed_vocab_size 97, found -1 for token 5");
}

TEST(TokenClasses, a_file_without_the_tensor_is_refused) {
  const TempDir dir;
  ASSERT_TRUE(write_safetensors(dir / kClassesName, {}).ok());
  EXPECT_EQ(error_of(dir, micro()), "expected this tensor, found none of the name");
}

TEST(TokenClasses, the_embedded_table_has_the_released_facts) {
  const std::vector<int32_t> classes = released_token_classes();
  EXPECT_EQ(classes.size(), 129280u);
  EXPECT_EQ(*std::max_element(classes.begin(), classes.end()), 99091);
  EXPECT_EQ(*std::min_element(classes.begin(), classes.end()), 0);
  EXPECT_EQ(classes[2], 2);
}

TEST(TokenClasses, the_released_tokenizer_gets_the_embedded_table) {
  const TempDir dir;
  write_released_tokenizer(dir);
  EXPECT_EQ(load_token_classes(dir.path(), model::named_geometry("flash").value()).value(), released_token_classes());
}

TEST(TokenClasses, the_file_goes_before_the_embedded_table) {
  const TempDir dir;
  write_released_tokenizer(dir);
  const std::vector<int32_t> classes(129280, 7);
  write_classes(dir, classes);
  EXPECT_EQ(load_token_classes(dir.path(), model::named_geometry("flash").value()).value(), classes);
}

TEST(TokenClasses, without_a_file_another_tokenizer_or_another_size_is_refused_and_the_tool_named) {
  const TempDir dir;
  const std::string refusal = "tools/engram_classes.py";
  model::Geometry flash = model::named_geometry("flash").value();
  EXPECT_NE(error_of(dir, flash).find(refusal), std::string::npos);
  write_released_tokenizer(dir, "\n");
  EXPECT_NE(error_of(dir, flash).find(refusal), std::string::npos);
  write_released_tokenizer(dir);
  flash.engram_compressed_vocab_size -= 1;
  EXPECT_NE(error_of(dir, flash).find(refusal), std::string::npos);
  const auto refused = load_token_classes(dir.path(), micro());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::kNotFound);
  EXPECT_EQ(refused.error().place, (dir / kClassesName).string());
}

TEST(TokenClasses, a_geometry_without_engram_needs_none) {
  const TempDir dir;
  model::Geometry geometry = micro();
  geometry.engram_layer_ids.clear();
  EXPECT_TRUE(load_token_classes(dir.path(), geometry).value().empty());
}

}  // namespace
}  // namespace monostep::weights
