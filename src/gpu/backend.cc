// One rank on one GPU behind the Backend interface (gpu/backend.h).
#include "gpu/backend.h"

#include <fmt/format.h>

#include <bit>
#include <thread>

namespace monostep::gpu {

using program::CallRange;
using program::Region;
using program::Stage;
using program::StepOutputs;
using Clock = std::chrono::steady_clock;

namespace {

constexpr auto kSpinTime = std::chrono::milliseconds(10);  // longer steps are watched at a slower pace
constexpr auto kWatchPace = std::chrono::microseconds(100);

}  // namespace

Status GpuBackend::prepare(int num_rows, int num_requests) {
  if (lost_) return *lost_;
  return rank_->prepare(num_rows, num_requests);
}

// The first reason stays.
Error GpuBackend::lose(Error why) {
  if (!lost_) {
    lost_ = std::move(why);
    device_.abandon(*lost_);
  }
  return *lost_;
}

Result<program::Ticket> GpuBackend::decode(const program::StepInputs& inputs) {
  const RankOptions& rank = rank_->options();
  TRY(program::check_step(inputs, rank_->geometry(), {rank.num_slots, rank.num_pages, rank.max_context}));
  if (lost_) return *lost_;
  if (ticket_ > 0 && !result_) TRY(wait(ticket_));
  inputs_ = inputs;
  const Status begun = begin();
  if (!begun.ok()) return begun.error().code == Code::kDeviceFailed ? lose(begun.error()) : begun.error();
  launched_ = Clock::now();
  result_.reset();
  return ++ticket_;
}

Status GpuBackend::begin() {
  TRY(rank_->begin_step(inputs_, ++epoch_));
  for (const CallRange& range : program::needed_calls(rank_->band().layout.program(), inputs_)) TRY(launch(range));
  return {};
}

Status GpuBackend::launch(const CallRange& range) {
  if (options_.cut == Cut::kStage) return launch_graph(range);
  for (const CallRange& part : cut_calls(rank_->band().layout.program(), range, options_.cut))
    TRY(rank_->launch(part.first, part.last));
  return {};
}

// Everything that a launch is given stays the same from step to step, so a band's launches are captured once.
Status GpuBackend::launch_graph(const CallRange& range) {
  const std::tuple key(rank_->band().layout.shape().band, range.first, range.last);
  const auto known = graphs_.find(key);
  if (known != graphs_.end()) return device_.launch(known->second);
  TRY_ASSIGN(const Graph graph, capture(range));
  graphs_.emplace(key, graph);
  return device_.launch(graph);
}

Result<Graph> GpuBackend::capture(const CallRange& range) {
  TRY(device_.begin_capture());
  Status launched;
  for (const CallRange& part : cut_calls(rank_->band().layout.program(), range, options_.cut)) {
    if (launched.ok()) launched = rank_->launch(part.first, part.last);
  }
  Result<Graph> graph = device_.end_capture();
  if (!launched.ok()) return launched.error();
  return graph;
}

Result<bool> GpuBackend::idle_by(Clock::time_point deadline) {
  for (;;) {
    TRY_ASSIGN(const bool idle, device_.idle());
    if (idle) return true;
    const Clock::time_point now = Clock::now();
    if (now >= deadline) return false;
    if (now < launched_ + kSpinTime) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kWatchPace);
    }
  }
}

Status GpuBackend::await() {
  TRY_ASSIGN(const bool in_time, idle_by(launched_ + options_.watchdog));
  if (in_time) return rank_->finish();
  rank_->abort();
  TRY_ASSIGN(const bool left, idle_by(Clock::now() + options_.watchdog));
  if (!left) {
    return Error{
        Code::kDeviceFailed,
        fmt::format("the step is not done after {} ms and does not heed its abort word", options_.watchdog.count()),
        "GPU step"};
  }
  const Status report = rank_->finish();
  if (report.ok()) return report;
  return Error{Code::kTimeout, fmt::format("{} (watchdog after {} ms)", report.error().text, options_.watchdog.count()),
               report.error().place};
}

// Words of copy 0 of a region; the step must have written the one at `tagged_word`.
Status GpuBackend::read_words(Region region, Stage writer, size_t tagged_word, std::vector<float>& words) {
  std::vector<uint64_t> pairs;
  TRY(rank_->read_region(region, 0, pairs));
  const Rank::Band& band = rank_->band();
  const uint32_t tag = band.plan.tag(epoch_, band.layout.program().find(writer, -1));
  if (static_cast<uint32_t>(pairs[tagged_word] >> 32) != tag) {
    return Error{Code::kInternal, fmt::format("the step ended without its {}", program::decl(region).name), "GPU step"};
  }
  words.clear();
  for (const uint64_t pair : pairs) words.push_back(std::bit_cast<float>(static_cast<uint32_t>(pair)));
  return {};
}

Result<StepOutputs> GpuBackend::collect() {
  TRY(await());
  if (!program::wants_head(inputs_)) return StepOutputs{std::vector<program::RequestOutput>(inputs_.requests.size())};
  std::vector<float> verdict, draft;
  TRY(read_words(Region::kVerdictOut, Stage::kVerdict, 0, verdict));
  const int draft_length = rank_->geometry().dspark_block_size;
  if (inputs_.any_draft()) {  // the words of requests that do not draft are left as they are
    size_t drafting = 0;
    while (!inputs_.requests[drafting].draft) ++drafting;
    TRY(read_words(Region::kDraft, Stage::kDraftOut, drafting * 2 * static_cast<size_t>(draft_length), draft));
  }
  return program::read_outputs(inputs_, draft_length, verdict, draft);
}

Result<StepOutputs> GpuBackend::wait(program::Ticket ticket) {
  if (ticket != ticket_ || ticket == 0)
    return Error{Code::kInvalidArgument, "only the latest step can be waited for", "step"};
  if (!result_) {
    result_ = collect();
    if (!result_->ok() && result_->error().code == Code::kDeviceFailed) result_ = lose(result_->error());
  }
  return *result_;
}

void GpuBackend::clear_slot(int state_slot) {
  if (lost_) return;
  const Status cleared = rank_->clear_slot(state_slot);
  if (!cleared.ok()) lose(cleared.error());
}

}  // namespace monostep::gpu
