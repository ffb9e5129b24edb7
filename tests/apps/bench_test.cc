// `monostep bench step`: bad options are refused by name and a machine without a GPU in words; medians, bytes, experts
// and CSV rows are right; whole series run on the emulator with a tiny geometry.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "../cpu/tiny_models.h"
#include "apps/bench_experts.h"
#include "apps/bench_report.h"
#include "apps/bench_step.h"
#include "emulated_program.h"
#include "gpu/cuda_driver.h"
#include "program.h"
#include "program/time_model.h"

namespace monostep::apps {
namespace {

std::string refusal(const std::string& arguments) {
  const ProgramRun run = run_program("bench step " + arguments);
  EXPECT_EQ(run.code, 2) << arguments << "\n" << run.err;
  EXPECT_EQ(run.out, "");
  return run.err;
}

TEST(BenchCommand, bad_values_are_refused_by_name) {
  const std::pair<const char*, const char*> cases[] = {
      {"--geometry huge", "--geometry"},
      {"--tp 3", "tp"},
      {"--rank 4", "--rank: expected 0 to 3, found 4"},
      {"--tp 1 --rank 1", "--rank: expected 0 to 0"},
      {"--requests 9", "--requests: expected 1 to 8"},
      {"--requests 0", "--requests: expected 1 to 8"},
      {"--context 1048576", "--context: expected 1 to 1048512"},
      {"--acceptance 7", "--acceptance: expected 1 to 6"},
      {"--acceptance nan", "--acceptance: expected 1 to 6"},
      {"--cut layers", "--cut: \"layers\" is none of step, layer, stage"},
      {"--steps 0", "--steps: expected 1 to 2047"},
      {"--steps 2000 --warmup 48", "--warmup: expected 0 to 47"},
      {"--engram-gib -1", "--engram-gib: expected 0 to"},
      {"--sms 0", "--sms: expected 1 to"},
      {"--delay-us -1", "--delay-us: expected 0 to 1000"},
      {"--delay-us nan", "--delay-us: expected 0 to 1000"},
      {"--laid-by gpu", "--laid-by"},
      {"--laid-by device --cut layer", "--laid-by"},
  };
  for (const auto& [arguments, words] : cases)
    EXPECT_NE(refusal(arguments).find(words), std::string::npos) << arguments << ": " << refusal(arguments);
  EXPECT_NE(refusal("--step 5").find("unknown option of step, the nearest is --steps"), std::string::npos);
  EXPECT_NE(run_program("bench").err.find("subcommand is required"), std::string::npos);
  EXPECT_NE(run_program("bench stop").err.find("unknown subcommand of bench, the nearest is step"), std::string::npos);
}

TEST(BenchCommand, a_machine_without_a_gpu_is_told_so) {
  if (gpu::open_driver().ok()) GTEST_SKIP() << "there is a driver";
  const ProgramRun run = run_program("bench step --geometry micro --tp 1 --context 1000");
  EXPECT_EQ(run.code, 4);
  EXPECT_NE(run.err.find("no usable device"), std::string::npos) << run.err;
}

TEST(BenchSpread, median_and_p90_are_those_of_the_sorted_values) {
  std::vector<double> values(101);
  std::iota(values.rbegin(), values.rend(), 0.0);
  const Spread odd = spread_of(values);
  EXPECT_EQ(odd.median, 50);
  EXPECT_EQ(odd.p90, 90);
  EXPECT_EQ(odd.least, 0);
  EXPECT_EQ(odd.most, 100);
  const Spread even = spread_of({4, 1, 3, 2});
  EXPECT_EQ(even.median, 2.5);
  EXPECT_EQ(even.p90, 4);
  std::vector<double> ten(10);
  std::iota(ten.begin(), ten.end(), 1.0);
  EXPECT_EQ(spread_of(ten).p90, 9);
  const Spread one = spread_of({7});
  EXPECT_EQ(one.median, 7);
  EXPECT_EQ(one.p90, 7);
}

program::Layout layout_of(const char* name, int tp, int requests) {
  const model::Geometry g = model::named_geometry(name).value();
  const model::Shard shard = model::make_shard(g, tp).value();
  return {g, shard, program::shape_for(g, requests * (g.dspark_block_size + 1), requests, 4096)};
}

// Puts the logit of an expert into the region as K slices that add up to it.
void put_logit(const program::Layout& layout, std::vector<uint64_t>& pairs, int row, int expert, float logit) {
  const int splits = layout.stage_splits(program::Stage::kFfnIn, 0);
  for (int split = 0; split < splits; ++split) {
    const float part = split == 0 ? logit - static_cast<float>(splits - 1) : 1.0f;
    const int64_t granule = int64_t{expert / program::kTile} * splits + split;
    const int64_t at = (granule * layout.rows() + row) * program::kTile + expert % program::kTile;
    pairs[static_cast<size_t>(at)] = uint64_t{7} << 32 | std::bit_cast<uint32_t>(part);
  }
}

TEST(BenchExperts, distinct_experts_are_those_of_the_routing_rule) {
  const program::Layout layout = layout_of("flash", 4, 1);
  ASSERT_GT(layout.stage_splits(program::Stage::kFfnIn, 0), 1);
  std::vector<uint64_t> pairs(static_cast<size_t>(layout.region_words(program::Region::kFfnInPart)));
  std::vector<float> bias(384);
  for (int row = 0; row < 6; ++row) {
    for (int expert = 0; expert < 384; ++expert) put_logit(layout, pairs, row, expert, 0);
    for (int pick = 0; pick < 6; ++pick) put_logit(layout, pairs, row, 100 + row + pick, 5);
  }
  EXPECT_EQ(count_experts(layout, 0, pairs, bias, 1), 6);   // 100..105
  EXPECT_EQ(count_experts(layout, 0, pairs, bias, 6), 11);  // 100..110
  bias[383] = 100;                                          // every row takes it, and leaves its last one
  EXPECT_EQ(count_experts(layout, 0, pairs, bias, 1), 6);
  EXPECT_EQ(count_experts(layout, 0, pairs, bias, 6), 11);  // 100..109, 383
  bias.assign(384, 0);
  bias[7] = 100;
  bias[8] = 100;
  EXPECT_EQ(count_experts(layout, 0, pairs, bias, 2), 7);  // 100..104, 7, 8
}

TEST(BenchBytes, a_step_reads_what_the_time_model_says) {
  const program::Layout layout = layout_of("flash", 4, 1);
  const std::vector<program::ChunkRun> runs = program::chunk_runs(layout);
  program::TimeQuery query;
  const program::TimeModel model = program::model_time(layout, query);
  std::vector<double> distinct(43, model.distinct_experts);
  std::fill(distinct.begin() + 40, distinct.end(), model.draft_distinct_experts);
  const StepBytes bytes = step_bytes(layout, runs, distinct);
  EXPECT_NEAR(static_cast<double>(bytes.total) / static_cast<double>(model.bytes), 1, 0.01);
  EXPECT_NEAR(static_cast<double>(bytes.draft) / static_cast<double>(model.draft_bytes), 1, 0.01);
  // One expert more in one backbone layer: w1, w3 and w2 of a rank, 4 bits and a scale byte for 32 of them.
  distinct[5] += 1;
  const StepBytes more = step_bytes(layout, runs, distinct);
  EXPECT_NEAR(static_cast<double>(more.total - bytes.total), 3.0 * 5120 * 576 * (0.5 + 1.0 / 32), 2);
  EXPECT_EQ(more.draft, bytes.draft);
}

struct Emulated {
  explicit Emulated(const BenchShape& shape, const weights::Checkpoint& checkpoint, int tp = 1, int rank_idx = 0)
      : device({.num_sms = 2, .total_bytes = int64_t{8} << 30, .max_turns = 4'000'000'000}) {
    gpu::RankOptions options;
    options.tp = tp;
    options.rank = rank_idx;
    options.num_pages = shape.requests * request_pages(shape);
    options.num_slots = shape.requests;
    options.max_context = request_context(shape);
    options.push = shape.peer_delay_us > 0 ? gpu::Push::kPlayed : gpu::Push::kSelf;
    options.push_delay_ns = static_cast<int>(shape.peer_delay_us * 1e3);
    rank = gpu::Rank::make(device, checkpoint, options, gpu::emulated_maker()).value();
  }
  gpu::EmulatedDevice device;
  std::unique_ptr<gpu::Rank> rank;
};

BenchShape tiny_shape() {
  BenchShape shape;
  shape.context = 70;
  shape.span = 40;
  shape.steps = 8;
  shape.warmup = 2;
  shape.acceptance = 2.5f;
  return shape;
}

void expect_figures(const StepFigures& figures, const gpu::Rank& rank) {
  const model::Geometry& g = rank.geometry();
  for (const Spread& spread : {figures.step_ms, figures.step_to_step_ms, figures.target_ms, figures.draft_ms}) {
    EXPECT_GT(spread.least, 0);
    EXPECT_LE(spread.least, spread.median);
    EXPECT_LE(spread.median, spread.p90);
    EXPECT_LE(spread.p90, spread.most);
  }
  EXPECT_GE(figures.step_to_step_ms.least, figures.step_ms.least);
  EXPECT_GT(figures.first_step_ms, 0);
  ASSERT_EQ(figures.distinct_experts.size(), static_cast<size_t>(g.num_layers()));
  for (int layer_idx = 0; layer_idx < g.num_layers(); ++layer_idx) {
    const double distinct = figures.distinct_experts[static_cast<size_t>(layer_idx)];
    EXPECT_GE(distinct, g.experts_per_token(layer_idx)) << layer_idx;
    EXPECT_LE(distinct, rank.band().layout.max_distinct_experts(layer_idx)) << layer_idx;
  }
}

TEST(BenchStep, a_series_runs_in_one_launch_a_step_and_in_one_a_stage) {
  BenchShape shape = tiny_shape();
  Emulated whole(shape, cpu::micro());
  const auto figures = measure_steps(whole.device, *whole.rank, shape);
  ASSERT_TRUE(figures.ok()) << figures.error().message();
  expect_figures(*figures, *whole.rank);
  EXPECT_EQ(figures->launches, 1);
  EXPECT_GE(figures->tokens, 2);
  EXPECT_LE(figures->tokens, 3);
  const gpu::MemoryUse memory = whole.rank->memory();
  const auto& band = whole.rank->band();
  EXPECT_EQ(memory.weights, program::packed_size(band.layout, band.plan.chunk_runs()).packed_bytes);
  EXPECT_GE(memory.pools, shape.requests * request_pages(shape) * whole.rank->page_layout().page_bytes());
  EXPECT_GE(memory.arena, band.plan.arena_bytes());
  EXPECT_GT(memory.tables, 0);
  EXPECT_GT(memory.pinned, 0);

  shape.cut = gpu::Cut::kStage;
  shape.steps = 2;
  Emulated staged(shape, cpu::micro());
  const auto by_stage = measure_steps(staged.device, *staged.rank, shape);
  ASSERT_TRUE(by_stage.ok()) << by_stage.error().message();
  EXPECT_EQ(by_stage->launches, staged.rank->num_calls());
}

// The walk of 40 positions holds 6 rows 6 times: series of 6 device rounds or less, then one laid out by the host.
TEST(BenchStep, steps_laid_out_by_the_device_take_as_many_tokens) {
  BenchShape shape = tiny_shape();
  shape.requests = 2;
  shape.device_rounds = true;
  Emulated emulated(shape, cpu::micro());
  const auto figures = measure_steps(emulated.device, *emulated.rank, shape);
  ASSERT_TRUE(figures.ok()) << figures.error().message();
  expect_figures(*figures, *emulated.rank);
  EXPECT_GE(figures->tokens, 2);
  EXPECT_LE(figures->tokens, 3);
}

TEST(BenchStep, any_rank_of_a_group_runs_with_played_peers) {
  BenchShape shape = tiny_shape();
  shape.steps = 2;
  shape.warmup = 0;
  for (const double delay_us : {0.0, 2.0}) {
    shape.peer_delay_us = delay_us;
    for (const int rank_idx : {0, 1}) {
      Emulated emulated(shape, cpu::micro(), 2, rank_idx);
      const auto figures = measure_steps(emulated.device, *emulated.rank, shape);
      ASSERT_TRUE(figures.ok()) << rank_idx << ": " << figures.error().message();
      expect_figures(*figures, *emulated.rank);
    }
  }
}

BenchReport some_report() {
  BenchReport report;
  report.machine = "GPU, \"fast\"";
  report.commit = "abc";
  report.model = "flash";
  report.figures.step_ms = {4, 5, 3, 6};
  report.bytes.total = 8'000'000'000;
  report.bandwidth = {4e12, 3.9e12, 4.1e12};
  report.engram_gib = 8;
  report.engram_rows = 10;
  report.engram_rows_all = 20;
  report.shape.peer_delay_us = 2;
  report.start.load.engram_s = 1.5;
  report.start.load.weights.from = gpu::WeightsFrom::kCache;
  report.start.load.weights.file_bytes = 77;
  return report;
}

// Fields of a line of a CSV file.
std::vector<std::string> fields(const std::string& line) {
  std::vector<std::string> out(1);
  bool quoted = false;
  for (size_t at = 0; at + 1 < line.size(); ++at) {
    if (line[at] == '"') {
      if (quoted && line[at + 1] == '"')
        out.back() += line[++at];
      else
        quoted = !quoted;
    } else if (line[at] == ',' && !quoted) {
      out.emplace_back();
    } else {
      out.back() += line[at];
    }
  }
  return out;
}

TEST(BenchReport, a_row_has_a_value_for_each_column) {
  const std::vector<std::string> names = fields(bench_csv_header());
  const std::vector<std::string> values = fields(bench_csv_row(some_report()));
  ASSERT_EQ(names.size(), values.size());
  const auto value = [&](const char* name) {
    const auto at = std::find(names.begin(), names.end(), name);
    return at == names.end() ? std::string("no such column") : values[static_cast<size_t>(at - names.begin())];
  };
  EXPECT_EQ(value("machine"), "GPU, \"fast\"");
  EXPECT_EQ(value("step_ms"), "4.0000");
  EXPECT_EQ(value("step_ms_p90"), "5.0000");
  EXPECT_EQ(value("bytes"), "8000000000");
  EXPECT_EQ(value("floor_ms"), "2.0000");
  EXPECT_EQ(value("share"), "0.5000");
  EXPECT_EQ(value("read_tb_s"), "4.0000");
  EXPECT_EQ(value("peer_delay_us"), "2.0");
  EXPECT_EQ(value("weights_from"), "cache");
  EXPECT_EQ(value("engram_s"), "1.500");
  EXPECT_EQ(value("packed_file_bytes"), "77");
}

TEST(BenchReport, the_text_says_that_engram_rows_are_taken_modulo) {
  BenchReport report = some_report();
  EXPECT_NE(bench_text(report).find("10 of 20 rows pinned (at most 8 GiB), row numbers taken modulo"),
            std::string::npos);
  EXPECT_NE(bench_text(report).find("50.0 % of the bandwidth"), std::string::npos);
  report.engram_rows = 20;
  EXPECT_EQ(bench_text(report).find("modulo"), std::string::npos);
  EXPECT_EQ(bench_text(report).find("peers"), std::string::npos);
  report.tp = 4;
  EXPECT_NE(bench_text(report).find("2.0 us after they are seen"), std::string::npos);
  report.shape.peer_delay_us = 0;
  EXPECT_NE(bench_text(report).find("without delay"), std::string::npos);
}

TEST(BenchReport, rows_are_appended_below_one_header_and_never_below_another) {
  const TempDir dir;
  const auto path = dir / "step.csv";
  ASSERT_TRUE(append_bench_csv(path, some_report()).ok());
  ASSERT_TRUE(append_bench_csv(path, some_report()).ok());
  const std::string row = bench_csv_row(some_report());
  EXPECT_EQ(read_text_file(path, 1 << 20).value(), bench_csv_header() + row + row);
  const auto other = dir / "other.csv";
  ASSERT_TRUE(write_text_file(other, "date,ms\n").ok());
  const Status refused = append_bench_csv(other, some_report());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::kInvalidArgument);
  EXPECT_EQ(read_text_file(other, 1 << 20).value(), "date,ms\n");
  EXPECT_FALSE(append_bench_csv(dir / "none" / "step.csv", some_report()).ok());
}

TEST(BenchReport, the_kept_results_have_these_columns) {
  const std::string kept = read_text_file(MONOSTEP_SOURCE_DIR "/bench/results/step.csv", 1 << 24).value();
  EXPECT_EQ(kept.substr(0, kept.find('\n') + 1), bench_csv_header());
  const size_t num_columns = fields(bench_csv_header()).size();
  for (size_t at = 0; at < kept.size(); at = kept.find('\n', at) + 1)
    EXPECT_EQ(fields(kept.substr(at, kept.find('\n', at) + 1 - at)).size(), num_columns) << "at byte " << at;
}

}  // namespace
}  // namespace monostep::apps
