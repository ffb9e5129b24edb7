// The modes of trace (cpu/trace.h): laying steps out from a record, feeding recorded inputs between calls, collecting results.
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

class Tracer {
 public:
  Tracer(const weights::Checkpoint& checkpoint, const Record& record, const TraceOptions& options)
      : checkpoint_(checkpoint), g_(checkpoint.geometry()), roles_(model::layer_roles(g_)), record_(record), options_(options) {}

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
  // Runs one step of the record's positions call by call, feeding and collecting.
  Status run_step(const StepPlan& plan);
  Status run_target(const StepPlan& plan);
  void feed_before(const program::Call& call, const StepPlan& plan);
  Status refeed_engram(int call_idx, const StepPlan& plan);
  void feed_closed_group(const program::Call& call, const StepPlan& plan);
  void fill_caches(int position);
  void collect_draft(int dec_row, int anchor);

  void declare_outputs(const std::vector<int>& positions);
  void declare_decode(int num_steps, bool with_target);
  void collect(const program::Call& call, const StepPlan& plan);
  void collect_layer_end(int layer_idx, int row, int out_row);
  void collect_index(const program::Call& call, int row, int position);
  void collect_engram(int layer_idx, int row, int out_row);
  void collect_decode(int dec_row, int row);

  int out_row_of(int position) const { return out_row_[static_cast<size_t>(position)]; }
  int record_row_of(int position) const { return record_row_[static_cast<size_t>(position)]; }
  bool image_at(int position) const { return !image_.empty() && image_[static_cast<size_t>(position)] != 0; }
  void put_values(const std::string& name, int64_t row, std::span<const float> values);
  void put_ids(const std::string& name, int64_t row, std::span<const int> ids);

  const weights::Checkpoint& checkpoint_;
  const model::Geometry& g_;
  std::vector<model::Role> roles_;
  const Record& record_;
  TraceOptions options_;
  std::unique_ptr<CpuBackend> backend_;
  std::unique_ptr<Probe> probe_;
  Record out_;
  std::vector<int> tokens_;
  std::vector<int> dec_tokens_;
  std::vector<int> image_;         // [S] 1 inside an image span; empty: none
  std::vector<int> out_row_;       // [positions] row of the outputs, -1: not wanted
  std::vector<int> record_row_;    // [positions] row of the P-marked arrays, -1: not recorded
  std::vector<int32_t> pages_;
  std::vector<float> image_rows_;  // of the current step
  int pending_known_from_ = 0;     // first position whose ratio-2 projections lie in the slot (mode cached)
};

std::string layered(const std::string& name, int layer_idx) { return name + "." + std::to_string(layer_idx); }

