// The CPU reference behind the Backend interface (cpu/backend.h).
#include "cpu/backend.h"

#include <algorithm>
#include <thread>

#include "base/check.h"
#include "cpu/stage_common.h"

namespace monostep::cpu {

using program::Region;
using program::Section;
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

Status CpuBackend::check(const StepInputs& inputs) const {
  const auto refuse = [](const std::string& text) { return Error{Code::kInvalidArgument, text, "step"}; };
  if (inputs.requests.empty() || inputs.requests.size() > program::kMaxRequests)
    return refuse("between 1 and 8 requests are served");
  if (inputs.rows.empty() || inputs.rows.size() > program::kMaxBand) return refuse("between 1 and 48 rows are served");
  int next_row = 0;
  std::vector<int> slots;
  for (const program::StepRequest& request : inputs.requests) {
    if (request.first_row != next_row || request.num_rows < 1)
      return refuse("rows of the requests do not follow each other");
    next_row += request.num_rows;
    const int end = request.first_position + request.num_rows;
    if (request.first_position < 0 || end > options_.max_context) {
      return refuse("position " + std::to_string(end - 1) + " is beyond the context of " +
                    std::to_string(options_.max_context));
    }
    if (request.state_slot < 0 || request.state_slot >= options_.num_slots) return refuse("no such state slot");
    if (std::find(slots.begin(), slots.end(), request.state_slot) != slots.end())
      return refuse("two requests on one state slot");
    slots.push_back(request.state_slot);
    if (static_cast<int>(request.pages.size()) * program::kPageTokens < end)
      return refuse("the page table is too short");
    if (request.num_drafts >= request.num_rows || request.num_drafts > geometry_.dspark_block_size)
      return refuse("too many drafts");
    if (request.draft && (!request.sample || !request.context || geometry_.num_nextn_predict_layers == 0)) {
      return refuse("a draft needs a sampled token, context rows and draft layers");
    }
    for (const int32_t page : request.pages) {
      if (page < 0 || page >= options_.num_pages) return refuse("no such page");
    }
  }
  if (next_row != static_cast<int>(inputs.rows.size())) return refuse("rows that belong to no request");
  for (const program::StepRow& row : inputs.rows) {
    if (row.token < 0 || row.token >= geometry_.vocab_size)
      return refuse("token " + std::to_string(row.token) + " is not in the vocabulary");
  }
  return {};
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
  TRY(check(inputs));
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
  const program::Program& program = machine_.program();
  const int head = program.section_begin(Section::kHead);
  const int context = program.section_begin(Section::kContext);
  const int draft = program.section_begin(Section::kDraft);
  const bool wants_head =
      std::any_of(inputs_.rows.begin(), inputs_.rows.end(), [](const auto& row) { return row.needs_logits; });
  int first = 0;
  if (!wants_head) {
    TRY(run({0, head}));
    first = context;
  }
  const int last = inputs_.any_draft()     ? static_cast<int>(program.calls.size())
                   : inputs_.any_context() ? draft
                                           : context;
  if (first < last) TRY(run({first, last}));
  outputs_ =
      wants_head ? outputs() : program::StepOutputs{std::vector<program::RequestOutput>(inputs_.requests.size())};
  return ++ticket_;
}

program::StepOutputs CpuBackend::outputs() const {
  program::StepOutputs out;
  const program::Layout& layout = machine_.layout();
  RegionStore& regions = *machine_.ranks[0].regions;
  const int count = geometry_.dspark_block_size;
  for (size_t idx = 0; idx < inputs_.requests.size(); ++idx) {
    program::RequestOutput& output = out.requests.emplace_back();
    if (inputs_.requests[idx].sample) {
      const float* verdict = regions.data(Region::kVerdictOut, 0) + static_cast<int64_t>(idx) * (count + 4);
      const VerdictView view = verdict_of(layout, regions.data(Region::kVerdictOut, 0), static_cast<int>(idx));
      output.num_accepted = view.num_accepted;
      for (int token = 0; token < view.num_tokens; ++token) output.tokens.push_back(int_of(verdict[3 + token]));
    }
    if (inputs_.requests[idx].draft) {
      const float* draft = regions.data(Region::kDraft, 0) + static_cast<int64_t>(idx) * 2 * count;
      for (int position = 0; position < count; ++position) {
        output.drafts.push_back(int_of(draft[position]));
        output.confidence.push_back(draft[count + position]);
      }
    }
  }
  return out;
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
