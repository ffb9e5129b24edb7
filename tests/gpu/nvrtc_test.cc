// NVRTC where it is installed (skipped elsewhere): headers from memory, the options, the words of a failed compile.
// That an absent library is told runs everywhere.
#include "gpu/nvrtc.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <optional>

namespace monostep::gpu {
namespace {

constexpr const char* kMain = R"(#include "part/scale.h"
extern "C" __global__ void kernel(float* x) { x[0] = scaled(x[1]); }
)";
constexpr const char* kHeader = "inline float scaled(float x) { return x * 3.0f; }\n";

Sources sources(std::string main = kMain) { return {{"main.cu", std::move(main)}, {{"part/scale.h", kHeader}}}; }

TEST(Nvrtc, an_absent_library_is_told_with_how_to_get_it) {
  const auto nvrtc = Nvrtc::open({"libno_such_nvrtc.so.13"});
  ASSERT_FALSE(nvrtc.ok());
  EXPECT_EQ(nvrtc.error().code, Code::kUnavailable);
  EXPECT_TRUE(nvrtc.error().text.starts_with("no NVRTC library found; ")) << nvrtc.error().text;
  EXPECT_NE(nvrtc.error().text.find("pip install nvidia-cuda-nvrtc"), std::string::npos);
}

TEST(Nvrtc, a_library_without_an_entry_point_is_refused) {
  const auto nvrtc = Nvrtc::open({"libc.so.6"});
  ASSERT_FALSE(nvrtc.ok());
  EXPECT_TRUE(nvrtc.error().text.starts_with("the NVRTC library has no nvrtc")) << nvrtc.error().text;
}

TEST(Nvrtc, the_folder_of_the_variable_comes_first) {
  const char* before = std::getenv("MONOSTEP_NVRTC_DIR");
  const std::string kept = before == nullptr ? "" : before;
  setenv("MONOSTEP_NVRTC_DIR", "folder", 1);
  const std::vector<std::string> libraries = nvrtc_libraries();
  before == nullptr ? unsetenv("MONOSTEP_NVRTC_DIR") : setenv("MONOSTEP_NVRTC_DIR", kept.c_str(), 1);
  EXPECT_EQ(libraries, (std::vector<std::string>{"folder/libnvrtc.so.13", "folder/libnvrtc.so.12", "folder/libnvrtc.so",
                                                 "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"}));
}

class NvrtcTest : public testing::Test {
 protected:
  void SetUp() override {
    auto opened = Nvrtc::open();
    if (!opened.ok()) GTEST_SKIP() << opened.error().message();
    nvrtc_ = std::move(*opened);
  }
  std::optional<Nvrtc> nvrtc_;
};

TEST_F(NvrtcTest, compiles_a_kernel_with_a_header_from_memory) {
  const auto cubin = nvrtc_->compile(sources(), {});
  ASSERT_TRUE(cubin.ok()) << cubin.error().message();
  const auto kernels = read_cubin(cubin->bytes);
  ASSERT_TRUE(kernels.ok()) << kernels.error().message();
  ASSERT_EQ(kernels->size(), 1u);
  EXPECT_EQ(kernels->front().name, "kernel");
  EXPECT_GT(kernels->front().registers, 0);
  EXPECT_EQ(kernels->front().params_bytes, 8);
}

TEST_F(NvrtcTest, the_same_sources_give_the_same_bytes) {
  const auto first = nvrtc_->compile(sources(), {});
  const auto second = nvrtc_->compile(sources(), {});
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->bytes, second->bytes);
}

TEST_F(NvrtcTest, an_error_in_the_source_is_told_with_place_and_log) {
  const auto cubin = nvrtc_->compile(sources("extern \"C\" __global__ void kernel(float* x) { x[0] = absent; }\n"), {});
  ASSERT_FALSE(cubin.ok());
  EXPECT_EQ(cubin.error().code, Code::kInvalidArgument);
  EXPECT_EQ(cubin.error().place, "main.cu");
  EXPECT_NE(cubin.error().text.find("main.cu(1)"), std::string::npos) << cubin.error().text;
  EXPECT_NE(cubin.error().text.find("absent"), std::string::npos) << cubin.error().text;
}

TEST_F(NvrtcTest, a_header_that_is_not_given_is_not_taken_from_disk) {
  Sources missing = sources();
  missing.headers.clear();
  const auto cubin = nvrtc_->compile(missing, {});
  ASSERT_FALSE(cubin.ok());
  EXPECT_NE(cubin.error().text.find("part/scale.h"), std::string::npos) << cubin.error().text;
}

TEST_F(NvrtcTest, a_long_log_is_cut) {
  std::string text;
  for (int line_idx = 0; line_idx < 200; ++line_idx) text += "int a = absent" + std::to_string(line_idx) + ";\n";
  const auto cubin = nvrtc_->compile(sources(text), {});
  ASSERT_FALSE(cubin.ok());
  const std::string& words = cubin.error().text;
  EXPECT_LE(std::count(words.begin(), words.end(), '\n'), 42);
  EXPECT_NE(words.find("(further lines left out)"), std::string::npos) << words;
}

TEST_F(NvrtcTest, an_unknown_option_is_refused) {
  CompileOptions options;
  options.further = {"--no-such-option"};
  const auto cubin = nvrtc_->compile(sources(), options);
  ASSERT_FALSE(cubin.ok());
  EXPECT_EQ(cubin.error().code, Code::kInvalidArgument);
}

TEST_F(NvrtcTest, a_virtual_architecture_gives_no_cubin) {
  CompileOptions options;
  options.arch = "compute_90a";
  const auto cubin = nvrtc_->compile(sources(), options);
  ASSERT_FALSE(cubin.ok());
  EXPECT_EQ(cubin.error().code, Code::kInvalidArgument);
}

TEST_F(NvrtcTest, further_options_reach_the_compiler) {
  CompileOptions options;
  options.line_info = true;
  options.further = {"-DFACTOR=2.0f"};
  EXPECT_EQ(options.arguments(), (std::vector<std::string>{"--gpu-architecture=sm_90a", "-std=c++20", "-default-device",
                                                           "-lineinfo", "-DFACTOR=2.0f"}));
  const char* text = "extern \"C\" __global__ void kernel(float* x) { x[0] *= FACTOR; }\n";
  EXPECT_TRUE(nvrtc_->compile(sources(text), options).ok());
  EXPECT_FALSE(nvrtc_->compile(sources(text), {}).ok());
}

}  // namespace
}  // namespace monostep::gpu
