// Faults of level L4 in the device program, on the emulator: a call whose puts are lost, a granule with the tag of
// another step, a rank whose push is missing, a step that the host gives up. Each ends within the bound of a wait with
// a report that names what was waited for, and the next step is right again.
#include <chrono>
#include <thread>

#include "region_harness.h"

namespace monostep::gpu {
namespace {

using program::Region;
using program::Stage;

constexpr int kLooks = 1 << 14;  // the smallest bound that waits keep

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

Ask sampled_rows(int slot, int rows) {
  Ask ask;
  ask.slot = slot;
  ask.rows = rows;
  return ask;
}

class Faults : public testing::Test {
 protected:
  static HarnessOptions options(int tp, int poll_limit = kLooks) {
    HarnessOptions out;
    out.tp = tp;
    out.poll_limit = poll_limit;
    return out;
  }
  void begin(RegionHarness& harness) {
    const Status begun = harness.backend().begin_step(harness.inputs_of({sampled_rows(1, 4)}));
    ASSERT_TRUE(begun.ok()) << begun.error().message();
    num_calls_ = static_cast<int>(harness.machine().program().calls.size());
  }
  // What the calls end with.
  static std::string failure_of(RegionHarness& harness, int first, int last) {
    const Status status = harness.mirror().run(harness.machine(), {first, last});
    return status.ok() ? "" : status.error().text;
  }
  static int find(RegionHarness& harness, Stage stage, int layer) {
    return harness.machine().program().find(stage, layer);
  }
  // The report's words: rank, CTA, a call that reads what is missing, the region.
  static void expect_report(RegionHarness& harness, const std::string& text, int rank, Region region, int writer) {
    EXPECT_TRUE(contains(text, "step given up: rank " + std::to_string(rank) + " CTA ")) << text;
    EXPECT_TRUE(contains(text, "waits for region " + cpu::region_name(region) + " copy ")) << text;
    EXPECT_TRUE(contains(text, "wanted tag 0x")) << text;
    const program::Program& program = harness.machine().program();
    bool reader_named = false;
    for (int idx = writer + 1; idx < static_cast<int>(program.calls.size()); ++idx) {
      if (program::writer_of(program, harness.geometry(), region, idx) != writer) continue;
      reader_named |= contains(text, "(call " + std::to_string(idx) + ")");
    }
    EXPECT_TRUE(reader_named) << text;
  }
  static void expect_next_step_right(RegionHarness& harness) { harness.step({sampled_rows(1, 4)}); }

  int num_calls_ = 0;
};

struct Lost {
  Stage stage;
  int layer;
  Region region;
};

TEST_F(Faults, a_call_whose_puts_are_lost_is_reported_by_name) {
  RegionHarness harness(options(1));
  for (const Lost& lost :
       {Lost{Stage::kEngramRows, 0, Region::kEngramRowsOut}, Lost{Stage::kAttnIn, 1, Region::kAttnInPart},
        Lost{Stage::kIndexSelect, 3, Region::kTopk}, Lost{Stage::kWoB, 4, Region::kAttnExchange},
        Lost{Stage::kFfnIn, 5, Region::kFfnInPart}, Lost{Stage::kExpertDown, 2, Region::kFfnExchange},
        Lost{Stage::kHead, -1, Region::kLogits}}) {
    begin(harness);
    const int call_idx = find(harness, lost.stage, lost.layer);
    ASSERT_EQ(failure_of(harness, 0, call_idx), "") << cpu::region_name(lost.region);
    expect_report(harness, failure_of(harness, call_idx + 1, num_calls_), 0, lost.region, call_idx);
  }
  expect_next_step_right(harness);
}

TEST_F(Faults, a_granule_with_the_tag_of_another_step_is_reported_by_name) {
  RegionHarness harness(options(1));
  for (const Lost& wrong : {Lost{Stage::kAttnMix, 2, Region::kAttnMixOut}, Lost{Stage::kWoA, 1, Region::kOaPart},
                            Lost{Stage::kVerdict, -1, Region::kVerdictOut}}) {
    begin(harness);
    const int call_idx = find(harness, wrong.stage, wrong.layer);
    ASSERT_EQ(failure_of(harness, 0, call_idx + 1), "") << cpu::region_name(wrong.region);
    const program::Program& program = harness.machine().program();
    const program::Call& call = program.calls[static_cast<size_t>(call_idx)];
    const int copy = program::copy_of(program, harness.geometry(), wrong.region, call);
    harness.machine().ranks[0].regions->tag(wrong.region, copy, 0) =
        harness.machine().plan().tag(harness.machine().inputs->epoch - 1, call_idx);
    expect_report(harness, failure_of(harness, call_idx + 1, num_calls_), 0, wrong.region, call_idx);
  }
  expect_next_step_right(harness);
}

TEST_F(Faults, a_rank_whose_push_is_missing_is_reported_by_the_waiting_rank) {
  RegionHarness harness(options(2));
  begin(harness);
  const int call_idx = find(harness, Stage::kWoB, 1);
  ASSERT_EQ(failure_of(harness, 0, call_idx + 1), "");
  const program::Program& program = harness.machine().program();
  const int copy = program::copy_of(program, harness.geometry(), Region::kAttnExchange,
                                    program.calls[static_cast<size_t>(call_idx)]);
  const std::span<std::atomic<uint32_t>> tags = harness.machine().ranks[0].regions->tags(Region::kAttnExchange, copy);
  for (size_t granule = tags.size() / 2; granule < tags.size(); ++granule) tags[granule] = 0;  // what rank 1 pushed
  expect_report(harness, failure_of(harness, call_idx + 1, num_calls_), 0, Region::kAttnExchange, call_idx);
  expect_next_step_right(harness);
}

TEST_F(Faults, a_stuck_launch_returns_when_the_host_gives_the_step_up) {
  RegionHarness harness(options(1, 0));  // waits have no bound of their own
  begin(harness);
  const int call_idx = find(harness, Stage::kWoA, 2);
  ASSERT_EQ(failure_of(harness, 0, call_idx), "");
  std::atomic<bool> returned{false};
  bool early = false;
  std::jthread watchdog([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    early = returned;
    harness.mirror().rank(0).abort();
  });
  const std::string text = failure_of(harness, call_idx + 1, num_calls_);
  returned = true;
  watchdog.join();
  EXPECT_FALSE(early) << "the launch was not stuck";
  expect_report(harness, text, 0, Region::kOaPart, call_idx);
  expect_next_step_right(harness);
}

TEST_F(Faults, an_abort_before_a_launch_is_reported_as_the_hosts) {
  RegionHarness harness(options(1));
  begin(harness);
  ASSERT_EQ(failure_of(harness, 0, 1), "");
  harness.mirror().rank(0).abort();
  const Status finished = harness.mirror().rank(0).finish();
  ASSERT_FALSE(finished.ok());
  EXPECT_EQ(finished.error().text, "step given up by the host");
  expect_next_step_right(harness);
}

}  // namespace
}  // namespace monostep::gpu
