// The modes of trace (cpu/trace.h): laying steps out from a record, feeding recorded inputs between calls, collecting
// results.
#include "cpu/trace.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/integer.h"
#include "base/numeric.h"
#include "cpu/context.h"
#include "cpu/numerics.h"
#include "cpu/probe.h"
#include "cpu/trace_collect.h"

namespace monostep::cpu {
namespace {

using program::Region;
using program::Section;
using program::Stage;

// Positions that one step runs, and what is fed to it.
struct StepPlan {
  int first = 0;
  int count = 0;
  bool feed_layers = false;  // recorded streams and coefficients at every layer
  bool feed_cached = false;  // groups whose pending half is unknown come from the record
};

std::string layered(const std::string& name, int layer_idx) { return name + "." + std::to_string(layer_idx); }

// Runs a step again from where it began.
class StepReplay {
 public:
  explicit StepReplay(CpuBackend& backend) : backend_(backend), inputs_(*backend.machine().inputs) {
    for (const RankState& rank : backend.machine().ranks) pools_.push_back(*rank.pools);
  }
  Status begin_again() {
    for (size_t rank = 0; rank < pools_.size(); ++rank) *backend_.machine().ranks[rank].pools = pools_[rank];
    return backend_.begin_step(inputs_);
  }

 private:
  CpuBackend& backend_;
  program::StepInputs inputs_;
  std::vector<kv::Pools> pools_;
};

class Tracer {
 public:
  Tracer(const weights::Checkpoint& checkpoint, const Record& record, const TraceOptions& options)
      : checkpoint_(checkpoint),
        g_(checkpoint.geometry()),
        roles_(model::layer_roles(g_)),
        record_(record),
        options_(options) {}

  Result<Record> run();

 private:
  Status prepare();
  Status check_inputs();
  Status run_prefill();
  Status run_cached();
  Status run_ffn();
  Status run_draft();
  Status run_decode();

  program::StepInputs step_inputs(int first, const std::vector<int>& tokens);
  // Runs one step of the record's positions, feeding and collecting between the calls.
  Status run_step(const StepPlan& plan);
  Status run_target(const StepPlan& plan);
  bool first_of_layer(const program::Call& call) const;
  int span_end(int first, const StepPlan& plan) const;
  void feed_before(const program::Call& call, const StepPlan& plan);
  Status refeed_engram(int call_idx, const StepPlan& plan);
  void feed_closed_group(const program::Call& call, const StepPlan& plan);
  void fill_caches(int position);
  int declare_drafts(bool with_target);

  int record_row_of(int position) const { return record_row_[static_cast<size_t>(position)]; }
  bool image_at(int position) const { return !image_.empty() && image_[static_cast<size_t>(position)] != 0; }

