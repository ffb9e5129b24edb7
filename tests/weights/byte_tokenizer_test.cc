// Tests of the synthetic tokenizer: read by the project's own tokenizer, every byte is one id and specials sit at their
// ids.
#include "weights/byte_tokenizer.h"

#include <gtest/gtest.h>

#include <set>

#include "text/tokenizer.h"

namespace monostep::weights {
namespace {

text::Tokenizer tokenizer_of(const model::Geometry& geometry) {
  return text::Tokenizer::parse(byte_tokenizer_json(geometry), "tokenizer.json").value();
}

TEST(ByteTokenizer, every_byte_is_one_id_and_reads_back) {
  const text::Tokenizer tokenizer = tokenizer_of(model::named_geometry("clone40").value());
  std::set<int32_t> ids;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string text(1, static_cast<char>(byte));
    const std::vector<int32_t> encoded = tokenizer.encode(text, false);
    ASSERT_EQ(encoded.size(), 1u) << byte;
    EXPECT_EQ(tokenizer.bytes_of(encoded[0]).value(), text);
    ids.insert(encoded[0]);
  }
  EXPECT_EQ(ids.size(), 256u);
  EXPECT_EQ(tokenizer.encode("Grüße, 123!\n", false).size(), 14u);
}

TEST(ByteTokenizer, special_tokens_have_the_released_spellings_at_the_ids_of_the_config) {
  const model::Geometry geometry = model::named_geometry("clone40").value();
  const text::Tokenizer tokenizer = tokenizer_of(geometry);
  EXPECT_EQ(tokenizer.id_of("<｜begin▁of▁sentence｜>"), geometry.bos_token_id);
  EXPECT_EQ(tokenizer.id_of("<｜end▁of▁sentence｜>"), geometry.eos_token_id);
  EXPECT_EQ(tokenizer.id_of("<｜▁pad▁｜>"), geometry.engram_pad_token_id);
  EXPECT_EQ(tokenizer.id_of("<｜System｜>"), geometry.dspark_noise_token_id);
  for (const char* text : {"<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "｜DSML｜"}) {
    const auto id = tokenizer.id_of(text);
    ASSERT_TRUE(id) << text;
    EXPECT_LT(*id, geometry.vocab_size);
    EXPECT_EQ(tokenizer.encode(text, true), std::vector<int32_t>{*id});
    EXPECT_GT(tokenizer.encode(text, false).size(), 1u);
  }
  EXPECT_TRUE(tokenizer.is_special(geometry.eos_token_id));
  EXPECT_FALSE(tokenizer.is_special(geometry.dspark_noise_token_id));
}

TEST(ByteTokenizer, the_smallest_vocabulary_has_no_turn_tokens_and_one_less_does_not_fit) {
  model::Geometry geometry = model::named_geometry("micro").value();
  EXPECT_FALSE(byte_tokenizer_fits(geometry));
  geometry.vocab_size = 256 + 4;
  EXPECT_TRUE(byte_tokenizer_fits(geometry));
  EXPECT_EQ(special_tokens(geometry).size(), 4u);
  EXPECT_EQ(tokenizer_of(geometry).num_ids(), 260);
  geometry.vocab_size = 256 + 4 + 5;
  EXPECT_EQ(special_tokens(geometry).size(), 9u);
  EXPECT_EQ(tokenizer_of(geometry).num_ids(), 265);
  geometry.vocab_size = 256 + 3;
  EXPECT_FALSE(byte_tokenizer_fits(geometry));
}

TEST(ByteTokenizer, special_ids_anywhere_in_the_vocabulary_are_kept_free_of_bytes) {
  model::Geometry geometry = model::named_geometry("micro").value();
  geometry.vocab_size = 300;
  geometry.bos_token_id = 100;
  geometry.eos_token_id = 299;
  const text::Tokenizer tokenizer = tokenizer_of(geometry);
  EXPECT_EQ(tokenizer.id_of("<｜begin▁of▁sentence｜>"), 100);
  EXPECT_EQ(tokenizer.id_of("<｜end▁of▁sentence｜>"), 299);
  EXPECT_EQ(tokenizer.encode(std::string(1, '\0'), false), std::vector<int32_t>{0});
  EXPECT_EQ(tokenizer.encode("\xff", false).size(), 1u);
}

TEST(ByteTokenizer, of_two_special_tokens_with_one_id_the_first_stays) {
  model::Geometry geometry = model::named_geometry("clone40").value();
  geometry.engram_pad_token_id = geometry.eos_token_id;
  const text::Tokenizer tokenizer = tokenizer_of(geometry);
  EXPECT_EQ(tokenizer.id_of("<｜end▁of▁sentence｜>"), geometry.eos_token_id);
  EXPECT_FALSE(tokenizer.id_of("<｜▁pad▁｜>"));
}

}  // namespace
}  // namespace monostep::weights
