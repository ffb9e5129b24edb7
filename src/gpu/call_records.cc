// Call and step records (gpu/call_records.h).
#include "gpu/call_records.h"

#include <algorithm>

#include "base/check.h"

namespace monostep::gpu {
namespace {

using program::Call;
using program::ChunkRun;
using program::Layout;
using program::Linear;
using program::Order;
using program::Plan;
using program::Region;
using program::Stage;

class Recorder {
 public:
  Recorder(const Layout& layout, const Plan& plan, uint64_t weights)
      : layout_(layout), plan_(plan), program_(layout.program()), weights_(weights), runs_(program_.calls.size()) {
    for (const ChunkRun& run : plan.chunk_runs()) runs_[static_cast<size_t>(run.call_idx)].push_back(&run);
  }

  CallRecord record(int call_idx) const {
    const Call& call = program_.calls[static_cast<size_t>(call_idx)];
    const program::CallPlan& placed = plan_.calls()[static_cast<size_t>(call_idx)];
    CallRecord out = {};
    out.stage = static_cast<int32_t>(call.stage);
    out.layer = call.layer;
    out.draft = call.section == program::Section::kDraft ? 1 : 0;
    out.num_tasks = placed.num_tasks;
    out.first_cta = placed.first_cta;
    out.tasks_per_chunk = placed.tasks_per_chunk;
    out.splits = 1;
    add_role(call, out);
    add_regions(call_idx, call, out);
    add_weights(call_idx, out);
    add_linears(call, out);
    return out;
  }

 private:
  bool in_layer(const Call& call) const { return call.layer >= 0 && call.stage != Stage::kMarkov; }
  const model::Role& role(const Call& call) const { return program_.roles[static_cast<size_t>(call.layer)]; }

  void add_role(const Call& call, CallRecord& out) const {
    out.engram_idx = out.tap_idx = out.owner_idx = out.candidates_from = -1;
    if (!in_layer(call)) return;
    const model::Role& r = role(call);
    const model::Geometry& g = layout_.geometry();
    out.mode = static_cast<int32_t>(r.mode);
    out.ratio = r.ratio;
    out.owner_idx = r.owner_idx;
    out.engram_idx = r.engram_idx;
    out.tap_idx = r.tap_idx;
    out.candidate_source = r.candidate_source ? 1 : 0;
    out.candidates_from = r.candidates_from;
    out.num_experts = g.num_experts(call.layer);
    out.experts_per_token = g.experts_per_token(call.layer);
    out.first_layer = call.layer == 0 || call.layer == g.num_hidden_layers ? 1 : 0;
    if (r.ratio > 0) out.score_chunks = layout_.score_chunks(call.layer);
  }

  RegionRef ref(Region region, int writer_idx) const {
    const Call& writer = program_.calls[static_cast<size_t>(writer_idx)];
    const int copy = program::copy_of(program_, layout_.geometry(), region, writer);
    return {static_cast<uint32_t>(plan_.region_offset(region, copy) / 8), plan_.tag(0, writer_idx)};
  }

  void add_regions(int call_idx, const Call& call, CallRecord& out) const {
    int read = 0;
    int written = 0;
    for (int idx = 0; idx < program::kNumRegions; ++idx) {
      const auto region = static_cast<Region>(idx);
      if (program::may_read(call.stage, region)) {
        CHECK(read < kMaxRegionRefs, "a stage that reads more regions than a record holds");
        if ((call.reads & program::bit(region)) != 0)
          out.reads[read] = ref(region, program::writer_of(program_, layout_.geometry(), region, call_idx));
        ++read;
      }
      if (program::may_write(call.stage, region)) {
        CHECK(written < kMaxRegionRefs, "a stage that writes more regions than a record holds");
        if ((call.writes & program::bit(region)) != 0) out.writes[written] = ref(region, call_idx);
        ++written;
      }
    }
  }

