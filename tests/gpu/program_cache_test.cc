// The cache of compiled programs with a maker that counts its calls: a second start compiles nothing, damage is never
// trusted, and a folder that cannot be written costs a warning only.
#include "gpu/program_cache.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include "../base/temp_dir.h"
#include "base/mapped_file.h"

namespace monostep::gpu {
namespace {

const std::string kDigest(64, 'a');

struct Maker {
  int num_made = 0;

  Result<CachedCubin> get(const std::filesystem::path& dir, const std::string& digest = kDigest) {
    return cached_cubin(dir, digest, [this]() -> Result<Cubin> {
      ++num_made;
      return Cubin{{std::byte{1}, std::byte{0}, std::byte{3}}};
    });
  }
};

const std::vector<std::byte> kMade = {std::byte{1}, std::byte{0}, std::byte{3}};

TEST(ProgramCache, a_second_start_compiles_nothing) {
  const TempDir dir;
  Maker maker;
  const auto first = maker.get(dir / "new" / "folder");
  ASSERT_TRUE(first.ok());
  EXPECT_FALSE(first->from_cache);
  EXPECT_EQ(first->warning, "");
  const auto second = maker.get(dir / "new" / "folder");
  ASSERT_TRUE(second.ok());
  EXPECT_TRUE(second->from_cache);
  EXPECT_EQ(second->cubin.bytes, kMade);
  EXPECT_EQ(maker.num_made, 1);
}

TEST(ProgramCache, another_digest_is_another_program) {
  const TempDir dir;
  Maker maker;
  ASSERT_TRUE(maker.get(dir.path()).ok());
  EXPECT_FALSE(maker.get(dir.path(), std::string(64, 'b'))->from_cache);
}

TEST(ProgramCache, only_finished_files_are_left) {
  const TempDir dir;
  Maker maker;
  ASSERT_TRUE(maker.get(dir.path()).ok());
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(dir.path())) names.push_back(entry.path().filename());
  EXPECT_EQ(names, std::vector<std::string>{kDigest});
}

TEST(ProgramCache, every_damaged_byte_and_every_cut_is_compiled_anew) {
  const TempDir dir;
  Maker maker;
  ASSERT_TRUE(maker.get(dir.path()).ok());
  const std::string whole = *read_text_file(dir / kDigest, 1 << 20);
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    for (const std::string& content : {damaged, whole.substr(0, at)}) {
      ASSERT_TRUE(write_text_file(dir / kDigest, content).ok());
      const auto got = maker.get(dir.path());
      ASSERT_TRUE(got.ok());
      const bool separator =
          content.size() == whole.size() && whole[at] == '\n' && at + 1 + kMade.size() == whole.size();
      EXPECT_EQ(got->from_cache, separator) << "byte " << at;  // the newline in front of the program carries nothing
      EXPECT_EQ(got->cubin.bytes, kMade);
    }
  }
}

TEST(ProgramCache, a_repaired_file_is_used_again) {
  const TempDir dir;
  Maker maker;
  ASSERT_TRUE(write_text_file(dir / kDigest, "garbage").ok());
  EXPECT_FALSE(maker.get(dir.path())->from_cache);
  EXPECT_TRUE(maker.get(dir.path())->from_cache);
}

TEST(ProgramCache, a_folder_that_cannot_be_written_costs_a_warning) {
  const TempDir dir;
  ASSERT_TRUE(write_text_file(dir / "file", "in the way").ok());
  Maker maker;
  for (const auto& folder : {dir / "file", dir / "file" / "below", std::filesystem::path()}) {
    const auto got = maker.get(folder);
    ASSERT_TRUE(got.ok());
    EXPECT_EQ(got->cubin.bytes, kMade);
    EXPECT_TRUE(got->warning.starts_with("compiled programs are not kept: ")) << got->warning;
  }
}

