// Tests of file maps and of the readers and writers of whole files.
#include "base/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "temp_dir.h"

namespace monostep {
namespace {

TEST(MappedFile, bytes_are_those_of_the_file) {
  const TempDir dir;
  ASSERT_TRUE(write_text_file(dir / "file", std::string("a\0b", 3)).ok());
  const auto file = MappedFile::open(dir / "file");
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->text(), std::string_view("a\0b", 3));
}

TEST(MappedFile, an_empty_file_has_no_bytes) {
  const TempDir dir;
  ASSERT_TRUE(write_text_file(dir / "file", "").ok());
  const auto file = MappedFile::open(dir / "file");
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE(file->bytes().empty());
}

TEST(MappedFile, the_map_moves_with_the_object) {
  const TempDir dir;
  ASSERT_TRUE(write_text_file(dir / "file", "abc").ok());
  auto first = MappedFile::open(dir / "file");
  ASSERT_TRUE(first.ok());
  MappedFile second;
  second = std::move(first).value();
  const MappedFile third = std::move(second);
  EXPECT_EQ(third.text(), "abc");
}

TEST(MappedFile, a_missing_file_a_folder_and_a_pipe_are_refused_by_name) {
  const TempDir dir;
  const auto missing = MappedFile::open(dir / "none");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, Code::kNotFound);
  EXPECT_EQ(missing.error().place, (dir / "none").string());
  const auto folder = MappedFile::open(dir.path());
  ASSERT_FALSE(folder.ok());
  EXPECT_EQ(folder.error().text, "expected a regular file");
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  const auto pipe = MappedFile::open(dir / "pipe");
  ASSERT_FALSE(pipe.ok());
  EXPECT_EQ(pipe.error().text, "expected a regular file");
}

TEST(MappedFile, a_text_file_above_the_limit_is_refused) {
  const TempDir dir;
  ASSERT_TRUE(write_text_file(dir / "file", "abcd").ok());
  EXPECT_EQ(read_text_file(dir / "file", 4).value(), "abcd");
  const auto refused = read_text_file(dir / "file", 3);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().text, "expected at most 3 bytes, found 4");
}

TEST(MappedFile, writing_replaces_a_longer_file_and_names_a_path_that_cannot_be_made) {
  const TempDir dir;
  ASSERT_TRUE(write_text_file(dir / "file", "long text").ok());
  ASSERT_TRUE(write_text_file(dir / "file", "x").ok());
  EXPECT_EQ(read_text_file(dir / "file", 100).value(), "x");
  const Status refused = write_text_file(dir / "none" / "file", "x");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::kExhausted);
  EXPECT_EQ(refused.error().place, (dir / "none" / "file").string());
}

}  // namespace
}  // namespace monostep
