// `monostep compile`: without a compiler it says so, with one it fills the cache and prints what a program needs; bad
// values are refused by name.
#include <gtest/gtest.h>
#include <simdjson.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "gpu/nvrtc.h"
#include "program.h"

namespace monostep::apps {
namespace {

ProgramRun compile(const std::string& arguments) { return run_program("compile " + arguments); }

TEST(CompileCommand, compiles_once_and_then_takes_the_program_from_the_cache) {
  const auto nvrtc = gpu::Nvrtc::open();
  if (!nvrtc.ok()) GTEST_SKIP() << nvrtc.error().message();
  const TempDir cache;
  const std::string arguments = "--geometry micro --rows 8 --cache " + (cache / "programs").string();
  const ProgramRun first = compile(arguments);
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_NE(first.out.find("micro, TP 1, context 4096, 132 CTAs"), std::string::npos) << first.out;
  EXPECT_NE(first.out.find("  compiler\n"), std::string::npos) << first.out;
  simdjson::dom::parser parser;
  const simdjson::dom::element root = parser.parse(compile(arguments + " --json").out);
  EXPECT_EQ(std::string_view(root["geometry"]), "micro");
  EXPECT_EQ(int64_t(root["tp"]), 1);
  EXPECT_EQ(int64_t(root["context"]), 4096);
  EXPECT_EQ(int64_t(root["sms"]), 132);
  const simdjson::dom::array programs = root["programs"];
  ASSERT_EQ(programs.size(), 1u);
  const simdjson::dom::element program = programs.at(0);
  EXPECT_TRUE(bool(program["from_cache"]));
  EXPECT_EQ(int64_t(program["rows"]), 8);
  for (const char* need : {"registers", "shared_bytes", "code_bytes"}) EXPECT_GT(int64_t(program[need]), 0) << need;
  for (const char* need : {"stack_bytes", "local_stores", "local_loads"}) EXPECT_GE(int64_t(program[need]), 0) << need;
}

TEST(CompileCommand, an_absent_compiler_is_told_with_how_to_get_it) {
  // By the names alone, as the program will try them; nothing in this process has opened the library yet.
  if (gpu::Nvrtc::open({"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"}).ok()) {
    GTEST_SKIP() << "the system's loader finds NVRTC";
  }
  const char* before = std::getenv("MONOSTEP_NVRTC_DIR");
  const std::string kept = before == nullptr ? "" : before;
  setenv("MONOSTEP_NVRTC_DIR", "/no_such_folder", 1);
  const ProgramRun ran = compile("--geometry micro --rows 8");
  before == nullptr ? unsetenv("MONOSTEP_NVRTC_DIR") : setenv("MONOSTEP_NVRTC_DIR", kept.c_str(), 1);
  EXPECT_EQ(ran.code, 4);
  EXPECT_EQ(ran.out, "");
  EXPECT_NE(ran.err.find("pip install nvidia-cuda-nvrtc"), std::string::npos) << ran.err;
}

TEST(CompileCommand, bad_values_are_refused_by_name) {
  for (const auto& [arguments, name] : std::vector<std::pair<std::string, std::string>>{
           {"--geometry nope", "nope"},
           {"--tp 3", "tp"},
           {"--geometry micro --tp 8", "num_attention_heads"},
           {"--rows 9", "--rows"},
           {"--rows many", "--rows"},
           {"--context 0", "--context"},
           {"--geometry micro --context 4097", "--context"},
           {"--sms 0", "--sms"},
           {"--sms 1025", "--sms"},
           {"--geometry micro --model folder", "--model"},
       }) {
    const ProgramRun ran = compile(arguments);
    EXPECT_EQ(ran.code, 2) << arguments;
    EXPECT_NE(ran.err.find(name), std::string::npos) << arguments << ": " << ran.err;
  }
  const ProgramRun absent = compile("--model no_such_folder");
  EXPECT_EQ(absent.code, 3);
  EXPECT_NE(absent.err.find("no_such_folder"), std::string::npos) << absent.err;
}

}  // namespace
}  // namespace monostep::apps
