// Written configs read back to the same geometry in both spellings, and the golden ones are written byte for byte.
#include <gtest/gtest.h>

#include "config_text.h"
#include "model/geometry.h"

namespace monostep::model {
namespace {

void expect_round_trips(const Geometry& geometry) {
  const Result<Geometry> nested = parse_geometry(nested_config_json(geometry), "nested");
  ASSERT_TRUE(nested.ok()) << nested.error().message();
  EXPECT_EQ(*nested, geometry);
  const Result<Geometry> flat = parse_geometry(flat_config_json(geometry), "flat");
  ASSERT_TRUE(flat.ok()) << flat.error().message();
  EXPECT_EQ(*flat, geometry);
}

class RoundTrip : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Geometries, RoundTrip, testing::ValuesIn(geometry_names()),
                         [](const auto& info) { return info.param; });

TEST_P(RoundTrip, both_spellings_read_back_to_the_same_geometry) {
  expect_round_trips(named_geometry(GetParam()).value());
}

class WrittenGolden : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Geometries, WrittenGolden, testing::Values("micro", "clone40", "realdims"),
                         [](const auto& info) { return info.param; });

TEST_P(WrittenGolden, nested_config_is_the_golden_file) {
  EXPECT_EQ(nested_config_json(named_geometry(GetParam()).value()), read_text(data_dir(GetParam()) + "/config.json"));
}

TEST_P(WrittenGolden, flat_config_is_the_golden_file_where_its_context_is_the_default) {
  std::string written = flat_config_json(named_geometry(GetParam()).value());
  if (GetParam() == "realdims") written = without_key(written, "max_seq_len");
  EXPECT_EQ(written, read_text(data_dir(GetParam()) + "/inference/config.json"));
}

TEST(RoundTripOf, a_model_without_candidates) {
  Geometry geometry = named_geometry("micro").value();
  geometry.candidate_source_layer_id = -1;
  geometry.candidate_topk_blocks = geometry.candidate_block_size = 0;
  expect_round_trips(geometry);
}

TEST(RoundTripOf, a_model_without_engram) {
  Geometry geometry = named_geometry("micro").value();
  const Geometry empty;
  geometry.engram_layer_ids.clear();
  geometry.engram_num_embeddings.clear();
  geometry.engram_max_ngram_size = empty.engram_max_ngram_size;
  geometry.engram_n_heads = geometry.engram_head_dim = 0;
  geometry.engram_vocab_size = 0;
  geometry.engram_pad_token_id = geometry.engram_compressed_vocab_size = 0;
  expect_round_trips(geometry);
}

TEST(RoundTripOf, a_model_without_a_draft) {
  Geometry geometry = named_geometry("micro").value();
  geometry.num_nextn_predict_layers = 0;
  geometry.compress_ratios.resize(6);
  geometry.dspark_block_size = geometry.dspark_noise_token_id = geometry.dspark_markov_rank = 0;
  geometry.dspark_target_layer_ids.clear();
  geometry.dspark_n_routed_experts = geometry.n_routed_experts;
  geometry.dspark_num_experts_per_tok = geometry.num_experts_per_tok;
  expect_round_trips(geometry);
}

TEST(RoundTripOf, a_model_with_other_token_ids_and_context) {
  Geometry geometry = named_geometry("micro").value();
  geometry.bos_token_id = 7;
  geometry.eos_token_id = 8;
  geometry.image_token_id = 9;
  geometry.max_position_embeddings = 777;
  expect_round_trips(geometry);
}

TEST(RoundTripOf, numbers_that_are_not_round) {
  Geometry geometry = named_geometry("micro").value();
  geometry.rope_theta = 10000.1;
  geometry.compress_rope_theta = 123456.789;
  geometry.rope_scaling.factor = 1.1;
  geometry.rope_scaling.beta_fast = 33.3;
  geometry.rope_scaling.beta_slow = 0.9;
  geometry.routed_scaling_factor = 0.1;
  geometry.swiglu_limit = 1e-3;
  geometry.rms_norm_eps = 1.2345678901234567e-7;
  geometry.hc_eps = 2e-9;
  expect_round_trips(geometry);
}

}  // namespace
}  // namespace monostep::model
