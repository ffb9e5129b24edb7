// GpuMirror: what of the reference's regions and pools reaches the device, and what of the device's comes back. A
// stand-in for the step kernel looks at the arena and puts words of its own.
#include "apps/gpu_mirror.h"

#include <gtest/gtest.h>

#include <bit>
#include <functional>

#include "../cpu/tiny_models.h"
#include "base/numeric.h"
#include "emulator/device.h"
#include "emulator/emulated_ptx.h"

namespace monostep::apps {
namespace {

using gpu::CallRecord;
using gpu::KernelParams;
using program::Region;
using program::Stage;

std::function<void(const KernelParams&)> act;  // of the stand-in

void stand_in(const void* params) {
  if (gpu::cta_idx() == 0 && gpu::thread_idx() == 0 && act) act(*static_cast<const KernelParams*>(params));
}

class Mirrored : public testing::Test {
 protected:
  explicit Mirrored(int tp = 1) : device_({.num_sms = 1}) {
    act = nullptr;
    cpu::CpuOptions options = cpu::small_options();
    options.tp = tp;
    backend_ = cpu::made_backend(cpu::micro(), options);
    mirror_ = GpuMirror::make(device_, cpu::micro(), *backend_, Cut::kStep, maker()).value();
    EXPECT_TRUE(backend_->begin_step(cpu::step_of({cpu::Part{2, cpu::prompt(4), 3}})).ok());
  }
  ~Mirrored() override { act = nullptr; }

  static gpu::KernelMaker maker() {
    return [](gpu::Device& device, const program::Layout&, const program::Plan&, const gpu::ProgramSizes&) {
      static_cast<gpu::EmulatedDevice&>(device).add_kernel("stand_in", stand_in);
      return device.load({}, "stand_in");
    };
  }
  cpu::Machine& machine() { return backend_->machine(); }
  int find(Stage stage, int layer) { return machine().program().find(stage, layer); }
  int copy_of(Region region, int call_idx) {
    return program::copy_of(machine().program(), machine().layout().geometry(), region,
                            machine().program().calls[static_cast<size_t>(call_idx)]);
  }
  uint32_t tag_of(int call_idx) { return machine().plan().tag(machine().inputs->epoch, call_idx); }
  uint64_t* pairs_at(const KernelParams& params, Region region, int copy) {
    return reinterpret_cast<uint64_t*>(params.arena +
                                       static_cast<uint64_t>(machine().plan().region_offset(region, copy)));
  }
  // Fills a copy of a region in the reference, as if a call had put it.
  std::span<float> fill(Region region, int writer) {
    const int copy = copy_of(region, writer);
    const std::span<float> words = machine().ranks[0].regions->words(region, copy);
    for (size_t idx = 0; idx < words.size(); ++idx) words[idx] = round_bf16(static_cast<float>(idx % 1000) - 300);
    for (std::atomic<uint32_t>& tag : machine().ranks[0].regions->tags(region, copy)) tag = tag_of(writer);
    return words;
  }
  void run(int call_idx) {
    const Status status = mirror_->run(machine(), {call_idx, call_idx + 1});
    ASSERT_TRUE(status.ok()) << status.error().message();
  }

