// Reading config texts: spellings, missing keys, wrong types, unsupported values and files. Rules are in
// validate_test.cc.
#include <gtest/gtest.h>

#include <cctype>
#include <filesystem>
#include <fstream>

#include "config_text.h"
#include "model/geometry.h"

namespace monostep::model {
namespace {

Geometry micro() { return named_geometry("micro").value(); }
std::string nested_text() { return nested_config_json(micro()); }
std::string flat_text() { return flat_config_json(micro()); }

void expect_error(const std::string& text, Code code, const std::string& start, const std::string& found = "") {
  const Result<Geometry> geometry = parse_geometry(text, "dir/config.json");
  ASSERT_FALSE(geometry.ok());
  EXPECT_EQ(geometry.error().code, code);
  EXPECT_EQ(geometry.error().place, "dir/config.json");
  EXPECT_TRUE(geometry.error().text.starts_with(start)) << geometry.error().message();
  EXPECT_NE(geometry.error().text.find(found), std::string::npos) << geometry.error().message();
}

void expect_micro(const std::string& text) {
  const Result<Geometry> geometry = parse_geometry(text, "test");
  ASSERT_TRUE(geometry.ok()) << geometry.error().message();
  EXPECT_EQ(*geometry, micro());
}

std::string word_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  for (char& letter : name) {
    if (std::isalnum(static_cast<unsigned char>(letter)) == 0) letter = '_';
  }
  return name;
}

class NestedKey : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(
    Required, NestedKey,
    testing::Values("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
                    "head_dim", "qk_rope_head_dim", "q_lora_rank", "o_lora_rank", "o_groups", "moe_intermediate_size",
                    "n_routed_experts", "num_experts_per_tok", "n_shared_experts", "scoring_func", "topk_method",
                    "norm_topk_prob", "routed_scaling_factor", "hidden_act", "swiglu_limit", "rms_norm_eps",
                    "max_position_embeddings", "rope_theta", "rope_scaling.factor", "rope_scaling.beta_fast",
                    "rope_scaling.beta_slow", "rope_scaling.original_max_position_embeddings", "rope_scaling.type",
                    "compress_rope_theta", "sliding_window", "compress_ratios", "kv_source_layer_ids",
                    "index_source_layer_ids", "index_n_heads", "index_head_dim", "index_topk", "hc_mult",
                    "hc_sinkhorn_iters", "hc_eps", "engram_layer_ids", "engram_num_embeddings", "engram_max_ngram_size",
                    "engram_n_heads", "engram_head_dim", "engram_vocab_size", "engram_pad_token_id",
                    "engram_compressed_vocab_size", "num_nextn_predict_layers", "dspark_block_size",
                    "dspark_noise_token_id", "dspark_target_layer_ids", "dspark_markov_rank", "tie_word_embeddings",
                    "attention_bias", "quantization_config.quant_method", "quantization_config.weight_block_size",
                    "quantization_config.scale_fmt", "quantization_config.expert_dtype"),
    word_name);

TEST_P(NestedKey, missing_is_refused_by_name) {
  const std::string key = GetParam().substr(GetParam().find('.') + 1);
  expect_error(without_key(nested_text(), key), Code::kInvalidArgument, GetParam() + ": the key is missing");
}

TEST_P(NestedKey, null_counts_as_missing) {
  const std::string key = GetParam().substr(GetParam().find('.') + 1);
  expect_error(with_value(nested_text(), key, "null"), Code::kInvalidArgument, GetParam() + ": the key is missing");
}

class FlatKey : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(
    Required, FlatKey,
    testing::Values("score_func", "route_scale", "swiglu_limit", "norm_eps", "hc_mult", "hc_sinkhorn_iters", "hc_eps",
                    "n_shared_experts", "engram_max_ngram_size", "engram_pad_id", "rope_theta", "compress_rope_theta",
                    "beta_fast", "beta_slow", "dtype", "expert_dtype", "dspark_block_size", "dspark_noise_token_id",
                    "vocab_size", "engram_compressed_vocab_size", "dim", "n_layers", "n_mtp_layers", "compress_ratios",
                    "kv_source_layers", "index_source_layers", "n_heads", "head_dim", "rope_head_dim", "q_lora_rank",
                    "o_groups", "o_lora_rank", "index_n_heads", "index_head_dim", "index_topk", "window_size",
                    "n_routed_experts", "n_activated_experts", "moe_inter_dim", "dspark_markov_rank",
                    "dspark_target_layer_ids", "engram_layer_ids", "engram_n_heads", "engram_head_dim",
                    "engram_vocab_size", "engram_num_embeddings", "original_seq_len", "rope_factor"),
    word_name);

TEST_P(FlatKey, missing_is_refused_by_name) {
  expect_error(without_key(flat_text(), GetParam()), Code::kInvalidArgument, GetParam() + ": the key is missing");
}

class WrongCount : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Values, WrongCount,
                         testing::Values("128.0", "1e3", "\"128\"", "true", "-128", "0", "2147483648", "4294967424",
                                         "18446744073709551615", "-9223372036854775808", "[128]", "{}"),
                         [](const auto& info) { return "value_" + std::to_string(info.index); });

