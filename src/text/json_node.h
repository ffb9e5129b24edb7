// A JSON value together with the path to it, so that a complaint about a file names the place: "file.model.vocab". Used
// by the readers of tokenizer.json. simdjson's DOM, whose strings are checked UTF-8; the document must outlive the
// nodes.
#pragma once

#include <fmt/format.h>
#include <simdjson.h>

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace monostep::text {

namespace dom = simdjson::dom;

struct Node {
  std::optional<dom::element> element;  // nothing: the key is absent
  std::string place;

  bool is_null() const { return !element || element->is_null(); }
};

// Errors about a file's contents: damaged, or sound but of a kind that is not implemented.
Error corrupt(std::string text, std::string place);
Error unsupported(std::string text, std::string place);

// The start of a spelling in quotes, for messages.
std::string shown(std::string_view spelling);

// The value of a key; absent also where the parent is no object.
Node child(const Node& parent, std::string_view key);

// The value as a type; an error where it is absent or of another type.
Result<std::string_view> read_string(const Node& node);
Result<bool> read_bool(const Node& node);
Result<int64_t> read_integer(const Node& node);
Result<dom::array> read_array(const Node& node);
Result<dom::object> read_object(const Node& node);

// Runs `read_item(node)` on each item. Its error gets the item's place, which is made for no other: the lists are long.
template <typename ReadItem>
Status for_each_item(const Node& list, dom::array array, ReadItem read_item) {
  size_t item_idx = 0;
  for (const dom::element element : array) {
    if (const Status status = read_item(Node{element, ""}); !status.ok()) {
      Error error = status.error();
      error.place = fmt::format("{}[{}]{}", list.place, item_idx, error.place);
      return error;
    }
    ++item_idx;
  }
  return {};
}

}  // namespace monostep::text
