// Measuring steps (apps/bench_step.h).
#include "apps/bench_step.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <map>
#include <numeric>
#include <utility>

#include "apps/bench_experts.h"
#include "apps/bench_sequences.h"
#include "base/check.h"
#include "program/step_rules.h"

namespace monostep::apps {
namespace {

using program::CallRange;
using program::Region;
using program::Section;
using program::Stage;
using Clock = std::chrono::steady_clock;

constexpr int kPartSteps = 100;   // at most, of the series in two parts
constexpr int kExpertSteps = 5;   // at most, whose routing is read back
constexpr double kPatience = 10;  // seconds that a step laid out by the device may take to begin

class StepBench {
 public:
  StepBench(gpu::Device& device, gpu::Rank& rank, const BenchShape& shape)
      : device_(device), rank_(rank), shape_(shape), sequences_(rank.geometry(), shape) {}

  Result<StepFigures> run() {
    TRY(fill_pages(rank_, shape_));
    TRY(measure_first());
    TRY(measure_series());
    TRY(measure_parts());
    TRY(count_all_experts());
    return std::move(figures_);
  }

 private:
  const program::Program& program() const { return rank_.band().layout.program(); }
  CallRange all_calls() const { return {0, rank_.num_calls()}; }

  Status begin() { return rank_.begin_step(sequences_.next_inputs(), ++epoch_); }

  Status launch(const CallRange& range) {
    if (shape_.cut == gpu::Cut::kStage) return launch_graph(range);
    for (const CallRange& part : cut_calls(program(), range, shape_.cut)) TRY(rank_.launch(part.first, part.last));
    return {};
  }

  // A launch is given the same in every step, so a range is captured once.
  Status launch_graph(const CallRange& range) {
    const std::pair key(range.first, range.last);
    if (!graphs_.contains(key)) {
      TRY(device_.begin_capture());
      Status launched;
      for (const CallRange& part : cut_calls(program(), range, shape_.cut)) {
        if (launched.ok()) launched = rank_.launch(part.first, part.last);
      }
      Result<gpu::Graph> graph = device_.end_capture();
      if (!launched.ok()) return launched.error();
      if (!graph.ok()) return graph.error();
      graphs_.emplace(key, *graph);
    }
    return device_.launch(graphs_.at(key));
  }

  Status read_words(Region region, Stage writer, std::vector<float>& words) {
    std::vector<uint64_t> pairs;
    TRY(read_pairs(region, program().find(writer, -1), pairs));
    words.clear();
    for (const uint64_t pair : pairs) words.push_back(std::bit_cast<float>(static_cast<uint32_t>(pair)));
    return {};
  }

  // What a call of this step wrote.
  Status read_pairs(Region region, int writer_idx, std::vector<uint64_t>& pairs) {
    const gpu::Rank::Band& band = rank_.band();
    const program::Call& writer = program().calls[static_cast<size_t>(writer_idx)];
    TRY(rank_.read_region(region, program::copy_of(program(), rank_.geometry(), region, writer), pairs));
    if (static_cast<uint32_t>(pairs[0] >> 32) == band.plan.tag(epoch_, writer_idx)) return {};
    return Error{Code::kInternal, "the step ended without its " + std::string(program::decl(region).name), "GPU step"};
  }

  // Waits for a step laid out by the host and takes its ids.
  Status finish() {
    TRY(rank_.finish());
    std::vector<float> verdict, draft;
    TRY(read_words(Region::kVerdictOut, Stage::kVerdict, verdict));
    TRY(read_words(Region::kDraft, Stage::kDraftOut, draft));
    sequences_.take(program::read_outputs(sequences_.inputs(), rank_.geometry().dspark_block_size, verdict, draft));
    return {};
  }

  Status measure_first() {
    const Clock::time_point start = Clock::now();
    TRY(begin());
    TRY(launch(all_calls()));
    TRY(finish());
    figures_.first_step_ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
    figures_.launches = static_cast<int>(cut_calls(program(), all_calls(), shape_.cut).size());
    return {};
  }

  Status measure_series() {
    const int total = shape_.warmup + shape_.steps;
    for (int step = 0; step < total; ++step) {
      if (step == shape_.warmup) sequences_.count_from_here();
      TRY(shape_.device_rounds ? run_round(step) : run_host_step(step));
    }
    if (shape_.device_rounds) TRY(rank_.finish());
    figures_.tokens = sequences_.tokens_a_step();
    std::vector<double> steps, to_next;
    for (int step = shape_.warmup; step < total; ++step) {
      TRY_ASSIGN(const float ms, device_.elapsed_ms(2 * step, 2 * step + 1));
      steps.push_back(ms);
      if (step + 1 == total) continue;
      TRY_ASSIGN(const float ms_to_next, device_.elapsed_ms(2 * step, 2 * step + 2));
      to_next.push_back(ms_to_next);
    }
    figures_.step_ms = spread_of(std::move(steps));
    if (!to_next.empty()) figures_.step_to_step_ms = spread_of(std::move(to_next));
    return {};
  }

