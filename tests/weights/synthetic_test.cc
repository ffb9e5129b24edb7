// Tests of the checkpoint writer: the recorded files of the golden micro checkpoint, and geometries of other kinds,
// which must open again.
#include "weights/synthetic.h"

#include <gtest/gtest.h>

#include "../base/temp_dir.h"
#include "base/mapped_file.h"
#include "base/sha256.h"
#include "weights/checkpoint.h"

namespace monostep::weights {
namespace {

std::string file_digest(const std::filesystem::path& path) {
  return sha256_hex(MappedFile::open(path).value().bytes());
}

TEST(Synthetic, the_files_of_micro_are_the_recorded_ones_byte_for_byte) {
  const TempDir dir;
  ASSERT_TRUE(write_checkpoint(model::named_geometry("micro").value(), 3, dir / "m").ok());
  const std::vector<std::pair<std::string, std::string>> expected = {
      {"model-00001-of-00005.safetensors", "33a3747297e90d252d12ceb58c70708a8bafc2cbd55fa1ddc1096736f751205d"},
      {"model-00002-of-00005.safetensors", "91fa9d3afac265aa9d519df22f1e3c2a521841170bda8096d6cfa5dda109c0ea"},
      {"model-00003-of-00005.safetensors", "b643f0c7e645ff013d9aa4af3d8a88c89af81c4ad10ada289188415290ef2c85"},
      {"model-00004-of-00005.safetensors", "e9b2f8911f3c3978c6d6d3540ebef5c2115d58620cf584004a1647a54920dbfa"},
      {"model-00005-of-00005.safetensors", "67b6507a4f8bd1c079469f9be9ee7ffe4ac2a5e455de5f8c7e7a85f986799b2b"},
      {"model.safetensors.index.json", "aec520ce932eccbbebdfad65292af3db9bb2c200de29c4804068f511c14ed2ec"},
      {"config.json", "b7f9edd90263cbca29ad3e1a4275277adfd2b5d5632fc27a2bda0bc2575d156b"},
      {"inference/config.json", "7a8f6118bfb29d349f8d679a8c939de08e50479bc17044cd5871deeeae2edb4f"},
  };
  for (const auto& [name, digest] : expected) EXPECT_EQ(file_digest(dir / "m" / name), digest) << name;
}

void expect_opens(const model::Geometry& geometry, int num_files) {
  const TempDir dir;
  const Status written = write_checkpoint(geometry, 1, dir / "m");
  ASSERT_TRUE(written.ok()) << written.error().message();
  const auto checkpoint = Checkpoint::open(dir / "m");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message();
  EXPECT_EQ(checkpoint->num_files(), num_files);
  EXPECT_EQ(checkpoint->specs().size(), model::tensor_inventory(geometry).size());
}

TEST(Synthetic, a_geometry_without_a_draft_has_four_files) {
  model::Geometry geometry = model::named_geometry("micro").value();
  geometry.num_nextn_predict_layers = 0;
  geometry.compress_ratios.resize(6);
  expect_opens(geometry, 4);
}

TEST(Synthetic, a_geometry_with_one_engram_table_has_four_files) {
  model::Geometry geometry = model::named_geometry("micro").value();
  geometry.engram_layer_ids = {0};
  geometry.engram_num_embeddings = {462};
  expect_opens(geometry, 4);
}

TEST(Synthetic, a_geometry_without_engram_has_three_files_and_no_token_classes) {
  model::Geometry geometry = model::named_geometry("micro").value();
  geometry.engram_layer_ids.clear();
  geometry.engram_num_embeddings.clear();
  expect_opens(geometry, 3);
}

TEST(Synthetic, a_vocabulary_with_room_gets_a_tokenizer) {
  const TempDir dir;
  model::Geometry geometry = model::named_geometry("micro").value();
  geometry.vocab_size = 320;
  ASSERT_TRUE(write_checkpoint(geometry, 1, dir / "m").ok());
  EXPECT_TRUE(Checkpoint::open(dir / "m").value().has_tokenizer());
  EXPECT_TRUE(std::filesystem::exists(dir / "m" / "tokenizer_config.json"));
}

TEST(Synthetic, a_folder_that_holds_something_is_refused_and_kept) {
  const TempDir dir;
  ASSERT_TRUE(write_text_file(dir / "file", "x").ok());
  const Status written = write_checkpoint(model::named_geometry("micro").value(), 1, dir.path());
  ASSERT_FALSE(written.ok());
  EXPECT_EQ(written.error().code, Code::kInvalidArgument);
  EXPECT_EQ(written.error().place, dir.path().string());
  EXPECT_EQ(read_text_file(dir / "file", 10).value(), "x");
  EXPECT_FALSE(std::filesystem::exists(dir / "config.json"));
}

TEST(Synthetic, a_checkpoint_larger_than_the_free_disk_is_refused_before_it_is_written) {
  const TempDir dir;
  model::Geometry geometry = model::named_geometry("micro").value();
  geometry.engram_num_embeddings = {INT64_MAX / 64, INT64_MAX / 64};
  const Status written = write_checkpoint(geometry, 1, dir / "m");
  ASSERT_FALSE(written.ok());
  EXPECT_EQ(written.error().code, Code::kExhausted);
  EXPECT_FALSE(std::filesystem::exists(dir / "m" / "config.json"));
}

TEST(Synthetic, the_layers_are_halved_and_each_engram_table_has_its_own_file) {
  const std::vector<ShardFile> files = shard_files(model::named_geometry("clone40").value());
  ASSERT_EQ(files.size(), 5u);
  EXPECT_EQ(files[0].specs.back().layer_idx, 19);
  EXPECT_EQ(files[1].specs.front().layer_idx, 20);
  EXPECT_EQ(files[2].specs.front().name, "mtp.0.hc_attn_fn");
  EXPECT_EQ(files[3].specs.size(), 2u);
  EXPECT_EQ(files[4].specs[0].name, "layers.14.engram.embed.weight");
  EXPECT_EQ(files[4].name, "model-00005-of-00005.safetensors");
}

}  // namespace
}  // namespace monostep::weights
