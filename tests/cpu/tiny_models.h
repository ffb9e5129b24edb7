// Small checkpoints, steps and comparisons for the tests of the CPU reference: micro (seed 3), a geometry of micro's
// topology that splits over eight ranks, steps of several requests with fixed slots and pages, and what a step leaves
// behind as bytes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "../base/temp_dir.h"
#include "cpu/backend.h"
#include "cpu/probe.h"
#include "model/shard.h"
#include "weights/synthetic.h"

namespace monostep::cpu {

// The checkpoint's files are mapped, so the folder need not stay.
inline weights::Checkpoint made_checkpoint(const model::Geometry& geometry, uint64_t seed) {
  const TempDir dir;
  CHECK(weights::write_checkpoint(geometry, seed, dir / "model").ok(), "the checkpoint is written");
  return weights::Checkpoint::open(dir / "model").value();
}

inline model::Geometry micro_geometry() { return model::named_geometry("micro").value(); }
inline const weights::Checkpoint& micro() {
  static const weights::Checkpoint checkpoint = made_checkpoint(micro_geometry(), 3);
  return checkpoint;
}

// Splits over 1, 2, 4 and 8 ranks.
inline model::Geometry eight_rank_geometry() {
  model::Geometry g = micro_geometry();
  g.hidden_size = 256;
  g.num_attention_heads = 8;
  g.o_groups = 8;
  g.moe_intermediate_size = 256;
  g.n_routed_experts = 4;
  return g;
}
inline const weights::Checkpoint& eight_ranks() {
  static const weights::Checkpoint checkpoint = made_checkpoint(eight_rank_geometry(), 3);
  return checkpoint;
}

// Inputs of the hidden size come in two K slices; the draft takes fewer experts than the backbone.
inline model::Geometry wide_geometry() {
  model::Geometry g = micro_geometry();
  g.hidden_size = 2560;
  g.n_routed_experts = 4;
  g.num_experts_per_tok = 3;
  return g;
}
inline const weights::Checkpoint& wide() {
  static const weights::Checkpoint checkpoint = made_checkpoint(wide_geometry(), 3);
  return checkpoint;
}

// Attention lists of two parts, in the backbone from the first positions on and in the draft behind a full window, and
// of three at position 130 of a ratio-1 layer.
inline model::Geometry long_list_geometry() {
  model::Geometry g = micro_geometry();
  g.sliding_window = 126;
  g.index_topk = 140;
  g.candidate_topk_blocks = 40;
  return g;
}
inline const weights::Checkpoint& long_lists() {
  static const weights::Checkpoint checkpoint = made_checkpoint(long_list_geometry(), 3);
  return checkpoint;
}

inline constexpr int kContext = 128;
inline constexpr int kPagesOfSlot = kContext / program::kPageTokens;
inline constexpr int kSlots = program::kMaxRequests;

// Every slot has its own pages; two pages belong to nobody.
inline CpuOptions small_options() {
  CpuOptions options;
  options.ctas = 1;
  options.num_slots = kSlots;
  options.num_pages = kSlots * kPagesOfSlot + 2;
  options.max_context = kContext;
  return options;
}
inline std::span<const int32_t> pages_of(int slot) {
  static const std::vector<int32_t> pages = [] {
    std::vector<int32_t> all(kSlots * kPagesOfSlot);
    std::iota(all.begin(), all.end(), 1);  // page 0 belongs to nobody
    return all;
  }();
  return std::span(pages).subspan(static_cast<size_t>(slot * kPagesOfSlot), kPagesOfSlot);
}

inline std::unique_ptr<CpuBackend> made_backend(const weights::Checkpoint& checkpoint, const CpuOptions& options) {
  return CpuBackend::make(checkpoint, options).value();
}

inline std::vector<int32_t> prompt(int count, int salt = 0) {
  std::vector<int32_t> tokens;
  for (int idx = 0; idx < count; ++idx) tokens.push_back((idx * 29 + idx / 7 * 5 + 7 + salt * 13) % 128);
  return tokens;
}

struct Part {  // a request of a step
  int slot = 0;
  std::vector<int32_t> tokens;
  int first = 0;  // position of the first token
  int num_drafts = 0;
  bool sample = true;
  bool draft = true;
  bool context = true;
  program::Sampling sampling = {};
};

inline program::StepInputs step_of(const std::vector<Part>& parts) {
  program::StepInputs inputs;
  for (const Part& part : parts) {
    program::StepRequest& request = inputs.requests.emplace_back();
    request.state_slot = part.slot;
    request.pages = pages_of(part.slot);
    request.first_row = static_cast<int>(inputs.rows.size());
    request.num_rows = static_cast<int>(part.tokens.size());
    request.first_position = part.first;
    request.num_drafts = part.num_drafts;
    request.sample = part.sample;
    request.draft = part.draft;
    request.context = part.context;
    request.sampling = part.sampling;
    for (int row = 0; row < request.num_rows; ++row) {
      inputs.rows.push_back({part.tokens[static_cast<size_t>(row)], part.first + row,
                             static_cast<int32_t>(inputs.requests.size()) - 1, false, part.sample});
    }
  }
  return inputs;
}

inline std::string bytes_of(std::span<const float> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}
inline std::string bytes_at(const std::byte* begin, int64_t num_bytes) {
  return {reinterpret_cast<const char*>(begin), static_cast<size_t>(num_bytes)};
}

using State = std::map<std::string, std::string>;  // what it is -> bytes

inline void add_slot_state(kv::Pools& pools, const model::Geometry& g, int slot_idx, int end, State& state) {
  std::byte* slot = pools.slot(slot_idx);
  for (int layer_idx = 0; layer_idx < g.num_layers(); ++layer_idx) {
    for (int position = std::max(0, end - g.sliding_window); position < end; ++position) {
      state["ring " + std::to_string(layer_idx) + " at " + std::to_string(position)] =
          bytes_at(slot + pools.slot_layout.ring_offset(layer_idx, position), model::window_record_bytes(g));
    }
  }
  for (int position = std::max(0, end - g.engram_max_ngram_size + 1); position < end; ++position) {
    state["class at " + std::to_string(position)] = bytes_at(slot + pools.slot_layout.class_offset(position), 4);
  }
}

// Everything that later steps may read of a slot whose positions before `end` are committed.
inline State state_of(kv::Pools& pools, const model::Geometry& g, int slot, int end) {
  State state;
  add_slot_state(pools, g, slot, end, state);
  for (int owner_idx = 0; owner_idx < static_cast<int>(g.kv_source_layer_ids.size()); ++owner_idx) {
    const int ratio = g.compress_ratios[static_cast<size_t>(g.kv_source_layer_ids[static_cast<size_t>(owner_idx)])];
    const int in_page = pools.page_layout.groups_per_page(owner_idx);
    for (int group = 0; group < end / ratio; ++group) {
      const std::byte* page = pools.page(pages_of(slot)[static_cast<size_t>(group / in_page)]);
      const std::string name = "owner " + std::to_string(owner_idx) + " group " + std::to_string(group);
      state["compressed " + name] = bytes_at(page + pools.page_layout.compressed_offset(owner_idx, group % in_page),
                                             model::compressed_record_bytes(g));
      state["index key " + name] =
          bytes_at(page + pools.page_layout.index_key_offset(owner_idx, group % in_page), model::index_record_bytes(g));
    }
    if (ratio == 2 && end % 2 == 1) {
      state["pending " + std::to_string(owner_idx)] =
          bytes_at(pools.slot(slot) + pools.slot_layout.pending_offset(owner_idx, end - 1), int64_t{8} * g.head_dim);
    }
  }
  return state;
}
inline State state_of(CpuBackend& backend, int slot, int end, int rank = 0) {
  Machine& machine = backend.machine();
  return state_of(*machine.ranks[static_cast<size_t>(rank)].pools, machine.layout().geometry(), slot, end);
}

// What a step gave a request, as bytes.
inline void add_outputs(CpuBackend& backend, const program::StepOutputs& outputs, int request_idx, State& state) {
  const program::StepInputs& inputs = *backend.machine().inputs;
  const program::StepRequest& request = inputs.requests[static_cast<size_t>(request_idx)];
  const program::RequestOutput& output = outputs.requests[static_cast<size_t>(request_idx)];
  Probe probe(backend);
  for (int row = 0; request.sample && row < request.num_rows; ++row) {
    state["logits " + std::to_string(row)] = bytes_of(probe.logits(request.first_row + row));
  }
  for (size_t position = 0; position < output.drafts.size(); ++position) {
    state["draft logits " + std::to_string(position)] =
        bytes_of(probe.draft_logits(request_idx, static_cast<int>(position)));
  }
  const auto add_ids = [&](const std::string& name, const std::vector<int32_t>& ids) {
    for (const int32_t id : ids) state[name] += std::to_string(id) + " ";
  };
  add_ids("accepted", {output.num_accepted});
  add_ids("tokens", output.tokens);
  add_ids("drafts", output.drafts);
  state["confidence"] = bytes_of(output.confidence);
}

inline program::StepOutputs decode(CpuBackend& backend, const std::vector<Part>& parts) {
  const auto ticket = backend.decode(step_of(parts));
  EXPECT_TRUE(ticket.ok()) << ticket.error().message();
  return ticket.ok() ? backend.wait(ticket.value()).value() : program::StepOutputs{};
}

// Runs a step; gives outputs and caches of every request (committed: all rows but rejected drafts).
inline std::vector<State> step_states(CpuBackend& backend, const std::vector<Part>& parts) {
  const program::StepOutputs outputs = decode(backend, parts);
  std::vector<State> states;
  for (size_t idx = 0; idx < outputs.requests.size(); ++idx) {
    const Part& part = parts[idx];
    const int committed =
        part.first + static_cast<int>(part.tokens.size()) - part.num_drafts + outputs.requests[idx].num_accepted;
    State& state = states.emplace_back(state_of(backend, part.slot, committed));
    add_outputs(backend, outputs, static_cast<int>(idx), state);
  }
  return states;
}

// Runs a prompt in steps of at most `chunk` rows; the last one samples and drafts.
inline State prefill(CpuBackend& backend, int slot, const std::vector<int32_t>& tokens, int chunk) {
  const int total = static_cast<int>(tokens.size());
  for (int first = 0;; first += chunk) {
    const int last = std::min(first + chunk, total);
    Part part{slot, {tokens.begin() + first, tokens.begin() + last}, first};
    part.sample = part.draft = last == total;
    std::vector<State> states = step_states(backend, {part});
    if (last < total) continue;
    // The rows of the last chunk differ with the chunks: the last row's logits count.
    const int last_row = last - first - 1;
    State& state = states.front();
    state["last logits"] = state["logits " + std::to_string(last_row)];
    for (int row = 0; row <= last_row; ++row) state.erase("logits " + std::to_string(row));
    return state;
  }
}

// One step, stopped behind chosen calls so that regions can be read before later layers overwrite them.
class Walk {
 public:
  Walk(CpuBackend& backend, const program::StepInputs& inputs) : backend_(backend) {
    const Status status = backend.begin_step(inputs);
    EXPECT_TRUE(status.ok()) << status.error().message();
  }
  void through(program::Stage stage, int layer) { to(find(stage, layer) + 1); }
  void to(int last) {
    const Status status = backend_.run({done_, last});
    EXPECT_TRUE(status.ok()) << status.error().message();
    done_ = last;
  }
  void to_end() { to(static_cast<int>(backend_.machine().program().calls.size())); }
  int find(program::Stage stage, int layer) const { return backend_.machine().program().find(stage, layer); }
  float* region(program::Region region, program::Stage writer, int layer, int rank = 0) {
    Machine& machine = backend_.machine();
    const int copy = machine.band->copies[static_cast<size_t>(find(writer, layer))][static_cast<size_t>(region)];
    return machine.ranks[static_cast<size_t>(rank)].regions->data(region, copy);
  }

 private:
  CpuBackend& backend_;
  int done_ = 0;
};

inline std::string first_difference(const State& a, const State& b) {
  for (const auto& [name, bytes] : a) {
    const auto found = b.find(name);
    if (found == b.end()) return name + " is missing";
    if (found->second != bytes) return name;
  }
  return a.size() == b.size() ? "" : "another count of records";
}

inline std::string first_difference(const std::vector<State>& a, const std::vector<State>& b) {
  if (a.size() != b.size()) return "another count of requests";
  for (size_t idx = 0; idx < a.size(); ++idx) {
    const std::string difference = first_difference(a[idx], b[idx]);
    if (!difference.empty()) return "request " + std::to_string(idx) + ": " + difference;
  }
  return "";
}

}  // namespace monostep::cpu
