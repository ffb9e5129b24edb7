// The JSON form of `monostep plan` (apps/plan_view.h).
#include <optional>
#include <utility>

#include "apps/plan_view.h"
#include "base/json_text.h"

namespace monostep::apps {

using program::Call;
using program::CallPlan;
using program::ChunkRun;
using program::kNumRegions;
using program::Order;
using program::Region;
using program::RegionDecl;
using program::Stage;
using program::Weight;

namespace {

// Layer of a call; none outside a layer (the layer field of kMarkov is a draft position).
std::optional<int> layer_of(const Call& call) {
  if (call.layer < 0 || call.stage == Stage::kMarkov) return std::nullopt;
  return call.layer;
}

// Appends the members of objects and arrays, with their commas.
class JsonWriter {
 public:
  void open(char bracket) {
    out_ += bracket;
    first_ = true;
  }
  void close(char bracket) {
    out_ += bracket;
    first_ = false;
  }
  void next() {
    if (!first_) out_ += ',';
    first_ = false;
  }
  void key(std::string_view name) {
    next();
    append_json_string(out_, name, false);
    out_ += ':';
  }
  void text(std::string_view value) { append_json_string(out_, value, false); }
  void member(std::string_view name, std::string_view value) {
    key(name);
    text(value);
  }
  void member(std::string_view name, int64_t value) {
    key(name);
    append_json_integer(out_, value);
  }
  void member(std::string_view name, int value) { member(name, int64_t{value}); }
  void member(std::string_view name, double value) {
    key(name);
    append_json_number(out_, value);
  }
  void member(std::string_view name, std::optional<int> value) {
    if (value) return member(name, *value);
    key(name);
    out_ += "null";
  }
  void member_flag(std::string_view name, bool value) {
    key(name);
    out_ += value ? "true" : "false";
  }
  template <typename Texts>
  void member_list(std::string_view name, const Texts& values) {
    key(name);
    open('[');
    for (const auto& value : values) {
      next();
      text(value);
    }
    close(']');
  }
  std::string take() { return std::move(out_) + "\n"; }

 private:
  std::string out_;
  bool first_ = true;
};

void write_totals(JsonWriter& json, const PlanView& view) {
  json.key("totals");
  json.open('{');
  json.member("bytes", view.time.bytes);
  json.member("bytes_replicated", view.time.bytes_replicated);
  json.member("draft_bytes", view.time.draft_bytes);
  json.member("kv_bytes", view.time.kv_bytes);
  json.member("draft_kv_bytes", view.time.draft_kv_bytes);
  json.member("floor_ms", view.time.floor_ms);
  json.member("packed_bytes", view.packed.packed_bytes);
  json.member("repeated_scale_bytes", view.packed.repeated_bytes);
  json.member("padding_bytes", view.packed.padding_bytes);
  json.member("smallest_quantized_chunk", view.packed.smallest_quantized);
  json.member("runs_of_small_chunks", view.packed.num_small);
  json.member("arena_bytes", view.plan.arena_bytes());
  json.close('}');
}

void write_stages(JsonWriter& json, const PlanView& view) {
  json.key("stages");
  json.open('[');
  for (size_t call_idx = 0; call_idx < view.num_calls(); ++call_idx) {
    const Call& call = view.call(call_idx);
    const CallPlan& row = view.plan.calls()[call_idx];
    json.next();
    json.open('{');
    json.member("name", decl(call.stage).name);
    json.member("layer", layer_of(call));
    if (call.stage == Stage::kMarkov) json.member("position", call.layer);
    json.member("section", section_name(call.section));
    json.member("bytes", view.time.calls[call_idx].bytes);
    json.member("kv_bytes", view.time.calls[call_idx].kv_bytes);
    json.member("tasks", row.num_tasks);
    json.member("first_cta", row.first_cta);
    json.member("tasks_per_chunk", row.tasks_per_chunk);
    json.member_list("reads", region_names(call.reads));
    json.member_list("writes", region_names(call.writes));
    json.close('}');
  }
  json.close(']');
}

void write_regions(JsonWriter& json, const PlanView& view) {
  json.key("regions");
  json.open('[');
  for (int region_idx = 0; region_idx < kNumRegions; ++region_idx) {
    const auto region = static_cast<Region>(region_idx);
    const RegionDecl& row = decl(region);
    json.next();
    json.open('{');
    json.member("name", row.name);
    json.member("writer", decl(row.writer).name);
    json.member("scope", scope_name(row.scope));
    json.member("word", word_name(row.word));
    json.member("compare", compare_name(row.compare));
    json.member("copies", copies_name(row.copies));
    json.member("num_copies", view.layout.num_copies(region));
    json.member("granules", view.layout.num_granules(region));
    json.member("values", view.layout.region_words(region));
    json.member("bytes", view.plan.region_bytes(region));
    json.member("offset", view.plan.region_offset(region, 0));
    json.close('}');
  }
  json.close(']');
}

void write_chunks(JsonWriter& json, const PlanView& view) {
  json.key("chunks");
  json.open('[');
  for (const ChunkRun& run : view.plan.chunk_runs()) {
    std::vector<std::string> names;
    for (const Weight& weight : run.weights) names.push_back(weight.name);
    json.next();
    json.open('{');
    json.member("call", run.call_idx);
    json.member_list("tensors", names);
    json.member("experts", run.num_experts);
    json.member("chunks", run.num_chunks);
    json.member("chunk_bytes", run.chunk_bytes);
    json.member("tiles", run.order() == Order::kFragments ? run.format.tiles : 0);
    json.member("width", run.format.width);
    json.member("offset", run.first_offset);
    json.close('}');
  }
  json.close(']');
}

void write_handoffs(JsonWriter& json, const PlanView& view) {
  json.key("handoffs_per_layer");
  json.open('{');
  for (const LayerHandoffs& entry : layer_handoffs(view.layout)) {
    const std::string prefix = entry.kind == "plain" ? "" : entry.kind + "_";
    json.member(prefix + "local", entry.handoffs.local);
    json.member(prefix + "cross_rank", entry.handoffs.cross_rank);
  }
  json.close('}');
}

}  // namespace

std::string plan_json(const PlanView& view) {
  JsonWriter json;
  json.open('{');
  json.member("geometry", view.geometry);
  json.member("tp", view.layout.shard().tp);
  json.member("rows", view.layout.shape().band);
  json.member("requests", view.query.requests);
  json.member("context", view.query.context);
  json.member("ctas", view.plan.num_ctas());
  json.member("bandwidth", view.query.bandwidth);
  json.member("distinct_experts", view.time.distinct_experts);
  json.member("draft_distinct_experts", view.time.draft_distinct_experts);
  write_totals(json, view);
  write_handoffs(json, view);
  json.key("contract");
  json.open('{');
  json.member_flag("holds", view.violations.empty());
  json.member_list("violations", view.violations);
  json.close('}');
  write_stages(json, view);
  write_regions(json, view);
  write_chunks(json, view);
  json.close('}');
  return json.take();
}

}  // namespace monostep::apps
