// The generated constants header (gpu/constants.h).
#include "gpu/constants.h"

#include <fmt/format.h>

#include <algorithm>

#include "gpu/device/records.h"
#include "gpu/device/scratch_sizes.h"
#include "kv/state.h"
#include "model/shard.h"

namespace monostep::gpu {
namespace {

using program::Layout;
using program::Linear;
using program::Plan;
using program::Region;
using program::Stage;

// Chunks of expert-down that a CTA takes of one expert, at most.
int down_tasks(const Layout& layout, const Plan& plan) {
  const int chunks = layout.stage_tiles(Stage::kExpertDown, 0) / program::tiles_per_chunk(layout, Stage::kExpertDown);
  return ceil_div(chunks, plan.num_ctas());
}

constexpr int kMinScratch = 48 * 1024;  // what index selection and sampling hold
constexpr int kWantedRing = 96 * 1024;
constexpr int kWideRing = 44 * 1024;
constexpr int kMostRing = 144 * 1024;

class Header {
 public:
  void number(const std::string& name, int64_t value) {
    text_ += fmt::format("inline constexpr {} {} = {};\n", value > INT32_MAX ? "long long" : "int", name, value);
  }
  // Hexadecimal: every bit.
  void real(const std::string& name, double value) {
    text_ += fmt::format("inline constexpr float {} = {:a}f;\n", name, value);
  }
  void exact(const std::string& name, double value) {
    text_ += fmt::format("inline constexpr double {} = {:a};\n", name, value);
  }
  void list(const std::string& name, const std::vector<int64_t>& values) {
    text_ += fmt::format("inline constexpr long long {}[] = {{{}}};\n", name,
                         values.empty() ? "0" : fmt::format("{}", fmt::join(values, ", ")));
  }
  std::string text() const {
    return "#pragma once\n#include <cstdint>\nnamespace monostep::gpu::constants {\n" + text_ +
           "}  // namespace monostep::gpu::constants\n";
  }

