// `monostep generate` as a user runs it, on small synthetic checkpoints: what it prints where, that the text depends on
// the request alone, and that every wrong option is refused by name before a model is read.
#include <gtest/gtest.h>
#include <simdjson.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <sstream>
#include <vector>

#include "gpu/cuda_device.h"
#include "program.h"

namespace monostep::apps {
namespace {

struct Answer {
  std::vector<int64_t> token_ids;
  std::string text;
  std::map<std::string, double> stats;
  std::vector<double> acceptance;
};

Answer parse_answer(const std::string& line) {
  simdjson::dom::parser parser;
  const simdjson::dom::object object = parser.parse(line).get_object();
  EXPECT_EQ(object.size(), 3u) << line;
  Answer answer;
  for (const int64_t id : object["token_ids"].get_array()) answer.token_ids.push_back(id);
  answer.text = std::string_view(object["text"]);
  for (const auto [key, value] : object["stats"].get_object()) {
    if (key == "acceptance") {
      for (const double share : value.get_array()) answer.acceptance.push_back(share);
    } else {
      answer.stats[std::string(key)] = value.get_double();
    }
  }
  return answer;
}

class Generate : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    dir_ = new TempDir;
    for (const char* geometry : {"demo", "micro"}) {
      const std::string out = (*dir_ / geometry).string();
      ASSERT_EQ(run_program("make-model --geometry " + std::string(geometry) + " --out " + out).code, 0);
    }
  }
  static void TearDownTestSuite() { delete dir_; }

  static ProgramRun run(const std::string& arguments, const std::string& model = "demo") {
    return run_program("generate --model " + (*dir_ / model).string() + " " + arguments);
  }

  static std::vector<Answer> answers(const std::string& arguments, const std::string& model = "demo") {
    const ProgramRun done = run("--json " + arguments, model);
    EXPECT_EQ(done.code, 0) << done.err;
    std::vector<Answer> out;
    std::istringstream lines(done.out);
    for (std::string line; std::getline(lines, line);) {
      for (const char byte : line) EXPECT_TRUE(byte >= ' ' && byte <= '~') << line;
      out.push_back(parse_answer(line));
    }
    return out;
  }

  // Exit code, the option's name on the last line of standard error, and nothing on standard output.
  static void expect_refused(const std::string& arguments, const std::string& name, int code = 2) {
    const ProgramRun done = run(arguments);
    EXPECT_EQ(done.code, code) << arguments << ": " << done.err;
    EXPECT_NE(done.err.find(name), std::string::npos) << arguments << ": " << done.err;
    EXPECT_EQ(done.err.find("loaded"), std::string::npos) << arguments << ": refused after the weights were read";
    EXPECT_EQ(done.out, "") << arguments;
  }

  static TempDir* dir_;
};

TempDir* Generate::dir_ = nullptr;

TEST_F(Generate, json_holds_ids_text_and_stats) {
  const Answer answer = answers("--prompt 'Hello w\xc3\xb6rld' --max-tokens 12 --ignore-eos").at(0);
  EXPECT_EQ(answer.token_ids.size(), 12u);
  EXPECT_FALSE(answer.text.empty());
  EXPECT_GT(answer.stats.at("tokens_per_second"), 0);
  EXPECT_GT(answer.stats.at("time_to_first_token_ms"), 0);
  EXPECT_GE(answer.stats.at("tokens_per_step"), 1);
  EXPECT_EQ(answer.stats.size(), 3u);
  EXPECT_EQ(answer.acceptance.size(), 5u);
}

TEST_F(Generate, streamed_text_is_the_text_of_the_json_and_the_rest_goes_to_standard_error) {
  const std::string arguments = "--prompt 'Hello there' --max-tokens 16 --ignore-eos";
  const ProgramRun streamed = run(arguments);
  ASSERT_EQ(streamed.code, 0) << streamed.err;
  EXPECT_EQ(streamed.out, answers(arguments).at(0).text + "\n");
  for (const char* words :
       {"loaded", "prompt of 11 tokens", "tokens/s", "time to first token", "tokens per step", "acceptance at 1"}) {
    EXPECT_NE(streamed.err.find(words), std::string::npos) << words << " in " << streamed.err;
  }
}

TEST_F(Generate, the_ids_do_not_depend_on_speculation_company_or_chunks) {
  for (const std::string sampling : {"", " --temperature 0.8 --top-k 20 --top-p 0.9 --min-p 0.01 --seed 5"}) {
    const std::string request = "--token-ids '3,1 4,1 5 9 2 6' --max-tokens 14 --ignore-eos" + sampling;
    const std::vector<int64_t> ids = answers(request + " --spec off", "micro").at(0).token_ids;
    EXPECT_EQ(ids.size(), 14u);
    for (const std::string option : {"", " --spec 2", " --chunk 3", " --threads 1", " --confidence-threshold 0.5"}) {
      EXPECT_EQ(answers(request + option, "micro").at(0).token_ids, ids) << option << sampling;
    }
    const std::vector<Answer> both = answers("--token-ids '9 9 9' " + request, "micro");
    ASSERT_EQ(both.size(), 2u);
    EXPECT_EQ(both[1].token_ids, ids);
    EXPECT_NE(both[0].token_ids, ids);
  }
}

