// The detokenizer of detokenizer.h.
#include "text/detokenizer.h"

#include "base/utf8.h"

namespace monostep::text {

Result<std::string> Detokenizer::append(int32_t id) {
  TRY_ASSIGN(const std::string_view bytes, tokenizer_.bytes_of(id));
  if (special_ == SpecialTokens::kSkip && tokenizer_.is_special(id)) return std::string();
  held_ += bytes;
  std::string text;
  std::string_view rest = held_;
  while (!rest.empty()) {
    const Utf8Unit unit = next_utf8(rest);
    if (unit.kind == Utf8Unit::Kind::kIncomplete) break;
    text += unit.kind == Utf8Unit::Kind::kCodePoint ? rest.substr(0, unit.num_bytes) : kReplacement;
    rest.remove_prefix(unit.num_bytes);
  }
  held_.erase(0, held_.size() - rest.size());
  return text;
}

std::string Detokenizer::finish() {
  // What is held is the start of one character: one maximal ill-formed part.
  const std::string text(held_.empty() ? std::string_view() : kReplacement);
  held_.clear();
  return text;
}

}  // namespace monostep::text
