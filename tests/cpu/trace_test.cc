// Trace: on its own records every mode gives the same arrays again, chunks and ranks do not matter beyond rounding, and
// records that lack or misshape what a mode needs are refused by name.
#include "cpu/trace.h"

#include <algorithm>
#include <memory>

#include "dense.h"
#include "tiny_models.h"

namespace monostep::cpu {
namespace {

Record tokens_record(int count) {
  Record record;
  record.add("tokens", "I32", {count}).ids = prompt(count);
  return record;
}

Record traced(const Record& record, TraceMode mode, int chunk = program::kMaxBand, int tp = 1) {
  auto out = run_trace(micro(), record, {mode, tp, chunk});
  EXPECT_TRUE(out.ok()) << out.error().message();
  return out.ok() ? std::move(out).value() : Record();
}

// A free run's arrays with its tokens: a record that the other modes take.
Record own_record(int count) {
  Record record = traced(tokens_record(count), TraceMode::kFree);
  record.add("tokens", "I32", {count}).ids = prompt(count);
  return record;
}

const std::vector<std::string>& traced_names() {
  static const std::vector<std::string> names = {"resid",
                                                 "router_ids",
                                                 "router_weights",
                                                 "mid",
                                                 "pre",
                                                 "post",
                                                 "comb",
                                                 "window_kv",
                                                 "taps",
                                                 "logits",
                                                 "engram_rows",
                                                 "engram_gate",
                                                 "engram_out",
                                                 "index_scores.1",
                                                 "index_scores.3",
                                                 "index_scores.5",
                                                 "topk.1",
                                                 "topk.3",
                                                 "topk.5",
                                                 "candidate_blocks.3",
                                                 "compressed_kv.1",
                                                 "compressed_kv.3",
                                                 "index_k.1",
                                                 "index_k.3"};
  return names;
}

void expect_same(const Record& got, const Record& wanted, const std::vector<std::string>& names,
                 int64_t first_row = 0) {
  for (const std::string& name : names) {
    const Array* a = got.find(name);
    const Array* b = wanted.find(name);
    ASSERT_NE(a, nullptr) << name;
    ASSERT_NE(b, nullptr) << name;
    EXPECT_EQ(a->dtype, b->dtype) << name;
    const auto behind = [&](const auto& list) {
      using List = std::decay_t<decltype(list)>;
      return list.empty() ? List() : List(list.begin() + first_row * b->row_size(), list.end());
    };
    EXPECT_TRUE(a->values == behind(b->values)) << name;
    EXPECT_TRUE(a->ids == behind(b->ids)) << name;
  }
}

TEST(Trace, chunks_do_not_change_a_bit_of_any_array) {
  for (const int count : {40, 41}) {
    const Record whole = traced(tokens_record(count), TraceMode::kFree);
    for (const int chunk : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16})
      expect_same(traced(tokens_record(count), TraceMode::kFree, chunk), whole, traced_names());
  }
}

TEST(Trace, chunks_of_a_long_prompt_do_not_change_a_bit_of_any_array) {
  for (const int count : {96, 97}) {
    const Record whole = traced(tokens_record(count), TraceMode::kFree);
    for (const int chunk : {1, 7, 16})
      expect_same(traced(tokens_record(count), TraceMode::kFree, chunk), whole, traced_names());
  }
}

TEST(Trace, the_comparison_sees_another_token) {  // positive control
  Record record = tokens_record(12);
  const Record one = traced(record, TraceMode::kFree);
  record.find("tokens")->ids[2] ^= 1;
  const Record other = traced(record, TraceMode::kFree);
  for (const std::string name : {"resid", "window_kv", "engram_rows", "logits"})
    EXPECT_FALSE(one.find(name)->values == other.find(name)->values && one.find(name)->ids == other.find(name)->ids)
        << name;
}

TEST(Trace, mode_layer_gives_its_own_record_again) {
  const Record record = own_record(41);
  expect_same(traced(record, TraceMode::kLayer), record, traced_names());
  expect_same(traced(record, TraceMode::kLayer, 7), record, traced_names());
}

TEST(Trace, mode_layer_follows_what_is_recorded) {
  Record record = own_record(8);
  Array& resid = *record.find("resid");
  for (float& value : std::span(resid.values).subspan(0, static_cast<size_t>(resid.row_size()))) value = -value;
  const Record out = traced(record, TraceMode::kLayer);
  const auto layer = static_cast<int64_t>(resid.row_size() / 6);
  EXPECT_NE(std::vector<float>(out.find("mid")->row(0) + layer, out.find("mid")->row(0) + 2 * layer),
            std::vector<float>(record.find("mid")->row(0) + layer, record.find("mid")->row(0) + 2 * layer));
  EXPECT_EQ(std::vector<float>(out.find("mid")->row(0),
                               out.find("mid")->row(0) + layer),  // layer 0 starts from the embedding
            std::vector<float>(record.find("mid")->row(0), record.find("mid")->row(0) + layer));
}

TEST(Trace, mode_step_gives_the_second_half_again) {
  for (const int count : {20, 41}) {
    const Record record = own_record(count);
    const Record out = traced(record, TraceMode::kStep);
    const int first = count / 2 | 1;
    EXPECT_EQ(out.find("positions")->ids.front(), first);
    EXPECT_EQ(out.find("positions")->ids.back(), count - 1);
    expect_same(
        out, record,
        {"resid", "mid", "pre", "window_kv", "taps", "logits", "engram_out", "index_scores.3", "topk.1", "topk.5"},
        first);
  }
}

TEST(Trace, mode_ffn_gives_streams_and_experts_again) {
  const Record record = own_record(21);
  expect_same(traced(record, TraceMode::kFfn), record, {"resid", "router_ids"});
}

TEST(Trace, mode_cached_gives_every_position_again) {
  const Record record = own_record(41);
  expect_same(
      traced(record, TraceMode::kCached), record,
      {"resid", "router_ids", "mid", "pre", "comb", "window_kv", "taps", "logits", "engram_rows", "engram_out",
       "index_scores.1", "index_scores.3", "index_scores.5", "topk.1", "topk.3", "topk.5", "candidate_blocks.3"});
}

// A record of some positions alone.
Record thinned(const Record& record, const std::vector<int>& positions) {
  Record out = record;
  for (const std::string name : {"resid", "pre", "engram_out"}) {
    const Array& from = *record.find(name);
    std::vector<int64_t> shape = from.shape;
    shape[0] = static_cast<int64_t>(positions.size());
    Array& to = out.add(name, from.dtype, shape);
    for (size_t row = 0; row < positions.size(); ++row)
      std::copy_n(from.row(positions[row]), from.row_size(), to.row(static_cast<int64_t>(row)));
  }
  out.add("positions", "I32", {static_cast<int64_t>(positions.size())}).ids = positions;
  return out;
}

TEST(Trace, mode_cached_runs_scattered_positions_from_the_recorded_caches) {
  const Record record = own_record(41);
  const std::vector<int> positions = {3, 20, 21, 36, 40};
  const Record out = traced(thinned(record, positions), TraceMode::kCached);
  for (size_t row = 0; row < positions.size(); ++row) {
    for (const std::string name : {"resid", "window_kv", "logits"}) {
      const float* got = out.find(name)->row(static_cast<int64_t>(row));
      EXPECT_TRUE(std::equal(got, got + out.find(name)->row_size(), record.find(name)->row(positions[row])))
          << name << " at " << positions[row];
    }
    EXPECT_TRUE(std::equal(out.find("topk.3")->ids.begin() + static_cast<int64_t>(row) * 8,
                           out.find("topk.3")->ids.begin() + static_cast<int64_t>(row + 1) * 8,
                           record.find("topk.3")->ids.begin() + positions[row] * 8))
        << positions[row];
  }
}

TEST(Trace, mode_draft_gives_the_drafts_of_mode_decode_again) {
  for (const int count : {1, 2, 19}) {
    Record record = own_record(count);
    record.add("dec.tokens", "I32", {5}).ids = {17, 90, 3, 121, 64};
    if (count == 1) record.add("dec.draft_first", "I32", {1}).ids = {1};
    const Record decoded = traced(record, TraceMode::kDecode);
    EXPECT_EQ(decoded.find("dec.draft_ids")->shape[0], count == 1 ? 4 : 5);
    EXPECT_EQ(decoded.find("dec.logits")->shape[0], 5);
    record.add("dec.taps", "BF16", decoded.find("dec.taps")->shape).values = decoded.find("dec.taps")->values;
    for (const int chunk : {3, 48})
      expect_same(traced(record, TraceMode::kDraft, chunk), decoded,
                  {"dec.draft_ids", "dec.draft_logits", "dec.confidence"});
    expect_same(traced(record, TraceMode::kDecode, 4), decoded,
                {"dec.logits", "dec.taps", "dec.topk", "dec.draft_ids", "dec.draft_logits"});
  }
}

TEST(Trace, decoded_logits_are_those_of_the_longer_prompt) {
  Record record = tokens_record(10);
  const std::vector<int32_t> all = prompt(14);
  record.add("dec.tokens", "I32", {4}).ids.assign(all.begin() + 10, all.end());
  const Record decoded = traced(record, TraceMode::kDecode);
  const Record whole = traced(tokens_record(14), TraceMode::kFree);
  for (int64_t step = 0; step < 4; ++step) {  // step s shows the position before its token
    EXPECT_TRUE(std::equal(decoded.find("dec.logits")->row(step), decoded.find("dec.logits")->row(step) + 128,
                           whole.find("logits")->row(9 + step)))
        << step;
  }
}

TEST(Trace, image_spans_come_from_the_record) {
  Record record = tokens_record(16);
  const Record text = traced(record, TraceMode::kFree);
  Array& mask = record.add("image_mask", "U8", {16});
  for (const size_t position : {4u, 5u, 6u}) mask.ids[position] = 1;
  Array& rows = record.add("image_rows", "BF16", {3, 128});
  for (size_t idx = 0; idx < rows.values.size(); ++idx)
    rows.values[idx] = round_bf16(static_cast<float>(idx % 23) / 10 - 1);
  const Record whole = traced(record, TraceMode::kFree);
  for (const int chunk : {1, 5}) expect_same(traced(record, TraceMode::kFree, chunk), whole, traced_names());
  EXPECT_EQ(whole.find("engram_gate")->row(5)[0], 0.0f);
  EXPECT_NE(whole.find("engram_gate")->row(7)[0], 0.0f);
  const float* streams = whole.find("engram_out")->row(5);  // the first table's layer starts from the image's row
  EXPECT_TRUE(std::equal(streams, streams + 128, rows.row(1)));
  EXPECT_TRUE(std::equal(whole.find("logits")->row(3), whole.find("logits")->row(4), text.find("logits")->row(3)));
  EXPECT_FALSE(std::equal(whole.find("logits")->row(7), whole.find("logits")->row(8), text.find("logits")->row(7)));
}

TEST(Trace, two_ranks_agree_with_one_within_rounding) {
  const Record record = own_record(40);
  const Record one = traced(record, TraceMode::kLayer);
  const Record two = traced(record, TraceMode::kLayer, 48, 2);
  // Every layer starts from the record, so differences are those of one layer.
  EXPECT_LT(relative_error(two.find("mid")->values, one.find("mid")->values), 0.01);
  EXPECT_LT(relative_error(two.find("resid")->values, one.find("resid")->values), 0.02);
  EXPECT_LT(relative_error(two.find("logits")->values, one.find("logits")->values), 0.02);
  EXPECT_EQ(two.find("engram_rows")->ids, one.find("engram_rows")->ids);
  int num_other = 0;
  for (size_t idx = 0; idx < one.find("router_ids")->ids.size(); ++idx)
    num_other += one.find("router_ids")->ids[idx] != two.find("router_ids")->ids[idx];
  EXPECT_LT(num_other, static_cast<int>(one.find("router_ids")->ids.size()) * 35 / 1000);
}

// A second machine that runs the calls: it is given the step's inputs, the words and tags of the band's regions and the
// pools, before each run, and gives them back behind it, as a device does.
class Mirror {
 public:
  explicit Mirror(Machine& machine) {
    kv::Pools& pools = *machine.ranks[0].pools;
    CpuOptions options;
    options.tp = machine.num_ranks();
    options.ctas = 1;
    options.max_context = machine.layout().shape().max_context;
    options.num_pages = static_cast<int>(static_cast<int64_t>(pools.pages.size()) / pools.page_layout.page_bytes());
    options.num_slots = static_cast<int>(static_cast<int64_t>(pools.slots.size()) / pools.slot_layout.slot_bytes());
    backend_ = made_backend(micro(), options);
  }

