// The readable form of `monostep plan` (apps/plan_view.h).
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "apps/plan_view.h"
#include "base/check.h"

namespace monostep::apps {

using program::Call;
using program::CallPlan;
using program::CallTime;
using program::ChunkRun;
using program::Compare;
using program::Copies;
using program::kMinChunkBytes;
using program::kNumRegions;
using program::kNumStages;
using program::kRegions;
using program::kStages;
using program::Layout;
using program::Order;
using program::PackedSize;
using program::Region;
using program::RegionDecl;
using program::RegionSet;
using program::Scope;
using program::Section;
using program::Shape;
using program::Stage;
using program::TimeModel;
using program::Word;

std::string_view section_name(Section section) {
  constexpr std::array<std::string_view, 4> kNames = {"target", "head", "context", "draft"};
  return kNames[static_cast<size_t>(section)];
}
std::string_view copies_name(Copies copies) {
  constexpr std::array<std::string_view, 7> kNames = {"one",     "parity", "owner",   "index_source",
                                                      "section", "engram", "position"};
  return kNames[static_cast<size_t>(copies)];
}
std::string_view scope_name(Scope scope) { return scope == Scope::kRank ? "rank" : "all_ranks"; }
std::string_view word_name(Word word) { return word == Word::kF32 ? "f32" : word == Word::kBF16 ? "bf16" : "i32"; }
std::string_view compare_name(Compare compare) { return compare == Compare::kBits ? "bits" : "bound"; }

std::vector<std::string_view> region_names(RegionSet set) {
  std::vector<std::string_view> names;
  for (int region_idx = 0; region_idx < kNumRegions; ++region_idx) {
    if (set & bit(static_cast<Region>(region_idx))) names.push_back(kRegions[static_cast<size_t>(region_idx)].name);
  }
  return names;
}

// One entry a kind of backbone layer: plain ones, those that select, and those with Engram (plus both).
std::vector<LayerHandoffs> layer_handoffs(const Layout& layout) {
  std::vector<LayerHandoffs> list;
  for (int layer_idx = 0; layer_idx < layout.geometry().num_hidden_layers; ++layer_idx) {
    const model::Role& role = layout.program().roles[static_cast<size_t>(layer_idx)];
    const bool selects = role.mode == model::Mode::kFull || role.mode == model::Mode::kReindex;
    std::string kind = selects ? "index" : "";
    if (role.engram_idx >= 0) kind += kind.empty() ? "engram" : "_engram";
    if (kind.empty()) kind = "plain";
    const auto same = [&](const LayerHandoffs& entry) { return entry.kind == kind; };
    if (std::none_of(list.begin(), list.end(), same)) list.push_back({kind, handoffs_of_layer(layout, layer_idx)});
  }
  const auto plain = [](const LayerHandoffs& entry) { return entry.kind == "plain"; };
  const auto found = std::find_if(list.begin(), list.end(), plain);
  if (found != list.end()) std::rotate(list.begin(), found, found + 1);
  return list;
}

namespace {

std::string place_of(const Call& call) {
  if (call.stage == Stage::kMarkov) return fmt::format("pos {}", call.layer);
  return call.layer < 0 ? "-" : std::to_string(call.layer);
}

// Most tasks that one CTA has in a call.
int most_tasks(const CallPlan& call, int num_ctas) {
  const int chunks = ceil_div(call.num_tasks, call.tasks_per_chunk);
  return std::min(call.num_tasks, ceil_div(chunks, num_ctas) * call.tasks_per_chunk);
}

std::string heading_text(const PlanView& view) {
  std::string out;
  const Shape& shape = view.layout.shape();
  out += fmt::format("geometry {}, one rank of {}, band {} rows, {} requests, context {}, {} CTAs\n", view.geometry,
                     view.layout.shard().tp, shape.band, view.query.requests, view.query.context, view.plan.num_ctas());
  return out;
}

std::string totals_text(const PlanView& view) {
  std::string out;
  const TimeModel& time = view.time;
  const double rate = view.query.bandwidth;
  out += fmt::format("\ndistinct experts        {:.2f} a backbone layer, {:.2f} a draft layer\n", time.distinct_experts,
                     time.draft_distinct_experts);
  out += fmt::format("weights read            {:.3f} GB (target {:.3f}, draft {:.3f})\n", time.bytes / 1e9,
                     (time.bytes - time.draft_bytes) / 1e9, time.draft_bytes / 1e9);
  out += fmt::format("  engram.wkv replicated {:.3f} GB\n", time.bytes_replicated / 1e9);
  out += fmt::format("caches read             {:.3f} MB, draft rings {:.3f} MB\n", time.kv_bytes / 1e6,
                     time.draft_kv_bytes / 1e6);
  out += fmt::format("floor                   {:.3f} ms at {:.3f} TB/s (replicated {:.3f} ms)\n", time.floor_ms,
                     rate / 1e12, time.bytes_replicated / rate * 1e3);
  for (const LayerHandoffs& entry : layer_handoffs(view.layout)) {
    out += fmt::format("hand-offs, {:<13}{} local + {} cross-rank a layer\n", entry.kind, entry.handoffs.local,
                       entry.handoffs.cross_rank);
  }
  const PackedSize& packed = view.packed;
  out += fmt::format("packed weights          {:.3f} GB: repeated scales {:.3f} MB, padding {:.3f} MB\n",
                     packed.packed_bytes / 1e9, packed.repeated_bytes / 1e6, packed.padding_bytes / 1e6);
  out += fmt::format("smallest FP8/FP4 chunk  {} bytes; {} runs below {}\n", packed.smallest_quantized,
                     packed.num_small, kMinChunkBytes);
  out += fmt::format("region arena            {:.3f} MB\n", view.plan.arena_bytes() / 1e6);
  return out;
}

std::string contract_text(const PlanView& view) {
  std::string out;
  if (view.violations.empty()) out += fmt::format("contract                holds for {} calls\n", view.num_calls());
  for (const std::string& violation : view.violations) out += fmt::format("contract broken: {}\n", violation);
  return out;
}

// One line a stage, summed over its calls.
std::string stages_text(const PlanView& view) {
  std::string out;
  out += fmt::format("\n{:<14}{:>6}{:>11}{:>13}{:>9}{:>12}\n", "stage", "calls", "tasks", "MB", "ms", "cache MB");
  for (int stage_idx = 0; stage_idx < kNumStages; ++stage_idx) {
    int calls = 0;
    int64_t tasks = 0, bytes = 0, kv_bytes = 0;
    for (size_t call_idx = 0; call_idx < view.num_calls(); ++call_idx) {
      if (view.call(call_idx).stage != static_cast<Stage>(stage_idx)) continue;
      ++calls;
      tasks += view.plan.calls()[call_idx].num_tasks;
      bytes += view.time.calls[call_idx].bytes;
      kv_bytes += view.time.calls[call_idx].kv_bytes;
    }
    if (calls == 0) continue;
    out += fmt::format("{:<14}{:>6}{:>11}{:>13.3f}{:>9.4f}{:>12.3f}\n", kStages[static_cast<size_t>(stage_idx)].name,
                       calls, tasks, bytes / 1e6, bytes / view.query.bandwidth * 1e3, kv_bytes / 1e6);
  }
  return out;
}

std::string calls_text(const PlanView& view) {
  std::string out;
  out += fmt::format("{:>5} {:<13}{:<7}{:<9}{}\n", "call", "stage", "layer", "section", "reads -> writes");
  for (size_t call_idx = 0; call_idx < view.num_calls(); ++call_idx) {
    const Call& call = view.call(call_idx);
    out += fmt::format("{:>5} {:<13}{:<7}{:<9}{} -> {}\n", call_idx, decl(call.stage).name, place_of(call),
                       section_name(call.section), fmt::join(region_names(call.reads), " "),
                       fmt::join(region_names(call.writes), " "));
  }
  return out;
}

std::string regions_text(const PlanView& view) {
  std::string out;
  out += fmt::format("{:<16}{:<13}{:<10}{:<5}{:<6}{:<13}{:>3}{:>9}{:>11}{:>12}{:>13}\n", "region", "writer", "scope",
                     "word", "cmp", "copies", "n", "granules", "values", "bytes", "offset");
  for (int region_idx = 0; region_idx < kNumRegions; ++region_idx) {
    const auto region = static_cast<Region>(region_idx);
    const RegionDecl& row = decl(region);
    out +=
        fmt::format("{:<16}{:<13}{:<10}{:<5}{:<6}{:<13}{:>3}{:>9}{:>11}{:>12}{:>13}\n", row.name, decl(row.writer).name,
                    scope_name(row.scope), word_name(row.word), compare_name(row.compare), copies_name(row.copies),
                    view.layout.num_copies(region), view.layout.num_granules(region), view.layout.region_words(region),
                    view.plan.region_bytes(region), view.plan.region_offset(region, 0));
  }
  return out;
}

std::string tasks_text(const PlanView& view) {
  std::string out;
  out += fmt::format("{:>5} {:<13}{:<7}{:>7}{:>10}{:>9}{:>10}\n", "call", "stage", "layer", "tasks", "first CTA",
                     "a chunk", "a CTA <=");
  for (size_t call_idx = 0; call_idx < view.num_calls(); ++call_idx) {
    const CallPlan& row = view.plan.calls()[call_idx];
    out += fmt::format("{:>5} {:<13}{:<7}{:>7}{:>10}{:>9}{:>10}\n", call_idx, decl(view.call(call_idx).stage).name,
                       place_of(view.call(call_idx)), row.num_tasks, row.first_cta, row.tasks_per_chunk,
                       most_tasks(row, view.plan.num_ctas()));
  }
  return out;
}

std::string chunks_text(const PlanView& view) {
  std::string out;
  out += fmt::format("{:>5} {:<46}{:>8}{:>8}{:>6}{:>7}{:>8}{:>9}{:>14}\n", "call", "tensor", "experts", "chunks",
                     "tiles", "width", "parts", "bytes", "offset");
  for (const ChunkRun& run : view.plan.chunk_runs()) {
    const bool fragments = run.order() == Order::kFragments;
    out += fmt::format("{:>5} {:<46}{:>8}{:>8}{:>6}{:>7}{:>8}{:>9}{:>14}\n", run.call_idx, run.weights.front().name,
                       run.num_experts, run.num_chunks, fragments ? run.format.tiles : 0, run.format.width,
                       run.weights.size(), run.chunk_bytes, run.first_offset);
  }
  return out;
}

std::string time_text(const PlanView& view) {
  std::string out;
  out += fmt::format("{:>5} {:<13}{:<7}{:>13}{:>9}{:>12}\n", "call", "stage", "layer", "MB", "us", "cache MB");
  for (size_t call_idx = 0; call_idx < view.num_calls(); ++call_idx) {
    const CallTime& row = view.time.calls[call_idx];
    out += fmt::format("{:>5} {:<13}{:<7}{:>13.3f}{:>9.3f}{:>12.3f}\n", call_idx, decl(view.call(call_idx).stage).name,
                       place_of(view.call(call_idx)), row.bytes / 1e6, row.bytes / view.query.bandwidth * 1e6,
                       row.kv_bytes / 1e6);
  }
  return out + totals_text(view);
}

std::string summary_text(const PlanView& view) {
  return heading_text(view) + stages_text(view) + totals_text(view) + contract_text(view);
}

struct Part {
  std::string_view name;
  std::string (*text)(const PlanView&);
};
constexpr std::array<Part, 7> kParts = {{{"summary", summary_text},
                                         {"calls", calls_text},
                                         {"regions", regions_text},
                                         {"tasks", tasks_text},
                                         {"chunks", chunks_text},
                                         {"time", time_text},
                                         {"contract", contract_text}}};

}  // namespace

std::vector<std::string_view> plan_parts() {
  std::vector<std::string_view> names;
  for (const Part& part : kParts) names.push_back(part.name);
  return names;
}

std::string plan_text(const PlanView& view, std::string_view part) {
  const auto found = std::find_if(kParts.begin(), kParts.end(), [&](const Part& each) { return each.name == part; });
  CHECK(found != kParts.end(), "a part that is not in plan_parts()");
  return found->text(view);
}

}  // namespace monostep::apps
