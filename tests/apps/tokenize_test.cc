// `monostep tokenize` through the program: one answer a line, bad lines answered and passed over, and its exit codes.
// The words of the answers are tested in tests/text/tokenize_line_test.cc.
#include <gtest/gtest.h>

#include <algorithm>

#include "program.h"

namespace monostep::apps {
namespace {

constexpr char kModel[] = MONOSTEP_SOURCE_DIR "/models/default";

struct Tokenize : testing::Test {
  // Exit code of `monostep tokenize` on some lines; `rest` is shell text that may send the output elsewhere.
  int run(const std::string& lines, const std::string& rest) {
    EXPECT_TRUE(write_text_file(dir / "in", lines).ok());
    const std::string command = MONOSTEP_BINARY_DIR "/monostep tokenize <" + (dir / "in").string() + " >" +
                                (dir / "out").string() + " 2>" + (dir / "err").string() + " " + rest;
    return WEXITSTATUS(std::system(command.c_str()));
  }
  std::string read(const char* name) { return read_text_file(dir / name, 1 << 20).value(); }

  TempDir dir;
};

TEST_F(Tokenize, every_line_is_answered_by_one_and_a_bad_line_does_not_end_it) {
  const std::string lines = "{\"text\": \"ab\"}\nnonsense\n\n{\"text\": \"ab\"}";
  for (const std::string& source :
       {std::string("--model ") + kModel, std::string("--tokenizer ") + kModel + "/tokenizer.json"}) {
    EXPECT_EQ(run(lines, source), 0);
    const std::string out = read("out");
    EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 4) << out;
    const std::string first = out.substr(0, out.find('\n') + 1);
    EXPECT_NE(first.find("ids"), std::string::npos) << first;
    EXPECT_TRUE(out.ends_with("\n" + first)) << out;
    EXPECT_NE(out.find("\n{\"error\":"), std::string::npos) << out;
  }
}

TEST_F(Tokenize, output_that_cannot_be_written_ends_it_with_code_1) {
  EXPECT_EQ(run("{\"text\": \"ab\"}\n", std::string("--model ") + kModel + " >/dev/full"), 1);
  EXPECT_NE(read("err").find("standard output: cannot write"), std::string::npos) << read("err");
}

TEST_F(Tokenize, a_missing_tokenizer_has_code_3_and_a_folder_or_two_sources_have_code_2) {
  EXPECT_EQ(run("", "--model " + dir.path().string()), 3);
  EXPECT_EQ(run("", "--tokenizer " + dir.path().string()), 2);
  EXPECT_EQ(read("err"), "monostep: " + dir.path().string() + ": expected a regular file (invalid_argument)\n");
  EXPECT_EQ(run("", "--tokenizer a --model b"), 2);
  EXPECT_EQ(run("", ""), 2);
}

}  // namespace
}  // namespace monostep::apps
