// The device program on the GPU against the CPU reference, call by call from the reference's inputs: every region
// within its compare rule (region_compare.h), pools byte for byte. Geometries of real sizes, every rank of four, wide
// bands, and positions far behind what a prompt of a test reaches, from synthetic caches. Prints the worst error of
// each region.
#include "device_fixture.h"
#include "region_harness.h"

namespace monostep::gpu {
namespace {

using program::Stage;

Ask rows_of(int slot, int drafts) {
  Ask ask;
  ask.slot = slot;
  ask.rows = 1 + drafts;
  ask.num_drafts = drafts;
  return ask;
}

class DeviceRegions : public OnDevice {
 protected:
  static HarnessOptions options(int max_context) {
    HarnessOptions out;
    out.device = &device();
    out.maker = maker();
    out.num_ctas = 0;
    out.cpu_ctas = 4;
    out.max_context = max_context;
    return out;
  }
  static void print(const RegionHarness& harness, const char* title) {
    for (const auto& [name, worst] : harness.worst())
      std::printf("%s, %s, %ld words, %ld differ, %.3f of the bound\n", title, name.c_str(),
                  static_cast<long>(worst.live), static_cast<long>(worst.differing), worst.ratio);
  }
  static bool of_the_index(Stage stage) {
    return stage == Stage::kKvNew || stage == Stage::kIndexScore || stage == Stage::kIndexSelect ||
           stage == Stage::kAttend || stage == Stage::kAttnMerge;
  }
};

TEST_F(DeviceRegions, eight_requests_of_one_to_six_rows_agree_on_micro_in_band_48) {
  HarnessOptions micro = options(kDeviceContext);
  micro.pages_of_slot = 4;
  RegionHarness harness(micro);
  for (int slot = 0; slot < cpu::kSlots; ++slot) harness.fill(slot, 9 + 23 * slot);
  const program::Sampling samplings[] = {{},
                                         {.temperature = 0.8f, .top_k = 40, .seed = 77},
                                         {.temperature = 1.1f, .top_p = 0.9f, .seed = 0x1234567890abcdefull},
                                         {.temperature = 1.7f, .min_p = 0.02f, .seed = 3}};
  for (int step = 0; step < count(2, 1); ++step) {
    std::vector<Ask> asks;
    for (int idx = 0; idx < 8; ++idx) {
      asks.push_back(rows_of((idx * 3 + step) % 8, (idx + step) % 6));
      asks.back().sampling = samplings[static_cast<size_t>(idx % 4)];
    }
    harness.step(asks);
  }
  EXPECT_EQ(harness.machine().layout().shape().band, 48);
  print(harness, "micro band 48");
}

TEST_F(DeviceRegions, three_requests_agree_on_clone40_in_band_24) {
  const weights::Checkpoint checkpoint = cpu::made_checkpoint(model::named_geometry("clone40").value(), 3);
  HarnessOptions clone = options(512);
  clone.checkpoint = &checkpoint;
  clone.pages_of_slot = 5;
  RegionHarness harness(clone);
  harness.fill(1, 40);
  harness.fill(4, 290);  // past index_topk and the candidates
  harness.fill(6, 97);
  Ask sampled = rows_of(4, 5);
  sampled.sampling = {.temperature = 0.7f, .top_k = 25, .top_p = 0.95f, .min_p = 0.001f, .seed = 9};
  harness.step({rows_of(1, 5), sampled, rows_of(6, 3)});
  EXPECT_EQ(harness.machine().layout().shape().band, 24);
  print(harness, "clone40 band 24");
}

// One step behind a prompt, then one far into the context, on the same ranks.
TEST_F(DeviceRegions, four_ranks_of_realdims_agree_behind_a_prompt_and_at_position_60000) {
  if (emulated()) GTEST_SKIP() << "too large for the emulator";
  constexpr int kContext = 65536;
  model::Geometry geometry = model::named_geometry("realdims").value();
  geometry.max_position_embeddings = kContext;
  geometry.n_routed_experts = 8;  // half of its weights, which take a minute to make and to pack
  const weights::Checkpoint checkpoint = cpu::made_checkpoint(geometry, 3);
  bool only_index = false;
  HarnessOptions real = options(kContext);
  real.checkpoint = &checkpoint;
  real.tp = 4;
  real.paged_slots = 1;
  real.pools_at_every_call = false;
  real.compared = [&](Stage stage) { return !only_index || of_the_index(stage); };
  RegionHarness harness(real);
  harness.fill(0, 96);
  harness.step({rows_of(0, 5)});
  if (HasFatalFailure()) return;
  print(harness, "realdims TP4 band 8");
  harness.fill_synthetic(0, 60000);
  only_index = true;
  harness.step({rows_of(0, 5)});
  print(harness, "realdims TP4 with position 60000");
}

TEST_F(DeviceRegions, the_index_of_micro_agrees_at_the_end_of_a_context_of_1_mi) {
  constexpr int kContext = 1 << 20;
  model::Geometry geometry = cpu::micro_geometry();
  geometry.max_position_embeddings = kContext;
  const weights::Checkpoint checkpoint = cpu::made_checkpoint(geometry, 3);
  HarnessOptions far = options(kContext);
  far.checkpoint = &checkpoint;
  far.paged_slots = 1;
  far.pools_at_every_call = false;
  far.compared = of_the_index;
  RegionHarness harness(far);
  harness.fill_synthetic(0, kContext - 3);
  for (int step = 0; step < 3; ++step) {  // the last one is the context's last position
    Ask ask = rows_of(0, 0);
    ask.sample = ask.draft = ask.context = false;
    harness.step({ask});
    if (HasFatalFailure()) return;
  }
  print(harness, "micro at 1 Mi");
}

}  // namespace
}  // namespace monostep::gpu
