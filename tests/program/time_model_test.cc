// The time model gives the published bytes of a step (model.md section 9), or fewer where the shard splits more.
#include "program/time_model.h"

#include <gtest/gtest.h>

#include "cases.h"

namespace monostep::program {
namespace {

Layout flash_step(int tp, int requests, int context = 4096) {
  const model::Geometry geometry = geometry_named("flash");
  Shape shape;
  shape.band = band_of(requests * 6);
  shape.max_requests = requests;
  shape.max_context = context;
  return Layout(geometry, model::make_shard(geometry, tp).value(), shape);
}

TimeModel flash_time(int tp, int requests, int context = 4096) {
  TimeQuery query;
  query.requests = requests;
  query.context = context;
  return model_time(flash_step(tp, requests, context), query);
}

struct Published {
  int requests;
  int tp;
  double main_gb;  // section 9.2, replicated engram.wkv
  double draft_gb;
  double printed;  // half of the last printed digit of draft_gb
};

TEST(TimeModel, bytes_are_those_of_section_9_or_fewer) {
  for (const Published& row : std::vector<Published>{{1, 1, 34.56, 3.04, 0.005},
                                                     {1, 2, 17.82, 1.58, 0.005},
                                                     {1, 4, 9.45, 0.85, 0.005},
                                                     {1, 8, 5.27, 0.49, 0.005},
                                                     {8, 1, 161.7, 6.66, 0.005},
                                                     {8, 2, 81.4, 3.39, 0.005},
                                                     {8, 4, 41.2, 1.76, 0.005},
                                                     {8, 8, 21.2, 0.94, 0.005}}) {
    const TimeModel time = flash_time(row.tp, row.requests);
    const double replicated_main = static_cast<double>(time.bytes_replicated - time.draft_bytes) / 1e9;
    EXPECT_NEAR(replicated_main, row.main_gb, row.main_gb * 0.01) << row.tp << " " << row.requests;
    EXPECT_NEAR(static_cast<double>(time.draft_bytes) / 1e9, row.draft_gb, row.draft_gb * 0.01 + row.printed) << row.tp;
    const double total = row.main_gb + row.draft_gb;
    EXPECT_NEAR(static_cast<double>(time.bytes_replicated) / 1e9, total, total * 0.01) << row.tp << " " << row.requests;
    const double saved = 2.0 * 25600 * 6144 * (1 + 1.0 / 1024) * (1 - 1.0 / row.tp);  // engram.wkv of two layers
    EXPECT_NEAR(static_cast<double>(time.bytes_replicated - time.bytes), saved, 1) << row.tp;
  }
}

TEST(TimeModel, totals_are_the_sums_of_the_calls) {
  for_each_layout({8, 48}, [](const std::string& name, const Layout& layout) {
    TimeQuery query;
    query.requests = layout.shape().max_requests;
    const TimeModel time = model_time(layout, query);
    int64_t bytes = 0, kv_bytes = 0;
    for (const CallTime& call : time.calls) {
      bytes += call.bytes;
      kv_bytes += call.kv_bytes;
    }
    EXPECT_EQ(time.calls.size(), layout.program().calls.size()) << name;
    EXPECT_EQ(bytes, time.bytes) << name;
    EXPECT_EQ(kv_bytes, time.kv_bytes + time.draft_kv_bytes) << name;
    EXPECT_NEAR(time.floor_ms, static_cast<double>(bytes) / query.bandwidth * 1e3, 1e-9) << name;
  });
}

TEST(TimeModel, distinct_experts_follow_the_formula_or_the_query) {
  EXPECT_NEAR(expected_distinct_experts(384, 6, 1), 6.0, 1e-9);
  EXPECT_NEAR(expected_distinct_experts(384, 6, 6), 34.6, 0.05);
  EXPECT_NEAR(expected_distinct_experts(384, 6, 48), 203.7, 0.05);
  EXPECT_NEAR(expected_distinct_experts(128, 3, 5), 14.3, 0.05);
  EXPECT_NEAR(expected_distinct_experts(128, 3, 40), 78.4, 0.05);
  TimeQuery query;
  const TimeModel expected = model_time(flash_step(1, 1), query);
  query.distinct_experts = 24;
  const TimeModel given = model_time(flash_step(1, 1), query);
  EXPECT_EQ(given.draft_bytes, expected.draft_bytes);  // the query is about backbone layers
  EXPECT_NEAR(static_cast<double>(expected.bytes - given.bytes), (expected.distinct_experts - 24) * 40 * 18800640, 100);
}

TEST(TimeModel, cache_bytes_are_those_of_section_9) {
  const auto near = [](int context, double index_mb) {
    const double wanted = 2.70e6 + 5.60e6 + index_mb * 1e6 + 6 * 12672;
    EXPECT_NEAR(static_cast<double>(flash_time(1, 1, context).kv_bytes), wanted, wanted * 0.01) << context;
  };
  near(4096, 1.81);
  near(32768, 10.0);
  near(131072, 26.7);
  near(1048576, 182.7);
  EXPECT_EQ(flash_time(1, 8).kv_bytes, 8 * flash_time(1, 1).kv_bytes);
  EXPECT_EQ(flash_time(8, 1).kv_bytes, flash_time(1, 1).kv_bytes);  // not split over ranks
  EXPECT_EQ(flash_time(1, 1).draft_kv_bytes, 3 * 128 * 528);
}

TEST(TimeModel, engram_records_are_read_once_by_the_look_up) {
  const Layout layout = flash_step(4, 1);
  const TimeModel time = model_time(layout, TimeQuery());
  const auto kv_bytes = [&](Stage stage) {
    return time.calls[static_cast<size_t>(layout.program().find(stage, 1))].kv_bytes;
  };
  EXPECT_EQ(kv_bytes(Stage::kEngramRows), 6 * 24 * 264);
  EXPECT_EQ(kv_bytes(Stage::kEngramKv), 0);
}

TEST(TimeModel, the_markov_head_is_read_once_a_draft_position) {
  const Layout layout = flash_step(4, 1);
  const TimeModel time = model_time(layout, TimeQuery());
  int64_t bytes = 0;
  for (const CallTime& call : time.calls) {
    if (layout.program().calls[static_cast<size_t>(call.call_idx)].stage == Stage::kMarkov) bytes += call.bytes;
  }
  EXPECT_EQ(bytes, 5 * (129280 / 4 * 256 * 2 + 256 * 2));
}

TEST(Handoffs, a_plain_layer_has_twelve_and_two) {
  const Layout four = flash_step(4, 1);
  EXPECT_EQ(handoffs_of_layer(four, 0), (Handoffs{12, 2}));   // window
  EXPECT_EQ(handoffs_of_layer(four, 21), (Handoffs{12, 2}));  // reuse
  EXPECT_EQ(handoffs_of_layer(four, 41), (Handoffs{12, 2}));  // draft
  EXPECT_EQ(handoffs_of_layer(four, 8), (Handoffs{14, 2}));   // full
  EXPECT_EQ(handoffs_of_layer(four, 24), (Handoffs{14, 2}));  // reindex
  EXPECT_EQ(handoffs_of_layer(four, 1), (Handoffs{13, 2}));   // Engram
  EXPECT_EQ(handoffs_of_layer(four, 14), (Handoffs{15, 2}));  // Engram and full
}

TEST(Handoffs, one_rank_has_none_across_ranks) { EXPECT_EQ(handoffs_of_layer(flash_step(1, 1), 0), (Handoffs{14, 0})); }

}  // namespace
}  // namespace monostep::program