TEST_P(WrongCount, is_refused_by_key_and_value_in_both_spellings) {
  const std::string expected = "expected a positive integer below 2^31, found ";
  const std::string shown = GetParam() == "1e3" ? "1000.0" : GetParam();
  expect_error(with_value(nested_text(), "hidden_size", GetParam()), Code::kInvalidArgument,
               "hidden_size: " + expected + shown);
  expect_error(with_value(flat_text(), "dim", GetParam()), Code::kInvalidArgument, "dim: " + expected + shown);
}

struct Unsupported {
  std::string key;  // with its object
  std::string value;
  bool flat = false;
};
std::ostream& operator<<(std::ostream& out, const Unsupported& value) {
  return out << value.key << " = " << value.value;
}

class UnsupportedValue : public testing::TestWithParam<Unsupported> {};
INSTANTIATE_TEST_SUITE_P(
    Keys, UnsupportedValue,
    testing::Values(Unsupported{"scoring_func", "\"softmax\""}, Unsupported{"topk_method", "\"greedy\""},
                    Unsupported{"norm_topk_prob", "false"}, Unsupported{"hidden_act", "\"gelu\""},
                    Unsupported{"quantization_config.quant_method", "\"awq\""},
                    Unsupported{"quantization_config.weight_block_size", "[128,128]"},
                    Unsupported{"quantization_config.scale_fmt", "\"fp32\""},
                    Unsupported{"quantization_config.expert_dtype", "\"fp8\""},
                    Unsupported{"quantization_config.activation_scheme", "\"static\""},
                    Unsupported{"tie_word_embeddings", "true"}, Unsupported{"attention_bias", "true"},
                    Unsupported{"num_key_value_heads", "2"}, Unsupported{"n_shared_experts", "2"},
                    Unsupported{"rope_scaling.type", "\"linear\""}, Unsupported{"score_func", "\"sigmoid\"", true},
                    Unsupported{"n_shared_experts", "0", true}, Unsupported{"dtype", "\"bf16\"", true},
                    Unsupported{"expert_dtype", "\"fp8\"", true}),
    [](const auto& info) {
      const std::string& key = info.param.key;
      return key.substr(key.find('.') + 1) + (info.param.flat ? "_flat" : "");
    });

TEST_P(UnsupportedValue, is_refused_by_key_and_value) {
  const auto& [key, value, flat] = GetParam();
  const std::string text = with_value(flat ? flat_text() : nested_text(), key.substr(key.find('.') + 1), value);
  expect_error(text, Code::kUnsupported, key + ": ", "found " + value);
}

TEST(ConfigRead, another_model_type_is_unsupported) {
  expect_error(with_value(nested_text(), "model_type", "\"deepseek_v4\""), Code::kUnsupported,
               "model_type: ", "deepseek_v4");
}

TEST(ConfigRead, another_text_model_type_is_unsupported) {
  std::string text = nested_text();
  text.replace(text.find("deepseek_v41_text"), 17, "deepseek_v40_text");
  expect_error(text, Code::kUnsupported, "text_config.model_type: ", "deepseek_v40_text");
}

TEST(ConfigRead, a_gate_temperature_of_one_is_accepted_and_another_refused) {
  expect_micro(with_value(nested_text(), "use_cache", "true,\n  \"gate_temp\": 1.0"));
  expect_micro(with_value(nested_text(), "use_cache", "true,\n  \"gate_temp\": 1"));
  expect_error(with_value(nested_text(), "use_cache", "true,\n  \"gate_temp\": 0.5"), Code::kUnsupported,
               "gate_temp: ", "0.5");
}

TEST(ConfigRead, rope_type_is_read_as_type) {
  std::string text = nested_text();
  text.replace(text.find("\"type\""), 6, "\"rope_type\"");
  expect_micro(text);
  expect_error(with_value(text, "rope_type", "\"llama3\""), Code::kUnsupported, "rope_scaling.rope_type: ", "llama3");
}