Status Tracer::prepare() {
  TRY_ASSIGN(const Array* tokens, record_.get("tokens", {-1}));
  tokens_ = tokens->ids;
  if (tokens_.empty()) return Error{Code::kInvalidArgument, "the record holds no tokens", "tokens"};
  if (const Array* dec = record_.find("dec.tokens")) dec_tokens_ = dec->ids;
  const auto num_positions = static_cast<int64_t>(tokens_.size());
  for (const std::vector<int>* list : {&tokens_, &dec_tokens_}) {
    for (const int token : *list) {
      if (token < 0 || token >= g_.vocab_size) {
        return Error{Code::kInvalidArgument, "token " + std::to_string(token) + " is not in the vocabulary of " + std::to_string(g_.vocab_size), "tokens"};
      }
    }
  }
  if (record_.has("image_mask")) {
    TRY_ASSIGN(const Array* mask, record_.get("image_mask", {num_positions}));
    image_ = mask->ids;
    const auto rows = std::count_if(image_.begin(), image_.end(), [](int value) { return value != 0; });
    TRY(record_.get("image_rows", {rows, g_.hidden_size}));
  }
  record_row_.assign(tokens_.size() + dec_tokens_.size(), -1);
  std::vector<int> positions(tokens_.size());
  std::iota(positions.begin(), positions.end(), 0);
  if (const Array* listed = record_.find("positions")) positions = listed->ids;
  for (size_t row = 0; row < positions.size(); ++row) {
    if (positions[row] < 0 || positions[row] >= num_positions) return Error{Code::kInvalidArgument, "a position outside the prompt", "positions"};
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
  probe_ = std::make_unique<Probe>(*backend_);
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
    return Error{Code::kInvalidArgument, "modes layer and step need a record of all positions; use mode cached", "positions"};
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
    TRY(record_.get("dec.tokens", {-1}));
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

// Target, head and context, call by call.
Status Tracer::run_target(const StepPlan& plan) {
  const program::Program& program = backend_->machine().program();
  const int end = program.section_begin(Section::kDraft);
  for (int call_idx = 0; call_idx < end; ++call_idx) {
    const program::Call& call = program.calls[static_cast<size_t>(call_idx)];
    if (plan.feed_layers) feed_before(call, plan);
    TRY(backend_->run({call_idx, call_idx + 1}));
    if (plan.feed_cached) feed_closed_group(call, plan);
    collect(call, plan);
    if (plan.feed_layers) TRY(refeed_engram(call_idx, plan));
  }
  return {};
}

void Tracer::feed_before(const program::Call& call, const StepPlan& plan) {
  const bool first_of_layer = call.stage == Stage::kEngramFold ||
                              (call.stage == Stage::kFold && roles_[static_cast<size_t>(call.layer)].engram_idx < 0);
  if (!first_of_layer || call.layer == 0) return;
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

void Tracer::put_values(const std::string& name, int64_t row, std::span<const float> values) {
  Array* array = out_.find(name);
  if (array != nullptr) std::copy(values.begin(), values.end(), array->row(row));
}

void Tracer::put_ids(const std::string& name, int64_t row, std::span<const int> ids) {
  Array* array = out_.find(name);
  if (array != nullptr) std::copy(ids.begin(), ids.end(), array->ids.begin() + row * array->row_size());
}

void Tracer::declare_outputs(const std::vector<int>& positions) {
  const auto rows = static_cast<int64_t>(positions.size());
  const auto total = static_cast<int64_t>(tokens_.size());
  const int64_t layers = g_.num_hidden_layers;
  out_row_.assign(tokens_.size() + dec_tokens_.size(), -1);
  for (size_t row = 0; row < positions.size(); ++row) out_row_[static_cast<size_t>(positions[row])] = static_cast<int>(row);
  out_.add("positions", "I32", {rows}).ids = positions;
  out_.add("resid", "BF16", {rows, layers, g_.hc_mult, g_.hidden_size});
  out_.add("router_ids", "I32", {rows, layers, g_.num_experts_per_tok});
  if (options_.mode == TraceMode::kFfn) return;
  out_.add("router_weights", "F32", {rows, layers, g_.num_experts_per_tok});
  out_.add("mid", "BF16", {rows, layers, g_.hc_mult, g_.hidden_size});
  out_.add("pre", "F32", {rows, layers, 2, g_.hc_mult});
  out_.add("post", "F32", {rows, layers, 2, g_.hc_mult});
  out_.add("comb", "F32", {rows, layers, 2, g_.hc_mult, g_.hc_mult});
  out_.add("window_kv", "BF16", {rows, layers, g_.head_dim});
  out_.add("taps", "BF16", {rows, int64_t{g_.num_taps()} * g_.hidden_size});
  out_.add("logits", "F32", {rows, g_.vocab_size});
  if (const auto tables = static_cast<int64_t>(g_.engram_layer_ids.size()); tables > 0) {
    out_.add("engram_rows", "I32", {rows, tables, g_.num_engram_columns()});
    out_.add("engram_gate", "F32", {rows, tables, g_.hc_mult});
    out_.add("engram_out", "BF16", {rows, tables, g_.hc_mult, g_.hidden_size});
  }
  for (const int layer_idx : g_.index_source_layer_ids) {
    const int64_t groups = total / g_.compress_ratios[static_cast<size_t>(layer_idx)];
    if (groups == 0) continue;
    Array& scores = out_.add(layered("index_scores", layer_idx), "BF16", {rows, groups});
    std::fill(scores.values.begin(), scores.values.end(), -std::numeric_limits<float>::infinity());
    Array& topk = out_.add(layered("topk", layer_idx), "I32", {rows, std::min<int64_t>(groups, g_.index_topk)});
    std::fill(topk.ids.begin(), topk.ids.end(), -1);
    if (roles_[static_cast<size_t>(layer_idx)].candidate_source) {
      out_.add(layered("candidate_blocks", layer_idx), "U8", {rows, ceil_div<int64_t>(groups, g_.candidate_block_size)});
    }
  }
  for (const int layer_idx : g_.kv_source_layer_ids) {
    const int64_t groups = total / g_.compress_ratios[static_cast<size_t>(layer_idx)];
    if (groups == 0 || options_.mode == TraceMode::kCached) continue;
    out_.add(layered("compressed_kv", layer_idx), "BF16", {groups, g_.head_dim});
    out_.add(layered("index_k", layer_idx), "BF16", {groups, g_.index_head_dim});
  }
}

void Tracer::collect_layer_end(int layer_idx, int row, int out_row) {
  const int64_t streams = int64_t{g_.hc_mult} * g_.hidden_size;
  Array& resid = *out_.find("resid");
  const std::vector<float> x = probe_->out_streams(layer_idx, row);
  std::copy(x.begin(), x.end(), resid.row(out_row) + layer_idx * streams);
}

void Tracer::collect_engram(int layer_idx, int row, int out_row) {
  const int table_idx = roles_[static_cast<size_t>(layer_idx)].engram_idx;
  const int position = backend_->machine().target_rows[static_cast<size_t>(row)].position;
  const ModelTables& tables = backend_->machine().tables;
  std::vector<int> classes;
  for (int back = 0; back < g_.engram_max_ngram_size; ++back) {
    const int at = position - back;
    if (at < 0) classes.push_back(tables.pad_class);
    else if (image_at(at)) classes.push_back(model::kDeadClass);
    else classes.push_back(tables.token_classes[static_cast<size_t>(tokens_[static_cast<size_t>(at)])]);
  }
  std::vector<int64_t> rows(static_cast<size_t>(g_.num_engram_columns()));
  model::engram_rows(tables.engram[static_cast<size_t>(table_idx)], g_.engram_n_heads, tables.pad_class, classes, rows);
  Array& ids = *out_.find("engram_rows");
  for (size_t column = 0; column < rows.size(); ++column) {
    ids.ids[static_cast<size_t>(out_row * ids.row_size() + table_idx * g_.num_engram_columns()) + column] = static_cast<int>(rows[column]);
  }
  const std::vector<float> gates = image_at(position) ? std::vector<float>(static_cast<size_t>(g_.hc_mult)) : probe_->engram_gates(layer_idx, row);
  std::copy(gates.begin(), gates.end(), out_.find("engram_gate")->row(out_row) + int64_t{table_idx} * g_.hc_mult);
  const std::vector<float> x = probe_->attn_streams(layer_idx, row);
  std::copy(x.begin(), x.end(), out_.find("engram_out")->row(out_row) + table_idx * static_cast<int64_t>(x.size()));
}

void Tracer::collect_index(const program::Call& call, int row, int position) {
  const int out_row = out_row_of(position);
  const int ratio = roles_[static_cast<size_t>(call.layer)].ratio;
  const int visible = (position + 1) / ratio;
  if (call.stage == Stage::kIndexScore) {
    const std::span<float> scores = probe_->row_words(Region::kScores, call.stage, call.layer, row);
    put_values(layered("index_scores", call.layer), out_row, scores.first(static_cast<size_t>(visible)));
    return;
  }
  Array* topk = out_.find(layered("topk", call.layer));
  if (topk == nullptr) return;
  const std::span<float> chosen = probe_->row_words(Region::kTopk, call.stage, call.layer, row);
  for (int64_t idx = 0; idx < topk->row_size(); ++idx) topk->ids[static_cast<size_t>(out_row * topk->row_size() + idx)] = int_of(chosen[static_cast<size_t>(idx)]);
  Array* kept = out_.find(layered("candidate_blocks", call.layer));
  if (kept == nullptr) return;
  for (const float word : probe_->row_words(Region::kCandidates, call.stage, call.layer, row)) {
    if (int_of(word) >= 0) kept->ids[static_cast<size_t>(out_row * kept->row_size() + int_of(word))] = 1;
  }
}

void Tracer::collect(const program::Call& call, const StepPlan& plan) {
  const auto hc = static_cast<size_t>(g_.hc_mult);
  for (int row = 0; row < plan.count; ++row) {
    const int position = plan.first + row;
    const int out_row = out_row_of(position);
    if (out_row < 0) continue;
    const auto layer = static_cast<int64_t>(call.layer);
    switch (call.stage) {
      case Stage::kFold:
        if (roles_[static_cast<size_t>(call.layer)].engram_idx >= 0) collect_engram(call.layer, row, out_row);
        break;
      case Stage::kAttnMix:
      case Stage::kFfnMix: {
        const int site = call.stage == Stage::kFfnMix ? 1 : 0;
        const std::span<const float> mix = probe_->mix(call.layer, site, row);
        const int64_t at = layer * 2 + site;
        std::copy_n(mix.begin(), hc, out_.find("pre")->row(out_row) + at * g_.hc_mult);
        std::copy_n(mix.begin() + g_.hc_mult, hc, out_.find("post")->row(out_row) + at * g_.hc_mult);
        std::copy_n(mix.begin() + 2 * g_.hc_mult, hc * hc, out_.find("comb")->row(out_row) + at * g_.hc_mult * g_.hc_mult);
        break;
      }
      case Stage::kKvNew: {
        const std::span<float> window = probe_->row_words(Region::kWindowNew, call.stage, call.layer, row);
        std::copy(window.begin(), window.end(), out_.find("window_kv")->row(out_row) + layer * g_.head_dim);
        const model::Role& role = roles_[static_cast<size_t>(call.layer)];
        if (role.mode != model::Mode::kFull || (position + 1) % role.ratio != 0) break;
        put_values(layered("compressed_kv", call.layer), position / role.ratio, probe_->row_words(Region::kCompressedNew, call.stage, call.layer, row));
        put_values(layered("index_k", call.layer), position / role.ratio, probe_->row_words(Region::kIndexKeyNew, call.stage, call.layer, row));
        break;
      }
      case Stage::kIndexScore:
      case Stage::kIndexSelect: collect_index(call, row, position); break;
      case Stage::kFfnFold: {
        const std::vector<float> x = probe_->ffn_streams(call.layer, row);
        std::copy(x.begin(), x.end(), out_.find("mid")->row(out_row) + layer * static_cast<int64_t>(x.size()));
        break;
      }
      case Stage::kExpertDown: {
        collect_layer_end(call.layer, row, out_row);
        const Routing routing = probe_->routing(call.layer, row, image_at(position));
        std::copy(routing.experts.begin(), routing.experts.end(),
                  out_.find("router_ids")->ids.begin() + out_row * out_.find("router_ids")->row_size() + layer * g_.num_experts_per_tok);
        if (Array* weights = out_.find("router_weights")) {
          std::copy(routing.weights.begin(), routing.weights.end(), weights->row(out_row) + layer * g_.num_experts_per_tok);
        }
        break;
      }
      case Stage::kHead: put_values("logits", out_row, probe_->logits(row)); break;
      case Stage::kMainProj: put_values("taps", out_row, probe_->taps(row)); break;
      default: break;
    }
  }
}

// Modes layer, step and free: the prompt in chunks; step goes one by one from its second half on.
Status Tracer::run_prefill() {
  const int total = static_cast<int>(tokens_.size());
  const bool feed = options_.mode != TraceMode::kFree && options_.mode != TraceMode::kDecode;
  const int singles_from = options_.mode == TraceMode::kStep ? std::min(total, total / 2 | 1) : total;
  std::vector<int> positions;
  for (int position = options_.mode == TraceMode::kStep ? singles_from : 0; position < total; ++position) positions.push_back(position);
  if (options_.mode == TraceMode::kDecode) positions.clear();
  if (options_.mode == TraceMode::kStep && positions.empty()) {
    return Error{Code::kInvalidArgument, "mode step needs a prompt of at least two tokens", "tokens"};
  }
  if (options_.mode != TraceMode::kDecode) declare_outputs(positions);
  else out_row_.assign(tokens_.size() + dec_tokens_.size(), -1);
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
  declare_outputs(positions);
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
      collect(program->calls[static_cast<size_t>(last)], {position, 1, false, false});
    }
  }
  return {};
}

// A compressed record whose values are given: the E4M3 scale and codes that reproduce them exactly (QC is not idempotent, so the scale
// is searched). Falls back to quantising where none does.
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
    for (int before = std::max(0, position - g_.engram_max_ngram_size); before < position && !tables.token_classes.empty(); ++before) {
      const int32_t value = image_at(before) ? model::kDeadClass : tables.token_classes[static_cast<size_t>(tokens_[static_cast<size_t>(before)])];
      std::memcpy(slot + pools.slot_layout.class_offset(before), &value, sizeof(value));
    }
    for (size_t owner = 0; owner < g_.kv_source_layer_ids.size(); ++owner) {
      const int layer_idx = g_.kv_source_layer_ids[owner];
      const int ratio = g_.compress_ratios[static_cast<size_t>(layer_idx)];
      for (int group = 0; group < position / ratio; ++group) {
        std::byte* page = pools.page(pages_[static_cast<size_t>(group * ratio / program::kPageTokens)]);
        const int in_page = group % (program::kPageTokens / ratio);
        const float* compressed = record_.find(layered("compressed_kv", layer_idx))->row(group);
        pack_given_compressed({compressed, static_cast<size_t>(g_.head_dim)}, at(page, pools.page_layout.compressed_offset(static_cast<int>(owner), in_page)));
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
  if (role.mode != model::Mode::kFull || role.ratio != 2 || plan.first % 2 == 0 || plan.first - 1 >= pending_known_from_) return;
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
    if (record_row_of(position) >= 0 && std::max(0, position - g_.sliding_window + 1) >= first_recorded) positions.push_back(position);
  }
  if (positions.empty()) return Error{Code::kInvalidArgument, "no listed position has its whole window recorded", "window_kv"};
  declare_outputs(positions);
  int previous = -2;
  for (const int position : positions) {
    if (position != previous + 1) pending_known_from_ = position;
    previous = position;
    fill_caches(position);
    TRY(run_step({position, 1, true, true}));
  }
  return {};
}

void Tracer::declare_decode(int num_steps, bool with_target) {
  const Array* first = record_.find("dec.draft_first");
  const int64_t steps = num_steps;
  const int64_t drafts = steps - (first != nullptr && !first->ids.empty() ? first->ids[0] : 0);
  out_.add("dec.tokens", "I32", {steps}).ids = dec_tokens_;
  out_.add("dec.draft_ids", "I32", {drafts, g_.dspark_block_size + 1});
  out_.add("dec.draft_logits", "F32", {drafts, g_.dspark_block_size, g_.vocab_size});
  out_.add("dec.confidence", "F32", {drafts, g_.dspark_block_size});
  if (!with_target) return;
  out_.add("dec.logits", "F32", {steps, g_.vocab_size});
  out_.add("dec.taps", "BF16", {steps, int64_t{g_.num_taps()} * g_.hidden_size});
  Array& topk = out_.add("dec.topk", "I32", {steps, static_cast<int64_t>(g_.index_source_layer_ids.size()), g_.index_topk});
  std::fill(topk.ids.begin(), topk.ids.end(), -1);
}

// Collects a draft; dec_row counts the recorded drafts.
void Tracer::collect_draft(int dec_row, int anchor) {
  const int count = g_.dspark_block_size;
  const float* draft = backend_->machine().ranks[0].regions->data(Region::kDraft, 0);
  std::vector<int> ids = {anchor};
  for (int position = 0; position < count; ++position) {
    ids.push_back(int_of(draft[position]));
    const std::vector<float> logits = probe_->draft_logits(0, position);
    std::copy(logits.begin(), logits.end(), out_.find("dec.draft_logits")->row(dec_row) + int64_t{position} * g_.vocab_size);
  }
  put_ids("dec.draft_ids", dec_row, ids);
  put_values("dec.confidence", dec_row, {draft + count, static_cast<size_t>(count)});
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
  declare_decode(num_steps, false);
  const int skipped = num_steps - static_cast<int>(out_.find("dec.draft_ids")->shape[0]);
  for (int step = 0; step < num_steps; ++step) {
    const int position = total + step - 1;
    const int fed = step == 0 ? tokens_.back() : dec_tokens_[static_cast<size_t>(step - 1)];
    TRY(run_context(position, {fed}, [&](int) { return record_.find("dec.taps")->row(step); }));
    if (step < skipped) continue;
    probe_->mark_put(Stage::kVerdict, -1);
    probe_->feed_verdict(0, position, dec_tokens_[static_cast<size_t>(step)]);
    TRY(backend_->run({program->section_begin(Section::kDraft), static_cast<int>(program->calls.size())}));
    collect_draft(step - skipped, dec_tokens_[static_cast<size_t>(step)]);
  }
  return {};
}

void Tracer::collect_decode(int dec_row, int row) {
  put_values("dec.logits", dec_row, probe_->logits(row));
  put_values("dec.taps", dec_row, probe_->taps(row));
  Array& topk = *out_.find("dec.topk");
  for (size_t source = 0; source < g_.index_source_layer_ids.size(); ++source) {
    const std::span<float> chosen = probe_->row_words(Region::kTopk, Stage::kIndexSelect, g_.index_source_layer_ids[source], row);
    for (size_t idx = 0; idx < chosen.size(); ++idx) {
      topk.ids[static_cast<size_t>(dec_row * topk.row_size()) + source * chosen.size() + idx] = int_of(chosen[idx]);
    }
  }
}

Status Tracer::run_decode() {
  const int total = static_cast<int>(tokens_.size());
  const int num_steps = static_cast<int>(dec_tokens_.size());
  declare_decode(num_steps, true);
  TRY(run_prefill());
  const int skipped = num_steps - static_cast<int>(out_.find("dec.draft_ids")->shape[0]);
  for (int step = 0; step < num_steps; ++step) {
    const int position = total + step - 1;
    if (step > 0) {
      TRY(backend_->begin_step(step_inputs(position, {dec_tokens_[static_cast<size_t>(step - 1)]})));
      TRY(run_target({position, 1, false, false}));
    }
    const int row = static_cast<int>(backend_->machine().target_rows.size()) - 1;
    collect_decode(step, row);
    if (step < skipped) continue;
    const program::Program& program = backend_->machine().program();
    probe_->feed_verdict(0, position, dec_tokens_[static_cast<size_t>(step)]);
    TRY(backend_->run({program.section_begin(Section::kDraft), static_cast<int>(program.calls.size())}));
    collect_draft(step - skipped, dec_tokens_[static_cast<size_t>(step)]);
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
  return std::move(out_);
}

}  // namespace

Result<TraceMode> parse_trace_mode(std::string_view name) {
  constexpr std::pair<std::string_view, TraceMode> kModes[] = {
      {"layer", TraceMode::kLayer}, {"step", TraceMode::kStep}, {"cached", TraceMode::kCached}, {"ffn", TraceMode::kFfn},
      {"draft", TraceMode::kDraft}, {"free", TraceMode::kFree}, {"decode", TraceMode::kDecode}};
  for (const auto& [text, mode] : kModes) {
    if (text == name) return mode;
  }
  return Error{Code::kInvalidArgument, "\"" + std::string(name) + "\" is none of layer, step, cached, ffn, draft, free, decode", "--mode"};
}

Result<Record> run_trace(const weights::Checkpoint& checkpoint, const Record& record, const TraceOptions& options) {
  if (options.chunk < 1 || options.chunk > program::kMaxBand) {
    return Error{Code::kInvalidArgument, "must be between 1 and " + std::to_string(program::kMaxBand) + ", found " + std::to_string(options.chunk), "--chunk"};
  }
  return Tracer(checkpoint, record, options).run();
}

}  // namespace monostep::cpu
