// Collects what a traced step computed, call by call (cpu/trace_collect.h).
#include "cpu/trace_collect.h"

#include <algorithm>
#include <limits>

#include "base/integer.h"
#include "cpu/context.h"

namespace monostep::cpu {

using program::Region;
using program::Stage;

namespace {

std::string layered(const std::string& name, int layer_idx) { return name + "." + std::to_string(layer_idx); }

}  // namespace

Collector::Collector(CpuBackend& backend, Probe& probe, const TracedPrompt& prompt)
    : backend_(backend),
      probe_(probe),
      prompt_(prompt),
      g_(backend.machine().layout().geometry()),
      roles_(backend.machine().program().roles),
      out_row_(prompt.tokens.size() + static_cast<size_t>(prompt.num_decoded), -1) {}

void Collector::put_values(const std::string& name, int64_t row, std::span<const float> values) {
  Array* array = out_.find(name);
  if (array != nullptr) std::copy(values.begin(), values.end(), array->row(row));
}

void Collector::put_ids(const std::string& name, int64_t row, std::span<const int> ids) {
  Array* array = out_.find(name);
  if (array != nullptr) std::copy(ids.begin(), ids.end(), array->ids.begin() + row * array->row_size());
}

void Collector::declare_ffn(const std::vector<int>& positions) {
  const auto rows = static_cast<int64_t>(positions.size());
  const int64_t layers = g_.num_hidden_layers;
  for (size_t row = 0; row < positions.size(); ++row)
    out_row_[static_cast<size_t>(positions[row])] = static_cast<int>(row);
  out_.add("positions", "I32", {rows}).ids = positions;
  out_.add("resid", "BF16", {rows, layers, g_.hc_mult, g_.hidden_size});
  out_.add("router_ids", "I32", {rows, layers, g_.num_experts_per_tok});
}

void Collector::preset(const std::string& name, const Array& values) {
  if (Array* array = out_.find(name)) *array = values;
}

void Collector::declare(const std::vector<int>& positions) {
  declare_ffn(positions);
  const auto rows = static_cast<int64_t>(positions.size());
  const auto total = static_cast<int64_t>(prompt_.tokens.size());
  const int64_t layers = g_.num_hidden_layers;
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
      out_.add(layered("candidate_blocks", layer_idx), "U8",
               {rows, ceil_div<int64_t>(groups, g_.candidate_block_size)});
    }
  }
  for (const int layer_idx : g_.kv_source_layer_ids) {
    const int64_t groups = total / g_.compress_ratios[static_cast<size_t>(layer_idx)];
    if (groups == 0) continue;
    out_.add(layered("compressed_kv", layer_idx), "BF16", {groups, g_.head_dim});
    out_.add(layered("index_k", layer_idx), "BF16", {groups, g_.index_head_dim});
  }
}

void Collector::collect_layer_end(int layer_idx, int row, int out_row) {
  const int64_t streams = int64_t{g_.hc_mult} * g_.hidden_size;
  Array& resid = *out_.find("resid");
  const std::vector<float> x = probe_.out_streams(layer_idx, row);
  std::copy(x.begin(), x.end(), resid.row(out_row) + layer_idx * streams);
}

void Collector::collect_engram(int layer_idx, int row, int out_row) {
  const int table_idx = roles_[static_cast<size_t>(layer_idx)].engram_idx;
  const int position = backend_.machine().target_rows[static_cast<size_t>(row)].position;
  const ModelTables& tables = backend_.machine().tables;
  std::vector<int> classes;
  for (int back = 0; back < g_.engram_max_ngram_size; ++back) {
    const int at = position - back;
    if (at < 0)
      classes.push_back(tables.pad_class);
    else if (image_at(at))
      classes.push_back(model::kDeadClass);
    else
      classes.push_back(tables.token_classes[static_cast<size_t>(prompt_.tokens[static_cast<size_t>(at)])]);
  }
  std::vector<int64_t> rows(static_cast<size_t>(g_.num_engram_columns()));
  model::engram_rows(tables.engram[static_cast<size_t>(table_idx)], g_.engram_n_heads, tables.pad_class, classes, rows);
  Array& ids = *out_.find("engram_rows");
  for (size_t column = 0; column < rows.size(); ++column) {
    ids.ids[static_cast<size_t>(out_row * ids.row_size() + table_idx * g_.num_engram_columns()) + column] =
        static_cast<int>(rows[column]);
  }
  const std::vector<float> gates =
      image_at(position) ? std::vector<float>(static_cast<size_t>(g_.hc_mult)) : probe_.engram_gates(layer_idx, row);
  std::copy(gates.begin(), gates.end(), out_.find("engram_gate")->row(out_row) + int64_t{table_idx} * g_.hc_mult);
  const std::vector<float> x = probe_.attn_streams(layer_idx, row);
  std::copy(x.begin(), x.end(), out_.find("engram_out")->row(out_row) + table_idx * static_cast<int64_t>(x.size()));
}

