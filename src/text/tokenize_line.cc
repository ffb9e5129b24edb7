// Parses, answers and writes the lines of tokenize_line.h.
#include "text/tokenize_line.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <utility>

#include "base/json_text.h"
#include "text/detokenizer.h"

namespace monostep::text {
namespace {

namespace dom = simdjson::dom;

Error bad_line(std::string text) { return {Code::kInvalidArgument, std::move(text), ""}; }

Result<std::string> answer_text(const Tokenizer& tokenizer, std::string_view text, dom::object request) {
  bool special = true;
  const auto code = request.at_key("special").get(special);
  if (code != simdjson::SUCCESS && code != simdjson::NO_SUCH_FIELD) {
    return bad_line("\"special\" is neither true nor false");
  }
  std::string answer = "{\"ids\":[";
  for (const int32_t id : tokenizer.encode(text, special)) {
    if (answer.back() != '[') answer += ',';
    append_json_integer(answer, id);
  }
  return answer + "]}";
}

// The next token's text and bytes, appended.
Status append_token(const Tokenizer& tokenizer, dom::element element, Detokenizer* detokenizer, std::string* text,
                    std::string* bytes) {
  int64_t id = 0;
  if (element.get(id) != simdjson::SUCCESS) return bad_line("an item of \"ids\" is not an integer");
  TRY_ASSIGN(const std::string_view token_bytes, tokenizer.bytes_of(id));
  TRY_ASSIGN(const std::string token_text, detokenizer->append(static_cast<int32_t>(id)));
  *bytes += token_bytes;
  *text += token_text;
  return {};
}

Result<std::string> answer_ids(const Tokenizer& tokenizer, dom::array ids) {
  Detokenizer detokenizer(tokenizer, SpecialTokens::kKeep);
  std::string text;
  std::string bytes;
  for (const dom::element element : ids) TRY(append_token(tokenizer, element, &detokenizer, &text, &bytes));
  text += detokenizer.finish();
  std::string answer = "{\"text\":";
  append_json_string(answer, text, true);
  answer += ",\"bytes_hex\":\"";
  for (const char byte : bytes) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    answer += kDigits[static_cast<uint8_t>(byte) >> 4];
    answer += kDigits[static_cast<uint8_t>(byte) & 15];
  }
  return answer + "\"}";
}

Result<std::string> answer_request(const Tokenizer& tokenizer, std::string_view line) {
  dom::parser parser;
  dom::object request;
  if (const auto code = parser.parse(line.data(), line.size()).get(request); code != simdjson::SUCCESS) {
    return bad_line(fmt::format("expected a JSON object: {}", simdjson::error_message(code)));
  }
  const auto text = request.at_key("text");
  const auto ids = request.at_key("ids");
  const bool has_text = text.error() == simdjson::SUCCESS;
  if (has_text == (ids.error() == simdjson::SUCCESS)) return bad_line("expected one of \"text\" and \"ids\"");
  std::string_view text_value;
  dom::array ids_value;
  if (has_text) {
    if (text.get(text_value) != simdjson::SUCCESS) return bad_line("\"text\" is not a string");
    return answer_text(tokenizer, text_value, request);
  }
  if (ids.get(ids_value) != simdjson::SUCCESS) return bad_line("\"ids\" is not an array");
  return answer_ids(tokenizer, ids_value);
}

}  // namespace

std::string answer_tokenize_line(const Tokenizer& tokenizer, std::string_view line) {
  const auto answer = answer_request(tokenizer, line);
  if (answer.ok()) return *answer;
  std::string out = "{\"error\":";
  append_json_string(out, answer.error().text, true);
  return out + "}";
}

}  // namespace monostep::text
