// The probe: what is fed is what the stages then see on every rank, and what is read is what they computed.
#include "cpu/probe.h"

#include "cpu/stage_common.h"
#include "dense.h"
#include "tiny_models.h"

namespace monostep::cpu {
namespace {

std::vector<float> numbers(size_t count, int salt) {
  std::vector<float> out;
  for (size_t idx = 0; idx < count; ++idx)
    out.push_back(round_bf16(static_cast<float>((idx * 31 + static_cast<size_t>(salt) * 17) % 199) / 50.0f - 2.0f));
  return out;
}

class Probed : public testing::TestWithParam<int> {
 protected:
  Probed() : backend_(made_backend(micro(), options())), probe_(*backend_) {
    EXPECT_TRUE(backend_->begin_step(step_of({{0, prompt(kRows)}})).ok());
  }
  static CpuOptions options() {
    CpuOptions out = small_options();
    out.tp = GetParam();
    return out;
  }
  void run(Stage stage, int layer) {
    const int call_idx = backend_->machine().program().find(stage, layer);
    const Status status = backend_->run({call_idx, call_idx + 1});
    EXPECT_TRUE(status.ok()) << status.error().message();
  }

  static constexpr int kRows = 3;
  const model::Geometry& geometry_ = micro().geometry();
  const size_t streams_ = static_cast<size_t>(geometry_.hc_mult * geometry_.hidden_size);
  std::unique_ptr<CpuBackend> backend_;
  Probe probe_;
};

TEST_P(Probed, a_fed_layer_starts_from_the_fed_streams) {
  for (const Stage stage : {Stage::kFfnFold, Stage::kFfnMix, Stage::kExpertDown}) probe_.mark_put(stage, 2);
  for (int rank = 0; rank < GetParam(); ++rank) {
    float* exchange = backend_->machine().ranks[static_cast<size_t>(rank)].regions->data(Region::kFfnExchange, 0);
    std::fill_n(exchange, backend_->machine().layout().region_words(Region::kFfnExchange),
                5.0f);  // must not matter: post is 0
  }
  const std::vector<float> pre = {0.5f, 0, 0.25f, 0};
  for (int row = 0; row < kRows; ++row) probe_.feed_layer(3, row, numbers(streams_, row), pre);
  run(Stage::kFold, 3);
  for (int row = 0; row < kRows; ++row) {
    EXPECT_EQ(probe_.attn_streams(3, row), numbers(streams_, row));
    EXPECT_EQ(probe_.out_streams(2, row), numbers(streams_, row));
  }
}

TEST_P(Probed, a_fed_ffn_site_starts_from_the_fed_streams) {
  for (const Stage stage : {Stage::kFold, Stage::kAttnMix, Stage::kWoB}) probe_.mark_put(stage, 1);
  const std::vector<float> pre = {1, 0, 0, 0};
  for (int row = 0; row < kRows; ++row) probe_.feed_ffn(1, row, numbers(streams_, row + 5), pre);
  run(Stage::kFfnFold, 1);
  for (int row = 0; row < kRows; ++row) EXPECT_EQ(probe_.ffn_streams(1, row), numbers(streams_, row + 5));
}

TEST_P(Probed, fed_engram_streams_get_nothing_added) {
  for (const Stage stage : {Stage::kEngramKv, Stage::kEngramFold}) probe_.mark_put(stage, 2);
  probe_.mark_put(Stage::kFfnMix, 1);
  for (int rank = 0; rank < GetParam(); ++rank) {
    RegionStore& regions = *backend_->machine().ranks[static_cast<size_t>(rank)].regions;
    std::fill_n(regions.data(Region::kEngramDots, 0), backend_->machine().layout().region_words(Region::kEngramDots),
                1.0f);
  }
  for (int row = 0; row < kRows; ++row) probe_.feed_engram(2, row, numbers(streams_, row));
  run(Stage::kFold, 2);
  for (int row = 0; row < kRows; ++row) EXPECT_EQ(probe_.attn_streams(2, row), numbers(streams_, row));
}

TEST_P(Probed, fed_taps_are_read_back) {
  const auto width = static_cast<size_t>(geometry_.num_taps() * geometry_.hidden_size);
  for (int row = 0; row < kRows; ++row) probe_.feed_taps(row, numbers(width, row));
  for (int row = 0; row < kRows; ++row) EXPECT_EQ(probe_.taps(row), numbers(width, row));
}

TEST_P(Probed, a_fed_verdict_is_what_the_draft_starts_from) {
  const int end = static_cast<int>(backend_->machine().program().calls.size());
  EXPECT_TRUE(backend_->run({0, backend_->machine().program().section_begin(program::Section::kDraft)}).ok());
  probe_.feed_verdict(0, kRows - 1, 77);
  EXPECT_TRUE(backend_->run({backend_->machine().program().section_begin(program::Section::kDraft), end}).ok());
  const float* verdict = backend_->machine().ranks[0].regions->data(Region::kVerdictOut, 0);
  EXPECT_EQ(verdict_of(backend_->machine().layout(), verdict, 0).anchor, 77);
  // Row 0 of the draft block is the anchor's embedding.
  const Dense embed = dense(micro(), "embed.weight");
  const int row = 0;
  EXPECT_TRUE(backend_->begin_step(step_of({{0, prompt(kRows)}})).ok());
  EXPECT_TRUE(backend_->run({0, backend_->machine().program().section_begin(program::Section::kDraft)}).ok());
  probe_.feed_verdict(0, kRows - 1, 77);
  run(Stage::kFold, geometry_.num_hidden_layers);
  const std::vector<float> streams = probe_.attn_streams(geometry_.num_hidden_layers, row);
  for (size_t idx = 0; idx < streams.size(); ++idx)
    ASSERT_EQ(streams[idx], embed.row(77)[idx % static_cast<size_t>(geometry_.hidden_size)]);
}

TEST_P(Probed, readings_agree_with_the_steps_outputs) {
  const program::StepOutputs outputs = decode(*backend_, {{0, prompt(kRows)}});
  const auto argmax = [](const std::vector<float>& logits) {
    return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  };
  EXPECT_EQ(argmax(probe_.logits(kRows - 1)), outputs.requests[0].tokens[0]);
  for (int position = 0; position < 5; ++position) {
    EXPECT_EQ(argmax(probe_.draft_logits(0, position)), outputs.requests[0].drafts[static_cast<size_t>(position)]);
  }
  const int last_draft = geometry_.num_layers() - 1;
  EXPECT_EQ(probe_.routing(last_draft, 0, false).experts.size(),
            static_cast<size_t>(geometry_.dspark_num_experts_per_tok));
}

INSTANTIATE_TEST_SUITE_P(Ranks, Probed, testing::Values(1, 2));

}  // namespace
}  // namespace monostep::cpu
