// Tests of the loader: a synthetic checkpoint opens and holds the recipe's bytes; one case for each kind of damage,
// which must be refused with a message that names file, tensor, expected and found.
#include "weights/checkpoint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "../base/temp_dir.h"
#include "base/mapped_file.h"
#include "weights/recipe.h"
#include "weights/synthetic.h"

namespace monostep::weights {
namespace {

constexpr char kFirst[] = "model-00001-of-00005.safetensors";   // embed, head, norm, layers 0-2
constexpr char kSecond[] = "model-00002-of-00005.safetensors";  // layers 3-5
constexpr char kTable[] = "model-00004-of-00005.safetensors";   // Engram table of layer 0
constexpr char kIndex[] = "model.safetensors.index.json";

struct OwnedTensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
};
using TensorList = std::vector<OwnedTensor>;

OwnedTensor& find(TensorList& tensors, const std::string& name) {
  const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const auto& t) { return t.name == name; });
  CHECK(found != tensors.end(), "a tensor of the test's file");
  return *found;
}

class CheckpointTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(write_checkpoint(model::named_geometry("micro").value(), 3, path()).ok()); }

  std::filesystem::path path() const { return dir_ / "model"; }

  // Reads a shard, lets `change` edit its tensors, and writes it again.
  void edit(const std::string& file_name, const std::function<void(TensorList&)>& change) {
    TensorList tensors;
    {
      const SafetensorsFile file = SafetensorsFile::open(path() / file_name).value();
      for (const SafetensorsEntry& entry : file.entries()) {
        const auto data = file.data(entry);
        tensors.push_back({entry.name, entry.dtype, entry.shape, {data.begin(), data.end()}});
      }
    }
    change(tensors);
    std::vector<TensorToWrite> list;
    for (const OwnedTensor& tensor : tensors) list.push_back({tensor.name, tensor.dtype, tensor.shape, tensor.bytes});
    ASSERT_TRUE(write_safetensors(path() / file_name, list).ok());
  }

  void set_bytes(const std::string& file_name, const std::string& tensor, size_t offset, std::vector<int> bytes) {
    edit(file_name, [&](TensorList& tensors) {
      for (const int byte : bytes) find(tensors, tensor).bytes.at(offset++) = static_cast<std::byte>(byte);
    });
  }

  void replace_text(const std::string& file_name, const std::string& from, const std::string& to) {
    std::string text = read_text_file(path() / file_name, 100 << 20).value();
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    ASSERT_TRUE(write_text_file(path() / file_name, text.replace(at, from.size(), to)).ok());
  }

  // Place and text of the refusal, with the folder's name taken away.
  std::string refusal(Code code = Code::kCorrupt) {
    const auto checkpoint = Checkpoint::open(path());
    if (checkpoint.ok()) return "accepted";
    EXPECT_EQ(checkpoint.error().code, code);
    std::string place = checkpoint.error().place;
    const std::string folder = path().string() + "/";
    if (place.starts_with(folder)) place.erase(0, folder.size());
    return place + ": " + checkpoint.error().text;
  }

  TempDir dir_;
};

