// The command line as a whole: version and help, and that the last line of standard error is the reason of a refusal,
// which names the nearest known name for an unknown one.
#include <gtest/gtest.h>

#include <algorithm>

#include "program.h"

namespace monostep::apps {
namespace {

// The last line of standard error of a run that ends with code 2 and prints nothing else.
std::string refusal(const std::string& arguments) {
  const ProgramRun run = run_program(arguments);
  EXPECT_EQ(run.code, 2) << arguments;
  EXPECT_EQ(run.out, "") << arguments;
  EXPECT_TRUE(run.err.starts_with("monostep: ") && run.err.ends_with("\n")) << run.err;
  EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
  return run.err.substr(0, run.err.size() - 1);
}

TEST(Main, version_is_printed_with_the_backends) {
  const ProgramRun run = run_program("--version");
  EXPECT_EQ(run.code, 0);
  EXPECT_TRUE(run.out.starts_with("monostep ")) << run.out;
  EXPECT_TRUE(run.out.ends_with("\nbackends: cpu, gpu\n")) << run.out;
}

TEST(Main, help_goes_to_standard_output) {
  for (const char* arguments : {"--help", "generate --help", "tokenize --help"}) {
    const ProgramRun run = run_program(arguments);
    EXPECT_EQ(run.code, 0) << arguments;
    EXPECT_NE(run.out.find("Usage:"), std::string::npos) << arguments;
    EXPECT_EQ(run.err, "") << arguments;
  }
}

TEST(Main, an_unknown_option_names_the_nearest_one) {
  EXPECT_EQ(refusal("generate --promt x"),
            "monostep: --promt: unknown option of generate, the nearest is --prompt (invalid_argument)");
  EXPECT_EQ(refusal("generate --prompt x --max-token=3"),
            "monostep: --max-token: unknown option of generate, the nearest is --max-tokens (invalid_argument)");
  EXPECT_EQ(refusal("tokenize --tokeniser x"),
            "monostep: --tokeniser: unknown option of tokenize, the nearest is --tokenizer (invalid_argument)");
  EXPECT_EQ(refusal("make-model --ot x"),
            "monostep: --ot: unknown option of make-model, the nearest is --out (invalid_argument)");
  EXPECT_EQ(refusal("--versoin"),
            "monostep: --versoin: unknown option of monostep, the nearest is --version (invalid_argument)");
}

TEST(Main, an_unknown_subcommand_names_the_nearest_one) {
  EXPECT_EQ(refusal("genrate --prompt x"),
            "monostep: genrate: unknown subcommand of monostep, the nearest is generate (invalid_argument)");
  EXPECT_EQ(refusal("plans"),
            "monostep: plans: unknown subcommand of monostep, the nearest is plan (invalid_argument)");
}

TEST(Main, any_other_refusal_gives_its_reason) {
  EXPECT_NE(refusal("").find("subcommand is required"), std::string::npos);
  EXPECT_NE(refusal("make-model").find("--out is required"), std::string::npos);
  EXPECT_NE(refusal("generate --prompt").find("--prompt"), std::string::npos);
  EXPECT_NE(refusal("generate --prompt x --max-tokens 1.5").find("--max-tokens"), std::string::npos);
  EXPECT_EQ(refusal("generate hello"), "monostep: hello: unknown argument of generate (invalid_argument)");
}

}  // namespace
}  // namespace monostep::apps