TEST(ProgramCache, a_failed_compile_leaves_no_file) {
  const TempDir dir;
  const auto got = cached_cubin(
      dir.path(), kDigest, []() -> Result<Cubin> { return Error{Code::kInvalidArgument, "does not compile", {}}; });
  EXPECT_EQ(got.error().text, "does not compile");
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(ProgramCache, the_digest_depends_on_everything_that_goes_in) {
  const Sources sources = {{"main.cu", "text"}, {{"a.h", "one"}, {"b.h", "two"}}};
  std::set<std::string> digests = {program_digest(sources, {}, "13.0")};
  size_t num_digests = 1;
  const auto expect_new = [&](const Sources& changed, const CompileOptions& options, const char* version) {
    digests.insert(program_digest(changed, options, version));
    EXPECT_EQ(digests.size(), ++num_digests);
  };
  expect_new({{"main.cu", "texu"}, sources.headers}, {}, "13.0");
  expect_new({{"other.cu", "text"}, sources.headers}, {}, "13.0");
  expect_new({sources.main, {{"a.h", "one"}, {"b.h", "twp"}}}, {}, "13.0");
  expect_new({sources.main, {{"a.h", "one"}, {"c.h", "two"}}}, {}, "13.0");
  expect_new({sources.main, {{"a.h", "one2:"}, {"b.h", "wo"}}}, {}, "13.0");
  expect_new({sources.main, {{"a.h", "one"}}}, {}, "13.0");
  expect_new(sources, {"sm_100a", false, {}}, "13.0");
  expect_new(sources, {"sm_90a", true, {}}, "13.0");
  expect_new(sources, {"sm_90a", false, {"--fmad=false"}}, "13.0");
  expect_new(sources, {"sm_90a", false, {"--fmad=", "false"}}, "13.0");
  expect_new(sources, {}, "13.1");
  EXPECT_EQ(program_digest(sources, {}, "13.0").size(), 64u);
}

class CacheDir : public testing::Test {
 protected:
  static void set(const char* name, const char* value) { value == nullptr ? unsetenv(name) : setenv(name, value, 1); }
  static constexpr const char* kNames[] = {"MONOSTEP_CACHE_DIR", "XDG_CACHE_HOME", "HOME"};

  void SetUp() override {
    for (const char* name : kNames) before_.emplace_back(std::getenv(name) == nullptr ? "" : std::getenv(name));
  }
  void TearDown() override {
    for (size_t idx = 0; idx < before_.size(); ++idx)
      set(kNames[idx], before_[idx].empty() ? nullptr : before_[idx].c_str());
  }
  std::vector<std::string> before_;
};

TEST_F(CacheDir, is_the_first_that_is_set) {
  set("MONOSTEP_CACHE_DIR", "own");
  set("XDG_CACHE_HOME", "xdg");
  set("HOME", "user");
  EXPECT_EQ(default_cache_dir(), "own");
  set("MONOSTEP_CACHE_DIR", "");
  EXPECT_EQ(default_cache_dir(), "xdg/monostep");
  set("XDG_CACHE_HOME", nullptr);
  EXPECT_EQ(default_cache_dir(), "user/.cache/monostep");
  set("HOME", nullptr);
  EXPECT_EQ(default_cache_dir(), "");
}

TEST(ProgramCache, programs_of_nvrtc_are_kept) {
  if (const auto nvrtc = Nvrtc::open(); !nvrtc.ok()) GTEST_SKIP() << nvrtc.error().message();
  const TempDir dir;
  const Sources sources = {{"main.cu", "extern \"C\" __global__ void kernel(float* x) { x[0] = 1.0f; }\n"}, {}};
  const auto first = cached_compile(sources, {}, dir.path());
  const auto second = cached_compile(sources, {}, dir.path());
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_FALSE(first->from_cache);
  EXPECT_TRUE(second->from_cache);
  EXPECT_EQ(first->cubin.bytes, second->cubin.bytes);
  const auto without_compiler = cached_compile(Error{Code::kUnavailable, "none", {}}, sources, {}, dir.path());
  ASSERT_TRUE(without_compiler.ok());
  EXPECT_EQ(without_compiler->cubin.bytes, first->cubin.bytes);
}

TEST(ProgramCache, without_a_compiler_only_kept_programs_are_served) {
  const TempDir dir;
  const Result<Nvrtc> none = Error{Code::kUnavailable, "no compiler", {}};
  const Sources sources = {{"main.cu", "text"}, {}};
  EXPECT_EQ(cached_compile(none, sources, {}, dir.path()).error().text, "no compiler");
  Maker maker;
  ASSERT_TRUE(maker.get(dir.path(), program_digest(sources, {}, "any")).ok());
  const auto served = cached_compile(none, sources, {}, dir.path());
  ASSERT_TRUE(served.ok());
  EXPECT_EQ(served->cubin.bytes, kMade);
  EXPECT_FALSE(cached_compile(none, {{"main.cu", "other"}, {}}, {}, dir.path()).ok());
}

}  // namespace
}  // namespace monostep::gpu
