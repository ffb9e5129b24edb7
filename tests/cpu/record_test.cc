// Records: what is saved is read back in every dtype, and arrays that are missing, misshapen or of another dtype are
// refused by name.
#include "cpu/record.h"

#include <gtest/gtest.h>

#include <fstream>

#include "../base/temp_dir.h"
#include "weights/safetensors.h"

namespace monostep::cpu {
namespace {

TEST(Record, every_dtype_survives_a_round_trip) {
  const TempDir dir;
  Record record;
  record.add("f", "F32", {2, 3}).values = {1.5f, -0.0f, 3e-40f, 1e38f, -2, 0.1f};
  record.add("b", "BF16", {2}).values = {1.5f, -0.0078125f};
  record.add("i", "I32", {3}).ids = {-1, 2147483647, 0};
  record.add("u", "U8", {1, 2}).ids = {0, 255};
  record.add("none", "F32", {0, 4});
  ASSERT_TRUE(record.save(dir / "r.safetensors").ok());
  const auto read = Record::load(dir / "r.safetensors");
  ASSERT_TRUE(read.ok()) << read.error().message();
  for (const char* name : {"f", "b", "i", "u", "none"}) {
    const Array* wanted = record.find(name);
    const Array* found = read->find(name);
    ASSERT_NE(found, nullptr) << name;
    EXPECT_EQ(found->dtype, wanted->dtype) << name;
    EXPECT_EQ(found->shape, wanted->shape) << name;
    EXPECT_EQ(found->values, wanted->values) << name;
    EXPECT_EQ(found->ids, wanted->ids) << name;
  }
  EXPECT_FALSE(read->has("g"));
}

TEST(Record, bf16_values_are_rounded_when_they_are_saved) {
  const TempDir dir;
  Record record;
  record.add("b", "BF16", {1}).values = {1.0f + 0x1p-8f + 0x1p-12f};
  ASSERT_TRUE(record.save(dir / "r.safetensors").ok());
  EXPECT_EQ(Record::load(dir / "r.safetensors")->find("b")->values.front(), 1.0f + 0x1p-7f);
}

TEST(Record, rows_are_slices_of_the_first_axis) {
  Record record;
  Array& array = record.add("x", "F32", {3, 2, 2});
  EXPECT_EQ(array.row_size(), 4);
  array.row(2)[1] = 7;
  EXPECT_EQ(array.values[9], 7.0f);
  EXPECT_EQ(record.add("scalar", "F32", {}).row_size(), 1);
}

TEST(Record, a_new_array_is_zero_and_replaces_an_old_one) {
  Record record;
  record.add("x", "F32", {2}).values = {1, 2};
  EXPECT_EQ(record.add("x", "I32", {3}).ids, (std::vector<int32_t>{0, 0, 0}));
  EXPECT_TRUE(record.find("x")->values.empty());
}

TEST(Record, missing_and_misshapen_arrays_are_refused_by_name) {
  Record record;
  record.add("x", "F32", {2, 3});
  EXPECT_TRUE(record.get("x", {2, 3}).ok());
  EXPECT_TRUE(record.get("x", {-1, 3}).ok());
  const auto missing = record.get("y", {2});
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, Code::kNotFound);
  EXPECT_NE(missing.error().message().find("\"y\""), std::string::npos);
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{2, 4}, {2}, {2, 3, 1}, {}}) {
    const auto refused = record.get("x", shape);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, Code::kInvalidArgument);
    EXPECT_NE(refused.error().message().find("\"x\" has shape [2,3]"), std::string::npos) << refused.error().message();
  }
}

TEST(Record, other_dtypes_and_damaged_files_are_refused) {
  const TempDir dir;
  const std::byte bytes[8] = {};
  const weights::TensorToWrite tensor{"wide", "I64", {1}, bytes};
  ASSERT_TRUE(weights::write_safetensors(dir / "wide.safetensors", {&tensor, 1}).ok());
  const auto refused = Record::load(dir / "wide.safetensors");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::kCorrupt);
  EXPECT_NE(refused.error().message().find("wide"), std::string::npos);
  EXPECT_NE(refused.error().message().find("I64"), std::string::npos);
  std::ofstream(dir / "short.safetensors") << "abc";
  EXPECT_FALSE(Record::load(dir / "short.safetensors").ok());
  EXPECT_FALSE(Record::load(dir / "absent.safetensors").ok());
}

}  // namespace
}  // namespace monostep::cpu
