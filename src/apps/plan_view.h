// What `monostep plan` shows: a settled step of one rank with all that the program module says about it, and its two
// forms, text (plan_text.cc) and JSON (plan_json.cc). Made by plan.cc.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "program/contract.h"
#include "program/plan.h"
#include "program/time_model.h"

namespace monostep::apps {

struct PlanView {
  std::string geometry;  // as it was named
  program::TimeQuery query;
  program::Layout layout;
  program::Plan plan;
  program::TimeModel time;
  program::PackedSize packed;
  std::vector<std::string> violations;  // of the contract

  const program::Call& call(size_t call_idx) const { return layout.program().calls[call_idx]; }
  size_t num_calls() const { return layout.program().calls.size(); }
};

// Names of the parts that plan_text prints: summary, calls, regions, tasks, chunks, time, contract.
std::vector<std::string_view> plan_parts();
std::string plan_text(const PlanView& view, std::string_view part);

// One object with everything. Keys that others rely on: totals.bytes, totals.kv_bytes, totals.floor_ms; stages[].name,
// .layer, .bytes, .tasks; handoffs_per_layer.local and .cross_rank.
std::string plan_json(const PlanView& view);

// Shared by both forms.
std::string_view section_name(program::Section section);
std::string_view copies_name(program::Copies copies);
std::string_view scope_name(program::Scope scope);
std::string_view word_name(program::Word word);
std::string_view compare_name(program::Compare compare);
std::vector<std::string_view> region_names(program::RegionSet set);

// Hand-offs of each kind of backbone layer: "plain" first; "index", "engram", "index_engram" where the geometry has
// such layers.
struct LayerHandoffs {
  std::string kind;
  program::Handoffs handoffs;
};
std::vector<LayerHandoffs> layer_handoffs(const program::Layout& layout);

}  // namespace monostep::apps