  gpu::EmulatedDevice device_;
  std::unique_ptr<cpu::CpuBackend> backend_;
  std::unique_ptr<GpuMirror> mirror_;
};

TEST_F(Mirrored, bf16_regions_go_up_two_values_a_pair_with_their_granules_tags) {
  const int writer = find(Stage::kFold, 2);
  const std::span<float> words = fill(Region::kAttnU, writer);
  cpu::RegionStore& store = *machine().ranks[0].regions;
  store.tag(Region::kAttnU, copy_of(Region::kAttnU, writer), 1) = 5;
  std::vector<uint64_t> seen;
  act = [&](const KernelParams& params) {
    const uint64_t* pairs = pairs_at(params, Region::kAttnU, copy_of(Region::kAttnU, writer));
    seen.assign(pairs, pairs + words.size() / 2);
  };
  run(find(Stage::kAttnIn, 2));
  ASSERT_EQ(seen.size(), words.size() / 2);
  const auto granule = static_cast<size_t>(store.granule_words(Region::kAttnU));
  for (size_t idx = 0; idx < seen.size(); ++idx) {
    EXPECT_EQ(static_cast<uint16_t>(seen[idx]), bf16_bits(words[2 * idx]));
    EXPECT_EQ(static_cast<uint16_t>(seen[idx] >> 16), bf16_bits(words[2 * idx + 1]));
    EXPECT_EQ(static_cast<uint32_t>(seen[idx] >> 32), 2 * idx / granule == 1 ? 5 : tag_of(writer));
  }
}

TEST_F(Mirrored, fp32_regions_go_up_one_value_a_pair) {
  const int writer = find(Stage::kAttnIn, 1);
  const std::span<float> words = fill(Region::kAttnInPart, writer);
  std::vector<uint64_t> seen;
  act = [&](const KernelParams& params) {
    const uint64_t* pairs = pairs_at(params, Region::kAttnInPart, copy_of(Region::kAttnInPart, writer));
    seen.assign(pairs, pairs + words.size());
  };
  run(find(Stage::kKvNew, 1));
  ASSERT_EQ(seen.size(), words.size());
  for (size_t idx = 0; idx < seen.size(); ++idx) {
    EXPECT_EQ(static_cast<uint32_t>(seen[idx]), std::bit_cast<uint32_t>(words[idx]));
    EXPECT_EQ(static_cast<uint32_t>(seen[idx] >> 32), tag_of(writer));
  }
}

TEST_F(Mirrored, words_of_scattered_regions_carry_the_tag_of_the_first_granule) {
  const int writer = find(Stage::kIndexScore, 3);
  const std::span<float> words = fill(Region::kScores, writer);
  const std::span<std::atomic<uint32_t>> tags =
      machine().ranks[0].regions->tags(Region::kScores, copy_of(Region::kScores, writer));
  for (size_t granule = 1; granule < tags.size(); ++granule) tags[granule] = 0;  // of requests that do not live
  std::vector<uint64_t> seen;
  act = [&](const KernelParams& params) {
    const uint64_t* pairs = pairs_at(params, Region::kScores, copy_of(Region::kScores, writer));
    seen.assign(pairs, pairs + words.size() / 2);
  };
  run(find(Stage::kIndexSelect, 3));
  ASSERT_FALSE(seen.empty());
  for (const uint64_t pair : seen) EXPECT_EQ(static_cast<uint32_t>(pair >> 32), tag_of(writer));
}

TEST_F(Mirrored, what_carries_the_steps_tag_comes_back_and_nothing_else) {
  const int call = find(Stage::kAttnMix, 1);
  const int copy = copy_of(Region::kAttnMixOut, call);
  const std::span<float> words = machine().ranks[0].regions->words(Region::kAttnMixOut, copy);
  std::fill(words.begin(), words.end(), 7.0f);
  act = [&](const KernelParams& params) {
    uint64_t* pairs = pairs_at(params, Region::kAttnMixOut, copy);
    pairs[3] = (uint64_t{tag_of(call)} << 32) | std::bit_cast<uint32_t>(1.5f);
    pairs[4] = (uint64_t{tag_of(call) - (1u << machine().plan().tag_bits())} << 32) | std::bit_cast<uint32_t>(2.5f);
  };
  run(call);
  EXPECT_EQ(words[3], 1.5f);
  EXPECT_EQ(words[4], 7.0f) << "the tag of another step";
  EXPECT_EQ(words[5], 7.0f);
  EXPECT_EQ(machine().ranks[0].regions->tag(Region::kAttnMixOut, copy, 0), tag_of(call));
}

TEST_F(Mirrored, bf16_results_come_back_as_two_values) {
  const int call = find(Stage::kFold, 1);
  const int copy = copy_of(Region::kStreams, call);
  act = [&](const KernelParams& params) {
    pairs_at(params, Region::kStreams, copy)[2] = (uint64_t{tag_of(call)} << 32) | 0xc040'3fc0u;
  };
  run(call);
  const std::span<float> words = machine().ranks[0].regions->words(Region::kStreams, copy);
  EXPECT_EQ(words[4], 1.5f) << "the even value is the low half";
  EXPECT_EQ(words[5], -3.0f);
}

TEST_F(Mirrored, stores_to_pages_and_slots_come_back) {
  act = [&](const KernelParams& params) {
    reinterpret_cast<std::byte*>(params.pages)[77] = std::byte{9};
    reinterpret_cast<std::byte*>(params.slots)[5] = std::byte{8};
  };
  machine().ranks[0].pools->pages[78] = std::byte{3};
  run(find(Stage::kKvNew, 1));
  EXPECT_EQ(machine().ranks[0].pools->pages[77], std::byte{9});
  EXPECT_EQ(machine().ranks[0].pools->pages[78], std::byte{3});
  EXPECT_EQ(machine().ranks[0].pools->slots[5], std::byte{8});
}

TEST_F(Mirrored, a_step_that_was_given_up_is_an_error) {
  mirror_->rank(0).abort();
  const Status status = mirror_->run(machine(), {0, 1});
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, Code::kInternal);
}

class MirroredTwice : public Mirrored {
 protected:
  MirroredTwice() : Mirrored(2) {}
};

TEST_F(MirroredTwice, pushes_reach_every_rank_and_the_rest_its_own) {
  const int pushed = find(Stage::kWoB, 1);
  const int kept = find(Stage::kAttnMix, 1);
  act = [&](const KernelParams& params) {
    const int call = params.first_call;
    const Region region = call == pushed ? Region::kAttnExchange : Region::kAttnMixOut;
    pairs_at(params, region, copy_of(region, call))[params.rank] =
        (uint64_t{tag_of(call)} << 32) | std::bit_cast<uint32_t>(10.0f + static_cast<float>(params.rank));
  };
  run(pushed);
  run(kept);
  for (int rank = 0; rank < 2; ++rank) {
    cpu::RegionStore& store = *machine().ranks[static_cast<size_t>(rank)].regions;
    const float* exchange = store.data(Region::kAttnExchange, copy_of(Region::kAttnExchange, pushed));
    EXPECT_EQ(exchange[0], 10.0f);
    EXPECT_EQ(exchange[1], 11.0f);
    const float* mix = store.data(Region::kAttnMixOut, copy_of(Region::kAttnMixOut, kept));
    EXPECT_EQ(mix[rank], 10.0f + static_cast<float>(rank));
    EXPECT_EQ(mix[1 - rank], 0.0f);
  }
}

TEST_F(MirroredTwice, calls_run_rank_by_rank_in_order) {
  std::vector<std::pair<int, int>> order;
  act = [&](const KernelParams& params) { order.emplace_back(params.first_call, params.rank); };
  ASSERT_TRUE(mirror_->run(machine(), {0, 2}).ok());
  EXPECT_EQ(order, (std::vector<std::pair<int, int>>{{0, 0}, {0, 1}, {1, 0}, {1, 1}}));
}

}  // namespace
}  // namespace monostep::apps