  Status run(Machine& machine, const CallRange& range) {
    if (machine.inputs->epoch != epoch_) TRY(backend_->begin_step(*machine.inputs));
    epoch_ = machine.inputs->epoch;
    copy(machine, backend_->machine());
    TRY(backend_->run(range));
    copy(backend_->machine(), machine);
    ++num_runs;
    return {};
  }
  int num_runs = 0;

 private:
  static void copy(Machine& from, Machine& to) {
    for (size_t rank = 0; rank < from.ranks.size(); ++rank) {
      to.ranks[rank].pools->pages = from.ranks[rank].pools->pages;
      to.ranks[rank].pools->slots = from.ranks[rank].pools->slots;
      RegionStore& source = *from.ranks[rank].regions;
      RegionStore& target = *to.ranks[rank].regions;
      for (int idx = 0; idx < program::kNumRegions; ++idx) {
        const auto region = static_cast<program::Region>(idx);
        for (int copy = 0; copy < from.layout().num_copies(region); ++copy) {
          std::ranges::copy(source.words(region, copy), target.words(region, copy).begin());
          const auto tags = source.tags(region, copy);
          for (size_t granule = 0; granule < tags.size(); ++granule)
            target.tags(region, copy)[granule] = tags[granule].load();
        }
      }
    }
  }

