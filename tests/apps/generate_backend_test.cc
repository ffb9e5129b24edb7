// Which backend `generate` takes: the GPU only where one serves, the CPU reference with the reason otherwise, an error
// where the GPU was asked for.
#include "apps/generate_backend.h"

#include <gtest/gtest.h>

#include <tuple>

#include "../cpu/tiny_models.h"
#include "emulated_program.h"
#include "gpu/cuda_device.h"

namespace monostep::apps {
namespace {

BackendOptions options_with(const std::string& backend, const std::string& mono = "auto", int tp = 1) {
  BackendOptions options;
  options.backend = backend;
  options.mono = mono;
  options.tp = tp;
  options.num_slots = 1;
  options.num_pages = 2;
  options.max_context = 128;
  options.prompt_rows = 8;
  options.decode_rows = 6;
  return options;
}

Result<BackendChoice> choose(const BackendOptions& options) { return choose_backend(options, cpu::micro_geometry()); }

// A GPU that has no memory left.
class FullDevice : public gpu::Device {
  Error full() const { return {Code::kExhausted, "no memory left", "GPU 0"}; }
  Result<gpu::DeviceInfo> info() override { return gpu::DeviceInfo{.name = "full", .num_sms = 4}; }
  Result<gpu::DevicePtr> allocate(int64_t) override { return full(); }
  void free(gpu::DevicePtr) override {}
  Result<gpu::MappedMemory> allocate_mapped(int64_t) override { return full(); }
  void free_mapped(const gpu::MappedMemory&) override {}
  Status upload(gpu::DevicePtr, const void*, int64_t) override { return full(); }
  Status upload_later(gpu::DevicePtr, const std::byte*, int64_t) override { return full(); }
  Status download(void*, gpu::DevicePtr, int64_t) override { return full(); }
  Status fill(gpu::DevicePtr, uint8_t, int64_t) override { return full(); }
  Result<gpu::Kernel> load(std::span<const std::byte>, const char*) override { return full(); }
  Status launch(gpu::Kernel, const gpu::Launch&) override { return full(); }
  Status synchronize() override { return full(); }
  Result<bool> idle() override { return full(); }
  Status record(int) override { return full(); }
  Result<float> elapsed_ms(int, int) override { return full(); }
  Status begin_capture() override { return full(); }
  Result<gpu::Graph> end_capture() override { return full(); }
  Status launch(gpu::Graph) override { return full(); }
  void abandon(Error) override {}
};

// An emulated GPU that counts what it is asked for, and may lack cooperative launches.
class CountingDevice : public gpu::EmulatedDevice {
 public:
  CountingDevice(bool cooperative, int* num_asked)
      : EmulatedDevice({.num_sms = 2}), cooperative_(cooperative), num_asked_(num_asked) {}
  Result<gpu::DeviceInfo> info() override {
    TRY_ASSIGN(gpu::DeviceInfo info, EmulatedDevice::info());
    info.cooperative = cooperative_;
    return info;
  }
  Result<gpu::DevicePtr> allocate(int64_t num_bytes) override {
    ++*num_asked_;
    return EmulatedDevice::allocate(num_bytes);
  }
  Result<gpu::MappedMemory> allocate_mapped(int64_t num_bytes) override {
    ++*num_asked_;
    return EmulatedDevice::allocate_mapped(num_bytes);
  }
  Result<gpu::Kernel> load(std::span<const std::byte> cubin, const char* name) override {
    ++*num_asked_;
    return EmulatedDevice::load(cubin, name);
  }