  void add_weights(int call_idx, CallRecord& out) const {
    int vectors = 0;
    for (const ChunkRun* run : runs_[static_cast<size_t>(call_idx)]) {
      const uint64_t address = weights_ + static_cast<uint64_t>(run->first_offset);
      if (run->order() == Order::kPlain) {
        CHECK(vectors < kMaxVectors, "a call with more vectors than a record holds");
        out.vectors[vectors++] = address;
        continue;
      }
      CHECK(out.num_sections < kMaxSections, "a call with more linears than a record holds");
      SectionRecord& section = out.sections[out.num_sections++];
      section.chunks = address;
      section.expert_stride = run->expert_stride();
      section.first_tile = run->order() == Order::kSlices ? 0 : run->weights.front().first_tile;
      section.num_tiles = run->order() == Order::kSlices ? run->num_chunks : run->num_tiles;
      section.num_pieces = run->num_pieces;
      section.chunk_bytes = run->chunk_bytes;
      section.storage = static_cast<int32_t>(run->weights.front().storage);
      section.rows = static_cast<int32_t>(program::rank_rows(run->weights.front(), layout_.shard()));
    }
  }

  // The first plain vector of another call of the layer.
  uint64_t vector_of(Stage stage, int layer_idx, size_t idx) const {
    size_t seen = 0;
    for (const ChunkRun* run : runs_[static_cast<size_t>(program_.find(stage, layer_idx))]) {
      if (run->order() != Order::kPlain) continue;
      if (seen++ == idx) return weights_ + static_cast<uint64_t>(run->first_offset);
    }
    CHECK(false, "a vector that the call does not have");
    return 0;
  }

  void add_attn_in_tiles(const Call& call, CallRecord& out) const {
    const std::vector<Linear> held = program::linears_of(Stage::kAttnIn, role(call));
    int place = 0;
    for (const Linear linear :
         {Linear::kWqA, Linear::kWkv, Linear::kCompressorWkv, Linear::kCompressorGate, Linear::kIndexWeights}) {
      const bool there = std::find(held.begin(), held.end(), linear) != held.end();
      out.tile_of[place++] = there ? layout_.first_tile(Stage::kAttnIn, linear, call.layer) : -1;
    }
    out.reader_splits = layout_.stage_splits(Stage::kAttnIn, call.layer);
  }

  void add_ffn_in_tiles(const Call& call, CallRecord& out) const {
    int place = 0;
    for (const Linear linear : {Linear::kRouter, Linear::kSharedW1, Linear::kSharedW3})
      out.tile_of[place++] = layout_.first_tile(Stage::kFfnIn, linear, call.layer);
    out.reader_splits = layout_.stage_splits(Stage::kFfnIn, call.layer);
    for (size_t idx = 0; idx < 2; ++idx) out.router_bias[idx] = vector_of(Stage::kExpertUp, call.layer, idx);
  }