  const weights::Checkpoint& checkpoint_;
  const model::Geometry& g_;
  std::vector<model::Role> roles_;
  const Record& record_;
  TraceOptions options_;
  std::unique_ptr<CpuBackend> backend_;
  std::unique_ptr<Probe> probe_;
  std::unique_ptr<Collector> collector_;
  std::vector<int> tokens_;
  std::vector<int> dec_tokens_;
  std::vector<int> image_;       // [S] 1 inside an image span; empty: none
  std::vector<int> record_row_;  // [positions] row of the P-marked arrays, -1: not recorded
  std::vector<int32_t> pages_;
  std::vector<float> image_rows_;  // of the current step
  int pending_known_from_ = 0;     // first position whose ratio-2 projections lie in the slot (mode cached)
};

Status Tracer::prepare() {
  TRY_ASSIGN(const Array* tokens, record_.get_ids("tokens", {-1}));
  tokens_ = tokens->ids;
  if (tokens_.empty()) return Error{Code::kInvalidArgument, "the record holds no tokens", "tokens"};
  if (record_.has("dec.tokens")) {
    TRY_ASSIGN(const Array* dec, record_.get_ids("dec.tokens", {-1}));
    dec_tokens_ = dec->ids;
  }
  const auto num_positions = static_cast<int64_t>(tokens_.size());
  const auto all_positions = num_positions + static_cast<int64_t>(dec_tokens_.size());
  if (all_positions > g_.max_position_embeddings) {
    return Error{Code::kInvalidArgument,
                 std::to_string(all_positions) + " positions, but max_position_embeddings is " +
                     std::to_string(g_.max_position_embeddings),
                 "tokens"};
  }
  for (const std::vector<int>* list : {&tokens_, &dec_tokens_}) {
    for (const int token : *list) {
      if (token < 0 || token >= g_.vocab_size) {
        return Error{Code::kInvalidArgument,
                     "token " + std::to_string(token) + " is not in the vocabulary of " + std::to_string(g_.vocab_size),
                     "tokens"};
      }
    }
  }
  if (record_.has("image_mask")) {
    TRY_ASSIGN(const Array* mask, record_.get_ids("image_mask", {num_positions}));
    image_ = mask->ids;
    const auto rows = std::count_if(image_.begin(), image_.end(), [](int value) { return value != 0; });
    TRY(record_.get("image_rows", {rows, g_.hidden_size}));
  }
  record_row_.assign(tokens_.size() + dec_tokens_.size(), -1);
  std::vector<int> positions(tokens_.size());
  std::iota(positions.begin(), positions.end(), 0);
  if (record_.has("positions")) {
    TRY_ASSIGN(const Array* listed, record_.get_ids("positions", {-1}));
    positions = listed->ids;
  }
  for (size_t row = 0; row < positions.size(); ++row) {
    if (positions[row] < 0 || positions[row] >= num_positions)
      return Error{Code::kInvalidArgument, "a position outside the prompt", "positions"};
    if (record_row_of(positions[row]) >= 0) {
      return Error{Code::kInvalidArgument, "position " + std::to_string(positions[row]) + " is listed twice",
                   "positions"};
    }
    record_row_[static_cast<size_t>(positions[row])] = static_cast<int>(row);
  }
  TRY(check_inputs());
  const int total = static_cast<int>(tokens_.size() + dec_tokens_.size()) + program::kPageTokens;
  CpuOptions backend;
  backend.tp = options_.tp;
  backend.max_context = round_up(total, program::kPageTokens);
  backend.num_pages = backend.max_context / program::kPageTokens;
  backend.num_slots = 1;
  TRY_ASSIGN(backend_, CpuBackend::make(checkpoint_, backend));
  if (options_.on_backend) TRY(options_.on_backend(*backend_));
  probe_ = std::make_unique<Probe>(*backend_);
  const std::vector<int>& prompt = tokens_;
  collector_ = std::make_unique<Collector>(*backend_, *probe_,
                                           TracedPrompt{prompt, image_, static_cast<int>(dec_tokens_.size())});
  pages_.resize(static_cast<size_t>(backend.num_pages));
  std::iota(pages_.begin(), pages_.end(), 0);
  return {};
}

// The recorded inputs that the mode feeds, by name and shape.
Status Tracer::check_inputs() {
  const TraceMode mode = options_.mode;
  const auto rows = std::count_if(record_row_.begin(), record_row_.end(), [](int row) { return row >= 0; });
  const int64_t layers = g_.num_hidden_layers;
  const bool all = rows == static_cast<int64_t>(tokens_.size());
  if ((mode == TraceMode::kLayer || mode == TraceMode::kStep) && !all) {
    return Error{Code::kInvalidArgument, "modes layer and step need a record of all positions; use mode cached",
                 "positions"};
  }
  if (mode == TraceMode::kLayer || mode == TraceMode::kStep || mode == TraceMode::kCached) {
    TRY(record_.get("resid", {rows, layers, g_.hc_mult, g_.hidden_size}));
    TRY(record_.get("pre", {rows, layers, 2, g_.hc_mult}));
    const auto tables = static_cast<int64_t>(g_.engram_layer_ids.size());
    if (tables > 0) TRY(record_.get("engram_out", {rows, tables, g_.hc_mult, g_.hidden_size}));
  }
  if (mode == TraceMode::kFfn) {
    TRY(record_.get("mid", {rows, layers, g_.hc_mult, g_.hidden_size}));
    TRY(record_.get("pre", {rows, layers, 2, g_.hc_mult}));
  }
  if (mode == TraceMode::kCached) {
    TRY(record_.get("window_kv", {-1, layers, g_.head_dim}));
    for (const int layer_idx : g_.kv_source_layer_ids) {
      const int64_t groups = static_cast<int64_t>(tokens_.size()) / g_.compress_ratios[static_cast<size_t>(layer_idx)];
      if (groups == 0) continue;
      TRY(record_.get(layered("compressed_kv", layer_idx), {groups, g_.head_dim}));
      TRY(record_.get(layered("index_k", layer_idx), {groups, g_.index_head_dim}));
    }
  }
  if (mode == TraceMode::kDraft || mode == TraceMode::kDecode) {
    TRY_ASSIGN(const Array* dec, record_.get_ids("dec.tokens", {-1}));
    if (record_.has("dec.draft_first")) {
      TRY_ASSIGN(const Array* first, record_.get_ids("dec.draft_first", {1}));
      if (first->ids[0] < 0 || first->ids[0] > dec->shape[0]) {
        return Error{Code::kInvalidArgument,
                     std::to_string(first->ids[0]) + " is no step of " + std::to_string(dec->shape[0]),
                     "dec.draft_first"};
      }
    }
    if (g_.num_nextn_predict_layers == 0) return Error{Code::kUnsupported, "the model has no draft layers", "config"};
  }
  if (mode == TraceMode::kDraft) {
    TRY(record_.get("taps", {static_cast<int64_t>(tokens_.size()), int64_t{g_.num_taps()} * g_.hidden_size}));
    TRY(record_.get("dec.taps", {static_cast<int64_t>(dec_tokens_.size()), int64_t{g_.num_taps()} * g_.hidden_size}));
  }
  return {};
}

program::StepInputs Tracer::step_inputs(int first, const std::vector<int>& tokens) {
  program::StepInputs inputs;
  program::StepRequest& request = inputs.requests.emplace_back();
  request.state_slot = 0;
  request.pages = pages_;
  request.num_rows = static_cast<int>(tokens.size());
  request.first_position = first;
  request.sample = true;
  request.context = g_.num_nextn_predict_layers > 0;
  request.draft = request.context;
  image_rows_.clear();
  for (int row = 0; row < request.num_rows; ++row) {
    const int position = first + row;
    const bool image = position < static_cast<int>(image_.size()) && image_at(position);
    inputs.rows.push_back({tokens[static_cast<size_t>(row)], position, 0, image, true});
    if (!image) continue;
    const auto before = std::count_if(image_.begin(), image_.begin() + position, [](int value) { return value != 0; });
    const float* from = record_.find("image_rows")->row(before);
    image_rows_.insert(image_rows_.end(), from, from + g_.hidden_size);
  }
  inputs.image_rows = image_rows_;
  return inputs;
}

Status Tracer::run_step(const StepPlan& plan) {
  const std::vector<int> tokens(tokens_.begin() + plan.first, tokens_.begin() + plan.first + plan.count);
  TRY(backend_->begin_step(step_inputs(plan.first, tokens)));
  return run_target(plan);
}

// Target, head and context, span by span.
Status Tracer::run_target(const StepPlan& plan) {
  const program::Program& program = backend_->machine().program();
  const bool whole = options_.span == TraceSpan::kStep && !plan.feed_layers;
  StepReplay replay(*backend_);
  const int end = program.section_begin(Section::kDraft);
  for (int first = 0, last = 0; first < end; first = last) {
    last = span_end(first, plan);
    if (plan.feed_layers) feed_before(program.calls[static_cast<size_t>(first)], plan);
    if (whole && first > 0) TRY(replay.begin_again());
    TRY(backend_->run({whole ? 0 : first, last}));
    if (plan.feed_cached) feed_closed_group(program.calls[static_cast<size_t>(last - 1)], plan);
    for (int call_idx = first; call_idx < last; ++call_idx)
      collector_->collect(program.calls[static_cast<size_t>(call_idx)], plan.first, plan.count);
    if (plan.feed_layers) TRY(refeed_engram(last - 1, plan));
  }
  return {};
}

bool Tracer::first_of_layer(const program::Call& call) const {
  return call.stage == Stage::kEngramFold ||
         (call.stage == Stage::kFold && roles_[static_cast<size_t>(call.layer)].engram_idx < 0);
}

// One past the last of the calls that run together with `first`: they end where something is fed or would be
// overwritten before it is collected.
int Tracer::span_end(int first, const StepPlan& plan) const {
  if (options_.span == TraceSpan::kCall) return first + 1;
  const program::Program& program = backend_->machine().program();
  const int end = program.section_begin(Section::kDraft);
  if (options_.span == TraceSpan::kStep && options_.mode == TraceMode::kDecode) return end;  // its last call is enough
  int last = first + 1;
  for (; last < end; ++last) {
    const program::Call& call = program.calls[static_cast<size_t>(last - 1)];
    const program::Call& next = program.calls[static_cast<size_t>(last)];
    if (next.layer != call.layer || next.section != call.section || first_of_layer(next)) break;
    if (plan.feed_cached && call.stage == Stage::kKvNew) break;
    const bool engram = call.layer >= 0 && roles_[static_cast<size_t>(call.layer)].engram_idx >= 0;
    if (plan.feed_layers && call.stage == Stage::kFold && engram) break;
  }
  return last;
}

void Tracer::feed_before(const program::Call& call, const StepPlan& plan) {
  if (!first_of_layer(call) || call.layer == 0) return;
  const Array& resid = *record_.find("resid");
  const Array& pre = *record_.find("pre");
  const auto streams = static_cast<size_t>(g_.hc_mult * g_.hidden_size);
  const auto hc = static_cast<size_t>(g_.hc_mult);
  for (int row = 0; row < plan.count; ++row) {
    const int recorded = record_row_of(plan.first + row);
    const int64_t layer_before = call.layer - 1;
    probe_->feed_layer(call.layer, row, {resid.row(recorded) + layer_before * static_cast<int64_t>(streams), streams},
                       {pre.row(recorded) + (layer_before * 2 + 1) * static_cast<int64_t>(hc), hc});
  }
}

// Behind an Engram layer's fold, which gave engram_out: the fold once more, from the recorded engram_out.
Status Tracer::refeed_engram(int call_idx, const StepPlan& plan) {
  const program::Call& call = backend_->machine().program().calls[static_cast<size_t>(call_idx)];
  if (call.stage != Stage::kFold) return {};
  const int engram_idx = roles_[static_cast<size_t>(call.layer)].engram_idx;
  if (engram_idx < 0) return {};
  const Array& recorded = *record_.find("engram_out");
  const auto streams = static_cast<size_t>(g_.hc_mult * g_.hidden_size);
  for (int row = 0; row < plan.count; ++row) {
    const float* from = recorded.row(record_row_of(plan.first + row)) + engram_idx * static_cast<int64_t>(streams);
    probe_->feed_engram(call.layer, row, {from, streams});
  }
  return backend_->run({call_idx, call_idx + 1});
}

// Modes layer, step and free: the prompt in chunks; step goes one by one from its second half on.
Status Tracer::run_prefill() {
  const int total = static_cast<int>(tokens_.size());
  const bool feed = options_.mode != TraceMode::kFree && options_.mode != TraceMode::kDecode;
  const int singles_from = options_.mode == TraceMode::kStep ? std::min(total, total / 2 | 1) : total;
  std::vector<int> positions;
  for (int position = options_.mode == TraceMode::kStep ? singles_from : 0; position < total; ++position)
    positions.push_back(position);
  if (options_.mode == TraceMode::kDecode) positions.clear();
  if (options_.mode == TraceMode::kStep && positions.empty()) {
    return Error{Code::kInvalidArgument, "mode step needs a prompt of at least two tokens", "tokens"};
  }
  if (options_.mode != TraceMode::kDecode) collector_->declare(positions);
  for (int first = 0; first < total;) {
    const int count = first >= singles_from ? 1 : std::min(options_.chunk, singles_from - first);
    TRY(run_step({first, count, feed, false}));
    first += count;
  }
  return {};
}

Status Tracer::run_ffn() {
  std::vector<int> positions;
  for (size_t position = 0; position < tokens_.size(); ++position) {
    if (record_row_[position] >= 0) positions.push_back(static_cast<int>(position));
  }
  collector_->declare_ffn(positions);
  const program::Program* program = nullptr;
  const Array& mid = *record_.find("mid");
  const Array& pre = *record_.find("pre");
  const auto streams = static_cast<size_t>(g_.hc_mult * g_.hidden_size);
  const auto hc = static_cast<size_t>(g_.hc_mult);
  for (const int position : positions) {
    TRY(backend_->begin_step(step_inputs(position, {tokens_[static_cast<size_t>(position)]})));
    program = &backend_->machine().program();
    const int recorded = record_row_of(position);
    for (int layer_idx = 0; layer_idx < g_.num_hidden_layers; ++layer_idx) {
      for (const Stage stage : {Stage::kFold, Stage::kAttnMix, Stage::kWoB}) probe_->mark_put(stage, layer_idx);
      probe_->feed_ffn(layer_idx, 0, {mid.row(recorded) + layer_idx * static_cast<int64_t>(streams), streams},
                       {pre.row(recorded) + layer_idx * 2 * static_cast<int64_t>(hc), hc});
      const int last = program->find(Stage::kExpertDown, layer_idx);
      TRY(backend_->run({program->find(Stage::kFfnFold, layer_idx), last + 1}));
      collector_->collect(program->calls[static_cast<size_t>(last)], position, 1);
    }
  }
  return {};
}

// A compressed record whose values are given: the E4M3 scale and codes that reproduce them exactly (QC is not
// idempotent, so the scale is searched). Falls back to quantising where none does.
void pack_given_compressed(std::span<const float> values, uint8_t* record) {
  std::vector<float> copy(values.begin(), values.end());
  pack_compressed(copy, record);
  uint8_t* scales = record + values.size() / 2;
  for (size_t begin = 0; begin < values.size(); begin += kCompressedGroup) {
    for (int bits = 1; bits < 0x7f; ++bits) {
      const float scale = e4m3_value(static_cast<uint8_t>(bits));
      uint8_t codes[kCompressedGroup];
      bool exact = true;
      for (int idx = 0; exact && idx < kCompressedGroup; ++idx) {
        const float value = values[begin + static_cast<size_t>(idx)];
        codes[idx] = e2m1_bits(value / scale);
        exact = round_bf16(e2m1_value(codes[idx]) * scale) == value;
      }
      if (!exact) continue;
      scales[begin / kCompressedGroup] = static_cast<uint8_t>(bits);
      for (size_t idx = 0; idx < kCompressedGroup; idx += 2) {
        record[(begin + idx) / 2] = static_cast<uint8_t>(codes[idx] | (codes[idx + 1] << 4));
      }
      break;
    }
  }
}

// Rings, pages and class history as the record says, for a step at `position`.
void Tracer::fill_caches(int position) {
  const Array& window = *record_.find("window_kv");
  const int first_recorded = static_cast<int>(tokens_.size()) - static_cast<int>(window.shape[0]);
  const ModelTables& tables = backend_->machine().tables;
  for (RankState& rank : backend_->machine().ranks) {
    kv::Pools& pools = *rank.pools;
    std::byte* slot = pools.slot(0);
    const auto at = [](std::byte* base, int64_t offset) { return reinterpret_cast<uint8_t*>(base + offset); };
    for (int before = std::max(0, position - g_.sliding_window + 1); before < position; ++before) {
      for (int layer_idx = 0; layer_idx < g_.num_hidden_layers; ++layer_idx) {
        const float* from = window.row(before - first_recorded) + int64_t{layer_idx} * g_.head_dim;
        std::vector<float> values(from, from + g_.head_dim);
        pack_window(values, at(slot, pools.slot_layout.ring_offset(layer_idx, before)));
      }
    }
    for (int before = std::max(0, position - g_.engram_max_ngram_size);
         before < position && !tables.token_classes.empty(); ++before) {
      const int32_t value = image_at(before)
                                ? model::kDeadClass
                                : tables.token_classes[static_cast<size_t>(tokens_[static_cast<size_t>(before)])];
      std::memcpy(slot + pools.slot_layout.class_offset(before), &value, sizeof(value));
    }
    for (size_t owner = 0; owner < g_.kv_source_layer_ids.size(); ++owner) {
      const int layer_idx = g_.kv_source_layer_ids[owner];
      const int ratio = g_.compress_ratios[static_cast<size_t>(layer_idx)];
      for (int group = 0; group < position / ratio; ++group) {
        std::byte* page = pools.page(pages_[static_cast<size_t>(group * ratio / program::kPageTokens)]);
        const int in_page = group % (program::kPageTokens / ratio);
        const float* compressed = record_.find(layered("compressed_kv", layer_idx))->row(group);
        pack_given_compressed({compressed, static_cast<size_t>(g_.head_dim)},
                              at(page, pools.page_layout.compressed_offset(static_cast<int>(owner), in_page)));
        const float* key = record_.find(layered("index_k", layer_idx))->row(group);
        std::vector<float> values(key, key + g_.index_head_dim);
        pack_index(values, at(page, pools.page_layout.index_key_offset(static_cast<int>(owner), in_page)));
      }
    }
  }
}

// A ratio-2 group whose first half was not run here is taken from the record.
void Tracer::feed_closed_group(const program::Call& call, const StepPlan& plan) {
  if (call.stage != Stage::kKvNew) return;
  const model::Role& role = roles_[static_cast<size_t>(call.layer)];
  if (role.mode != model::Mode::kFull || role.ratio != 2 || plan.first % 2 == 0 ||
      plan.first - 1 >= pending_known_from_)
    return;
  Machine& machine = backend_->machine();
  for (RankState& rank : machine.ranks) {
    const int copy = role.owner_idx;
    const float* compressed = record_.find(layered("compressed_kv", call.layer))->row(plan.first / 2);
    std::copy_n(compressed, g_.head_dim, rank.regions->data(Region::kCompressedNew, copy));
    const float* key = record_.find(layered("index_k", call.layer))->row(plan.first / 2);
    std::copy_n(key, g_.index_head_dim, rank.regions->data(Region::kIndexKeyNew, copy));
  }
}

Status Tracer::run_cached() {
  const int total = static_cast<int>(tokens_.size());
  const int first_recorded = total - static_cast<int>(record_.find("window_kv")->shape[0]);
  std::vector<int> positions;
  for (int position = 0; position < total; ++position) {
    if (record_row_of(position) >= 0 && std::max(0, position - g_.sliding_window + 1) >= first_recorded)
      positions.push_back(position);
  }
  if (positions.empty())
    return Error{Code::kInvalidArgument, "no listed position has its whole window recorded", "window_kv"};
  collector_->declare(positions);
  for (const int layer_idx : g_.kv_source_layer_ids) {  // groups that are not closed here stay as they were given
    for (const std::string& name : {layered("compressed_kv", layer_idx), layered("index_k", layer_idx)}) {
      if (const Array* given = record_.find(name)) collector_->preset(name, *given);
    }
  }
  int previous = -2;
  for (const int position : positions) {
    if (position != previous + 1) pending_known_from_ = position;
    previous = position;
    fill_caches(position);
    TRY(run_step({position, 1, true, true}));
  }
  return {};
}

// Declares the arrays of drafts and returns how many steps go before the first recorded one.
int Tracer::declare_drafts(bool with_target) {
  const Array* first = record_.find("dec.draft_first");
  const int skipped = first != nullptr && !first->ids.empty() ? first->ids[0] : 0;
  collector_->declare_decode(dec_tokens_, skipped, with_target);
  return skipped;
}

Status Tracer::run_draft() {
  const program::Program* program = nullptr;
  const auto run_context = [&](int first, const std::vector<int>& tokens, const auto& taps_of) -> Status {
    TRY(backend_->begin_step(step_inputs(first, tokens)));
    program = &backend_->machine().program();
    for (const int layer_idx : g_.dspark_target_layer_ids) probe_->mark_put(Stage::kFold, layer_idx);
    for (int row = 0; row < static_cast<int>(tokens.size()); ++row) {
      probe_->feed_taps(row, {taps_of(row), static_cast<size_t>(g_.num_taps() * g_.hidden_size)});
    }
    return backend_->run({program->section_begin(Section::kContext), program->section_begin(Section::kDraft)});
  };
  const int total = static_cast<int>(tokens_.size());
  for (int first = 0; first < total; first += options_.chunk) {
    const int count = std::min(options_.chunk, total - first);
    const std::vector<int> tokens(tokens_.begin() + first, tokens_.begin() + first + count);
    TRY(run_context(first, tokens, [&](int row) { return record_.find("taps")->row(first + row); }));
  }
  const int num_steps = static_cast<int>(dec_tokens_.size());
  const int skipped = declare_drafts(false);
  for (int step = 0; step < num_steps; ++step) {
    const int position = total + step - 1;
    const int fed = step == 0 ? tokens_.back() : dec_tokens_[static_cast<size_t>(step - 1)];
    TRY(run_context(position, {fed}, [&](int) { return record_.find("dec.taps")->row(step); }));
    if (step < skipped) continue;
    probe_->mark_put(Stage::kVerdict, -1);
    probe_->feed_verdict(0, position, dec_tokens_[static_cast<size_t>(step)]);
    TRY(backend_->run({program->section_begin(Section::kDraft), static_cast<int>(program->calls.size())}));
    collector_->collect_draft(step - skipped, dec_tokens_[static_cast<size_t>(step)]);
  }
  return {};
}

Status Tracer::run_decode() {
  const int total = static_cast<int>(tokens_.size());
  const int num_steps = static_cast<int>(dec_tokens_.size());
  const int skipped = declare_drafts(true);
  TRY(run_prefill());
  for (int step = 0; step < num_steps; ++step) {
    const int position = total + step - 1;
    if (step > 0) {
      TRY(backend_->begin_step(step_inputs(position, {dec_tokens_[static_cast<size_t>(step - 1)]})));
      TRY(run_target({position, 1, false, false}));
    }
    const int row = static_cast<int>(backend_->machine().target_rows.size()) - 1;
    collector_->collect_decode(step, row);
    if (step < skipped) continue;
    const program::Program& program = backend_->machine().program();
    probe_->feed_verdict(0, position, dec_tokens_[static_cast<size_t>(step)]);
    TRY(backend_->run({program.section_begin(Section::kDraft), static_cast<int>(program.calls.size())}));
    collector_->collect_draft(step - skipped, dec_tokens_[static_cast<size_t>(step)]);
  }
  return {};
}

Result<Record> Tracer::run() {
  TRY(prepare());
  switch (options_.mode) {
    case TraceMode::kLayer:
    case TraceMode::kStep:
    case TraceMode::kFree: TRY(run_prefill()); break;
    case TraceMode::kCached: TRY(run_cached()); break;
    case TraceMode::kFfn: TRY(run_ffn()); break;
    case TraceMode::kDraft: TRY(run_draft()); break;
    case TraceMode::kDecode: TRY(run_decode()); break;
  }
  return collector_->take();
}

}  // namespace

Result<TraceMode> parse_trace_mode(std::string_view name) {
  constexpr std::pair<std::string_view, TraceMode> kModes[] = {
      {"layer", TraceMode::kLayer},  {"step", TraceMode::kStep},   {"cached", TraceMode::kCached},
      {"ffn", TraceMode::kFfn},      {"draft", TraceMode::kDraft}, {"free", TraceMode::kFree},
      {"decode", TraceMode::kDecode}};
  for (const auto& [text, mode] : kModes) {
    if (text == name) return mode;
  }
  return Error{Code::kInvalidArgument,
               "\"" + std::string(name) + "\" is none of layer, step, cached, ffn, draft, free, decode", "--mode"};
}

Result<Record> run_trace(const weights::Checkpoint& checkpoint, const Record& record, const TraceOptions& options) {
  if (options.chunk < 1 || options.chunk > program::kMaxBand) {
    return Error{
        Code::kInvalidArgument,
        "must be between 1 and " + std::to_string(program::kMaxBand) + ", found " + std::to_string(options.chunk),
        "--chunk"};
  }
  return Tracer(checkpoint, record, options).run();
}

}  // namespace monostep::cpu