TEST_F(Generate, seeds_give_different_texts_and_the_same_seed_the_same) {
  const std::string request = "--token-ids '1 2 3' --max-tokens 8 --temperature 1 --seed ";
  std::set<std::vector<int64_t>> texts;
  for (const std::string seed : {"0", "1", "18446744073709551615", "1"}) {
    texts.insert(answers(request + seed, "micro").at(0).token_ids);
  }
  EXPECT_EQ(texts.size(), 3u);
}

TEST_F(Generate, simulated_ranks_are_served) {
  const Answer answer = answers("--token-ids '1 2 3' --max-tokens 6 --tp 2", "micro").at(0);
  EXPECT_EQ(answer.token_ids.size(), 6u);
}

TEST_F(Generate, prompts_are_taken_as_they_stand) {
  const std::vector<Answer> several =
      answers("--max-tokens 4 --prompt '[a,b]' --prompt '{}' --prompt '' --prompt '--json'");
  ASSERT_EQ(several.size(), 4u);
  const char* alone[] = {"--prompt '[a,b]'", "--prompt '{}'", "--token-ids 0", "--prompt '--json'"};  // 0: BOS
  for (size_t prompt_idx = 0; prompt_idx < 4; ++prompt_idx) {
    EXPECT_EQ(several[prompt_idx].token_ids,
              answers("--max-tokens 4 " + std::string(alone[prompt_idx])).at(0).token_ids);
  }
  ASSERT_TRUE(write_text_file(*dir_ / "prompt.txt", "[a,b]").ok());
  EXPECT_EQ(answers("--max-tokens 4 --prompt-file " + (*dir_ / "prompt.txt").string()).at(0).token_ids,
            several[0].token_ids);
}

TEST_F(Generate, several_texts_stand_under_their_headers_in_order) {
  const ProgramRun done = run("--max-tokens 3 --prompt a --prompt b");
  ASSERT_EQ(done.code, 0);
  const size_t first = done.out.find("--- request 1 ---\n"), second = done.out.find("--- request 2 ---\n");
  EXPECT_EQ(first, 0u);
  EXPECT_NE(second, std::string::npos);
}

TEST_F(Generate, a_forced_acceptance_length_is_met) {
  const Answer answer =
      answers("--token-ids '1 2 3' --max-tokens 150 --ignore-eos --acceptance-length 3.5", "micro").at(0);
  EXPECT_NEAR(answer.stats.at("tokens_per_step"), 3.5, 0.25);
  EXPECT_EQ(answer.acceptance.at(0), 1);
  EXPECT_EQ(answer.acceptance.at(4), 0);
}

TEST_F(Generate, a_checkpoint_without_a_tokenizer_takes_and_gives_ids_alone) {
  const ProgramRun refused = run("--prompt x", "micro");
  EXPECT_EQ(refused.code, 3);
  EXPECT_NE(refused.err.find("tokenizer.json"), std::string::npos) << refused.err;
  EXPECT_EQ(answers("--token-ids 1 --max-tokens 2", "micro").at(0).text, "");
}

TEST_F(Generate, wrong_prompts_are_refused_by_name) {
  expect_refused("", "--prompt");
  expect_refused("--prompt x --token-ids 1", "--prompt");
  for (const char* ids : {"''", "' , '", "'1 x'", "'1 -2'", "'1.5'", "99999999999"}) {
    expect_refused(std::string("--token-ids ") + ids, "--token-ids");
  }
  expect_refused("--token-ids '1 999999'", "999999");
  expect_refused("--prompt-file nowhere/there.txt", "--prompt-file");
  std::string many;
  for (int count = 0; count < 9; ++count) many += " --prompt x";
  expect_refused(many, "--prompt");
  expect_refused("--max-model-len 8 --max-tokens 1 --prompt 123456789", "--prompt");
}

TEST_F(Generate, wrong_options_are_refused_by_name) {
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"--max-tokens", "0"},
      {"--max-tokens", "-1"},
      {"--max-tokens", "1.5"},
      {"--max-tokens", "100000000"},
      {"--temperature", "-0.5"},
      {"--temperature", "nan"},
      {"--temperature", "inf"},
      {"--top-k", "-1"},
      {"--top-p", "0"},
      {"--top-p", "1.1"},
      {"--min-p", "-0.1"},
      {"--min-p", "2"},
      {"--seed", "-1"},
      {"--seed", "18446744073709551616"},
      {"--spec", "0"},
      {"--spec", "6"},
      {"--spec", "1x"},
      {"--acceptance-length", "0"},
      {"--acceptance-length", "6.5"},
      {"--confidence-threshold", "1.5"},
      {"--tp", "3"},
      {"--tp", "16"},
      {"--chunk", "0"},
      {"--chunk", "49"},
      {"--threads", "0"},
      {"--backend", "tpu"},
      {"--mono", "maybe"},
      {"--max-model-len", "0"},
      {"--max-model-len", "100000000"},
      {"--no-such-option", "1"},
  };
  for (const auto& [option, value] : wrong) expect_refused("--prompt x " + option + " " + value, option);
  expect_refused("--prompt x --spec 1 --acceptance-length 3", "--acceptance-length");
  expect_refused("--prompt x --backend cpu --mono on", "--mono");
  expect_refused("--prompt x --backend gpu --tp 2", "--tp");
  expect_refused("--prompt x --acceptance-length 2 --confidence-threshold 0.5", "--acceptance-length");
}

