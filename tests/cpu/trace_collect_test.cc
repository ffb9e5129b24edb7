// The collector: which arrays it declares, with which shapes and first contents, and where a step's values land.
#include "cpu/trace_collect.h"

#include <cmath>

#include "tiny_models.h"

namespace monostep::cpu {
namespace {

using program::Stage;
using Shape = std::vector<int64_t>;

class Collected : public testing::Test {
 protected:
  Collected() : backend_(made_backend(micro(), small_options())), probe_(*backend_), tokens_(prompt(kTokens)) {}
  Collector collector() { return Collector(*backend_, probe_, {tokens_, image_, 2}); }
  Record run(Collector& collector, int first, int count) {
    Walk walk(*backend_, step_of({{0, {tokens_.begin() + first, tokens_.begin() + first + count}, first}}));
    const program::Program& program = backend_->machine().program();
    for (int call_idx = 0; call_idx < program.section_begin(program::Section::kDraft); ++call_idx) {
      walk.to(call_idx + 1);
      collector.collect(program.calls[static_cast<size_t>(call_idx)], first, count);
    }
    return collector.take();
  }

  static constexpr int kTokens = 9;
  std::unique_ptr<CpuBackend> backend_;
  Probe probe_;
  std::vector<int> tokens_;
  std::vector<int> image_;
};

TEST_F(Collected, arrays_have_the_documented_shapes) {
  Collector all = collector();
  all.declare({0, 4, 8});
  const Record out = all.take();
  const std::vector<std::pair<std::string, Shape>> shapes = {{"positions", {3}},
                                                             {"resid", {3, 6, 4, 128}},
                                                             {"mid", {3, 6, 4, 128}},
                                                             {"pre", {3, 6, 2, 4}},
                                                             {"comb", {3, 6, 2, 4, 4}},
                                                             {"router_ids", {3, 6, 2}},
                                                             {"window_kv", {3, 6, 64}},
                                                             {"taps", {3, 384}},
                                                             {"logits", {3, 128}},
                                                             {"engram_rows", {3, 2, 6}},
                                                             {"engram_gate", {3, 2, 4}},
                                                             {"engram_out", {3, 2, 4, 128}},
                                                             {"index_scores.1", {3, 4}},
                                                             {"index_scores.3", {3, 9}},
                                                             {"topk.1", {3, 4}},
                                                             {"topk.3", {3, 8}},
                                                             {"candidate_blocks.3", {3, 3}},
                                                             {"compressed_kv.1", {4, 64}},
                                                             {"index_k.3", {9, 32}}};
  for (const auto& [name, shape] : shapes) {
    ASSERT_TRUE(out.has(name)) << name;
    EXPECT_EQ(out.find(name)->shape, shape) << name;
  }
  EXPECT_EQ(out.find("topk.1")->ids, std::vector<int32_t>(12, -1));
  EXPECT_TRUE(std::isinf(out.find("index_scores.1")->values[0]));
}

TEST_F(Collected, mode_ffn_declares_streams_and_experts_alone) {
  Collector some = collector();
  some.declare_ffn({2});
  const Record out = some.take();
  EXPECT_TRUE(out.has("resid") && out.has("router_ids") && out.has("positions"));
  EXPECT_FALSE(out.has("mid") || out.has("logits"));
}

TEST_F(Collected, preset_values_stay_where_nothing_is_computed) {
  Collector all = collector();
  all.declare({0});
  Array wanted;
  wanted.dtype = "BF16";
  wanted.shape = {4, 64};
  wanted.values.assign(256, 2.5f);
  all.preset("compressed_kv.1", wanted);
  all.preset("no_such_array", wanted);
  const Record out = run(all, 0, 1);  // closes no group of two
  EXPECT_EQ(out.find("compressed_kv.1")->values, wanted.values);
  EXPECT_FALSE(out.has("no_such_array"));
}

TEST_F(Collected, values_land_in_the_rows_of_their_positions) {
  Collector all = collector();
  all.declare({3, 1});  // any order
  const Record two = run(all, 0, 5);
  Collector whole = collector();
  whole.declare({0, 1, 2, 3, 4});
  const Record five = run(whole, 0, 5);
  for (const std::string name : {"resid", "mid", "pre", "window_kv", "taps", "logits", "engram_out"}) {
    const Array& got = *two.find(name);
    const Array& wanted = *five.find(name);
    EXPECT_TRUE(std::equal(got.row(0), got.row(0) + got.row_size(), wanted.row(3))) << name;
    EXPECT_TRUE(std::equal(got.row(1), got.row(1) + got.row_size(), wanted.row(1))) << name;
    EXPECT_FALSE(std::equal(got.row(0), got.row(0) + got.row_size(), wanted.row(2))) << name;
  }
  EXPECT_EQ(five.find("topk.3")->ids[3 * 8 + 3], 3);  // position 3 sees four groups of ratio 1
  EXPECT_EQ(five.find("topk.3")->ids[3 * 8 + 4], -1);
  EXPECT_EQ(five.find("candidate_blocks.3")->ids[3 * 3], 1);
  EXPECT_EQ(five.find("candidate_blocks.3")->ids[3 * 3 + 1], 0);
}

TEST_F(Collected, decode_arrays_start_behind_the_steps_without_a_draft) {
  Collector all = collector();
  all.declare_decode({5, 6}, 1, true);
  decode(*backend_, {{0, tokens_}});
  all.collect_decode(1, kTokens - 1);
  all.collect_draft(0, 42);
  const Record out = all.take();
  EXPECT_EQ(out.find("dec.tokens")->ids, (std::vector<int32_t>{5, 6}));
  EXPECT_EQ(out.find("dec.draft_ids")->shape, (Shape{1, 6}));
  EXPECT_EQ(out.find("dec.draft_ids")->ids[0], 42);
  EXPECT_EQ(out.find("dec.draft_logits")->shape, (Shape{1, 5, 128}));
  EXPECT_EQ(out.find("dec.logits")->shape, (Shape{2, 128}));
  EXPECT_EQ(std::vector<float>(out.find("dec.logits")->row(1), out.find("dec.logits")->row(1) + 128),
            probe_.logits(kTokens - 1));
  EXPECT_EQ(out.find("dec.topk")->shape, (Shape{2, 3, 8}));
  EXPECT_EQ(out.find("dec.topk")->ids[0], -1);
  Collector drafts = collector();
  drafts.declare_decode({5, 6}, 0, false);
  EXPECT_FALSE(drafts.take().has("dec.logits"));
}

}  // namespace
}  // namespace monostep::cpu
