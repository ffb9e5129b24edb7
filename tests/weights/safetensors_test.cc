// Tests of the safetensors container: reading back what is written, and one case for each kind of damaged header.
#include "weights/safetensors.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cstring>

#include "../base/temp_dir.h"

namespace monostep::weights {
namespace {

// A file's bytes: length, header, data of zeros.
std::string file_of(const std::string& json, size_t data_bytes) {
  const uint64_t length = json.size();
  std::string out(sizeof length, '\0');
  std::memcpy(out.data(), &length, sizeof length);
  return out + json + std::string(data_bytes, '\0');
}

Result<SafetensorsHeader> parse(const std::string& file) {
  return parse_safetensors_header(std::as_bytes(std::span(file)), file.size(), "x.safetensors");
}

std::string error_of(const std::string& json, size_t data_bytes) {
  const auto header = parse(file_of(json, data_bytes));
  if (header.ok()) return "accepted";
  EXPECT_EQ(header.error().code, Code::kCorrupt);
  return header.error().place + ": " + header.error().text;
}

TEST(Safetensors, a_good_header_is_read_in_its_own_order) {
  const auto header =
      parse(file_of(R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2],"data_offsets":[1,9]},)"
                    R"("a":{"shape":[],"data_offsets":[0,1],"dtype":"I8"}}  )",
                    9));
  ASSERT_TRUE(header.ok()) << header.error().message();
  ASSERT_EQ(header->entries.size(), 2u);
  EXPECT_EQ(header->entries[0].name, "b");
  EXPECT_EQ(header->entries[0].dtype, "F32");
  EXPECT_EQ(header->entries[0].shape, std::vector<int64_t>{2});
  EXPECT_EQ(header->entries[0].begin, 1u);
  EXPECT_EQ(header->entries[1].shape, std::vector<int64_t>{});
}

TEST(Safetensors, a_short_file_is_refused) {
  for (const size_t num_bytes : {0, 7}) {
    const auto header = parse(std::string(num_bytes, '\0'));
    ASSERT_FALSE(header.ok());
    EXPECT_EQ(header.error().text, "expected a header length of 8 bytes, found a file of " + std::to_string(num_bytes));
  }
}

TEST(Safetensors, a_header_longer_than_the_file_or_the_limit_is_refused) {
  const auto beyond = parse(std::string("\x09\0\0\0\0\0\0\0{}", 10));
  ASSERT_FALSE(beyond.ok());
  EXPECT_EQ(beyond.error().text, "expected a header of at most 2 bytes, found a length of 9");
  const auto huge = parse(std::string(10, '\xff'));
  ASSERT_FALSE(huge.ok());
  EXPECT_EQ(huge.error().text, "expected a header of at most 2 bytes, found a length of 18446744073709551615");
}

TEST(Safetensors, a_header_that_is_not_a_json_object_is_refused) {
  EXPECT_EQ(error_of("{", 0), "x.safetensors: the header is not a JSON object");
  EXPECT_EQ(error_of("[]", 0), "x.safetensors: the header is not a JSON object");
  EXPECT_EQ(error_of(std::string(5000, '['), 0), "x.safetensors: the header is not a JSON object");
  EXPECT_EQ(error_of(R"({"__metadata__":1})", 0), "x.safetensors: expected an object as __metadata__");
  EXPECT_EQ(error_of(R"({"__metadata__":{"a":1}})", 0), "x.safetensors: expected strings in __metadata__");
}

TEST(Safetensors, an_entry_with_a_missing_unknown_or_repeated_key_is_refused) {
  EXPECT_EQ(error_of(R"({"a":1})", 0), "x.safetensors: a: expected an object in the header");
  EXPECT_EQ(error_of(R"({"a":{"dtype":"I8","shape":[0]}})", 0),
            "x.safetensors: a: expected dtype, shape and data_offsets");
  EXPECT_EQ(error_of(R"({"a":{"dtype":"I8","shape":[0],"data_offsets":[0,0],"x":1}})", 0),
            "x.safetensors: a: unexpected or repeated key x");
  EXPECT_EQ(error_of(R"({"a":{"dtype":"I8","dtype":"I8","shape":[0],"data_offsets":[0,0]}})", 0),
            "x.safetensors: a: unexpected or repeated key dtype");
}

TEST(Safetensors, wrong_types_in_an_entry_are_refused) {
  EXPECT_EQ(error_of(R"({"a":{"dtype":1,"shape":[0],"data_offsets":[0,0]}})", 0),
            "x.safetensors: a: expected a string as dtype");
  EXPECT_EQ(error_of(R"({"a":{"dtype":"F4","shape":[0],"data_offsets":[0,0]}})", 0),
            "x.safetensors: a: unknown dtype tag F4");
  EXPECT_EQ(error_of(R"({"a":{"dtype":"I8","shape":1,"data_offsets":[0,0]}})", 0),
            "x.safetensors: a: expected an array as shape");
  EXPECT_EQ(error_of(R"({"a":{"dtype":"I8","shape":[-1],"data_offsets":[0,0]}})", 0),
            "x.safetensors: a: expected non-negative integers as shape");
  EXPECT_EQ(error_of(R"({"a":{"dtype":"I8","shape":[0],"data_offsets":[0]}})", 0),
            "x.safetensors: a: expected two numbers as data_offsets");
  for (const std::string offsets : {"[1,0]", "[-1,0]", "[0,1.5]"}) {
    EXPECT_EQ(error_of(R"({"a":{"dtype":"I8","shape":[0],"data_offsets":)" + offsets + "}}", 1),
              "x.safetensors: a: expected two ascending non-negative integers as data_offsets");
  }
}

