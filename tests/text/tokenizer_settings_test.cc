// Each setting of tokenizer.json that would change the ids is refused by its name; the neutral forms are accepted.
#include "text/tokenizer_settings.h"

#include <gtest/gtest.h>

#include "tiny_tokenizer.h"

namespace monostep::text {
namespace {

struct Damage {
  const char* name;  // of the test
  std::string part, replacement, message;
};

void PrintTo(const Damage& damage, std::ostream* out) { *out << damage.name; }

class RefusedSetting : public testing::TestWithParam<Damage> {};

TEST_P(RefusedSetting, is_named) {
  EXPECT_EQ(refusal_of(tiny_tokenizer_with(GetParam().part, GetParam().replacement)), GetParam().message);
}

const std::string kByteLevelStep =
    R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false})";
const std::string kNullOnly = ": only null is supported (unsupported)";
const std::string kFalseOnly = ": only false is supported (unsupported)";

INSTANTIATE_TEST_SUITE_P(
    TokenizerSettings, RefusedSetting,
    testing::Values(
        Damage{"truncation", R"("truncation":null)", R"("truncation":{})", "f.truncation" + kNullOnly},
        Damage{"padding", R"("padding":null)", R"("padding":{})", "f.padding" + kNullOnly},
        Damage{"normalizer", R"({"type":"Sequence","normalizers":[]})", R"({"type":"NFC"})",
               "f.normalizer.type: only \"Sequence\" is supported, found \"NFC\" (unsupported)"},
        Damage{"normalizer_step", R"("normalizers":[])", R"("normalizers":[{"type":"NFC"}])",
               "f.normalizer.normalizers: no normalizer is supported (unsupported)"},
        Damage{"pre_tokenizer_missing", R"("pre_tokenizer")", R"("x")",
               "f.pre_tokenizer.type: is missing, expected a string (corrupt)"},
        Damage{"pre_tokenizer_type", R"({"type":"Sequence","pretokenizers":)", R"({"type":"Chain","pretokenizers":)",
               "f.pre_tokenizer.type: only \"Sequence\" is supported, found \"Chain\" (unsupported)"},
        Damage{"pre_tokenizer_steps", "," + kByteLevelStep, "",
               "f.pre_tokenizer.pretokenizers: expected 4 steps, found 3 (unsupported)"},
        Damage{
            "step_order", split_json(kNumberPattern) + "," + split_json(kCjkPattern),
            split_json(kCjkPattern) + "," + split_json(kNumberPattern),
            "f.pre_tokenizer.pretokenizers[0].pattern.Regex: unknown split pattern "
            "\"[\\u4e00-\\u9fa5\\u3040-\\u309f\\u30a0-\\u30ff]+\"; only DeepSeek's three are supported (unsupported)"},
        Damage{
            "pattern", R"(\\p{N}{1,3})", R"(\\p{N}{1,2})",
            "f.pre_tokenizer.pretokenizers[0].pattern.Regex: unknown split pattern \"\\\\p{N}{1,2}\"; only DeepSeek's "
            "three are supported (unsupported)"},
        Damage{"pattern_kind", R"({"Regex":"\\p{N}{1,3}"})", R"({"String":"1"})",
               "f.pre_tokenizer.pretokenizers[0].pattern.Regex: is missing, expected a string (corrupt)"},
        Damage{"behavior", R"(\\p{N}{1,3}"},"behavior":"Isolated")", R"(\\p{N}{1,3}"},"behavior":"Removed")",
               "f.pre_tokenizer.pretokenizers[0].behavior: only \"Isolated\" is supported, found \"Removed\" "
               "(unsupported)"},
        Damage{"invert", R"(\\p{N}{1,3}"},"behavior":"Isolated","invert":false)",
               R"(\\p{N}{1,3}"},"behavior":"Isolated","invert":true)",
               "f.pre_tokenizer.pretokenizers[0].invert" + kFalseOnly},
        Damage{"byte_level", kByteLevelStep, R"({"type":"Whitespace"})",
               "f.pre_tokenizer.pretokenizers[3].type: only \"ByteLevel\" is supported, found \"Whitespace\" "
               "(unsupported)"},
        Damage{"add_prefix_space", R"("add_prefix_space":false)", R"("add_prefix_space":true)",
               "f.pre_tokenizer.pretokenizers[3].add_prefix_space" + kFalseOnly},
        Damage{"use_regex", R"("use_regex":false)", R"("use_regex":true)",
               "f.pre_tokenizer.pretokenizers[3].use_regex" + kFalseOnly},
        Damage{"post_processor", R"("post_processor":{"type":"ByteLevel"})",
               R"("post_processor":{"type":"TemplateProcessing"})",
               "f.post_processor.type: only \"ByteLevel\" is supported, found \"TemplateProcessing\" (unsupported)"},
        Damage{"decoder", R"("decoder":{"type":"ByteLevel"})", R"("decoder":null)",
               "f.decoder.type: is missing, expected a string (corrupt)"},
        Damage{"model_type", R"("type":"BPE")", R"("type":"Unigram")",
               "f.model.type: only \"BPE\" is supported, found \"Unigram\" (unsupported)"},
        Damage{"dropout", R"("dropout":null)", R"("dropout":0.1)", "f.model.dropout" + kNullOnly},
        Damage{"unk_token", R"("unk_token":null)", R"("unk_token":"a")", "f.model.unk_token" + kNullOnly},
        Damage{"subword_prefix", R"("continuing_subword_prefix":null)", R"("continuing_subword_prefix":"##")",
               "f.model.continuing_subword_prefix" + kNullOnly},
        Damage{"word_suffix", R"("end_of_word_suffix":null)", R"("end_of_word_suffix":"</w>")",
               "f.model.end_of_word_suffix" + kNullOnly},
        Damage{"fuse_unk", R"("fuse_unk":false)", R"("fuse_unk":true)", "f.model.fuse_unk" + kFalseOnly},
        Damage{"byte_fallback", R"("byte_fallback":false)", R"("byte_fallback":true)",
               "f.model.byte_fallback" + kFalseOnly},
        Damage{"byte_fallback_type", R"("byte_fallback":false)", R"("byte_fallback":null)",
               "f.model.byte_fallback: expected true or false (corrupt)"},
        Damage{"ignore_merges", R"("fuse_unk":false)", R"("ignore_merges":true)",
               "f.model.ignore_merges" + kFalseOnly}),
    [](const testing::TestParamInfo<Damage>& test) { return std::string(test.param.name); });