  void add_linears(const Call& call, CallRecord& out) const {
    const auto own = [&](int layer_idx) {
      out.tiles = layout_.stage_tiles(call.stage, layer_idx);
      out.splits = layout_.stage_splits(call.stage, layer_idx);
    };
    const int layer_idx = in_layer(call) ? call.layer : -1;
    switch (call.stage) {
      case Stage::kEngramKv:
      case Stage::kAttnIn:
      case Stage::kWoA:
      case Stage::kFfnIn:
      case Stage::kHead:
      case Stage::kMainProj:
      case Stage::kMarkov: own(layer_idx); break;
      case Stage::kEngramFold:
      case Stage::kFold: out.reader_splits = layout_.stage_splits(Stage::kEngramKv, -1); break;
      case Stage::kQProj: own(layer_idx); break;
      case Stage::kQNorm:
      case Stage::kKvNew: add_attn_in_tiles(call, out); break;
      case Stage::kIndexScore:
        add_attn_in_tiles(call, out);
        out.index_tile = layout_.first_tile(Stage::kQProj, Linear::kIndexWqB, call.layer);
        out.expert_tiles = layout_.stage_splits(Stage::kQProj, call.layer);
        break;
      case Stage::kAttend: out.expert_tiles = layout_.stage_splits(Stage::kQProj, call.layer); break;
      case Stage::kWoB: own(layer_idx); break;
      case Stage::kOSum: out.reader_splits = layout_.stage_splits(Stage::kWoA, call.layer); break;
      case Stage::kExpertUp:
        own(layer_idx);
        add_ffn_in_tiles(call, out);
        out.vectors[0] = vector_of(Stage::kFfnIn, call.layer, 0);
        break;
      case Stage::kExpertDown:
        own(layer_idx);
        add_ffn_in_tiles(call, out);
        break;
      case Stage::kExpertAct:
        add_ffn_in_tiles(call, out);
        out.expert_splits = layout_.stage_splits(Stage::kExpertUp, call.layer);
        out.expert_tiles = layout_.stage_tiles(Stage::kExpertUp, call.layer) * out.expert_splits;
        break;
      case Stage::kContextProj:
        own(-1);
        out.reader_splits = layout_.stage_splits(Stage::kMainProj, -1);
        break;
      case Stage::kContextNew:
        out.tiles = layout_.stage_tiles(Stage::kContextProj, -1);
        out.reader_splits = layout_.stage_splits(Stage::kContextProj, -1);
        break;
      default: break;
    }
  }

  const Layout& layout_;
  const Plan& plan_;
  const program::Program& program_;
  uint64_t weights_;
  std::vector<std::vector<const ChunkRun*>> runs_;  // [calls]
};

}  // namespace

std::vector<CallRecord> call_records(const Layout& layout, const Plan& plan, uint64_t weights) {
  const Recorder recorder(layout, plan, weights);
  std::vector<CallRecord> out;
  for (int call_idx = 0; call_idx < static_cast<int>(layout.program().calls.size()); ++call_idx)
    out.push_back(recorder.record(call_idx));
  return out;
}

StepRecord step_record(const program::StepInputs& inputs, uint32_t epoch) {
  StepRecord out = {};
  out.epoch = epoch;
  out.num_rows = static_cast<int32_t>(inputs.rows.size());
  out.num_requests = static_cast<int32_t>(inputs.requests.size());
  int image_row = 0;
  for (size_t idx = 0; idx < inputs.rows.size(); ++idx) {
    const program::StepRow& row = inputs.rows[idx];
    out.rows[idx] = {row.token, row.position, row.request,
                     (row.image ? kRowImage : 0) | (row.needs_logits ? kRowNeedsLogits : 0),
                     row.image ? image_row++ : -1};
  }
  for (size_t idx = 0; idx < inputs.requests.size(); ++idx) {
    const program::StepRequest& request = inputs.requests[idx];
    RequestRecord& to = out.requests[idx];
    to.state_slot = request.state_slot;
    to.first_row = request.first_row;
    to.num_rows = request.num_rows;
    to.first_position = request.first_position;
    to.num_drafts = request.num_drafts;
    to.flags = (request.sample ? kRequestSample : 0) | (request.draft ? kRequestDraft : 0) |
               (request.context ? kRequestContext : 0);
    to.temperature = request.sampling.temperature;
    to.top_k = request.sampling.top_k;
    to.top_p = request.sampling.top_p;
    to.min_p = request.sampling.min_p;
    to.seed_low = static_cast<uint32_t>(request.sampling.seed);
    to.seed_high = static_cast<uint32_t>(request.sampling.seed >> 32);
    to.forced_acceptance = request.forced_acceptance;
    to.step_counter = request.step_counter;
    std::copy(request.stop_tokens.begin(), request.stop_tokens.end(), to.stop_tokens);
  }
  return out;
}

}  // namespace monostep::gpu