void Collector::collect_index(const program::Call& call, int row, int position) {
  const int out_row = out_row_of(position);
  const int ratio = roles_[static_cast<size_t>(call.layer)].ratio;
  const int visible = (position + 1) / ratio;
  if (call.stage == Stage::kIndexScore) {
    const std::span<float> scores = probe_.row_words(Region::kScores, call.stage, call.layer, row);
    put_values(layered("index_scores", call.layer), out_row, scores.first(static_cast<size_t>(visible)));
    return;
  }
  Array* topk = out_.find(layered("topk", call.layer));
  if (topk == nullptr) return;
  const std::span<float> chosen = probe_.row_words(Region::kTopk, call.stage, call.layer, row);
  for (int64_t idx = 0; idx < topk->row_size(); ++idx)
    topk->ids[static_cast<size_t>(out_row * topk->row_size() + idx)] = int_of(chosen[static_cast<size_t>(idx)]);
  Array* kept = out_.find(layered("candidate_blocks", call.layer));
  if (kept == nullptr) return;
  for (const float word : probe_.row_words(Region::kCandidates, call.stage, call.layer, row)) {
    if (int_of(word) >= 0) kept->ids[static_cast<size_t>(out_row * kept->row_size() + int_of(word))] = 1;
  }
}

// The compressed row and index key of the group that a position closes, whether or not the position itself is wanted.
void Collector::collect_group(int layer_idx, int row, int position) {
  const model::Role& role = roles_[static_cast<size_t>(layer_idx)];
  if (role.mode != model::Mode::kFull || (position + 1) % role.ratio != 0) return;
  const int group = position / role.ratio;
  put_values(layered("compressed_kv", layer_idx), group,
             probe_.row_words(Region::kCompressedNew, Stage::kKvNew, layer_idx, row));
  put_values(layered("index_k", layer_idx), group,
             probe_.row_words(Region::kIndexKeyNew, Stage::kKvNew, layer_idx, row));
}

