// The readers of json_node.h.
#include "text/json_node.h"

#include <utility>

#include "base/json_text.h"

namespace monostep::text {
namespace {

template <typename T>
Result<T> read(const Node& node, std::string_view type_name) {
  T value;
  if (!node.element) return corrupt(fmt::format("is missing, expected {}", type_name), node.place);
  if (node.element->get<T>().get(value) != simdjson::SUCCESS) {
    return corrupt(fmt::format("expected {}", type_name), node.place);
  }
  return value;
}

}  // namespace

Error corrupt(std::string text, std::string place) { return {Code::kCorrupt, std::move(text), std::move(place)}; }

Error unsupported(std::string text, std::string place) {
  return {Code::kUnsupported, std::move(text), std::move(place)};
}

std::string shown(std::string_view spelling) {
  constexpr size_t kMaxShown = 40;
  std::string out;
  append_json_string(out, spelling.substr(0, kMaxShown), true);
  return spelling.size() > kMaxShown ? out + "..." : out;
}

Node child(const Node& parent, std::string_view key) {
  Node node{std::nullopt, fmt::format("{}.{}", parent.place, key)};
  dom::element element;
  if (parent.element && parent.element->at_key(key).get(element) == simdjson::SUCCESS) node.element = element;
  return node;
}

Result<std::string_view> read_string(const Node& node) { return read<std::string_view>(node, "a string"); }
Result<bool> read_bool(const Node& node) { return read<bool>(node, "true or false"); }
Result<int64_t> read_integer(const Node& node) { return read<int64_t>(node, "an integer"); }
Result<dom::array> read_array(const Node& node) { return read<dom::array>(node, "an array"); }
Result<dom::object> read_object(const Node& node) { return read<dom::object>(node, "an object"); }

}  // namespace monostep::text
