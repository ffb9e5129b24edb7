// Region stores, the tables of a band and the context's put and poll: scopes, tags, copies, the overwrite rule and the
// faults, each alone.
#include "cpu/machine.h"

#include <cmath>

#include "cpu/context.h"
#include "tiny_models.h"

namespace monostep::cpu {
namespace {

using program::Region;
using program::Stage;

TEST(RegionStore, copies_are_apart_and_poison_is_not_a_number) {
  const model::Geometry g = micro_geometry();
  const program::Layout layout(g, model::make_shard(g, 1).value(), {8, 8, kContext});
  RegionStore store(layout);
  EXPECT_NE(store.data(Region::kStreams, 0), store.data(Region::kStreams, 1));
  EXPECT_EQ(store.granule_words(Region::kStreams) * layout.num_granules(Region::kStreams),
            layout.region_words(Region::kStreams));
  EXPECT_EQ(store.tag(Region::kStreams, 1, 0).load(), 0u);
  store.data(Region::kStreams, 0)[5] = 1;
  EXPECT_EQ(store.data(Region::kStreams, 1)[5], 0.0f);
  store.tag(Region::kStreams, 0, 0) = 9;
  store.poison();
  EXPECT_TRUE(std::isnan(store.data(Region::kStreams, 0)[5]));
  EXPECT_TRUE(std::isnan(store.data(Region::kLogits, 0)[0]));
  EXPECT_EQ(store.tag(Region::kStreams, 0, 0).load(), 9u);
}

TEST(RegionStore, spans_show_all_words_and_tags_of_a_copy) {
  const model::Geometry g = micro_geometry();
  const program::Layout layout(g, model::make_shard(g, 1).value(), {8, 8, kContext});
  RegionStore store(layout);
  for (int idx = 0; idx < program::kNumRegions; ++idx) {
    const auto region = static_cast<Region>(idx);
    for (int copy = 0; copy < layout.num_copies(region); ++copy) {
      EXPECT_EQ(store.words(region, copy).size(), static_cast<size_t>(layout.region_words(region)));
      EXPECT_EQ(store.words(region, copy).data(), store.data(region, copy));
      ASSERT_EQ(store.tags(region, copy).size(), static_cast<size_t>(layout.num_granules(region)));
      EXPECT_EQ(&store.tags(region, copy)[0], &store.tag(region, copy, 0));
    }
  }
}

TEST(RegionStore, a_new_call_clears_a_copy_once_and_taps_keep_what_they_have) {
  const model::Geometry g = micro_geometry();
  RegionStore store({g, model::make_shard(g, 1).value(), {8, 8, kContext}});
  store.begin_content(Region::kStreams, 0, 4);
  EXPECT_TRUE(std::isnan(store.data(Region::kStreams, 0)[5]));
  store.data(Region::kStreams, 0)[5] = 1;
  store.begin_content(Region::kStreams, 0, 4);
  EXPECT_EQ(store.data(Region::kStreams, 0)[5], 1.0f);
  store.begin_content(Region::kStreams, 0, 9);
  EXPECT_TRUE(std::isnan(store.data(Region::kStreams, 0)[5]));
  store.data(Region::kTaps, 0)[0] = 2;
  store.begin_content(Region::kTaps, 0, 9);
  EXPECT_EQ(store.data(Region::kTaps, 0)[0], 2.0f);
}

class BandTables : public testing::Test {
 protected:
  BandTables()
      : geometry_(micro_geometry()), band_(geometry_, model::make_shard(geometry_, 2).value(), {8, 8, kContext}, 3) {}
  const program::Program& program() const { return band_.layout.program(); }
  int entry(const std::vector<std::array<int, program::kNumRegions>>& table, int call_idx, Region region) const {
    return table[static_cast<size_t>(call_idx)][static_cast<size_t>(region)];
  }
  int find(Stage stage, int layer) const { return program().find(stage, layer); }