TEST(Safetensors, offsets_outside_the_file_are_refused) {
  EXPECT_EQ(error_of(R"({"a":{"dtype":"I8","shape":[4],"data_offsets":[0,4]}})", 3),
            "x.safetensors: a: expected data_offsets within the file's 3 bytes of data, found [0,4]");
}

TEST(Safetensors, a_byte_count_that_does_not_fit_the_shape_is_refused) {
  EXPECT_EQ(error_of(R"({"a":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,4]}})", 4),
            "x.safetensors: a: expected 8 bytes for BF16 [2,2], found data_offsets of 4 bytes");
  EXPECT_EQ(error_of(R"({"a":{"dtype":"I8","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0),
            "x.safetensors: a: expected a shape of less than 2^63 bytes, found [4294967296,4294967296]");
}

TEST(Safetensors, overlaps_gaps_and_trailing_bytes_are_refused) {
  const auto two = [](const std::string& first, const std::string& second) {
    return R"({"a":{"dtype":"I8","shape":[4],"data_offsets":)" + first +
           R"(},"b":{"dtype":"I8","shape":[4],"data_offsets":)" + second + "}}";
  };
  EXPECT_EQ(error_of(two("[0,4]", "[4,8]"), 8), "accepted");
  EXPECT_EQ(error_of(two("[0,4]", "[3,7]"), 7),
            "x.safetensors: b: overlapping data: expected the tensor at offset 4, found 3");
  EXPECT_EQ(error_of(two("[0,4]", "[0,4]"), 4),
            "x.safetensors: b: overlapping data: expected the tensor at offset 4, found 0");
  EXPECT_EQ(error_of(two("[0,4]", "[5,9]"), 9),
            "x.safetensors: b: a gap before the data: expected the tensor at offset 4, found 5");
  EXPECT_EQ(error_of(two("[0,4]", "[4,8]"), 9),
            "x.safetensors: expected the file to end with its last tensor at 8 bytes of data, found 9 bytes");
  EXPECT_EQ(error_of("{}", 1),
            "x.safetensors: expected the file to end with its last tensor at 0 bytes of data, found 1 bytes");
}

TEST(Safetensors, a_duplicate_name_is_refused) {
  EXPECT_EQ(
      error_of(
          R"({"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"I8","shape":[1],"data_offsets":[1,2]}})",
          2),
      "x.safetensors: a: expected each name once, found a second entry");
}

TEST(Safetensors, names_in_messages_have_no_controls) {
  EXPECT_EQ(error_of("{\"a\\n\\u001b\xc3\xa9\":1}", 0),
            "x.safetensors: a\\n\\u001b\\u00e9: expected an object in the header");
}

TEST(Safetensors, what_is_written_reads_back) {
  const TempDir dir;
  const std::string first = "12345678", second = "123";
  const TensorToWrite tensors[] = {{"first", "F32", {2, 1}, std::as_bytes(std::span(first))},
                                   {"second", "U8", {3}, std::as_bytes(std::span(second))},
                                   {"empty", "I64", {0, 5}, {}}};
  ASSERT_TRUE(write_safetensors(dir / "x.safetensors", tensors).ok());
  const auto file = SafetensorsFile::open(dir / "x.safetensors");
  ASSERT_TRUE(file.ok()) << file.error().message();
  ASSERT_EQ(file->entries().size(), 3u);
  for (const TensorToWrite& tensor : tensors) {
    const SafetensorsEntry* entry = file->find(tensor.name);
    ASSERT_NE(entry, nullptr);
    EXPECT_EQ(entry->dtype, tensor.dtype);
    EXPECT_EQ(entry->shape, tensor.shape);
    const auto data = file->data(*entry);
    EXPECT_TRUE(std::equal(data.begin(), data.end(), tensor.bytes.begin(), tensor.bytes.end()));
  }
  EXPECT_EQ(file->find("third"), nullptr);
}

TEST(Safetensors, the_written_header_is_compact_and_padded_to_eight_bytes) {
  const SafetensorsEntry entry = {"a", "BF16", {2, 3}, 0, 0};
  const std::string header = safetensors_header_bytes(std::span(&entry, 1));
  EXPECT_EQ(header.substr(8),
            R"({"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]}}       )");
  EXPECT_EQ(header.size() % 8, 0u);
}

TEST(Safetensors, a_file_that_ends_early_is_refused_by_name) {
  const TempDir dir;
  const std::string bytes = "1234";
  const TensorToWrite tensor = {"a", "U8", {4}, std::as_bytes(std::span(bytes))};
  ASSERT_TRUE(write_safetensors(dir / "x.safetensors", std::span(&tensor, 1)).ok());
  std::filesystem::resize_file(dir / "x.safetensors", std::filesystem::file_size(dir / "x.safetensors") - 1);
  const auto file = SafetensorsFile::open(dir / "x.safetensors");
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().place, (dir / "x.safetensors").string() + ": a");
}

TEST(Safetensors, any_change_of_one_header_byte_is_refused_or_stays_inside_the_file) {
  const std::string good = file_of(
      R"({"a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},"b":{"dtype":"I8","shape":[3],"data_offsets":[8,11]}})",
      11);
  rc::check("entries stay inside the data", [&](uint8_t byte) {
    std::string file = good;
    file[*rc::gen::inRange<size_t>(0, good.size() - 11)] = static_cast<char>(byte);
    const auto header = parse(file);
    if (!header.ok()) return;
    for (const SafetensorsEntry& entry : header->entries) {
      RC_ASSERT(entry.begin <= entry.end && header->data_offset + entry.end <= file.size());
    }
  });
}

}  // namespace
}  // namespace monostep::weights
