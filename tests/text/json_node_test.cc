// Reading of JSON values with their place: absent keys, wrong types, items of lists.
#include "text/json_node.h"

#include <gtest/gtest.h>

namespace monostep::text {
namespace {

class JsonNode : public testing::Test {
 protected:
  Node root(std::string_view json) {
    dom::element element;
    EXPECT_EQ(parser_.parse(json.data(), json.size()).get(element), simdjson::SUCCESS);
    return {element, "f"};
  }

 private:
  dom::parser parser_;
};

TEST_F(JsonNode, values_are_read_by_type) {
  const Node node = root(R"({"s":"x","b":true,"i":-3,"a":[1],"o":{"k":2}})");
  EXPECT_EQ(*read_string(child(node, "s")), "x");
  EXPECT_EQ(*read_bool(child(node, "b")), true);
  EXPECT_EQ(*read_integer(child(node, "i")), -3);
  EXPECT_EQ(read_array(child(node, "a"))->size(), 1u);
  EXPECT_EQ(read_object(child(node, "o"))->size(), 1u);
  EXPECT_EQ(*read_integer(child(child(node, "o"), "k")), 2);
}

TEST_F(JsonNode, absent_keys_and_wrong_types_are_named) {
  const Node node = root(R"({"s":"x","n":null,"i":1.5})");
  EXPECT_EQ(read_string(child(child(node, "t"), "u")).error().message(),
            "f.t.u: is missing, expected a string (corrupt)");
  EXPECT_EQ(read_bool(child(node, "s")).error().message(), "f.s: expected true or false (corrupt)");
  EXPECT_EQ(read_integer(child(node, "i")).error().message(), "f.i: expected an integer (corrupt)");
  EXPECT_EQ(read_array(child(node, "s")).error().message(), "f.s: expected an array (corrupt)");
  EXPECT_EQ(read_object(child(node, "n")).error().message(), "f.n: expected an object (corrupt)");
}

TEST_F(JsonNode, null_and_absent_are_null) {
  const Node node = root(R"({"n":null,"z":0})");
  EXPECT_TRUE(child(node, "n").is_null());
  EXPECT_TRUE(child(node, "absent").is_null());
  EXPECT_FALSE(child(node, "z").is_null());
}

TEST_F(JsonNode, an_error_in_a_list_names_the_item) {
  const Node list = child(root(R"({"l":[{"k":1},{"k":"x"}]})"), "l");
  const Status status = for_each_item(list, *read_array(list), [](const Node& item) -> Status {
    TRY(read_integer(child(item, "k")));
    return {};
  });
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().message(), "f.l[1].k: expected an integer (corrupt)");
}

TEST(Shown, spellings_are_quoted_and_cut) {
  EXPECT_EQ(shown("a\n\u00e9"), "\"a\\n\\u00e9\"");
  EXPECT_EQ(shown(std::string(100, 'x')), "\"" + std::string(40, 'x') + "\"...");
}

}  // namespace
}  // namespace monostep::text