  model::Geometry geometry_;
  Band band_;
};

TEST_F(BandTables, every_read_has_a_writer_before_it_and_nothing_else_has) {
  for (int call_idx = 0; call_idx < static_cast<int>(program().calls.size()); ++call_idx) {
    const program::Call& call = program().calls[static_cast<size_t>(call_idx)];
    for (int idx = 0; idx < program::kNumRegions; ++idx) {
      const auto region = static_cast<Region>(idx);
      const int writer = entry(band_.writers, call_idx, region);
      const std::string what = call_name(program(), call_idx) + " " + region_name(region);
      EXPECT_EQ(writer >= 0, (call.reads & program::bit(region)) != 0) << what;
      EXPECT_LT(writer, call_idx) << what;
      const bool served = writer < 0 || entry(band_.copies, writer, region) >= 0;
      EXPECT_TRUE(served) << what;
      EXPECT_EQ(entry(band_.copies, call_idx, region) >= 0, (call.writes & program::bit(region)) != 0) << what;
    }
  }
}

TEST_F(BandTables, readers_are_served_by_their_owner_and_their_index_source) {
  EXPECT_EQ(entry(band_.writers, find(Stage::kAttend, 5), Region::kCompressedNew), find(Stage::kKvNew, 3));
  EXPECT_EQ(entry(band_.writers, find(Stage::kAttend, 4), Region::kTopk), find(Stage::kIndexSelect, 3));
  EXPECT_EQ(entry(band_.writers, find(Stage::kAttend, 2), Region::kTopk), find(Stage::kIndexSelect, 1));
  EXPECT_EQ(entry(band_.writers, find(Stage::kFold, 3), Region::kFfnExchange), find(Stage::kExpertDown, 2));
}

TEST_F(BandTables, replaced_content_names_its_last_reader) {
  EXPECT_EQ(entry(band_.last_readers, find(Stage::kFold, 2), Region::kStreams), find(Stage::kFfnFold, 0));
  EXPECT_EQ(entry(band_.last_readers, find(Stage::kFold, 0), Region::kStreams), -1);
  EXPECT_EQ(entry(band_.last_readers, find(Stage::kEngramKv, 2), Region::kEngramKvOut), -1)
      << "each table has its own copy";
}

TEST_F(BandTables, calls_are_named_with_their_layer) {
  EXPECT_EQ(call_name(program(), find(Stage::kWoB, 4)), "wo_b layer 4");
  EXPECT_EQ(call_name(program(), find(Stage::kSample, -1)), "sample");
  EXPECT_EQ(region_name(Region::kAttnExchange), "attn_exchange");
}

// Never waits: tells whether the tag was there, and keeps what was wanted.
class NoWait : public Waiter {
 public:
  bool wait(const std::atomic<uint32_t>& tag, const Wait& wait) override {
    wanted = wait.wanted;
    return tag.load() == wait.wanted;
  }
  void put_happened() override { ++num_puts; }
  uint32_t wanted = 0;
  int num_puts = 0;
};

class Context : public testing::Test {
 protected:
  Context() {
    CpuOptions options = small_options();
    options.tp = 2;
    options.checks = true;
    backend_ = made_backend(micro(), options);
    EXPECT_TRUE(backend_->begin_step(step_of({{0, prompt(2)}})).ok());
    machine().waiter = &waiter_;
  }
  Machine& machine() { return backend_->machine(); }
  int find(Stage stage, int layer) { return machine().program().find(stage, layer); }
  template <Stage S>
  StageContext<S> context(int layer, int rank) {
    return StageContext<S>(machine(), {rank, 0, find(S, layer)}, {});
  }
  float word(Region region, int copy, int rank) {
    return machine().ranks[static_cast<size_t>(rank)].regions->data(region, copy)[0];
  }

