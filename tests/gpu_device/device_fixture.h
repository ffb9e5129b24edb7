// OnDevice: the fixture of tests that need a GPU. They are skipped, with the reason, where none can be opened;
// MONOSTEP_EMULATED_DEVICE=1 runs them on the emulator instead, with fewer steps, to try the tests themselves. Programs
// are kept in MONOSTEP_CACHE_DIR. All tests of micro share two programs: bands 8 and 48 at one context.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "../cpu/tiny_models.h"
#include "emulated_program.h"
#include "gpu/backend.h"
#include "gpu/cuda_device.h"
#include "gpu/kernel_maker.h"
#include "gpu/program_cache.h"

namespace monostep::gpu {

inline constexpr int kDeviceContext = 16384;

class OnDevice : public testing::Test {
 protected:
  void SetUp() override {
    if (!opened().ok()) GTEST_SKIP() << opened().error().message();
  }

  static bool emulated() { return std::getenv("MONOSTEP_EMULATED_DEVICE") != nullptr; }
  // A count for the GPU, and a smaller one for the emulator.
  static int count(int on_gpu, int on_emulator) { return emulated() ? on_emulator : on_gpu; }

  static Device& device() { return *opened().value(); }
  static KernelMaker maker() {
    if (emulated()) return emulated_maker();
    return cuda_maker(default_cache_dir(), [](const MadeProgram& program) {
      std::printf("band %d: %s in %.1f s %s\n", program.band, program.from_cache ? "kept program" : "compiled",
                  program.seconds, program.warning.c_str());
    });
  }

  static RankOptions micro_options(int pages_of_slot = cpu::kPagesOfSlot) {
    RankOptions options;
    options.num_pages = cpu::kSlots * pages_of_slot + 2;
    options.max_context = kDeviceContext;
    return options;
  }
  // Serves every step in band 8 or 48.
  static std::unique_ptr<Rank> micro_rank(const RankOptions& options, Device& on = device()) {
    std::unique_ptr<Rank> rank = Rank::make(on, cpu::micro(), options, maker()).value();
    for (const int requests : {8, 1}) {
      const Status made = rank->prepare(6 * requests, requests);
      EXPECT_TRUE(made.ok()) << made.error().message();
    }
    return rank;
  }
  static std::unique_ptr<GpuBackend> micro_backend(const GpuOptions& options = {}, Device& on = device()) {
    return std::make_unique<GpuBackend>(on, micro_rank(micro_options(), on), options);
  }

  static program::StepOutputs decode(program::Backend& backend, const program::StepInputs& inputs) {
    const auto ticket = backend.decode(inputs);
    EXPECT_TRUE(ticket.ok()) << ticket.error().message();
    if (!ticket.ok()) return {};
    const auto outputs = backend.wait(ticket.value());
    EXPECT_TRUE(outputs.ok()) << outputs.error().message();
    return outputs.ok() ? outputs.value() : program::StepOutputs{};
  }

  // Everything that later steps may read of a slot whose pages are cpu::pages_of.
  static cpu::State slot_state(Rank& rank, int slot, int end) {
    kv::Pools pools(rank.geometry(), rank.options().num_pages, rank.options().num_slots);
    EXPECT_TRUE(rank.read_pools(pools).ok());
    return cpu::state_of(pools, rank.geometry(), slot, end);
  }

  static std::vector<uint32_t> words_of(Rank& rank, program::Region region) {
    std::vector<uint64_t> pairs;
    EXPECT_TRUE(rank.read_region(region, 0, pairs).ok());
    return {pairs.begin(), pairs.end()};
  }
  // Logits of a row of the last step.
  static std::vector<float> logits_of(Rank& rank, std::span<const uint32_t> words, int row) {
    std::vector<float> out;
    const int rows = rank.band().layout.rows();
    for (int id = 0; id < rank.geometry().vocab_size; ++id) {
      const int word = (id / program::kTile * rows + row) * program::kTile + id % program::kTile;
      out.push_back(std::bit_cast<float>(words[static_cast<size_t>(word)]));
    }
    return out;
  }

 private:
  static Result<std::unique_ptr<Device>> open() {
    if (!emulated()) {
      TRY_ASSIGN(std::unique_ptr<Device> device, CudaDevice::open(0));
      return device;
    }
    const EmulatedDeviceOptions options{.num_sms = 3, .total_bytes = int64_t{16} << 30, .max_turns = 4'000'000'000};
    return std::unique_ptr<Device>(std::make_unique<EmulatedDevice>(options));
  }
  static Result<std::unique_ptr<Device>>& opened() {
    static Result<std::unique_ptr<Device>> device = open();
    return device;
  }
};

}  // namespace monostep::gpu
