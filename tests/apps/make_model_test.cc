// Tests of `monostep make-model`: named geometries, config files, refusals with their exit codes.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "program.h"

namespace monostep::apps {
namespace {

std::string config_of(const TempDir& dir) { return read_text_file(dir / "m" / "config.json", 1 << 20).value(); }

TEST(MakeModel, a_named_geometry_and_its_config_file_give_the_same_checkpoint) {
  const TempDir named, from_file;
  ASSERT_EQ(run_program("make-model --geometry micro --seed 3 --out " + (named / "m").string()).code, 0);
  const std::string config = (named / "m" / "config.json").string();
  ASSERT_EQ(run_program("make-model --geometry " + config + " --seed 3 --out " + (from_file / "m").string()).code, 0);
  EXPECT_EQ(config_of(named), config_of(from_file));
  const std::string shard = "model-00001-of-00005.safetensors";
  EXPECT_EQ(MappedFile::open(named / "m" / shard)->text(), MappedFile::open(from_file / "m" / shard)->text());
}

TEST(MakeModel, the_checkpoint_in_models_default_is_what_its_readme_says_byte_for_byte) {
  const TempDir dir;
  ASSERT_EQ(run_program("make-model --geometry demo --seed 1 --out " + (dir / "m").string()).code, 0);
  const std::filesystem::path kept = MONOSTEP_SOURCE_DIR "/models/default";
  size_t num_files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir / "m")) {
    if (!entry.is_regular_file()) continue;
    ++num_files;
    const std::filesystem::path name = std::filesystem::relative(entry.path(), dir / "m");
    const auto file = MappedFile::open(kept / name);
    ASSERT_TRUE(file.ok()) << name;
    EXPECT_TRUE(MappedFile::open(entry.path())->text() == file->text()) << name;
  }
  const auto kept_files = std::filesystem::recursive_directory_iterator(kept);
  const auto is_file = [](const auto& entry) { return entry.is_regular_file(); };
  EXPECT_EQ(static_cast<size_t>(std::count_if(begin(kept_files), end(kept_files), is_file)),
            num_files + 1);  // README.md
}

TEST(MakeModel, an_unknown_geometry_a_full_folder_and_a_missing_option_are_usage_errors) {
  const TempDir dir;
  const ProgramRun unknown = run_program("make-model --geometry none --out " + (dir / "m").string());
  EXPECT_EQ(unknown.code, 2);
  EXPECT_NE(unknown.err.find("none: expected a known geometry or a config file"), std::string::npos) << unknown.err;
  ASSERT_TRUE(write_text_file(dir / "file", "x").ok());
  const ProgramRun full = run_program("make-model --geometry micro --out " + dir.path().string());
  EXPECT_EQ(full.code, 2);
  EXPECT_NE(full.err.find("expected a new or empty directory"), std::string::npos) << full.err;
  EXPECT_EQ(run_program("make-model --geometry micro").code, 2);
}

}  // namespace
}  // namespace monostep::apps