  std::unique_ptr<CpuBackend> backend_;
  uint32_t epoch_ = 0;
};

TEST(Trace, every_mode_works_unchanged_on_a_runner_that_mirrors_regions_tags_and_pools) {
  Record record = own_record(21);
  record.add("dec.tokens", "I32", {3}).ids = {17, 90, 3};
  record.add("dec.taps", "BF16", {3, 3 * 128}).values = traced(record, TraceMode::kDecode).find("dec.taps")->values;
  std::vector<std::string> names = traced_names();
  for (const char* name : {"dec.draft_ids", "dec.draft_logits", "dec.confidence", "dec.logits", "dec.taps", "dec.topk"})
    names.emplace_back(name);
  for (const TraceMode mode : {TraceMode::kLayer, TraceMode::kStep, TraceMode::kCached, TraceMode::kFfn,
                               TraceMode::kDraft, TraceMode::kFree, TraceMode::kDecode}) {
    std::unique_ptr<Mirror> mirror;
    TraceOptions options{mode, 2, 9};
    options.on_backend = [&](CpuBackend& backend) -> Status {
      mirror = std::make_unique<Mirror>(backend.machine());
      backend.set_runner([&](Machine& machine, const CallRange& range) { return mirror->run(machine, range); });
      return {};
    };
    const auto out = run_trace(micro(), record, options);
    ASSERT_TRUE(out.ok()) << out.error().message();
    const Record wanted = traced(record, mode, 9, 2);
    EXPECT_GT(mirror->num_runs, 0);
    int num_compared = 0;
    for (const std::string& name : names) {
      if (!wanted.has(name)) continue;
      expect_same(out.value(), wanted, {name});
      ++num_compared;
    }
    EXPECT_GT(num_compared, 1);
  }
}

TEST(Trace, what_runs_together_does_not_change_a_bit_of_any_array) {
  Record record = own_record(21);
  record.add("dec.tokens", "I32", {2}).ids = {17, 90};
  std::vector<std::string> names = traced_names();
  for (const char* name : {"dec.draft_ids", "dec.draft_logits", "dec.logits", "dec.taps", "dec.topk"})
    names.emplace_back(name);
  for (const TraceMode mode :
       {TraceMode::kLayer, TraceMode::kStep, TraceMode::kCached, TraceMode::kFree, TraceMode::kDecode}) {
    const Record wanted = traced(record, mode, 9);
    for (const TraceSpan span : {TraceSpan::kLayer, TraceSpan::kStep}) {
      std::vector<int> first_calls;
      TraceOptions options{mode, 1, 9, span};
      options.on_backend = [&](CpuBackend& backend) -> Status {
        backend.set_runner([&](Machine& machine, const CallRange& range) {
          first_calls.push_back(range.last - range.first > 1 ? range.first : -1);
          return run_calls(machine, range);
        });
        return {};
      };
      const auto out = run_trace(micro(), record, options);
      ASSERT_TRUE(out.ok()) << out.error().message();
      for (const std::string& name : names) {
        if (wanted.has(name)) expect_same(out.value(), wanted, {name});
      }
      const bool fed = mode != TraceMode::kFree && mode != TraceMode::kDecode;
      const bool whole = span == TraceSpan::kStep && !fed;
      EXPECT_EQ(std::ranges::any_of(first_calls, [](int first) { return first > 0; }),
                !whole || mode == TraceMode::kDecode);
    }
  }
}

TEST(Trace, a_backend_that_is_refused_ends_the_trace) {
  TraceOptions options;
  options.on_backend = [](CpuBackend&) -> Status { return Error{Code::kUnavailable, "no device", "--backend"}; };
  const auto out = run_trace(micro(), tokens_record(4), options);
  ASSERT_FALSE(out.ok());
  EXPECT_EQ(out.error().code, Code::kUnavailable);
}

std::string refusal(const Record& record, TraceMode mode, int chunk = 48) {
  const auto out = run_trace(micro(), record, {mode, 1, chunk});
  EXPECT_FALSE(out.ok());
  return out.ok() ? "" : out.error().message();
}

TEST(Trace, arrays_that_a_mode_needs_are_asked_for_by_name) {
  const std::vector<std::pair<TraceMode, std::vector<std::string>>> needs = {
      {TraceMode::kLayer, {"tokens", "resid", "pre", "engram_out"}},
      {TraceMode::kStep, {"tokens", "resid", "pre", "engram_out"}},
      {TraceMode::kCached,
       {"tokens", "resid", "pre", "engram_out", "window_kv", "compressed_kv.1", "index_k.1", "compressed_kv.3",
        "index_k.3"}},
      {TraceMode::kFfn, {"tokens", "mid", "pre"}},
      {TraceMode::kDraft, {"tokens", "dec.tokens", "taps", "dec.taps"}},
      {TraceMode::kFree, {"tokens"}},
      {TraceMode::kDecode, {"tokens", "dec.tokens"}}};
  Record full = own_record(6);
  full.add("dec.tokens", "I32", {2});
  full.add("dec.taps", "BF16", {2, 3 * 128});
  for (const auto& [mode, names] : needs) {
    EXPECT_TRUE(run_trace(micro(), full, {mode, 1, 48}).ok());
    for (const std::string& name : names) {
      Record without;
      Record misshapen = full;
      Record mistyped = full;
      for (const std::string& each : traced_names()) {
        if (each != name) without.add(each, full.find(each)->dtype, full.find(each)->shape);
      }
      for (const std::string each : {"tokens", "positions", "dec.tokens", "dec.taps"}) {
        if (each != name) without.add(each, full.find(each)->dtype, full.find(each)->shape).ids = full.find(each)->ids;
      }
      misshapen.add(name, full.find(name)->dtype, {2, 2, 2, 2, 2});
      mistyped.add(name, full.find(name)->ids.empty() ? "I32" : "F32", full.find(name)->shape);
      EXPECT_NE(refusal(without, mode).find("lacks \"" + name + "\""), std::string::npos)
          << name << ": " << refusal(without, mode);
      EXPECT_NE(refusal(misshapen, mode).find("\"" + name + "\" has shape [2,2,2,2,2]"), std::string::npos)
          << refusal(misshapen, mode);
      EXPECT_NE(refusal(mistyped, mode).find("\"" + name + "\" is "), std::string::npos)
          << name << ": " << refusal(mistyped, mode);
    }
  }
}

TEST(Trace, wrong_contents_are_refused_by_name) {
  const auto with = [](const std::string& name, const std::vector<int32_t>& ids) {
    Record record = own_record(4);
    record.add("dec.tokens", "I32", {2});
    record.add(name, "I32", {static_cast<int64_t>(ids.size())}).ids = ids;
    return record;
  };
  EXPECT_NE(refusal(with("tokens", {}), TraceMode::kFree).find("tokens"), std::string::npos);
  EXPECT_NE(refusal(with("tokens", {1, 128}), TraceMode::kFree).find("token 128"), std::string::npos);
  EXPECT_NE(refusal(with("tokens", {1, -1}), TraceMode::kFree).find("token -1"), std::string::npos);
  EXPECT_NE(refusal(with("dec.tokens", {128}), TraceMode::kDecode).find("token 128"), std::string::npos);
  EXPECT_NE(refusal(with("positions", {0, 4}), TraceMode::kFfn).find("positions"), std::string::npos);
  EXPECT_NE(refusal(with("positions", {-1}), TraceMode::kFfn).find("positions"), std::string::npos);
  EXPECT_NE(refusal(with("positions", {0, 1, 1, 3}), TraceMode::kCached).find("listed twice"), std::string::npos);
  EXPECT_NE(refusal(with("positions", {0, 3}), TraceMode::kLayer).find("all positions"), std::string::npos);
  EXPECT_NE(refusal(with("dec.draft_first", {3}), TraceMode::kDecode).find("dec.draft_first"), std::string::npos);
  EXPECT_NE(refusal(with("dec.draft_first", {-1}), TraceMode::kDecode).find("dec.draft_first"), std::string::npos);
  EXPECT_NE(refusal(with("image_mask", {1, 0}), TraceMode::kFree).find("image_mask"), std::string::npos);
  EXPECT_NE(refusal(with("image_mask", {1, 0, 0, 0}), TraceMode::kFree).find("image_rows"), std::string::npos);
}

TEST(Trace, modes_chunks_and_sizes_are_checked) {
  for (const std::string_view name : {"layer", "step", "cached", "ffn", "draft", "free", "decode"})
    EXPECT_TRUE(parse_trace_mode(name).ok()) << name;
  const auto unknown = parse_trace_mode("whole");
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.error().message().find("\"whole\" is none of layer"), std::string::npos);
  for (const int chunk : {0, 49, -1})
    EXPECT_NE(refusal(tokens_record(4), TraceMode::kFree, chunk).find("--chunk"), std::string::npos);
  const auto four = run_trace(micro(), tokens_record(4), {TraceMode::kFree, 4, 48});
  ASSERT_FALSE(four.ok());
  EXPECT_NE(four.error().message().find("o_groups"), std::string::npos);
}

}  // namespace
}  // namespace monostep::cpu