TEST(ConfigRead, text_keys_may_stand_at_top_level) {
  std::string text = nested_text();
  const size_t member = text.find(" \"text_config\": {");
  text.erase(member, std::string(" \"text_config\": {").size());
  text.erase(text.rfind('}'));  // one object less
  expect_micro(text);
}

TEST(ConfigRead, unknown_keys_are_ignored) {
  expect_micro(with_value(nested_text(), "use_cache", "true,\n  \"a_new_key\": {\"hidden_size\": 7}"));
  expect_micro(with_value(flat_text(), "dtype", "\"fp8\",\n \"a_new_key\": [1, \"x\"]"));
}

TEST(ConfigRead, absent_candidate_keys_mean_no_candidates) {
  std::string text = nested_text();
  for (const char* key : {"candidate_source_layer_id", "candidate_topk_blocks", "candidate_block_size"}) {
    text = without_key(text, key);
  }
  const Result<Geometry> geometry = parse_geometry(text, "test");
  ASSERT_TRUE(geometry.ok()) << geometry.error().message();
  EXPECT_EQ(geometry->candidate_source_layer_id, -1);
  EXPECT_EQ(layer_roles(*geometry)[5].candidates_from, -1);
}

TEST(ConfigRead, a_candidate_source_needs_its_counts) {
  expect_error(without_key(nested_text(), "candidate_topk_blocks"), Code::kInvalidArgument, "candidate_topk_blocks: ");
  expect_error(without_key(nested_text(), "candidate_block_size"), Code::kInvalidArgument, "candidate_block_size: ");
}

TEST(ConfigRead, zero_or_absent_draft_expert_counts_mean_the_backbones) {
  const std::string zeros =
      with_value(with_value(nested_text(), "dspark_n_routed_experts", "0"), "dspark_num_experts_per_tok", "0");
  const std::string absent =
      without_key(without_key(flat_text(), "dspark_n_routed_experts"), "dspark_n_activated_experts");
  for (const std::string& text : {zeros, absent}) {
    const Result<Geometry> geometry = parse_geometry(text, "test");
    ASSERT_TRUE(geometry.ok()) << geometry.error().message();
    EXPECT_EQ(geometry->dspark_n_routed_experts, 8);
    EXPECT_EQ(geometry->dspark_num_experts_per_tok, 2);
  }
}

TEST(ConfigRead, token_ids_have_defaults) {
  const std::string text = without_key(without_key(nested_text(), "bos_token_id"), "eos_token_id");
  expect_micro(text);
}

TEST(ConfigRead, a_vision_part_without_layers_is_none) {
  expect_micro(with_value(nested_text(), "dtype", "\"bfloat16\",\n \"vision_config\": {\"num_hidden_layers\": 0}"));
  expect_micro(without_key(flat_text(), "vision_n_layers"));
}

TEST(ConfigRead, a_vision_part_needs_its_sizes_except_the_downsampling) {
  const std::string text = nested_config_json(named_geometry("flash").value());
  const Result<Geometry> geometry = parse_geometry(without_key(text, "downsample_ratio"), "test");
  ASSERT_TRUE(geometry.ok());
  EXPECT_EQ(geometry->vision->downsample, 3);
  expect_error(without_key(text, "patch_size"), Code::kInvalidArgument, "vision_config.patch_size: the key is missing");
}

TEST(ConfigRead, lists_of_anything_but_integers_are_refused) {
  expect_error(with_value(nested_text(), "compress_ratios", "2"), Code::kInvalidArgument,
               "compress_ratios: expected a list");
  expect_error(with_value(nested_text(), "compress_ratios", "[0, 2.0]"), Code::kInvalidArgument,
               "compress_ratios: ", "2.0");
  expect_error(with_value(nested_text(), "engram_num_embeddings", "[462, \"630\"]"), Code::kInvalidArgument,
               "engram_num_embeddings: ", "630");
}

TEST(ConfigRead, a_list_of_a_million_entries_is_refused) {
  std::string list = "[0";
  for (int entry_idx = 0; entry_idx < 1000000; ++entry_idx) list += ",0";
  expect_error(with_value(nested_text(), "compress_ratios", list + "]"), Code::kInvalidArgument,
               "compress_ratios: expected at most");
}

TEST(ConfigRead, numbers_that_are_text_are_refused) {
  expect_error(with_value(nested_text(), "rms_norm_eps", "\"1e-20\""), Code::kInvalidArgument,
               "rms_norm_eps: expected a number");
  expect_error(with_value(flat_text(), "rope_factor", "true"), Code::kInvalidArgument,
               "rope_factor: expected a number");
}

TEST(ConfigRead, an_integer_is_a_number) { expect_micro(with_value(nested_text(), "swiglu_limit", "10")); }