TEST_F(CheckpointTest, a_whole_checkpoint_opens_and_holds_every_tensor) {
  const auto checkpoint = Checkpoint::open(path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message();
  EXPECT_EQ(checkpoint->geometry().num_hidden_layers, 6);
  EXPECT_EQ(checkpoint->num_files(), 5);
  EXPECT_FALSE(checkpoint->has_tokenizer());
  EXPECT_EQ(checkpoint->token_classes().size(), 128u);
  EXPECT_EQ(checkpoint->token_classes()[97], 0);
  ASSERT_EQ(checkpoint->specs().size(), 616u);
  for (const model::TensorSpec& spec : checkpoint->specs()) {
    const Tensor tensor = checkpoint->tensor(spec.name);
    const std::vector<std::byte> expected = recipe_tensor(checkpoint->geometry(), 3, spec);
    EXPECT_EQ(tensor.dtype, spec.dtype);
    EXPECT_TRUE(std::ranges::equal(tensor.shape, spec.shape));
    EXPECT_TRUE(std::ranges::equal(tensor.data, expected)) << spec.name;
  }
}

TEST_F(CheckpointTest, a_moved_checkpoint_keeps_its_tensors) {
  Checkpoint first = Checkpoint::open(path()).value();
  const std::byte* data = first.tensor("norm.weight").data.data();
  const Checkpoint second = std::move(first);
  EXPECT_EQ(second.tensor("norm.weight").data.data(), data);
  EXPECT_EQ(second.tensor("norm.weight").shape[0], 128);
}

TEST_F(CheckpointTest, other_files_in_the_folder_are_not_opened) {
  ASSERT_TRUE(write_text_file(path() / "model-00006-of-00006.safetensors", "garbage").ok());
  ASSERT_TRUE(write_text_file(path() / "tokenizer.json", "garbage").ok());
  EXPECT_EQ(refusal(), "accepted");
  EXPECT_TRUE(Checkpoint::open(path())->has_tokenizer());
}

TEST_F(CheckpointTest, a_missing_config_index_or_shard_is_named) {
  std::filesystem::remove(path() / kSecond);
  EXPECT_EQ(refusal(Code::kNotFound).substr(0, 33 + 13), std::string(kSecond) + ": cannot open ");
  std::filesystem::remove(path() / kIndex);
  EXPECT_EQ(refusal(Code::kNotFound).substr(0, 29), std::string(kIndex) + ":");
  std::filesystem::remove(path() / "config.json");
  std::filesystem::remove(path() / "inference" / "config.json");
  EXPECT_EQ(refusal(Code::kNotFound).substr(0, 11), "config.json");
}

TEST_F(CheckpointTest, a_config_that_is_refused_makes_the_checkpoint_corrupt) {
  replace_text("config.json", "\"head_dim\": 64", "\"head_dim\": -1");
  EXPECT_NE(refusal(Code::kCorrupt).find("head_dim"), std::string::npos);
}

TEST_F(CheckpointTest, a_tensor_missing_from_the_index_is_refused) {
  replace_text(kIndex, "\"norm.weight\": \"" + std::string(kFirst) + "\"",
               "\"norm.weights\": \"" + std::string(kFirst) + "\"");
  EXPECT_EQ(refusal(),
            "model.safetensors.index.json: norm.weight: missing tensor: expected BF16 [128], found no such name "
            "in weight_map");
}

TEST_F(CheckpointTest, a_tensor_missing_from_its_file_is_refused) {
  edit(kFirst, [](TensorList& tensors) {
    std::erase_if(tensors, [](const OwnedTensor& tensor) { return tensor.name == "norm.weight"; });
  });
  EXPECT_EQ(refusal(), std::string(kFirst) +
                           ": norm.weight: missing tensor: expected in this file as the index says, found "
                           "no such name");
}

TEST_F(CheckpointTest, an_unknown_tensor_in_the_index_is_refused) {
  replace_text(kIndex, "\"weight_map\": {",
               "\"weight_map\": {\"layers.9.attn.wkv.weight\": \"" + std::string(kFirst) + "\",");
  EXPECT_EQ(refusal(),
            "model.safetensors.index.json: layers.9.attn.wkv.weight: unknown tensor: expected only tensors of the "
            "config, found this one in " +
                std::string(kFirst));
}

TEST_F(CheckpointTest, an_unknown_tensor_in_a_file_is_refused) {
  edit(kFirst, [](TensorList& tensors) { tensors.push_back({"extra", "I8", {1}, std::vector<std::byte>(1)}); });
  EXPECT_EQ(refusal(), std::string(kFirst) +
                           ": extra: unknown tensor: expected only tensors that the index names, found "
                           "this one");
}

TEST_F(CheckpointTest, a_tensor_in_another_file_than_the_index_says_is_refused) {
  edit(kSecond,
       [](TensorList& tensors) { tensors.push_back({"norm.weight", "BF16", {128}, std::vector<std::byte>(256)}); });
  EXPECT_EQ(refusal(), std::string(kSecond) + ": norm.weight: duplicate tensor: expected it in " + kFirst +
                           " as the index says, found it here");
}

TEST_F(CheckpointTest, a_duplicate_name_in_the_index_is_refused) {
  replace_text(kIndex, "\"weight_map\": {", "\"weight_map\": {\"norm.weight\": \"" + std::string(kFirst) + "\",");
  EXPECT_EQ(refusal(),
            "model.safetensors.index.json: norm.weight: expected each name once in weight_map, found a second "
            "entry");
}

TEST_F(CheckpointTest, a_file_name_that_leaves_the_folder_is_refused) {
  replace_text(kIndex, kFirst, "../" + std::string(kFirst));
  EXPECT_EQ(refusal(),
            "model.safetensors.index.json: embed.weight: expected the name of a file beside the index, found \"../" +
                std::string(kFirst) + "\"");
}

TEST_F(CheckpointTest, another_total_size_is_refused) {
  replace_text(kIndex, "\"total_size\": 2634492", "\"total_size\": 2634491");
  EXPECT_EQ(refusal(), "model.safetensors.index.json: metadata.total_size: expected 2634492 bytes, found 2634491");
}

TEST_F(CheckpointTest, a_wrong_shape_is_refused) {
  edit(kFirst, [](TensorList& tensors) { find(tensors, "layers.0.attn.wq_a.weight").shape = {128, 64}; });
  EXPECT_EQ(refusal(),
            std::string(kFirst) + ": layers.0.attn.wq_a.weight: wrong shape: expected [64,128], found [128,64]");
}

TEST_F(CheckpointTest, a_wrong_scale_shape_is_refused) {
  edit(kFirst, [](TensorList& tensors) { find(tensors, "layers.0.attn.wq_a.scale").shape = {1, 8}; });
  EXPECT_EQ(refusal(), std::string(kFirst) + ": layers.0.attn.wq_a.scale: wrong shape: expected [2,4], found [1,8]");
}

TEST_F(CheckpointTest, scales_of_128_by_128_are_refused) {
  edit(kFirst, [](TensorList& tensors) {
    OwnedTensor& scale = find(tensors, "layers.0.attn.wq_a.scale");
    scale.shape = {1, 1};
    scale.bytes.resize(1);
  });
  EXPECT_EQ(refusal(), std::string(kFirst) + ": layers.0.attn.wq_a.scale: wrong shape: expected [2,4], found [1,1]");
}

TEST_F(CheckpointTest, a_wrong_dtype_is_refused) {
  edit(kFirst, [](TensorList& tensors) { find(tensors, "norm.weight").dtype = "F16"; });
  EXPECT_EQ(refusal(), std::string(kFirst) + ": norm.weight: wrong dtype: expected BF16, found F16");
}

TEST_F(CheckpointTest, numeric_scales_in_place_of_e8m0_are_refused) {
  edit(kFirst, [](TensorList& tensors) { find(tensors, "layers.0.attn.wq_a.scale").dtype = "U8"; });
  EXPECT_EQ(refusal(), std::string(kFirst) + ": layers.0.attn.wq_a.scale: wrong dtype: expected F8_E8M0, found U8");
}

TEST_F(CheckpointTest, a_short_file_is_refused) {
  std::filesystem::resize_file(path() / kTable, std::filesystem::file_size(path() / kTable) - 1);
  EXPECT_EQ(refusal(), std::string(kTable) +
                           ": layers.0.engram.embed.scale: expected data_offsets within the file's 15245 "
                           "bytes of data, found [14784,15246]");
}

TEST_F(CheckpointTest, a_trailing_byte_is_refused) {
  std::filesystem::resize_file(path() / kTable, std::filesystem::file_size(path() / kTable) + 1);
  EXPECT_EQ(refusal(), std::string(kTable) +
                           ": expected the file to end with its last tensor at 15246 bytes of data, found "
                           "15247 bytes");
}

TEST_F(CheckpointTest, overlapping_data_is_refused) {
  replace_text(kTable, "[14784,15246]", "[14783,15245]");
  EXPECT_EQ(refusal(), std::string(kTable) +
                           ": layers.0.engram.embed.scale: overlapping data: expected the tensor at offset "
                           "14784, found 14783");
}

TEST_F(CheckpointTest, a_scale_byte_of_255_is_refused) {
  set_bytes(kTable, "layers.0.engram.embed.scale", 461, {255});
  EXPECT_EQ(refusal(), std::string(kTable) +
                           ": layers.0.engram.embed.scale: expected no E8M0 scale bytes of 255, found one "
                           "at element 461 of [462,1]");
}

TEST_F(CheckpointTest, both_e4m3_nan_codes_are_refused) {
  for (const int code : {0x7f, 0xff}) {
    set_bytes(kFirst, "layers.0.attn.wkv.weight", 100, {code});
    EXPECT_EQ(refusal(), std::string(kFirst) +
                             ": layers.0.attn.wkv.weight: expected no E4M3 NaN codes, found one at element "
                             "100 of [64,128]");
  }
}

TEST_F(CheckpointTest, non_finite_bf16_and_f32_values_are_refused) {
  for (const int low : {0x80, 0xc0}) {  // infinity, NaN
    set_bytes(kFirst, "norm.weight", 2 * 127, {low, 0x7f});
    EXPECT_EQ(refusal(), std::string(kFirst) +
                             ": norm.weight: expected no infinite or NaN BF16 values, found one at element "
                             "127 of [128]");
  }
  set_bytes(kFirst, "norm.weight", 2 * 127, {0, 0});
  for (const int byte : {0x80, 0xc0}) {
    set_bytes(kFirst, "layers.2.attn.attn_sink", 4, {0, 0, byte, 0xff});
    EXPECT_EQ(refusal(), std::string(kFirst) +
                             ": layers.2.attn.attn_sink: expected no infinite or NaN F32 values, found one "
                             "at element 1 of [4]");
  }
}

TEST_F(CheckpointTest, a_refused_value_far_inside_a_large_tensor_is_named_by_its_place_in_the_tensor) {
  std::filesystem::remove_all(path());
  model::Geometry geometry = model::named_geometry("micro").value();
  geometry.vocab_size = 3 * 4096 + 4;  // rows of 256 bytes: the tensor ends a kilobyte behind 3 MiB
  ASSERT_TRUE(write_checkpoint(geometry, 3, path()).ok());
  EXPECT_EQ(refusal(), "accepted");
  const size_t num_elements = size_t{128} * static_cast<size_t>(geometry.vocab_size);
  for (const size_t element_idx : {size_t{0}, size_t{(1 << 19) - 1}, size_t{1 << 19}, num_elements - 1}) {
    set_bytes(kFirst, "embed.weight", 2 * element_idx, {0x80, 0x7f});
    EXPECT_EQ(refusal(), std::string(kFirst) +
                             ": embed.weight: expected no infinite or NaN BF16 values, found one at element " +
                             std::to_string(element_idx) + " of [12292,128]");
    set_bytes(kFirst, "embed.weight", 2 * element_idx, {0, 0});
  }
}

TEST_F(CheckpointTest, the_value_scan_can_be_left_out) {
  set_bytes(kTable, "layers.0.engram.embed.scale", 0, {255});
  EXPECT_TRUE(Checkpoint::open(path(), {.scan_values = false}).ok());
}

TEST_F(CheckpointTest, missing_token_classes_are_refused_and_the_tool_named) {
  std::filesystem::remove(path() / "token_classes.safetensors");
  EXPECT_NE(refusal(Code::kNotFound).find("tools/engram_classes.py"), std::string::npos);
}

TEST_F(CheckpointTest, damaged_token_classes_are_refused) {
  set_bytes("token_classes.safetensors", "token_classes", 4 * 127, {97, 0, 0, 0});
  EXPECT_EQ(refusal(),
            "token_classes.safetensors: token_classes: expected classes below engram_compressed_vocab_size 97, found "
            "97 for token 127");
}

// A checkpoint with a small vision tower.
class VisionCheckpointTest : public CheckpointTest {
 protected:
  void SetUp() override {
    model::Geometry geometry = model::named_geometry("micro").value();
    geometry.vision =
        model::Vision{.num_layers = 1, .hidden_size = 32, .intermediate_size = 64, .patch_size = 2, .downsample = 2};
    geometry.image_token_id = 5;
    ASSERT_TRUE(write_checkpoint(geometry, 3, path()).ok());
  }
  static constexpr char kVision[] = "model-00006-of-00006.safetensors";
};

TEST_F(VisionCheckpointTest, vision_tensors_are_expected_where_the_config_has_a_vision_part) {
  EXPECT_EQ(refusal(), "accepted");
  edit(kVision, [](TensorList& tensors) {
    std::erase_if(tensors, [](const OwnedTensor& tensor) { return tensor.name == "image_start"; });
  });
  EXPECT_EQ(refusal(), std::string(kVision) +
                           ": image_start: missing tensor: expected in this file as the index says, found "
                           "no such name");
}

TEST_F(VisionCheckpointTest, the_values_of_vision_tensors_are_not_read) {
  set_bytes(kVision, "aligner.w1.weight", 0, {0x80, 0x7f});
  EXPECT_EQ(refusal(), "accepted");
}

TEST_F(VisionCheckpointTest, vision_tensors_are_unknown_where_the_config_has_no_vision_part) {
  std::filesystem::remove(path() / "config.json");
  ASSERT_TRUE(write_text_file(path() / "config.json", nested_config_json(model::named_geometry("micro").value())).ok());
  EXPECT_NE(refusal().find("aligner.w1.bias: unknown tensor"), std::string::npos) << refusal();
}

}  // namespace
}  // namespace monostep::weights
