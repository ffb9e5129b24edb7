// The embedded sources are the files of the tree, all that device sources may include, each once.
#include "gpu/embedded_sources.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <string>

#include "base/mapped_file.h"

namespace monostep::gpu {
namespace {

const std::filesystem::path kSrc = MONOSTEP_SOURCE_DIR "/src";

TEST(EmbeddedSources, hold_the_bytes_of_the_tree) {
  for (const EmbeddedFile& file : device_sources()) {
    const auto text = read_text_file(kSrc / file.name, 1 << 24);
    ASSERT_TRUE(text.ok()) << text.error().message();
    EXPECT_EQ(file.text, *text) << file.name;
  }
}

TEST(EmbeddedSources, are_all_files_of_the_device_folder_and_the_headers_it_includes) {
  std::set<std::string> expected = {"base/math.h",         "base/numeric.h",  "base/philox.h",
                                    "program/attention.h", "program/stage.h", "weights/fill_record.h"};
  for (const auto& entry : std::filesystem::directory_iterator(kSrc / "gpu" / "device")) {
    const std::string extension = entry.path().extension();
    if (extension == ".h" || extension == ".cu") expected.insert("gpu/device/" + entry.path().filename().string());
  }
  std::multiset<std::string> found;
  for (const EmbeddedFile& file : device_sources()) found.emplace(file.name);
  EXPECT_EQ(found, (std::multiset<std::string>(expected.begin(), expected.end())));
}

TEST(EmbeddedSources, are_found_by_the_name_they_are_included_with) {
  const EmbeddedFile* file = find_device_source("base/numeric.h");
  ASSERT_NE(file, nullptr);
  EXPECT_EQ(file->name, "base/numeric.h");
  EXPECT_EQ(find_device_source("numeric.h"), nullptr);
}

}  // namespace
}  // namespace monostep::gpu