TEST_F(Generate, an_option_is_refused_even_where_the_model_is_missing) {
  const ProgramRun done = run_program("generate --model nowhere --prompt x --max-tokens 0");
  EXPECT_EQ(done.code, 2);
  EXPECT_EQ(run_program("generate --model nowhere --prompt x").code, 3);
}

TEST_F(Generate, a_missing_device_has_its_own_exit_code) {
  if (gpu::CudaDevice::open(0).ok()) GTEST_SKIP() << "this machine has a device";
  expect_refused("--prompt x --backend gpu", "no usable device", 4);
  expect_refused("--prompt x --mono on", "no usable device", 4);
}

TEST_F(Generate, the_backend_and_why_it_was_taken_are_said) {
  EXPECT_NE(run("--prompt x --max-tokens 1 --backend cpu").err.find("backend cpu, tp 1\n"), std::string::npos);
  if (gpu::CudaDevice::open(0).ok()) GTEST_SKIP() << "this machine has a device";
  const ProgramRun done = run("--prompt x --max-tokens 1");
  EXPECT_NE(done.err.find("backend cpu, tp 1 (no usable device: "), std::string::npos) << done.err;
}

TEST_F(Generate, without_model_it_takes_models_default_above_the_working_directory) {
  const TempDir place;
  const std::string inner = (place / "deep/er").string();
  const std::string setup = "mkdir -p " + inner + " " + (place / "models").string() + " && cp -r " +
                            (*dir_ / "micro").string() + " " + (place / "models/default").string();
  ASSERT_EQ(std::system(setup.c_str()), 0);
  // A program outside any tree that has models/default.
  const std::string program = (place / "deep/monostep").string();
  ASSERT_EQ(std::system(("cp " MONOSTEP_BINARY_DIR "/monostep " + program).c_str()), 0);
  const std::string command =
      "cd " + inner + " && " + program + " generate --token-ids 1 --max-tokens 1 --json >out 2>err";
  ASSERT_EQ(std::system(command.c_str()), 0);
  EXPECT_EQ(parse_answer(read_text_file(place / "deep/er/out", 10000).value()).token_ids.size(), 1u);
}

TEST_F(Generate, without_model_it_takes_models_default_above_the_program_first) {
  const TempDir place;
  const std::string setup = "mkdir -p " + (place / "tree/build/release").string() + " " +
                            (place / "tree/models").string() + " " + (place / "other/models").string() + " && cp -r " +
                            (*dir_ / "demo").string() + " " + (place / "tree/models/default").string() + " && cp -r " +
                            (*dir_ / "micro").string() + " " + (place / "other/models/default").string();
  ASSERT_EQ(std::system(setup.c_str()), 0);
  const std::string program = (place / "tree/build/release/monostep").string();
  ASSERT_EQ(std::system(("cp " MONOSTEP_BINARY_DIR "/monostep " + program).c_str()), 0);
  const std::string command = "cd " + (place / "other").string() + " && " + program +
                              " generate --token-ids 1 --max-tokens 1 --json >out 2>err";
  ASSERT_EQ(std::system(command.c_str()), 0);
  const std::string err = read_text_file(place / "other/err", 10000).value();
  EXPECT_NE(err.find("loaded " + (place / "tree/models/default").string()), std::string::npos) << err;
}

TEST_F(Generate, a_tokenizer_with_more_ids_than_the_vocabulary_is_refused) {
  const TempDir place;
  const std::string model = (place / "model").string();
  ASSERT_EQ(std::system(("cp -r " + (*dir_ / "micro").string() + " " + model + " && cp " +
                         (*dir_ / "demo/tokenizer.json").string() + " " + model)
                            .c_str()),
            0);
  const ProgramRun refused = run_program("generate --prompt x --model " + model);
  EXPECT_EQ(refused.code, 3);
  EXPECT_NE(refused.err.find("tokenizer.json: has the token id"), std::string::npos) << refused.err;
  EXPECT_NE(refused.err.find("the config's vocab_size is 128"), std::string::npos) << refused.err;
}

TEST_F(Generate, output_that_cannot_be_written_ends_the_program_with_an_error) {
  const std::string command = MONOSTEP_BINARY_DIR "/monostep generate --prompt x --max-tokens 9 --model " +
                              (*dir_ / "demo").string() + " >/dev/full 2>/dev/null";
  EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 1);
}

}  // namespace
}  // namespace monostep::apps
