// Tests of the index file: reading, refusals by name, writing in the recorded form.
#include "weights/checkpoint_index.h"

#include <gtest/gtest.h>

namespace monostep::weights {
namespace {

std::string error_of(std::string_view text) {
  const auto index = parse_checkpoint_index(text, "index.json");
  if (index.ok()) return "accepted";
  EXPECT_EQ(index.error().code, Code::kCorrupt);
  return index.error().place + ": " + index.error().text;
}

std::string with_file(const std::string& file) {
  return R"({"metadata":{"total_size":1},"weight_map":{"a":")" + file + "\"}}";
}

TEST(CheckpointIndex, names_files_and_total_are_read) {
  const auto index = parse_checkpoint_index(
      R"({"metadata":{"total_size":12,"x":0},"weight_map":{"b":"one.safetensors","a":"two.safetensors"}})",
      "index.json");
  ASSERT_TRUE(index.ok()) << index.error().message();
  EXPECT_EQ(index->total_bytes, 12u);
  EXPECT_EQ(index->files, (std::map<std::string, std::string>{{"a", "two.safetensors"}, {"b", "one.safetensors"}}));
}

TEST(CheckpointIndex, another_form_is_refused) {
  EXPECT_EQ(error_of("{"), "index.json: the index is not JSON");
  EXPECT_EQ(error_of("[]"), "index.json: expected an object as weight_map");
  EXPECT_EQ(error_of(R"({"weight_map":{}})"), "index.json: expected a non-negative integer as metadata.total_size");
  EXPECT_EQ(error_of(R"({"metadata":{"total_size":-1},"weight_map":{}})"),
            "index.json: expected a non-negative integer as metadata.total_size");
  EXPECT_EQ(error_of(R"({"metadata":{"total_size":1},"weight_map":{"a":1}})"),
            "index.json: a: expected a string as file name");
}

TEST(CheckpointIndex, a_file_name_with_a_separator_a_leading_dot_or_a_control_is_refused) {
  EXPECT_EQ(error_of(with_file("x..safetensors")), "accepted");
  for (const std::string file : {"", ".", "..", ".hidden", "a/b", "/a", "../a", "a/"}) {
    EXPECT_EQ(error_of(with_file(file)),
              "index.json: a: expected the name of a file beside the index, found \"" + file + "\"");
  }
  EXPECT_EQ(error_of(with_file("a\\\\b")),
            "index.json: a: expected the name of a file beside the index, found \"a\\\\b\"");
  EXPECT_EQ(error_of(with_file("a\\u0000")),
            "index.json: a: expected the name of a file beside the index, found \"a\\u0000\"");
}

TEST(CheckpointIndex, a_duplicate_name_is_refused) {
  EXPECT_EQ(error_of(R"({"metadata":{"total_size":1},"weight_map":{"a":"x","a":"x"}})"),
            "index.json: a: expected each name once in weight_map, found a second entry");
}

TEST(CheckpointIndex, the_written_text_is_sorted_and_reads_back) {
  const CheckpointIndex index = {12, {{"b", "two"}, {"a", "one"}}};
  const std::string text = checkpoint_index_json(index);
  EXPECT_EQ(text,
            "{\n \"metadata\": {\n  \"total_size\": 12\n },\n \"weight_map\": {\n  \"a\": \"one\",\n  \"b\": \"two\"\n "
            "}\n}\n");
  EXPECT_EQ(parse_checkpoint_index(text, "index.json").value().files, index.files);
}

}  // namespace
}  // namespace monostep::weights