 private:
  bool cooperative_;
  int* num_asked_;
};

TEST(GenerateBackend, the_cpu_is_taken_where_it_is_asked_for) {
  const auto choice = choose(options_with("cpu"));
  ASSERT_TRUE(choice.ok());
  EXPECT_EQ(choice->device, nullptr);
  EXPECT_EQ(choice->reason, "");
}

TEST(GenerateBackend, without_a_device_auto_is_the_cpu_and_says_why) {
  if (gpu::CudaDevice::open(0).ok()) GTEST_SKIP() << "this machine has a device";
  const auto choice = choose(options_with("auto"));
  ASSERT_TRUE(choice.ok());
  EXPECT_EQ(choice->device, nullptr);
  EXPECT_EQ(choice->reason.find("no usable device: "), 0u) << choice->reason;
  EXPECT_EQ(choose(options_with("gpu")).error().code, Code::kUnavailable);
  EXPECT_EQ(choose(options_with("auto", "on")).error().code, Code::kUnavailable);
}

TEST(GenerateBackend, simulated_ranks_run_on_the_cpu) {
  EXPECT_EQ(choose(options_with("auto", "auto", 2))->reason, "ranks are simulated on the cpu alone");
  EXPECT_EQ(choose(options_with("gpu", "auto", 2)).error().place, "--tp");
}

TEST(GenerateBackend, a_wrong_mono_is_refused_by_name) {
  EXPECT_EQ(choose(options_with("cpu", "maybe")).error().place, "--mono");
}

TEST(GenerateBackend, a_gpu_that_cannot_load_the_model_is_an_error_only_where_it_was_asked_for) {
  const auto make = [](const BackendOptions& options) {
    BackendChoice choice;
    choice.device = std::make_unique<FullDevice>();
    return make_backend(std::move(choice), options, cpu::micro());
  };
  const auto serving = make(options_with("auto"));
  ASSERT_TRUE(serving.ok()) << serving.error().message();
  EXPECT_EQ(serving->words, "cpu, tp 1 (GPU 0: no memory left (exhausted))");
  EXPECT_NE(serving->backend, nullptr);
  EXPECT_EQ(serving->device, nullptr);
  EXPECT_EQ(make(options_with("gpu")).error().code, Code::kExhausted);
  EXPECT_EQ(make(options_with("auto", "on")).error().code, Code::kExhausted);
}

TEST(GenerateBackend, a_refused_mono_leaves_memory_as_off_does) {
  struct Left {
    std::string words;
    int num_asked = 0;
    int64_t free_bytes = 0;
    std::optional<StartReport> start;
  };
  const auto start = [](const std::string& mono, bool cooperative) {
    Left left;
    BackendOptions options = options_with("auto", mono);
    options.maker = gpu::emulated_maker();
    auto choice = choose_on_device(std::make_unique<CountingDevice>(cooperative, &left.num_asked), options,
                                   cpu::micro_geometry());
    EXPECT_TRUE(choice.ok()) << choice.error().message();
    EXPECT_EQ(left.num_asked, 0) << "something was allocated before the choice was made";
    auto serving = make_backend(std::move(choice).value(), options, cpu::micro());
    EXPECT_TRUE(serving.ok()) << serving.error().message();
    left.words = serving->words;
    if (serving->device == nullptr) return left;
    left.free_bytes = serving->device->info().value().free_bytes;
    left.start = std::move(serving->start);
    return left;
  };
  const Left off = start("off", true);
  ASSERT_EQ(off.words, "gpu emulated, one launch a stage");
  const Left refused = start("auto", false);
  ASSERT_EQ(refused.words, "gpu emulated, one launch a stage (the device has no cooperative launches)");
  EXPECT_EQ(refused.num_asked, off.num_asked);
  EXPECT_EQ(refused.free_bytes, off.free_bytes);
  const gpu::MemoryUse &a = refused.start->memory, &b = off.start->memory;
  EXPECT_EQ(std::tie(a.weights, a.tables, a.pools, a.arena, a.pinned),
            std::tie(b.weights, b.tables, b.pools, b.arena, b.pinned));
  EXPECT_EQ(start("auto", true).words, "gpu emulated, one launch a step");
  EXPECT_EQ(refused.start->load.weights.from, gpu::WeightsFrom::kCheckpoint);
}

}  // namespace
}  // namespace monostep::apps
