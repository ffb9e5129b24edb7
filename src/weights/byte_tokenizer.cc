// Builds tokenizer.json: special tokens at the config's ids, the 256 byte symbols at the lowest free ids in byte order.
#include "weights/byte_tokenizer.h"

#include <algorithm>

#include "base/check.h"
#include "base/json_text.h"
#include "text/byte_symbols.h"
#include "text/pieces.h"

namespace monostep::weights {
namespace {

constexpr int kNumBytes = 256;
constexpr std::string_view kBos = "<｜begin▁of▁sentence｜>";
constexpr std::string_view kEos = "<｜end▁of▁sentence｜>";
constexpr std::string_view kPad = "<｜▁pad▁｜>";
constexpr std::string_view kTurnTokens[] = {"<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "｜DSML｜"};

void append_split(std::string& out, std::string_view pattern) {
  out += R"({"type":"Split","pattern":{"Regex":)";
  append_json_string(out, pattern, true);
  out += R"(},"behavior":"Isolated","invert":false},)";
}

// The released file's sections between the added tokens and the model.
void append_sections(std::string& out) {
  out += R"("normalizer":{"type":"Sequence","normalizers":[]},"pre_tokenizer":{"type":"Sequence","pretokenizers":[)";
  for (const std::string_view pattern : {text::kNumberPattern, text::kCjkPattern, text::kWordPattern}) {
    append_split(out, pattern);
  }
  out += R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}]},)";
  out += R"("post_processor":{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":false,"use_regex":true},)";
  out += R"("decoder":{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true},)";
}

bool has_id(const std::vector<SpecialToken>& tokens, int id) {
  return std::any_of(tokens.begin(), tokens.end(), [id](const SpecialToken& token) { return token.id == id; });
}

// The tokens that the config names; of two with one id the first stays.
std::vector<SpecialToken> named_tokens(const model::Geometry& geometry) {
  std::vector<SpecialToken> tokens;
  const auto add = [&](int id, std::string_view text, bool special) {
    if (id >= 0 && id < geometry.vocab_size && !has_id(tokens, id)) tokens.push_back({id, text, special});
  };
  add(geometry.bos_token_id, kBos, true);
  add(geometry.eos_token_id, kEos, true);
  if (!geometry.engram_layer_ids.empty()) add(geometry.engram_pad_token_id, kPad, true);
  if (geometry.num_nextn_predict_layers > 0) add(geometry.dspark_noise_token_id, "<｜System｜>", false);
  add(geometry.image_token_id, "<｜deepseek_image｜>", false);
  return tokens;
}

// The lowest `count` ids that no special token has.
std::vector<int> free_ids(const std::vector<SpecialToken>& tokens, size_t count) {
  std::vector<int> ids;
  for (int id = 0; ids.size() < count; ++id) {
    if (!has_id(tokens, id)) ids.push_back(id);
  }
  return ids;
}

void append_added_token(std::string& out, const SpecialToken& token) {
  out += "{\"id\":" + std::to_string(token.id) + ",\"content\":";
  append_json_string(out, token.text, false);
  out += ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":";
  out += token.special ? "true}" : "false}";
}

void append_vocabulary(std::string& out, const std::vector<SpecialToken>& tokens) {
  const std::vector<int> ids = free_ids(tokens, kNumBytes);
  for (int byte = 0; byte < kNumBytes; ++byte) {
    if (byte > 0) out += ',';
    append_json_string(out, text::symbol_of_byte(static_cast<uint8_t>(byte)), false);
    out += ":" + std::to_string(ids[byte]);
  }
}

}  // namespace

std::vector<SpecialToken> special_tokens(const model::Geometry& geometry) {
  std::vector<SpecialToken> tokens = named_tokens(geometry);
  const size_t num_used = kNumBytes + tokens.size();
  if (num_used + std::size(kTurnTokens) <= static_cast<size_t>(geometry.vocab_size)) {
    const std::vector<int> ids = free_ids(tokens, kNumBytes + std::size(kTurnTokens));
    for (size_t idx = 0; idx < std::size(kTurnTokens); ++idx) {
      tokens.push_back({ids[kNumBytes + idx], kTurnTokens[idx], false});
    }
  }
  std::sort(tokens.begin(), tokens.end(), [](const SpecialToken& a, const SpecialToken& b) { return a.id < b.id; });
  return tokens;
}

bool byte_tokenizer_fits(const model::Geometry& geometry) {
  return kNumBytes + named_tokens(geometry).size() <= static_cast<size_t>(geometry.vocab_size);
}

std::string byte_tokenizer_json(const model::Geometry& geometry) {
  CHECK(byte_tokenizer_fits(geometry), "the vocabulary holds the bytes and the special tokens");
  const std::vector<SpecialToken> tokens = special_tokens(geometry);
  std::string out = R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[)";
  for (size_t idx = 0; idx < tokens.size(); ++idx) {
    if (idx > 0) out += ',';
    append_added_token(out, tokens[idx]);
  }
  out += "],";
  append_sections(out);
  out += R"("model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,)";
  out += R"("end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,"vocab":{)";
  append_vocabulary(out, tokens);
  return out + "},\"merges\":[]}}\n";
}

std::string byte_tokenizer_config_json(const model::Geometry& geometry) {
  std::string out = "{\"add_bos_token\":false,\"add_eos_token\":false,\"bos_token\":";
  append_json_string(out, kBos, false);
  out += ",\"eos_token\":";
  append_json_string(out, kEos, false);
  out += ",\"pad_token\":";
  append_json_string(out, geometry.engram_layer_ids.empty() ? kEos : kPad, false);
  out += ",\"model_max_length\":" + std::to_string(geometry.max_position_embeddings);
  return out + ",\"tokenizer_class\":\"PreTrainedTokenizerFast\"}\n";
}

}  // namespace monostep::weights
