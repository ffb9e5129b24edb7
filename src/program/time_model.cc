// Bytes of a step by call, and chains of hand-offs (program/time_model.h).
#include "program/time_model.h"

#include <algorithm>
#include <cmath>

#include "program/packing.h"

namespace monostep::program {
namespace {

class Model {
 public:
  Model(const Layout& layout, const TimeQuery& query)
      : layout_(layout),
        query_(query),
        geometry_(layout.geometry()),
        rows_(query.requests * (geometry_.dspark_block_size + 1)) {
    const model::Geometry& g = geometry_;
    out_.distinct_experts =
        query.distinct_experts.value_or(expected_distinct_experts(g.n_routed_experts, g.num_experts_per_tok, rows_));
    out_.draft_distinct_experts = expected_distinct_experts(g.dspark_n_routed_experts, g.dspark_num_experts_per_tok,
                                                            query.requests * g.dspark_block_size);
  }

  TimeModel run() {
    const std::vector<Call>& calls = layout_.program().calls;
    for (size_t call_idx = 0; call_idx < calls.size(); ++call_idx) add(calls[call_idx], static_cast<int>(call_idx));
    out_.floor_ms = static_cast<double>(out_.bytes) / query_.bandwidth * 1e3;
    return std::move(out_);
  }

 private:
  void add(const Call& call, int call_idx) {
    CallTime time;
    time.call_idx = call_idx;
    for (const Weight& weight : weights_of(layout_, call)) {
      time.bytes += weight_bytes(weight, call, layout_.shard());
      const bool whole = call.stage == Stage::kEngramKv;
      time.bytes_replicated += weight_bytes(weight, call, whole ? unsplit() : layout_.shard());
    }
    time.kv_bytes = kv_bytes(call);
    out_.bytes += time.bytes;
    out_.bytes_replicated += time.bytes_replicated;
    if (call.section == Section::kContext || call.section == Section::kDraft) out_.draft_bytes += time.bytes;
    (call.section == Section::kDraft ? out_.draft_kv_bytes : out_.kv_bytes) += time.kv_bytes;
    out_.calls.push_back(time);
  }

  static model::Shard unsplit() { return {}; }

  int64_t weight_bytes(const Weight& weight, const Call& call, const model::Shard& shard) const {
    if (weight.order == Order::kTable) {
      if (call.stage == Stage::kEngramRows) return 0;  // counted with the caches, as section 9.3 does
      const int rows = call.stage == Stage::kMarkov      ? query_.requests
                       : call.section == Section::kDraft ? query_.requests * geometry_.dspark_block_size
                                                         : rows_;
      return rows * table_row_bytes(weight);
    }
    const bool draft = call.section == Section::kDraft;
    const double experts = draft ? out_.draft_distinct_experts : out_.distinct_experts;
    const int64_t bytes = rank_bytes(weight, shard);
    return weight.num_experts > 0 ? std::llround(experts * static_cast<double>(bytes)) : bytes;
  }

  // Section 9.3. A request's rows share their window, their index scan and (a lower bound) their selected groups.
  int64_t kv_bytes(const Call& call) const {
    switch (call.stage) {
      case Stage::kEngramRows: return rows_ * engram_row_bytes(call);
      case Stage::kAttend: return query_.requests * attended_bytes(call);
      case Stage::kIndexScore: return query_.requests * scored_groups(call) * index_record();
      default: return 0;
    }
  }
  const model::Role& role(const Call& call) const { return layout_.program().roles[static_cast<size_t>(call.layer)]; }
  int index_record() const { return model::index_record_bytes(geometry_); }
  int64_t engram_row_bytes(const Call& call) const {
    return geometry_.num_engram_columns() * table_row_bytes(weights_of(layout_, call).front());
  }
  int64_t attended_bytes(const Call& call) const {
    const int64_t window = std::min(geometry_.sliding_window, query_.context);
    const int ratio = role(call).ratio;
    const int64_t groups = ratio == 0 ? 0 : std::min(geometry_.index_topk, query_.context / ratio);
    return window * model::window_record_bytes(geometry_) + groups * model::compressed_record_bytes(geometry_);
  }
  int64_t scored_groups(const Call& call) const {
    const int64_t groups = query_.context / role(call).ratio;
    if (role(call).candidates_from < 0) return groups;
    return std::min(groups, int64_t{geometry_.candidate_topk_blocks} * geometry_.candidate_block_size);
  }

  const Layout& layout_;
  const TimeQuery& query_;
  const model::Geometry& geometry_;
  int rows_;
  TimeModel out_;
};

}  // namespace

double expected_distinct_experts(int num_experts, int per_row, int rows) {
  return num_experts * (1 - std::pow(1 - static_cast<double>(per_row) / num_experts, rows));
}

TimeModel model_time(const Layout& layout, const TimeQuery& query) { return Model(layout, query).run(); }

Handoffs handoffs_of_layer(const Layout& layout, int layer_idx) {
  const Program& program = layout.program();
  // Long done when the layer begins.
  const auto starts_with_step = [](const Call& call) {
    return call.stage == Stage::kEngramRows || call.stage == Stage::kEngramKv;
  };
  const auto hops = [](const Handoffs& chain) { return chain.local + chain.cross_rank; };
  const auto step = [&](Handoffs chain, Region region) {
    const bool crosses = decl(region).scope == Scope::kAllRanks && layout.shard().tp > 1;
    ++(crosses ? chain.cross_rank : chain.local);
    return chain;
  };
  std::vector<Handoffs> longest(program.calls.size());  // from the layer's first call to each of its calls
  Handoffs layer;
  for (size_t call_idx = 0; call_idx < program.calls.size(); ++call_idx) {
    const Call& call = program.calls[call_idx];
    const bool outside = call.section != Section::kTarget && call.section != Section::kDraft;
    if (call.layer != layer_idx || outside || call.stage == Stage::kMarkov || starts_with_step(call)) continue;
    for (int region_idx = 0; region_idx < kNumRegions; ++region_idx) {
      const auto region = static_cast<Region>(region_idx);
      if ((call.reads & bit(region)) == 0) continue;
      const int writer = writer_of(program, layout.geometry(), region, static_cast<int>(call_idx));
      if (writer < 0 || program.calls[static_cast<size_t>(writer)].layer != layer_idx) continue;
      if (starts_with_step(program.calls[static_cast<size_t>(writer)])) continue;
      const Handoffs chain = step(longest[static_cast<size_t>(writer)], region);
      if (hops(chain) > hops(longest[call_idx])) longest[call_idx] = chain;
    }
    if (call.stage == Stage::kExpertDown) layer = step(longest[call_idx], Region::kFfnExchange);
  }
  return layer;
}

}  // namespace monostep::program