 private:
  std::string text_;
};

int slice_of(const Layout& layout, Linear linear) {
  const int k = layout.size(linear, 0).k;
  return k == 0 ? 32 : k / program::k_splits(k);
}

int context_slice(const Layout& layout) {
  return layout.geometry().hidden_size / program::k_splits(layout.geometry().hidden_size);
}

int most_experts(const model::Geometry& g) { return std::max(g.n_routed_experts, g.dspark_n_routed_experts); }
int most_slots(const model::Geometry& g) { return std::max(g.num_experts_per_tok, g.dspark_num_experts_per_tok); }

void add_geometry(Header& out, const Layout& layout) {
  const model::Geometry& g = layout.geometry();
  out.number("kHidden", g.hidden_size);
  out.number("kVocab", g.vocab_size);
  out.number("kNumLayers", g.num_hidden_layers);
  out.number("kNumDraftLayers", g.num_nextn_predict_layers);
  out.number("kHeadDim", g.head_dim);
  out.number("kRopeDim", g.qk_rope_head_dim);
  out.number("kQLoraRank", g.q_lora_rank);
  out.number("kOLoraRank", g.o_lora_rank);
  out.number("kHeadsPerGroup", layout.heads_per_group());
  out.number("kWindow", g.sliding_window);
  out.number("kIndexHeads", g.index_n_heads);
  out.number("kIndexHeadDim", g.index_head_dim);
  out.number("kIndexTopk", g.index_topk);
  out.number("kCandidateGroups", std::max(g.candidate_topk_blocks, 1));
  out.number("kCandidateSize", std::max(g.candidate_block_size, 1));
  out.number("kHc", g.hc_mult);
  out.number("kMixOutputs", layout.mix_outputs());
  out.number("kSinkhornIterations", g.hc_sinkhorn_iters);
  out.number("kDraftLength", std::max(g.dspark_block_size, 1));
  out.number("kNoiseToken", g.dspark_noise_token_id);
  out.number("kNumTaps", g.num_taps());
  out.number("kMarkovRank", std::max(g.dspark_markov_rank, 32));
  out.number("kEngramColumns", std::max(g.num_engram_columns(), 1));
  out.number("kEngramHeads", std::max(g.engram_n_heads, 1));
  out.number("kEngramHeadDim", std::max(g.engram_head_dim, 32));
  out.number("kEngramNgram", std::max(g.engram_max_ngram_size, 1));
  out.number("kMaxExperts", round_up(most_experts(g), 64));
  out.number("kExpertSlots", most_slots(g));
  out.real("kRmsNormEps", static_cast<float>(g.rms_norm_eps));
  out.real("kHcEps", static_cast<float>(g.hc_eps));
  out.real("kSwigluLimit", static_cast<float>(g.swiglu_limit));
  out.real("kRoutedScale", static_cast<float>(g.routed_scaling_factor));
}

void add_shard(Header& out, const Layout& layout) {
  const model::Shard& shard = layout.shard();
  out.number("kTp", shard.tp);
  out.number("kRankHeads", shard.num_heads);
  out.number("kRankGroups", shard.num_o_groups);
  out.number("kExpertWidth", shard.expert_width);
  out.number("kRankVocab", shard.vocab_rows);
  out.number("kEngramRankRows", std::max(shard.engram_rows, 1));
}

void add_shape(Header& out, const Layout& layout) {
  out.number("kRows", layout.rows());
  out.number("kBand", layout.shape().band);
  out.number("kMaxRequests", layout.shape().max_requests);
  out.number("kDraftRows", layout.draft_rows());
  out.number("kSliceWidth", layout.slice_width());
  out.number("kNumSlices", layout.num_slices());
  out.number("kScoreChunk", program::kScoreChunk);
  out.number("kMaxGroups", layout.max_groups(1));
  out.number("kPageTokens", program::kPageTokens);
  out.number("kHiddenTiles", ceil_div(layout.geometry().hidden_size, program::kTile));
  out.number("kOChunk", layout.o_chunk_width());
  out.number("kListParts", layout.max_list_parts());
  out.number("kHeadTiles", ceil_div(layout.shard().vocab_rows, program::kTile));
  // Widths of the K slices that tasks take.
  out.number("kHiddenSlice", context_slice(layout));
  out.number("kQSlice", slice_of(layout, Linear::kWqB));
  out.number("kWoASlice", slice_of(layout, Linear::kWoA));
  out.number("kWoBSlice", slice_of(layout, Linear::kWoB));
  out.number("kDownSlice", slice_of(layout, Linear::kW2));
  out.number("kEngramSlice", slice_of(layout, Linear::kEngramWkv));
  out.number("kMainSlice", slice_of(layout, Linear::kMainProj));
  out.number("kMarkovSlice", slice_of(layout, Linear::kMarkovHead));
  out.number("kDownTilesPerChunk", program::tiles_per_chunk(layout, Stage::kExpertDown));
}

void add_plan(Header& out, const Layout& layout, const Plan& plan, const ProgramSizes& sizes) {
  out.number("kTagBits", plan.tag_bits());
  out.number("kRingBytes", sizes.shared.ring_bytes);
  out.number("kScratchBytes", sizes.shared.scratch_bytes);
  std::vector<int64_t> taps;
  for (const int layer_idx : layout.geometry().dspark_target_layer_ids)
    taps.push_back(plan.tag(0, layout.program().find(Stage::kFold, layer_idx)));
  out.list("kTapOrdinals", taps);
  const auto ordinal = [&](Stage stage) {
    for (size_t idx = 0; idx < layout.program().calls.size(); ++idx) {
      if (layout.program().calls[idx].stage == stage) return static_cast<int64_t>(plan.tag(0, static_cast<int>(idx)));
    }
    return int64_t{0};  // a geometry without drafts never lays out the next step
  };
  out.number("kVerdictOrdinal", ordinal(Stage::kVerdict));
  out.number("kDraftOrdinal", ordinal(Stage::kDraftOut));
  out.number("kTaskBatch", sizes.task_batch);
  out.number("kPairCapacity", sizes.pair_capacity);
  out.number("kDownTasks", down_tasks(layout, plan));
  std::vector<int64_t> first, stride;
  for (int idx = 0; idx < program::kNumRegions; ++idx) {
    const auto region = static_cast<Region>(idx);
    first.push_back(plan.region_offset(region, 0) / 8);
    stride.push_back((plan.region_offset(region, 1) - plan.region_offset(region, 0)) / 8);
  }
  out.list("kRegionPair", first);
  out.list("kCopyPairs", stride);
}

void add_state(Header& out, const model::Geometry& g) {
  const kv::PageLayout page(g);
  const kv::SlotLayout slot(g);
  out.number("kPageBytes", page.page_bytes());
  out.number("kSlotBytes", slot.slot_bytes());
  std::vector<int64_t> compressed, keys;
  for (size_t owner = 0; owner < g.kv_source_layer_ids.size(); ++owner) {
    compressed.push_back(page.compressed_offset(static_cast<int>(owner), 0));
    keys.push_back(page.index_key_offset(static_cast<int>(owner), 0));
  }
  out.list("kCompressedBegin", compressed);
  out.list("kIndexKeyBegin", keys);
  out.number("kWindowRecord", model::window_record_bytes(g));
  out.number("kCompressedRecord", model::compressed_record_bytes(g));
  out.number("kIndexRecord", model::index_record_bytes(g));
  out.number("kRingRows", slot.ring_rows());
  out.number("kPendingBegin", slot.pending_offset(0, 0));
  out.number("kPendingRows", slot.pending_rows());
  out.number("kHistoryBegin", slot.class_offset(0));
  out.number("kHistoryRows", slot.history_rows());
}

// Widest K slice of a stage whose inputs are the rows of a step.
int widest_slice(const Layout& layout) {
  int widest = context_slice(layout);
  for (const Linear linear :
       {Linear::kWqB, Linear::kWoA, Linear::kWoB, Linear::kEngramWkv, Linear::kMainProj, Linear::kMarkovHead})
    widest = std::max(widest, slice_of(layout, linear));
  return widest;
}

int widest_chunk(const Plan& plan) {
  int widest = 0;
  for (const program::ChunkRun& run : plan.chunk_runs()) {
    if (run.order() != program::Order::kPlain) widest = std::max(widest, run.chunk_bytes);
  }
  return widest;
}

int attention_scratch(const model::Geometry& g) {
  const ScoreSizes scores{program::kScoreChunk, g.index_head_dim, g.index_n_heads, g.qk_rope_head_dim,
                          std::max(g.candidate_topk_blocks, 1)};
  return std::max({attend_scratch(g.head_dim, g.qk_rope_head_dim, program::kListPart),
                   score_scratch(scores, kScoreRows), kv_scratch(g.head_dim, g.index_head_dim, g.qk_rope_head_dim)});
}

int scratch_need(const Layout& layout, const Plan& plan, int task_batch, int pairs) {
  const int rows = layout.rows();
  const int widest = widest_slice(layout);
  const int whole =
      std::max(context_slice(layout), std::max(slice_of(layout, Linear::kWoB), slice_of(layout, Linear::kMarkovHead)));
  const int tiles = down_tasks(layout, plan) * program::tiles_per_chunk(layout, Stage::kExpertDown);
  const int fold = rows * (layout.geometry().hc_mult * (layout.slice_width() + 1) + layout.mix_outputs()) * 4;
  return std::max({linear_scratch(rows, widest), up_scratch(rows, context_slice(layout)),
                   whole_scratch(rows, whole, task_batch),
                   down_scratch(pairs, layout.shard().expert_width, rows, tiles), fold,
                   attention_scratch(layout.geometry()), kMinScratch});
}

}  // namespace

Result<ProgramSizes> program_sizes(const Layout& layout, const Plan& plan, int shared_limit) {
  const model::Geometry& g = layout.geometry();
  const auto refuse = [](const std::string& text) { return Error{Code::kUnsupported, text, "device program"}; };
  if (layout.rows() > kMaxRows) return refuse(fmt::format("{} rows a step; at most {}", layout.rows(), kMaxRows));
  if (most_slots(g) > 8) return refuse(fmt::format("{} experts a row; at most 8", most_slots(g)));
  if (g.engram_layer_ids.size() > kMaxEngramLayers)
    return refuse(fmt::format("{} Engram layers; at most {}", g.engram_layer_ids.size(), kMaxEngramLayers));
  if (g.o_lora_rank % program::kTile != 0)
    return refuse(fmt::format("o_lora_rank {} is not a multiple of {}", g.o_lora_rank, program::kTile));
  if (g.dspark_block_size > kMaxDraftLength)
    return refuse(fmt::format("draft blocks of {}; at most {}", g.dspark_block_size, kMaxDraftLength));
  if (g.dspark_markov_rank > program::kMaxKSlice)
    return refuse(fmt::format("Markov rank {}; at most {}", g.dspark_markov_rank, program::kMaxKSlice));
  const int widest = widest_chunk(plan);
  // A roomy ring if there is one, else the one that holds every chunk; then as many pairs and tasks at once as fit.
  for (const int wanted : {layout.rows() <= 8 ? kWantedRing : kWideRing, widest}) {
    for (const int pairs : {64, 48, 32, 24, 16, 8}) {
      for (const int task_batch : {16, 8, 4, 2, 1}) {
        const int scratch = round_up(scratch_need(layout, plan, task_batch, pairs), 128);
        const int state = state_bytes(round_up(most_experts(g), 64), pairs);
        const int ring = std::min((shared_limit - state - scratch) / 1024 * 1024, kMostRing);
        if (ring < std::max(wanted, widest)) continue;
        ProgramSizes sizes;
        sizes.shared = {ring, scratch, state + ring + scratch};
        sizes.task_batch = task_batch;
        sizes.pair_capacity = pairs;
        return sizes;
      }
    }
  }
  return refuse(
      fmt::format("{} rows of this geometry do not fit {} bytes of shared memory", layout.rows(), shared_limit));
}

std::string constants_header(const Layout& layout, const Plan& plan, const ProgramSizes& sizes) {
  Header out;
  add_geometry(out, layout);
  add_shard(out, layout);
  add_shape(out, layout);
  add_plan(out, layout, plan, sizes);
  add_state(out, layout.geometry());
  return out.text();
}

}  // namespace monostep::gpu