TEST(ConfigRead, text_that_is_not_json_is_corrupt) {
  const std::string text = nested_text();
  for (const std::string& broken : {std::string(), std::string("{"), text.substr(0, text.size() / 2), text + "}",
                                    std::string("\xff\xfe"), std::string(5000, '[')}) {
    expect_error(broken, Code::kCorrupt, "not JSON");
  }
}

TEST(ConfigRead, json_that_is_no_object_is_corrupt) {
  expect_error("[1, 2]", Code::kCorrupt, "expected a JSON object");
}

TEST(ConfigRead, a_text_config_that_is_no_object_is_refused) {
  expect_error("{\"text_config\": 3}", Code::kInvalidArgument, "text_config: expected an object, found 3");
}

TEST(ConfigRead, an_object_of_no_spelling_is_refused) {
  expect_error("{\"model_type\": \"gpt2\"}", Code::kInvalidArgument,
               "none of the keys text_config, hidden_size or dim");
}

TEST(ConfigRead, a_shown_value_is_cut) {
  const Result<Geometry> geometry =
      parse_geometry(with_value(nested_text(), "hidden_size", "\"" + std::string(100000, 'x') + "\""), "test");
  ASSERT_FALSE(geometry.ok());
  EXPECT_LT(geometry.error().text.size(), 200u);
}

// Cutting a config anywhere, or changing one byte of it, ends in a value or an error.
TEST(ConfigRead, damaged_texts_never_crash) {
  for (const std::string& text : {nested_text(), flat_text()}) {
    for (size_t at = 0; at + 2 < text.size(); at += 3) {
      EXPECT_FALSE(parse_geometry(text.substr(0, at), "cut").ok());
      for (const char letter : {'9', '-', ' ', '"', ']'}) {
        std::string changed = text;
        changed[at] = letter;
        const Result<Geometry> geometry = parse_geometry(changed, "changed");
        EXPECT_TRUE(!geometry.ok() || validate(*geometry, "changed").ok());
      }
    }
  }
}

class LoadGeometry : public testing::Test {
 protected:
  void SetUp() override {
    const std::string test = testing::UnitTest::GetInstance()->current_test_info()->name();
    dir_ = std::filesystem::path(MONOSTEP_BINARY_DIR) / "test_data" / ("load_geometry." + test);
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directories(dir_ / "inference");
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  void write(const std::string& name, const std::string& text) { std::ofstream(dir_ / name) << text; }

  std::filesystem::path dir_;
};

TEST_F(LoadGeometry, config_json_is_the_authority) {
  write("config.json", nested_text());
  write("inference/config.json", "not read");
  const Result<Geometry> geometry = load_geometry(dir_);
  ASSERT_TRUE(geometry.ok()) << geometry.error().message();
  EXPECT_EQ(*geometry, micro());
}

TEST_F(LoadGeometry, the_flat_file_is_read_where_config_json_is_absent) {
  write("inference/config.json", flat_text());
  const Result<Geometry> geometry = load_geometry(dir_);
  ASSERT_TRUE(geometry.ok()) << geometry.error().message();
  EXPECT_EQ(*geometry, micro());
}

TEST_F(LoadGeometry, a_broken_config_json_is_not_replaced_by_the_flat_file) {
  write("config.json", "{");
  write("inference/config.json", flat_text());
  const Result<Geometry> geometry = load_geometry(dir_);
  ASSERT_FALSE(geometry.ok());
  EXPECT_EQ(geometry.error().code, Code::kCorrupt);
  EXPECT_EQ(geometry.error().place, (dir_ / "config.json").string());
}

TEST_F(LoadGeometry, a_directory_without_a_config_is_refused_by_path) {
  const Result<Geometry> geometry = load_geometry(dir_);
  ASSERT_FALSE(geometry.ok());
  EXPECT_EQ(geometry.error().code, Code::kNotFound);
  EXPECT_EQ(geometry.error().place, (dir_ / "config.json").string());
}

TEST_F(LoadGeometry, a_directory_in_place_of_the_file_is_an_error) {
  std::filesystem::create_directories(dir_ / "config.json");
  EXPECT_FALSE(load_geometry(dir_).ok());
}

TEST_F(LoadGeometry, a_file_beyond_16_megabytes_is_refused) {
  write("config.json", std::string(17 << 20, ' '));
  const Result<Geometry> geometry = load_geometry(dir_);
  ASSERT_FALSE(geometry.ok());
  EXPECT_EQ(geometry.error().code, Code::kCorrupt);
}

}  // namespace
}  // namespace monostep::model