void Collector::collect(const program::Call& call, int first, int count) {
  const auto hc = static_cast<size_t>(g_.hc_mult);
  for (int row = 0; row < count; ++row) {
    const int position = first + row;
    const int out_row = out_row_of(position);
    if (call.stage == Stage::kKvNew) collect_group(call.layer, row, position);
    if (out_row < 0) continue;
    const auto layer = static_cast<int64_t>(call.layer);
    switch (call.stage) {
      case Stage::kFold:
        if (roles_[static_cast<size_t>(call.layer)].engram_idx >= 0) collect_engram(call.layer, row, out_row);
        break;
      case Stage::kAttnMix:
      case Stage::kFfnMix: {
        const int site = call.stage == Stage::kFfnMix ? 1 : 0;
        const std::span<const float> mix = probe_.mix(call.layer, site, row);
        const int64_t at = layer * 2 + site;
        std::copy_n(mix.begin(), hc, out_.find("pre")->row(out_row) + at * g_.hc_mult);
        std::copy_n(mix.begin() + g_.hc_mult, hc, out_.find("post")->row(out_row) + at * g_.hc_mult);
        std::copy_n(mix.begin() + 2 * g_.hc_mult, hc * hc,
                    out_.find("comb")->row(out_row) + at * g_.hc_mult * g_.hc_mult);
        break;
      }
      case Stage::kKvNew: {
        const std::span<float> window = probe_.row_words(Region::kWindowNew, call.stage, call.layer, row);
        std::copy(window.begin(), window.end(), out_.find("window_kv")->row(out_row) + layer * g_.head_dim);
        break;
      }
      case Stage::kIndexScore:
      case Stage::kIndexSelect: collect_index(call, row, position); break;
      case Stage::kFfnFold: {
        const std::vector<float> x = probe_.ffn_streams(call.layer, row);
        std::copy(x.begin(), x.end(), out_.find("mid")->row(out_row) + layer * static_cast<int64_t>(x.size()));
        break;
      }
      case Stage::kExpertDown: {
        collect_layer_end(call.layer, row, out_row);
        const Routing routing = probe_.routing(call.layer, row, image_at(position));
        std::copy(routing.experts.begin(), routing.experts.end(),
                  out_.find("router_ids")->ids.begin() + out_row * out_.find("router_ids")->row_size() +
                      layer * g_.num_experts_per_tok);
        if (Array* weights = out_.find("router_weights")) {
          std::copy(routing.weights.begin(), routing.weights.end(),
                    weights->row(out_row) + layer * g_.num_experts_per_tok);
        }
        break;
      }
      case Stage::kHead: put_values("logits", out_row, probe_.logits(row)); break;
      case Stage::kMainProj: put_values("taps", out_row, probe_.taps(row)); break;
      default: break;
    }
  }
}

void Collector::declare_decode(const std::vector<int>& tokens, int skipped, bool with_target) {
  const auto steps = static_cast<int64_t>(tokens.size());
  const int64_t drafts = steps - skipped;
  out_.add("dec.tokens", "I32", {steps}).ids = tokens;
  out_.add("dec.draft_ids", "I32", {drafts, g_.dspark_block_size + 1});
  out_.add("dec.draft_logits", "F32", {drafts, g_.dspark_block_size, g_.vocab_size});
  out_.add("dec.confidence", "F32", {drafts, g_.dspark_block_size});
  if (!with_target) return;
  out_.add("dec.logits", "F32", {steps, g_.vocab_size});
  out_.add("dec.taps", "BF16", {steps, int64_t{g_.num_taps()} * g_.hidden_size});
  Array& topk =
      out_.add("dec.topk", "I32", {steps, static_cast<int64_t>(g_.index_source_layer_ids.size()), g_.index_topk});
  std::fill(topk.ids.begin(), topk.ids.end(), -1);
}

// Collects a draft; dec_row counts the recorded drafts.
void Collector::collect_draft(int dec_row, int anchor) {
  const int count = g_.dspark_block_size;
  const float* draft = backend_.machine().ranks[0].regions->data(Region::kDraft, 0);
  std::vector<int> ids = {anchor};
  for (int position = 0; position < count; ++position) {
    ids.push_back(int_of(draft[position]));
    const std::vector<float> logits = probe_.draft_logits(0, position);
    std::copy(logits.begin(), logits.end(),
              out_.find("dec.draft_logits")->row(dec_row) + int64_t{position} * g_.vocab_size);
  }
  put_ids("dec.draft_ids", dec_row, ids);
  put_values("dec.confidence", dec_row, {draft + count, static_cast<size_t>(count)});
}

void Collector::collect_decode(int dec_row, int row) {
  put_values("dec.logits", dec_row, probe_.logits(row));
  put_values("dec.taps", dec_row, probe_.taps(row));
  Array& topk = *out_.find("dec.topk");
  for (size_t source = 0; source < g_.index_source_layer_ids.size(); ++source) {
    const std::span<float> chosen =
        probe_.row_words(Region::kTopk, Stage::kIndexSelect, g_.index_source_layer_ids[source], row);
    for (size_t idx = 0; idx < chosen.size(); ++idx) {
      topk.ids[static_cast<size_t>(dec_row * topk.row_size()) + source * chosen.size() + idx] = int_of(chosen[idx]);
    }
  }
}

}  // namespace monostep::cpu