  std::unique_ptr<CpuBackend> backend_;
  NoWait waiter_;
};

TEST_F(Context, a_put_in_a_ranks_region_stays_on_the_rank) {
  auto writer = context<Stage::kFold>(1, 0);
  writer.write<Region::kAttnU>()[0] = 3;
  EXPECT_FALSE(context<Stage::kAttnIn>(1, 0).poll<Region::kAttnU>(0)) << "nothing was put";
  writer.put<Region::kAttnU>(0);
  EXPECT_TRUE(context<Stage::kAttnIn>(1, 0).poll<Region::kAttnU>(0));
  EXPECT_EQ(context<Stage::kAttnIn>(1, 0).read<Region::kAttnU>()[0], 3.0f);
  EXPECT_FALSE(context<Stage::kAttnIn>(1, 1).poll<Region::kAttnU>(0));
  EXPECT_TRUE(std::isnan(word(Region::kAttnU, 1, 1)));
  EXPECT_EQ(waiter_.num_puts, 1);
}

TEST_F(Context, a_put_in_a_shared_region_reaches_every_rank) {
  auto writer = context<Stage::kWoB>(0, 1);
  writer.write<Region::kAttnExchange>()[0] = 4;
  writer.put<Region::kAttnExchange>(0);
  for (const int rank : {0, 1}) {
    EXPECT_TRUE(context<Stage::kFfnFold>(0, rank).poll<Region::kAttnExchange>(0)) << rank;
    EXPECT_EQ(word(Region::kAttnExchange, 0, rank), 4.0f) << rank;
  }
}

TEST_F(Context, a_poll_wants_the_tag_of_this_step_and_of_the_serving_call) {
  context<Stage::kFold>(1, 0).put<Region::kAttnU>(0);
  const uint32_t tag = machine().plan().tag(machine().inputs->epoch, find(Stage::kFold, 1));
  EXPECT_TRUE(context<Stage::kAttnIn>(1, 0).poll<Region::kAttnU>(0));
  EXPECT_EQ(waiter_.wanted, tag);
  EXPECT_FALSE(context<Stage::kAttnIn>(3, 0).poll<Region::kAttnU>(0)) << "the same copy, but another layer's content";
  EXPECT_TRUE(backend_->begin_step(step_of({{0, prompt(2)}})).ok());
  EXPECT_FALSE(context<Stage::kAttnIn>(1, 0).poll<Region::kAttnU>(0)) << "the last step's content";
}

TEST_F(Context, a_poll_of_a_range_stops_at_the_first_missing_granule) {
  auto writer = context<Stage::kAttnIn>(1, 0);
  for (const int granule : {0, 1, 3}) writer.put<Region::kAttnInPart>(granule);
  auto reader = context<Stage::kQNorm>(1, 0);
  EXPECT_TRUE(reader.poll_range<Region::kAttnInPart>(0, 2));
  EXPECT_FALSE(reader.poll_range<Region::kAttnInPart>(0, 4));
}

TEST_F(Context, writing_over_content_that_somebody_still_reads_is_a_violation) {
  machine().finished[0] = find(Stage::kFfnFold, 0);  // has begun it, not ended it
  context<Stage::kFold>(2, 0).write<Region::kStreams>();
  EXPECT_TRUE(machine().aborted);
  EXPECT_NE(
      machine().violation.find("streams: fold layer 2 overwrites what ffn_fold layer 0 has not read on rank 0 CTA 0"),
      std::string::npos)
      << machine().violation;
}

TEST_F(Context, writing_after_the_last_reader_is_allowed) {
  machine().finished[0] = find(Stage::kFfnFold, 0) + 1;  // rank 1 does not matter to a rank's region
  context<Stage::kFold>(2, 0).write<Region::kStreams>();
  EXPECT_FALSE(machine().aborted) << machine().violation;
  context<Stage::kWoB>(2, 0).write<Region::kAttnExchange>();  // but to a shared one it does
  EXPECT_NE(
      machine().violation.find("attn_exchange: wo_b layer 2 overwrites what ffn_fold layer 0 has not read on rank 1"),
      std::string::npos)
      << machine().violation;
}

TEST_F(Context, faults_touch_granule_zero_of_rank_zero_alone) {
  machine().fault.drop_put_call = find(Stage::kFold, 1);
  machine().fault.wrong_tag_call = find(Stage::kFfnFold, 1);
  machine().fault.rank_scope_call = find(Stage::kWoB, 1);
  for (const int rank : {0, 1}) {
    auto fold = context<Stage::kFold>(1, rank);
    fold.put<Region::kAttnU>(0);
    EXPECT_EQ((context<Stage::kAttnIn>(1, rank).poll<Region::kAttnU>(0)), rank == 1);
    auto ffn_fold = context<Stage::kFfnFold>(1, rank);
    ffn_fold.put<Region::kFfnU>(0);
    EXPECT_EQ((context<Stage::kFfnIn>(1, rank).poll<Region::kFfnU>(0)), rank == 1);
  }
  context<Stage::kWoB>(1, 0).put<Region::kAttnExchange>(0);
  EXPECT_TRUE((context<Stage::kFfnFold>(1, 0).poll<Region::kAttnExchange>(0)));
  EXPECT_FALSE((context<Stage::kFfnFold>(1, 1).poll<Region::kAttnExchange>(0)));
}

}  // namespace
}  // namespace monostep::cpu
