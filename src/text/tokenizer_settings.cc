// The checks of tokenizer_settings.h.
#include "text/tokenizer_settings.h"

#include <fmt/format.h>

#include <iterator>

#include "text/pieces.h"

namespace monostep::text {
namespace {

// Refuses prefix and suffix strings; an empty one changes nothing.
Status expect_null_or_empty(const Node& node) {
  if (node.is_null()) return {};
  TRY_ASSIGN(const std::string_view value, read_string(node));
  if (value.empty()) return {};
  return unsupported("only null is supported", node.place);
}

Status expect_bool(const Node& node, bool expected) {
  TRY_ASSIGN(const bool value, read_bool(node));
  if (value == expected) return {};
  return unsupported(fmt::format("only {} is supported", expected), node.place);
}

Status expect_string(const Node& node, std::string_view expected) {
  TRY_ASSIGN(const std::string_view value, read_string(node));
  if (value == expected) return {};
  return unsupported(fmt::format("only {} is supported, found {}", shown(expected), shown(value)), node.place);
}

Status expect_split(const Node& node, std::string_view pattern) {
  TRY(expect_string(child(node, "type"), "Split"));
  const Node regex = child(child(node, "pattern"), "Regex");
  TRY_ASSIGN(const std::string_view found, read_string(regex));
  if (found != pattern) {
    return unsupported(fmt::format("unknown split pattern {}; only DeepSeek's three are supported", shown(found)),
                       regex.place);
  }
  TRY(expect_string(child(node, "behavior"), "Isolated"));
  return expect_bool(child(node, "invert"), false);
}

Status check_pre_tokenizer(const Node& node) {
  constexpr std::string_view kPatterns[] = {kNumberPattern, kCjkPattern, kWordPattern};
  constexpr size_t kNumPatterns = std::size(kPatterns);
  TRY(expect_string(child(node, "type"), "Sequence"));
  const Node steps = child(node, "pretokenizers");
  TRY_ASSIGN(const dom::array array, read_array(steps));
  if (array.size() != kNumPatterns + 1) {
    return unsupported(fmt::format("expected {} steps, found {}", kNumPatterns + 1, array.size()), steps.place);
  }
  size_t step_idx = 0;
  return for_each_item(steps, array, [&](const Node& step) -> Status {
    if (step_idx < kNumPatterns) return expect_split(step, kPatterns[step_idx++]);
    TRY(expect_string(child(step, "type"), "ByteLevel"));
    TRY(expect_bool(child(step, "add_prefix_space"), false));
    return expect_bool(child(step, "use_regex"), false);
  });
}

Status check_normalizer(const Node& node) {
  if (node.is_null()) return {};
  TRY(expect_string(child(node, "type"), "Sequence"));
  const Node steps = child(node, "normalizers");
  TRY_ASSIGN(const dom::array array, read_array(steps));
  if (array.size() == 0) return {};
  return unsupported("no normalizer is supported", steps.place);
}

}  // namespace

Status expect_null(const Node& node) {
  if (node.is_null()) return {};
  return unsupported("only null is supported", node.place);
}

Status expect_false(const Node& node) { return node.element ? expect_bool(node, false) : Status(); }

Status check_tokenizer_settings(const Node& root) {
  TRY(expect_null(child(root, "truncation")));
  TRY(expect_null(child(root, "padding")));
  TRY(check_normalizer(child(root, "normalizer")));
  TRY(check_pre_tokenizer(child(root, "pre_tokenizer")));
  // A ByteLevel post-processor only moves offsets; others add tokens.
  const Node post_processor = child(root, "post_processor");
  if (!post_processor.is_null()) TRY(expect_string(child(post_processor, "type"), "ByteLevel"));
  TRY(expect_string(child(child(root, "decoder"), "type"), "ByteLevel"));
  const Node model = child(root, "model");
  TRY(expect_string(child(model, "type"), "BPE"));
  TRY(expect_null(child(model, "dropout")));
  TRY(expect_null(child(model, "unk_token")));
  TRY(expect_null_or_empty(child(model, "continuing_subword_prefix")));
  TRY(expect_null_or_empty(child(model, "end_of_word_suffix")));
  TRY(expect_false(child(model, "fuse_unk")));
  TRY(expect_false(child(model, "byte_fallback")));
  return expect_false(child(model, "ignore_merges"));
}

}  // namespace monostep::text