TEST(TokenizerSettings, neutral_forms_are_accepted) {
  EXPECT_EQ(refusal_of(tiny_tokenizer_json()), "");
  EXPECT_EQ(refusal_of(tiny_tokenizer_with(R"({"type":"Sequence","normalizers":[]})", "null")), "");
  EXPECT_EQ(refusal_of(tiny_tokenizer_with(R"("post_processor":{"type":"ByteLevel"})", R"("post_processor":null)")),
            "");
  EXPECT_EQ(refusal_of(tiny_tokenizer_with(R"("truncation":null,"padding":null,)", "")), "");
  EXPECT_EQ(refusal_of(tiny_tokenizer_with(R"("fuse_unk":false,"byte_fallback":false,)", "")), "");
  EXPECT_EQ(refusal_of(tiny_tokenizer_with(R"("fuse_unk":false)", R"("ignore_merges":false)")), "");
  EXPECT_EQ(refusal_of(tiny_tokenizer_with(R"("end_of_word_suffix":null)", R"("end_of_word_suffix":"")")), "");
}

TEST(TokenizerSettings, a_file_that_is_no_object_is_refused) {
  EXPECT_EQ(refusal_of("[]"), "f.pre_tokenizer.type: is missing, expected a string (corrupt)");
}

}  // namespace
}  // namespace monostep::text
