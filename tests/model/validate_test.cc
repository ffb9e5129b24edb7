// Every rule between values: the wrong value is refused by validate and by the parser in both spellings, each naming
// its key.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "model/config_keys.h"
#include "model/geometry.h"

namespace monostep::model {
namespace {

struct Wrong {
  std::string name;
  std::string key;    // nested name of the key that the error names
  std::string found;  // part of the text: the refused value
  std::function<void(Geometry&)> edit;
};
std::ostream& operator<<(std::ostream& out, const Wrong& wrong) { return out << wrong.key; }

void expect_refusal(const Error& error, const std::string& key, const Wrong& wrong) {
  EXPECT_EQ(error.code, Code::kInvalidArgument);
  EXPECT_EQ(error.place, "a/config.json");
  EXPECT_TRUE(error.text.starts_with(key + ": ")) << error.message();
  EXPECT_NE(error.text.find(wrong.found, key.size()), std::string::npos) << error.message();
}

class Rule : public testing::TestWithParam<Wrong> {};

TEST_P(Rule, is_refused_by_key_and_value) {
  const Wrong& wrong = GetParam();
  Geometry geometry = named_geometry("micro").value();
  ASSERT_TRUE(validate(geometry, "a/config.json").ok());
  wrong.edit(geometry);
  const Status status = validate(geometry, "a/config.json");
  ASSERT_FALSE(status.ok());
  expect_refusal(status.error(), wrong.key, wrong);

  const Result<Geometry> nested = parse_geometry(nested_config_json(geometry), "a/config.json");
  ASSERT_FALSE(nested.ok());
  expect_refusal(nested.error(), wrong.key, wrong);
  const Result<Geometry> flat = parse_geometry(flat_config_json(geometry), "a/config.json");
  ASSERT_FALSE(flat.ok());
  expect_refusal(flat.error(), std::string(key_name(wrong.key, Spelling::kFlat)), wrong);
}

std::string case_name(const testing::TestParamInfo<Wrong>& info) { return info.param.name; }

#define EDIT [](Geometry & g)

INSTANTIATE_TEST_SUITE_P(
    Limits, Rule,
    testing::Values(
        Wrong{"negative_draft_layers", "num_nextn_predict_layers", "-1", EDIT { g.num_nextn_predict_layers = -1;
}  // namespace
}  // namespace monostep::model
, Wrong{"too_many_layers", "num_hidden_layers", "100000", EDIT{g.num_hidden_layers = 100000;
}
}
, Wrong{"too_many_draft_layers", "num_nextn_predict_layers", "2000", EDIT{g.num_nextn_predict_layers = 2000;
}
}
, Wrong{"too_many_experts", "n_routed_experts", "2000000000", EDIT{g.n_routed_experts = 2000000000;
}
}
, Wrong{"too_many_draft_experts", "dspark_n_routed_experts", "2000000000", EDIT{g.dspark_n_routed_experts = 2000000000;
}
}
, Wrong{"more_active_than_routed_experts", "num_experts_per_tok", "9", EDIT{g.num_experts_per_tok = 9;
}
}
, Wrong{"more_active_than_routed_draft_experts", "dspark_num_experts_per_tok", "5",
        EDIT{g.dspark_num_experts_per_tok = 5;
}
}
, Wrong{"negative_draft_experts", "dspark_n_routed_experts", "-4", EDIT{g.dspark_n_routed_experts = -4;
}
}
, Wrong{"negative_active_draft_experts", "dspark_num_experts_per_tok", "-2", EDIT{g.dspark_num_experts_per_tok = -2;
}
}
, Wrong{"context_beyond_exact_positions", "max_position_embeddings", "16777217",
        EDIT{g.max_position_embeddings = (1 << 24) + 1;
}
}
, Wrong{"topk_beyond_context", "index_topk", "4097", EDIT{g.index_topk = 4097;
}
}
, Wrong{"window_beyond_context", "sliding_window", "4097", EDIT{g.sliding_window = 4097;
}
}
, Wrong{"too_many_streams", "hc_mult", "65", EDIT{g.hc_mult = 65;
}
}
, Wrong{"too_many_iterations", "hc_sinkhorn_iters", "2000000000", EDIT{g.hc_sinkhorn_iters = 2000000000;
}
}
, Wrong{"hidden_times_streams_overflows", "hidden_size", "2147483616", EDIT{g.hidden_size = 2147483616;
}
}
, Wrong{"heads_times_width_overflows", "num_attention_heads", "2147483646", EDIT{g.num_attention_heads = 2147483646;
}
}
, Wrong{"output_rank_overflows", "o_lora_rank", "2147483616", EDIT{g.o_lora_rank = 2147483616;
}
}
, Wrong{"index_heads_overflow", "index_n_heads", "2147483647", EDIT{g.index_n_heads = 2147483647;
}
}
, Wrong{"theta_of_one", "rope_theta", "found 1", EDIT{g.rope_theta = 1;
}
}
, Wrong{"compress_theta_of_one", "compress_rope_theta", "found 1", EDIT{g.compress_rope_theta = 1;
}
}
, Wrong{"factor_below_one", "rope_scaling.factor", "0.5", EDIT{g.rope_scaling.factor = 0.5;
}
}
, Wrong{"negative_beta_fast", "rope_scaling.beta_fast", "-32", EDIT{g.rope_scaling.beta_fast = -32;
}
}
, Wrong{"zero_beta_slow", "rope_scaling.beta_slow", "0", EDIT{g.rope_scaling.beta_slow = 0;
}
}
, Wrong{"zero_eps", "rms_norm_eps", "0", EDIT{g.rms_norm_eps = 0;
}
}
, Wrong{"eps_that_fp32_loses", "hc_eps", "1e-60", EDIT{g.hc_eps = 1e-60;
}
}
, Wrong{"negative_scaling", "routed_scaling_factor", "-1.5", EDIT{g.routed_scaling_factor = -1.5;
}
}
, Wrong{"limit_beyond_fp32", "swiglu_limit", "1e+40", EDIT{g.swiglu_limit = 1e40;
}
}),
    case_name);

INSTANTIATE_TEST_SUITE_P(
    Widths, Rule,
    testing::Values(
        Wrong{"hidden_size", "hidden_size", "130", EDIT { g.hidden_size = 130;
}
}
, Wrong{"head_dim", "head_dim", "48", EDIT{g.head_dim = 48;
}
}
, Wrong{"q_lora_rank", "q_lora_rank", "65", EDIT{g.q_lora_rank = 65;
}
}
, Wrong{"o_lora_rank", "o_lora_rank", "16", EDIT{g.o_lora_rank = 16;
}
}
, Wrong{"moe_intermediate_size", "moe_intermediate_size", "80", EDIT{g.moe_intermediate_size = 80;
}
}
, Wrong{"index_head_dim", "index_head_dim", "40", EDIT{g.index_head_dim = 40;
}
}
, Wrong{"engram_head_dim", "engram_head_dim", "33", EDIT{g.engram_head_dim = 33;
}
}
, Wrong{"markov_rank", "dspark_markov_rank", "31", EDIT{g.dspark_markov_rank = 31;
}
}
, Wrong{"odd_rope_width", "qk_rope_head_dim", "15", EDIT{g.qk_rope_head_dim = 15;
}
}
, Wrong{"rope_wider_than_the_head", "qk_rope_head_dim", "66", EDIT{g.qk_rope_head_dim = 66;
}
}
, Wrong{"rope_wider_than_the_index_head", "index_head_dim", "32", EDIT{g.qk_rope_head_dim = 64;
}
}
, Wrong{"groups_that_do_not_divide_heads", "o_groups", "3", EDIT{g.o_groups = 3;
}
}),
    case_name);

INSTANTIATE_TEST_SUITE_P(
    Topology, Rule,
    testing::Values(
        Wrong{"a_ratio_too_few", "compress_ratios", "found 7", EDIT { g.compress_ratios.pop_back();
}
}
, Wrong{"a_ratio_too_many", "compress_ratios", "found 9", EDIT{g.compress_ratios.push_back(0);
}
}
, Wrong{"ratio_of_three", "compress_ratios", "found 3", EDIT{g.compress_ratios[2] = 3;
}
}
, Wrong{"negative_ratio", "compress_ratios", "found -1", EDIT{g.compress_ratios[2] = -1;
}
}
, Wrong{"ratio_in_the_draft", "compress_ratios", "draft layer 6", EDIT{g.compress_ratios[6] = 1;
}
}
, Wrong{"ratio_without_a_source", "compress_ratios", "layer 0 has ratio 2", EDIT{g.compress_ratios[0] = 2;
}
}
, Wrong{"ratio_other_than_its_sources", "compress_ratios", "layer 2 has ratio 1", EDIT{g.compress_ratios[2] = 1;
}
}
, Wrong{"ratio_of_an_earlier_source", "compress_ratios", "layer 4 has ratio 2", EDIT{g.compress_ratios[4] = 2;
}
}
, Wrong{"kv_sources_not_ascending", "kv_source_layer_ids", "1 after 3", EDIT{g.kv_source_layer_ids = {3, 1};
}
}
, Wrong{"kv_source_twice", "kv_source_layer_ids", "3 after 3", EDIT{g.kv_source_layer_ids = {1, 3, 3};
}
}
, Wrong{"kv_source_in_the_draft", "kv_source_layer_ids", "layer 6", EDIT{g.kv_source_layer_ids = {1, 3, 6};
}
}
, Wrong{"negative_kv_source", "kv_source_layer_ids", "layer -1", EDIT{g.kv_source_layer_ids = {-1, 1, 3};
}
}
, Wrong{"kv_source_that_is_no_index_source", "index_source_layer_ids", "KV source 3",
        EDIT{g.index_source_layer_ids = {1, 5};
}
}
, Wrong{"kv_source_with_ratio_0", "kv_source_layer_ids", "layer 0 has ratio 0", EDIT{g.kv_source_layer_ids = {0, 1, 3};
g.index_source_layer_ids = {0, 1, 3, 5};
}
}
, Wrong{"index_sources_not_ascending", "index_source_layer_ids", "3 after 5", EDIT{g.index_source_layer_ids = {1, 5, 3};
}
}
, Wrong{"index_source_twice", "index_source_layer_ids", "5 after 5", EDIT{g.index_source_layer_ids = {1, 3, 5, 5};
}
}
, Wrong{"index_source_out_of_range", "index_source_layer_ids", "layer 7", EDIT{g.index_source_layer_ids = {1, 3, 7};
}
}
, Wrong{"index_source_with_ratio_0", "index_source_layer_ids", "layer 0 has ratio 0",
        EDIT{g.index_source_layer_ids = {0, 1, 3, 5};
}
}),
    case_name);

INSTANTIATE_TEST_SUITE_P(
    Candidates, Rule,
    testing::Values(
        Wrong{"source_that_is_no_index_source", "candidate_source_layer_id", "found 4",
              EDIT { g.candidate_source_layer_id = 4;
}
}
, Wrong{"later_index_source_of_another_owner", "candidate_source_layer_id", "later index source 3",
        EDIT{g.candidate_source_layer_id = 1;
}
}
, Wrong{"pages_too_few", "candidate_topk_blocks", "only 5", EDIT{g.candidate_topk_blocks = 2;
}
}
, Wrong{"no_pages", "candidate_topk_blocks", "found 0", EDIT{g.candidate_topk_blocks = 0;
}
}
, Wrong{"no_page_size", "candidate_block_size", "found 0", EDIT{g.candidate_block_size = 0;
}
}
, Wrong{"negative_page_size", "candidate_block_size", "found -4", EDIT{g.candidate_block_size = -4;
}
}
, Wrong{"page_beyond_the_context", "candidate_block_size", "5000", EDIT{g.candidate_block_size = 5000;
}
}),
    case_name);

INSTANTIATE_TEST_SUITE_P(
    Tokens, Rule,
    testing::Values(
        Wrong{"bos_outside_the_vocabulary", "bos_token_id", "128", EDIT { g.bos_token_id = 128;
}
}
, Wrong{"negative_eos", "eos_token_id", "-1", EDIT{g.eos_token_id = -1;
}
}
, Wrong{"image_outside_the_vocabulary", "image_token_id", "129264", EDIT{g.image_token_id = 129264;
}
}
, Wrong{"pad_outside_the_vocabulary", "engram_pad_token_id", "128", EDIT{g.engram_pad_token_id = 128;
}
}
, Wrong{"negative_pad", "engram_pad_token_id", "-2", EDIT{g.engram_pad_token_id = -2;
}
}
, Wrong{"noise_outside_the_vocabulary", "dspark_noise_token_id", "4096", EDIT{g.dspark_noise_token_id = 4096;
}
}),
    case_name);

INSTANTIATE_TEST_SUITE_P(
    Engram, Rule,
    testing::Values(
        Wrong{"layers_not_ascending", "engram_layer_ids", "0 after 2", EDIT { g.engram_layer_ids = {2, 0};
}
}
, Wrong{"layer_twice", "engram_layer_ids", "2 after 2", EDIT{g.engram_layer_ids = {2, 2};
}
}
, Wrong{"layer_in_the_draft", "engram_layer_ids", "layer 6", EDIT{g.engram_layer_ids = {0, 6};
}
}
, Wrong{"a_row_count_too_few", "engram_num_embeddings", "found 1", EDIT{g.engram_num_embeddings = {462};
}
}
, Wrong{"row_count_other_than_the_primes", "engram_num_embeddings", "631", EDIT{g.engram_num_embeddings = {462, 631};
}
}
, Wrong{"primes_of_another_start", "engram_num_embeddings", "462", EDIT{g.engram_vocab_size = 80;
}
}
, Wrong{"unigrams_alone", "engram_max_ngram_size", "found 1", EDIT{g.engram_max_ngram_size = 1;
}
}
, Wrong{"ngrams_too_long", "engram_max_ngram_size", "2000000000", EDIT{g.engram_max_ngram_size = 2000000000;
}
}
, Wrong{"too_many_heads", "engram_n_heads", "2000000000", EDIT{g.engram_n_heads = 2000000000;
}
}
, Wrong{"too_wide", "engram_head_dim", "2147483616", EDIT{g.engram_head_dim = 2147483616;
}
}
, Wrong{"start_beyond_2_31", "engram_vocab_size", "4000000000", EDIT{g.engram_vocab_size = 4000000000;
}
}
, Wrong{"more_classes_than_tokens", "engram_compressed_vocab_size", "129", EDIT{g.engram_compressed_vocab_size = 129;
}
}),
    case_name);

INSTANTIATE_TEST_SUITE_P(
    Draft, Rule,
    testing::Values(
        Wrong{"no_targets", "dspark_target_layer_ids", "[]", EDIT { g.dspark_target_layer_ids.clear();
}
}
, Wrong{"target_in_the_draft", "dspark_target_layer_ids", "layer 6", EDIT{g.dspark_target_layer_ids = {5, 6};
}
}
, Wrong{"negative_target", "dspark_target_layer_ids", "layer -1", EDIT{g.dspark_target_layer_ids = {-1};
}
}
, Wrong{"targets_not_ascending", "dspark_target_layer_ids", "3 after 4", EDIT{g.dspark_target_layer_ids = {4, 3};
}
}
, Wrong{"draft_too_long", "dspark_block_size", "2000000000", EDIT{g.dspark_block_size = 2000000000;
}
}),
    case_name);

void add_vision(Geometry& g) {
  g.vision = {.num_layers = 2, .hidden_size = 64, .intermediate_size = 128, .patch_size = 14, .downsample = 3};
}

INSTANTIATE_TEST_SUITE_P(
    Vision, Rule,
    testing::Values(Wrong{"negative_layers", "vision_config.num_hidden_layers", "-2",
                          EDIT {
                            add_vision(g);
                            g.vision->num_layers = -2;
}
}
, Wrong{"too_many_layers", "vision_config.num_hidden_layers", "2000", EDIT{add_vision(g);
g.vision->num_layers = 2000;
}
}
, Wrong{"no_width", "vision_config.hidden_size", "0", EDIT{add_vision(g);
g.vision->hidden_size = 0;
}
}
, Wrong{"no_inner_width", "vision_config.intermediate_size", "0", EDIT{add_vision(g);
g.vision->intermediate_size = 0;
}
}
, Wrong{"patch_too_large", "vision_config.patch_size", "2000000000", EDIT{add_vision(g);
g.vision->patch_size = 2000000000;
}
}
, Wrong{"downsample_too_large", "vision_config.downsample_ratio", "100000", EDIT{add_vision(g);
g.vision->downsample = 100000;
}
}),
    case_name);

// Each count in turn is 0; the file names it in its spelling.
class Count : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Keys, Count,
                         testing::Values("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
                                         "head_dim", "qk_rope_head_dim", "q_lora_rank", "o_lora_rank", "o_groups",
                                         "moe_intermediate_size", "n_routed_experts", "num_experts_per_tok",
                                         "max_position_embeddings", "sliding_window", "index_n_heads", "index_head_dim",
                                         "index_topk", "hc_mult", "hc_sinkhorn_iters", "engram_max_ngram_size",
                                         "engram_n_heads", "engram_head_dim", "engram_vocab_size",
                                         "engram_compressed_vocab_size", "dspark_block_size", "dspark_markov_rank",
                                         "rope_scaling.original_max_position_embeddings"),
                         [](const auto& info) { return info.param.substr(info.param.find('.') + 1); });

TEST_P(Count, of_zero_is_refused_by_key) {
  Geometry geometry = named_geometry("micro").value();
  bool edited = false;
  const auto clear = [&](const Key& key, auto& value) -> Status {
    if constexpr (std::is_integral_v<std::remove_reference_t<decltype(value)>>) {
      if (key.nested == GetParam()) {
        value = 0;
        edited = true;
      }
    }
    return {};
  };
  ASSERT_TRUE(visit_keys(geometry, clear).ok());
  ASSERT_TRUE(edited);
  const Wrong wrong{"", GetParam(), "found 0", {}};
  expect_refusal(validate(geometry, "a/config.json").error(), GetParam(), wrong);
  expect_refusal(parse_geometry(nested_config_json(geometry), "a/config.json").error(), GetParam(), wrong);
  expect_refusal(parse_geometry(flat_config_json(geometry), "a/config.json").error(),
                 std::string(key_name(GetParam(), Spelling::kFlat)), wrong);
}

TEST(Validate, the_smallest_sufficient_candidates_are_accepted) {
  Geometry geometry = named_geometry("micro").value();
  geometry.index_topk = 13;  // 4 * 4 - 3
  EXPECT_TRUE(validate(geometry, "test").ok());
  geometry.index_topk = 14;
  EXPECT_FALSE(validate(geometry, "test").ok());
}

TEST(Validate, a_topk_and_window_as_long_as_the_context_are_accepted) {
  Geometry geometry = named_geometry("micro").value();
  geometry.max_position_embeddings = 16;
  EXPECT_TRUE(validate(geometry, "test").ok());
}

TEST(Validate, a_search_for_many_large_primes_ends_soon) {
  Geometry geometry = named_geometry("micro").value();
  geometry.engram_vocab_size = INT32_MAX - 400000;
  geometry.engram_n_heads = 2700;
  geometry.engram_head_dim = 32;
  const Status status = validate(geometry, "test");
  ASSERT_FALSE(status.ok());
  EXPECT_TRUE(status.error().text.starts_with("engram_num_embeddings: the primes of layer 0")) << status.error().text;
}

}  // namespace
}  // namespace monostep::model
