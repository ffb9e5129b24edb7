// The CPU reference behind the Backend interface (cpu/backend.h).
#include "cpu/backend.h"

#include <algorithm>
#include <thread>

#include "base/check.h"
#include "cpu/stage_common.h"

namespace monostep::cpu {

using program::Region;
using program::StepInputs;

Result<std::unique_ptr<CpuBackend>> CpuBackend::make(const weights::Checkpoint& checkpoint, const CpuOptions& options) {
  TRY_ASSIGN(const model::Shard shard, model::make_shard(checkpoint.geometry(), options.tp));
  std::unique_ptr<CpuBackend> out(new CpuBackend(options));
  out->geometry_ = checkpoint.geometry();
  out->shard_ = shard;
  const int threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  out->num_ctas_ = options.ctas > 0 ? options.ctas : std::max(1, threads / options.tp);
  Machine& machine = out->machine_;
  machine.tables = make_tables(checkpoint);
  machine.ranks.resize(static_cast<size_t>(options.tp));
  out->choose_band(1, 1);
  for (int rank = 0; rank < options.tp; ++rank) {
    RankState& state = machine.ranks[static_cast<size_t>(rank)];
    state.weights = std::make_unique<RankWeights>(load_rank(checkpoint, machine.layout(), rank));
    state.pools = std::make_unique<kv::Pools>(out->geometry_, options.num_pages, options.num_slots);
  }
  if (options.checks)
    machine.finished = std::vector<std::atomic<int>>(static_cast<size_t>(options.tp * out->num_ctas_));
  return out;
}

void CpuBackend::choose_band(int rows, int requests) {
  const program::Shape shape = program::shape_for(geometry_, rows, requests, options_.max_context);
  const int band = shape.band;
  const auto band_idx =
      static_cast<size_t>(std::find(program::kBands.begin(), program::kBands.end(), band) - program::kBands.begin());
  if (!bands_[band_idx]) {
    bands_[band_idx] = std::make_unique<Band>(geometry_, shard_, shape, num_ctas_);
  }
  machine_.band = bands_[band_idx].get();
  for (size_t rank = 0; rank < machine_.ranks.size(); ++rank)
    machine_.ranks[rank].regions = machine_.band->regions[rank].get();
}

void CpuBackend::lay_out_rows() {
  machine_.target_rows.clear();
  machine_.draft_rows.clear();
  machine_.image_row_of.clear();
  int image_row = 0;
  for (size_t request_idx = 0; request_idx < inputs_.requests.size(); ++request_idx) {
    const program::StepRequest& request = inputs_.requests[request_idx];
    const int owner = static_cast<int>(request_idx);
    for (int offset = 0; offset < request.num_rows; ++offset) {
      const program::StepRow& row = inputs_.rows[static_cast<size_t>(request.first_row + offset)];
      machine_.target_rows.push_back(
          {request.first_row + offset, owner, row.token, request.first_position + offset, row.image, 0});
      machine_.image_row_of.push_back(row.image ? image_row++ : -1);
    }
    for (int position = 0; request.draft && position < geometry_.dspark_block_size; ++position) {
      machine_.draft_rows.push_back(
          {owner * geometry_.dspark_block_size + position, owner, geometry_.dspark_noise_token_id, 0, false, position});
    }
  }
}

Status CpuBackend::begin_step(const StepInputs& inputs) {
  TRY(program::check_step(inputs, geometry_, {options_.num_slots, options_.num_pages, options_.max_context}));
  inputs_ = inputs;
  inputs_.epoch = ++epoch_;
  machine_.inputs = &inputs_;
  machine_.aborted = false;
  machine_.violation.clear();
  choose_band(static_cast<int>(inputs_.rows.size()), static_cast<int>(inputs_.requests.size()));
  lay_out_rows();
  for (std::atomic<int>& calls : machine_.finished) calls = 0;
  if (options_.checks) {
    for (RankState& rank : machine_.ranks) rank.regions->poison();
  }
  return {};
}

Status CpuBackend::run(const CallRange& range) {
  if (runner_) return runner_(machine_, range);
  return options_.checks ? run_calls_in_random_order(machine_, range, options_.order_seed + epoch_)
                         : run_calls(machine_, range);
}

Result<program::Ticket> CpuBackend::decode(const StepInputs& inputs) {
  TRY(begin_step(inputs));
  for (const CallRange& range : program::needed_calls(machine_.program(), inputs_)) TRY(run(range));
  outputs_ = program::wants_head(inputs_)
                 ? outputs()
                 : program::StepOutputs{std::vector<program::RequestOutput>(inputs_.requests.size())};
  return ++ticket_;
}

program::StepOutputs CpuBackend::outputs() const {
  RegionStore& regions = *machine_.ranks[0].regions;
  return program::read_outputs(inputs_, geometry_.dspark_block_size, regions.words(Region::kVerdictOut, 0),
                               regions.words(Region::kDraft, 0));
}

Result<program::StepOutputs> CpuBackend::wait(program::Ticket ticket) {
  if (ticket != ticket_) return Error{Code::kInvalidArgument, "only the latest step can be waited for", "step"};
  return outputs_;
}

void CpuBackend::clear_slot(int state_slot) {
  for (RankState& rank : machine_.ranks) {
    std::byte* slot = rank.pools->slot(state_slot);
    std::fill(slot, slot + rank.pools->slot_layout.slot_bytes(), std::byte{0});
  }
}

}  // namespace monostep::cpu