  Status launch_between_events(int step) {
    TRY(device_.record(2 * step));
    TRY(launch(all_calls()));
    return device_.record(2 * step + 1);
  }

  Status run_host_step(int step) {
    TRY(begin());
    TRY(launch_between_events(step));
    return finish();
  }

  // A step laid out by the device behind the one before; when the requests' pages end, one laid out by the host.
  Status run_round(int step) {
    const int rows = sequences_.rows_a_request();
    if (rounds_left_ == 0) {
      TRY(rank_.finish());
      sequences_.rewind();
      TRY(begin());
      rounds_left_ = std::max(shape_.span / rows - 1, 0);
      return launch_between_events(step);
    }
    --rounds_left_;
    TRY(rank_.continue_step(sequences_.slots()));
    ++epoch_;
    TRY(launch_between_events(step));
    TRY_ASSIGN(const program::StepOutputs outputs, rank_.previous_outputs(kPatience));
    sequences_.take(outputs);
    return {};
  }

  Status measure_parts() {
    const int cut = program().section_begin(Section::kContext);
    std::vector<double> target, draft;
    for (int step = 0; step < std::min(kPartSteps, shape_.steps); ++step) {
      TRY(begin());
      TRY(device_.record(0));
      TRY(launch({0, cut}));
      TRY(device_.record(1));
      TRY(launch({cut, rank_.num_calls()}));
      TRY(device_.record(2));
      TRY(finish());
      TRY_ASSIGN(const float target_ms, device_.elapsed_ms(0, 1));
      TRY_ASSIGN(const float draft_ms, device_.elapsed_ms(1, 2));
      target.push_back(target_ms);
      draft.push_back(draft_ms);
    }
    figures_.target_ms = spread_of(std::move(target));
    figures_.draft_ms = spread_of(std::move(draft));
    return {};
  }

  // Steps that stop behind each layer's router, so that its sums can be read before a later layer overwrites them.
  Status count_all_experts() {
    TRY_ASSIGN(const auto biases, router_biases(rank_));
    std::vector<double>& distinct = figures_.distinct_experts;
    distinct.assign(biases.size(), 0);
    const int num_steps = std::min(kExpertSteps, shape_.steps);
    for (int step = 0; step < num_steps; ++step) TRY(count_step(biases));
    for (double& count : distinct) count /= num_steps;
    const auto first_draft = distinct.begin() + rank_.geometry().num_hidden_layers;
    const auto mean = [](auto begin, auto end) { return std::accumulate(begin, end, 0.0) / double(end - begin); };
    figures_.backbone_experts = mean(distinct.begin(), first_draft);
    figures_.draft_experts = mean(first_draft, distinct.end());
    return {};
  }

  Status count_step(const std::vector<std::vector<float>>& biases) {
    TRY(begin());
    int done = 0;
    for (int call_idx = 0; call_idx < rank_.num_calls(); ++call_idx) {
      const program::Call& call = program().calls[static_cast<size_t>(call_idx)];
      if (call.stage != Stage::kFfnIn) continue;
      TRY(rank_.launch(done, call_idx + 1));
      done = call_idx + 1;
      TRY(rank_.finish());
      std::vector<uint64_t> pairs;
      TRY(read_pairs(Region::kFfnInPart, call_idx, pairs));
      const auto layer = static_cast<size_t>(call.layer);
      const int rows = shape_.requests * rank_.geometry().dspark_block_size;
      const int live = call.section == Section::kDraft ? rows : rows + shape_.requests;
      figures_.distinct_experts[layer] += count_experts(rank_.band().layout, call.layer, pairs, biases[layer], live);
    }
    TRY(rank_.launch(done, rank_.num_calls()));
    return finish();
  }

  gpu::Device& device_;
  gpu::Rank& rank_;
  BenchShape shape_;
  BenchSequences sequences_;
  uint32_t epoch_ = 0;
  int rounds_left_ = 0;  // steps that the device may lay out before the requests begin anew
  std::map<std::pair<int, int>, gpu::Graph> graphs_;  // by range of calls
  StepFigures figures_;
};

}  // namespace

int request_context(const BenchShape& shape) { return round_up(shape.context + shape.span, program::kPageTokens); }

int request_pages(const BenchShape& shape) { return request_context(shape) / program::kPageTokens; }

Spread spread_of(std::vector<double> values) {
  CHECK(!values.empty(), "a spread of no values");
  std::sort(values.begin(), values.end());
  const size_t count = values.size();
  const size_t p90 = (count * 9 + 9) / 10 - 1;
  return {(values[(count - 1) / 2] + values[count / 2]) / 2, values[p90], values.front(), values.back()};
}

Result<StepFigures> measure_steps(gpu::Device& device, gpu::Rank& rank, const BenchShape& shape) {
  CHECK(!shape.device_rounds || shape.cut == gpu::Cut::kStep, "a step laid out by the device is one launch");
  CHECK(shape.steps > 0 && shape.warmup + shape.steps <= kMaxBenchSteps, "as many steps as there are events");
  return StepBench(device, rank, shape).run();
}

}  // namespace monostep::apps
