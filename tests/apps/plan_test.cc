// `monostep plan`: its JSON keeps the keys that others rely on, its text names everything, bad values are refused by
// name.
#include <gtest/gtest.h>
#include <simdjson.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "program.h"

namespace monostep::apps {
namespace {

ProgramRun plan(const std::string& arguments) { return run_program("plan " + arguments); }

simdjson::dom::element parsed(simdjson::dom::parser& parser, const std::string& arguments) {
  const ProgramRun ran = plan(arguments + " --json");
  EXPECT_EQ(ran.code, 0) << ran.err;
  return parser.parse(ran.out);
}

TEST(PlanCommand, json_bytes_of_the_stages_sum_to_the_total) {
  for (const char* arguments :
       {"--geometry flash --tp 4 --rows 8", "--geometry micro --tp 2", "--geometry clone40 --tp 8 --rows 48"}) {
    simdjson::dom::parser parser;
    const simdjson::dom::element root = parsed(parser, arguments);
    int64_t bytes = 0;
    for (const simdjson::dom::element stage : root["stages"].get_array()) {
      bytes += int64_t(stage["bytes"]);
      EXPECT_GT(int64_t(stage["tasks"]), 0);
      EXPECT_FALSE(std::string_view(stage["name"]).empty());
    }
    EXPECT_EQ(bytes, int64_t(root["totals"]["bytes"])) << arguments;
    EXPECT_TRUE(bool(root["contract"]["holds"]));
  }
}

TEST(PlanCommand, json_layers_are_null_outside_a_layer) {
  simdjson::dom::parser parser;
  for (const simdjson::dom::element stage : parsed(parser, "--geometry micro")["stages"].get_array()) {
    const std::string_view name = stage["name"];
    const bool outside = name == "head" || name == "head_fold" || name == "sample" || name == "verdict" ||
                         name == "main_proj" || name == "context_proj" || name == "context_new" || name == "markov" ||
                         name == "draft_out";
    EXPECT_EQ(stage["layer"].is_null(), outside) << name;
  }
}

TEST(PlanCommand, json_holds_time_caches_and_handoffs) {
  simdjson::dom::parser parser;
  const simdjson::dom::element root =
      parsed(parser, "--geometry flash --tp 4 --rows 8 --bandwidth 4.7e12 --distinct-experts 24");
  const double floor_ms = root["totals"]["floor_ms"];
  EXPECT_NEAR(floor_ms, double(int64_t(root["totals"]["bytes"])) / 4.7e12 * 1e3, 1e-9);
  EXPECT_NEAR(double(int64_t(root["totals"]["kv_bytes"])), 10.19e6, 0.1e6);
  EXPECT_EQ(double(root["distinct_experts"]), 24.0);
  EXPECT_EQ(int64_t(root["handoffs_per_layer"]["local"]), 12);
  EXPECT_EQ(int64_t(root["handoffs_per_layer"]["cross_rank"]), 2);
  EXPECT_EQ(int64_t(root["handoffs_per_layer"]["index_local"]), 14);
  EXPECT_EQ(int64_t(root["handoffs_per_layer"]["engram_local"]), 13);
  EXPECT_GT(int64_t(root["totals"]["bytes_replicated"]), int64_t(root["totals"]["bytes"]));
}

TEST(PlanCommand, the_number_of_requests_sets_the_band) {
  const auto rows = [](const std::string& arguments) {
    simdjson::dom::parser parser;
    return int64_t(parsed(parser, "--geometry micro " + arguments)["rows"]);
  };
  EXPECT_EQ(rows("--requests 1"), 8);
  EXPECT_EQ(rows("--requests 2"), 16);
  EXPECT_EQ(rows("--requests 4"), 24);
  EXPECT_EQ(rows("--requests 8"), 48);
  EXPECT_EQ(rows("--requests 1 --rows 24"), 24);
}

TEST(PlanCommand, each_part_is_printed) {
  for (const auto& [part, words] :
       std::vector<std::pair<std::string, std::string>>{{"summary", "contract                holds"},
                                                        {"calls", "attn_mix_part -> attn_mix"},
                                                        {"regions", "ffn_exchange"},
                                                        {"tasks", "first CTA"},
                                                        {"chunks", "layers.0.attn.wq_a.weight"},
                                                        {"time", "floor"},
                                                        {"contract", "holds"}}) {
    const ProgramRun ran = plan("--geometry micro --show " + part);
    EXPECT_EQ(ran.code, 0) << part;
    EXPECT_NE(ran.out.find(words), std::string::npos) << ran.out;
  }
}

TEST(PlanCommand, a_geometry_may_be_a_file_or_a_folder) {
  const std::string folder = std::string(MONOSTEP_SOURCE_DIR) + "/tests/golden/micro";
  const ProgramRun named = plan("--geometry micro --show time");
  EXPECT_EQ(plan("--geometry " + folder + " --show time").out, named.out);
  EXPECT_EQ(plan("--geometry " + folder + "/config.json --show time").out, named.out);
}

TEST(PlanCommand, bad_values_are_refused_by_name) {
  for (const auto& [arguments, name] : std::vector<std::pair<std::string, std::string>>{
           {"--geometry nope", "nope"},
           {"--tp 3", "tp"},
           {"--geometry micro --tp 8", "num_attention_heads"},
           {"--rows 9", "--rows"},
           {"--rows many", "--rows"},
           {"--requests 0", "--requests"},
           {"--requests 9", "--requests"},
           {"--rows 8 --requests 2", "--requests"},
           {"--context 0", "--context"},
           {"--context 1048577", "--context"},
           {"--ctas 0", "--ctas"},
           {"--bandwidth 0", "--bandwidth"},
           {"--bandwidth nan", "--bandwidth"},
           {"--bandwidth inf", "--bandwidth"},
           {"--distinct-experts -1", "--distinct-experts"},
           {"--distinct-experts 385", "--distinct-experts"},
           {"--show everything", "--show"},
       }) {
    const ProgramRun ran = plan(arguments);
    EXPECT_EQ(ran.code, 2) << arguments;
    EXPECT_NE(ran.err.find(name), std::string::npos) << arguments << ": " << ran.err;
  }
}

}  // namespace
}  // namespace monostep::apps
