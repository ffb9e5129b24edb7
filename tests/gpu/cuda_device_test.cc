// CudaDevice over a driver that records its calls: what it asks of the driver, what it says when a call fails, and that
// it gives everything back. The last test runs kernels of the recorded cubin on a GPU, where there is one.
#include "gpu/cuda_device.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "base/mapped_file.h"
#include "fake_driver.h"

namespace monostep::gpu {
namespace {

struct Params {  // data/kernels.cu
  uint64_t x;
  int32_t count;
  int32_t unused[6];
};
static_assert(sizeof(Params) == 40);

std::vector<std::byte> recorded_cubin() {
  const Result<MappedFile> file = MappedFile::open(MONOSTEP_SOURCE_DIR "/tests/gpu/data/kernels.cubin");
  CHECK(file.ok(), "the recorded cubin");
  return {file->bytes().begin(), file->bytes().end()};
}

class CudaDeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    FakeDriver::reset();
    fake().params_bytes = sizeof(Params);
  }

  static FakeDriver& fake() { return FakeDriver::state(); }
  static Result<std::unique_ptr<CudaDevice>> try_open(int ordinal = 0) {
    return CudaDevice::open(FakeDriver::table(), ordinal);
  }
  static std::unique_ptr<CudaDevice> open() {
    auto device = try_open();
    CHECK(device.ok(), "the fake driver opens");
    return std::move(*device);
  }
  static Launch launch_of(const Params& params) { return {132, 256, 1024, true, &params, sizeof(params)}; }
};

TEST_F(CudaDeviceTest, a_driver_without_a_gpu_says_so) {
  fake().answers["init"] = DriverStatus::kNoDevice;
  EXPECT_EQ(try_open().error().message(), "the driver finds no GPU (unavailable)");
  fake().answers.clear();
  fake().num_devices = 0;
  EXPECT_EQ(try_open().error().message(), "the driver finds no GPU (unavailable)");
}

TEST_F(CudaDeviceTest, a_gpu_beyond_the_last_is_named) {
  fake().num_devices = 2;
  EXPECT_EQ(try_open(2).error().message(), "GPU 2 is not there: the driver finds 2 (unavailable)");
  EXPECT_EQ(try_open(-1).error().code, Code::kUnavailable);
}

TEST_F(CudaDeviceTest, a_driver_that_does_not_start_is_unavailable_with_its_words) {
  fake().answers["init"] = DriverStatus{803};
  EXPECT_EQ(try_open().error().message(),
            "the CUDA driver does not start: cuInit: CUDA_ERROR_OTHER (words of the driver) (unavailable)");
}

TEST_F(CudaDeviceTest, a_start_that_fails_gives_back_what_it_took) {
  fake().answers["stream_create"] = DriverStatus{999};
  EXPECT_EQ(try_open().error().place, "GPU 0");
  EXPECT_EQ(fake().num_live, 0);
}

TEST_F(CudaDeviceTest, everything_made_is_destroyed) {
  {
    const auto device = open();
    ASSERT_TRUE(device->load(recorded_cubin(), "plain").ok());
    ASSERT_TRUE(device->record(3).ok());
    ASSERT_TRUE(device->begin_capture().ok());
    ASSERT_TRUE(device->end_capture().ok());
    const auto buffer = Buffer::create(*device, 64);
    const auto mapped = MappedBuffer::create(*device, 64);
    ASSERT_TRUE(buffer.ok() && mapped.ok());
    EXPECT_EQ(fake().num_live, 7);  // context, stream, module, event, graph and the two buffers
  }
  EXPECT_EQ(fake().num_live, 0);
}

TEST_F(CudaDeviceTest, an_abandoned_gpu_is_not_called_again) {
  const Error why{Code::kDeviceFailed, "it hangs", "GPU step"};
  {
    const auto device = open();
    const auto kernel = device->load(recorded_cubin(), "plain");
    const auto buffer = Buffer::create(*device, 64);
    const auto mapped = MappedBuffer::create(*device, 64);
    ASSERT_TRUE(kernel.ok() && buffer.ok() && mapped.ok() && device->record(0).ok());
    device->abandon(why);
    device->abandon({Code::kInternal, "later", ""});
    fake().calls.clear();
    const Params params = {};
    char byte = 0;
    for (const Status& status :
         {device->upload(buffer->ptr(), &byte, 1), device->upload_later(buffer->ptr(), mapped->host(), 1),
          device->download(&byte, buffer->ptr(), 1), device->fill(buffer->ptr(), 0, 1),
          device->launch(*kernel, launch_of(params)), device->synchronize(), device->record(0),
          device->begin_capture()})
      EXPECT_EQ(status.ok() ? "" : status.error().message(), why.message());
    EXPECT_EQ(device->idle().error().message(), why.message());
    EXPECT_EQ(device->allocate(64).error().message(), why.message());
    EXPECT_EQ(device->allocate_mapped(64).error().message(), why.message());
    EXPECT_EQ(device->info().error().message(), why.message());
  }
  EXPECT_TRUE(fake().calls.empty()) << fake().calls.front();
}

TEST_F(CudaDeviceTest, a_later_upload_is_not_waited_for) {
  const auto device = open();
  const auto buffer = Buffer::create(*device, 8);
  const auto mapped = MappedBuffer::create(*device, 8);
  ASSERT_TRUE(buffer.ok() && mapped.ok());
  std::memset(mapped->host(), 7, 8);
  fake().calls.clear();
  ASSERT_TRUE(device->upload_later(buffer->ptr(), mapped->host(), 8).ok());
  EXPECT_EQ(FakeDriver::count("stream_synchronize"), 0);
  std::array<uint8_t, 8> received = {};
  ASSERT_TRUE(device->download(received.data(), buffer->ptr(), 8).ok());
  EXPECT_EQ(received, (std::array<uint8_t, 8>{7, 7, 7, 7, 7, 7, 7, 7}));
}

TEST_F(CudaDeviceTest, info_reports_each_attribute_in_its_field) {
  const auto info = open()->info();
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info->name, "fake");
  EXPECT_EQ(info->num_sms, 1016);
  EXPECT_EQ(info->l2_bytes, 1038);
  EXPECT_EQ(info->compute_major, 1075);
  EXPECT_EQ(info->compute_minor, 1076);
  EXPECT_EQ(info->max_shared_bytes_per_cta, 1097);
  EXPECT_TRUE(info->cooperative);
  EXPECT_EQ(info->free_bytes, 7);
  EXPECT_EQ(info->total_bytes, 11);
}

TEST_F(CudaDeviceTest, memory_that_is_not_there_is_exhausted_with_both_numbers) {
  const auto device = open();
  fake().answers["mem_alloc"] = DriverStatus::kOutOfMemory;
  EXPECT_EQ(
      device->allocate(100).error().message(),
      "GPU 0: cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (words of the driver), 100 bytes asked for, 7 free (exhausted)");
}

TEST_F(CudaDeviceTest, mapped_memory_that_cannot_be_mapped_is_freed) {
  const auto device = open();
  const int num_live = fake().num_live;
  fake().answers["mem_host_get_device_pointer"] = DriverStatus{1};
  EXPECT_FALSE(device->allocate_mapped(64).ok());
  EXPECT_EQ(fake().num_live, num_live);
}

TEST_F(CudaDeviceTest, copies_arrive_and_are_waited_for) {
  const auto device = open();
  const auto buffer = Buffer::create(*device, 8);
  ASSERT_TRUE(buffer.ok());
  const std::array<uint8_t, 8> sent = {1, 2, 3, 4, 5, 6, 7, 8};
  std::array<uint8_t, 8> received = {};
  ASSERT_TRUE(device->upload(buffer->ptr(), sent.data(), 8).ok());
  EXPECT_EQ(fake().calls.back(), "stream_synchronize");
  ASSERT_TRUE(device->fill(buffer->ptr() + 6, 0xff, 2).ok());
  ASSERT_TRUE(device->download(received.data(), buffer->ptr(), 8).ok());
  EXPECT_EQ(fake().calls.back(), "stream_synchronize");
  EXPECT_EQ(received, (std::array<uint8_t, 8>{1, 2, 3, 4, 5, 6, 0xff, 0xff}));
}

TEST_F(CudaDeviceTest, every_call_makes_its_context_current) {
  const auto device = open();
  const int num_activations = FakeDriver::count("context_set_current");
  ASSERT_TRUE(device->idle().ok());
  ASSERT_TRUE(device->synchronize().ok());
  EXPECT_EQ(FakeDriver::count("context_set_current"), num_activations + 2);
}

TEST_F(CudaDeviceTest, a_cubin_is_loaded_once_for_all_its_kernels) {
  const auto device = open();
  const auto plain = device->load(recorded_cubin(), "plain");
  const auto shares = device->load(recorded_cubin(), "shares");
  ASSERT_TRUE(plain.ok() && shares.ok());
  EXPECT_NE(plain->handle, shares->handle);
  EXPECT_EQ(FakeDriver::count("module_load"), 1);
}

TEST_F(CudaDeviceTest, an_absent_kernel_or_a_damaged_cubin_never_reaches_the_driver) {
  const auto device = open();
  EXPECT_EQ(device->load(recorded_cubin(), "absent").error().message(), "the cubin has no kernel absent (not_found)");
  std::vector<std::byte> half = recorded_cubin();
  half.resize(half.size() / 2);
  EXPECT_EQ(device->load(half, "plain").error().code, Code::kCorrupt);
  EXPECT_EQ(FakeDriver::count("module_load"), 0);
}

TEST_F(CudaDeviceTest, a_launch_passes_shape_and_parameters) {
  const auto device = open();
  const auto kernel = device->load(recorded_cubin(), "plain");
  ASSERT_TRUE(kernel.ok());
  const Params params = {77, 5, {1, 2, 3, 4, 5, 6}};
  ASSERT_TRUE(device->launch(*kernel, launch_of(params)).ok());
  EXPECT_EQ(fake().launch.num_ctas[0], 132u);
  EXPECT_EQ(fake().launch.num_ctas[1] * fake().launch.num_ctas[2], 1u);
  EXPECT_EQ(fake().launch.threads[0], 256u);
  EXPECT_EQ(fake().launch.shared_bytes, 1024u);
  ASSERT_EQ(fake().launch.num_attributes, 1u);
  EXPECT_EQ(fake().launch_attribute.id, LaunchAttribute::kCooperative);
  EXPECT_EQ(fake().launch_attribute.cooperative, 1);
  EXPECT_EQ(std::memcmp(fake().params.data(), &params, sizeof(params)), 0);
  Launch ordinary = launch_of(params);
  ordinary.cooperative = false;
  ASSERT_TRUE(device->launch(*kernel, ordinary).ok());
  EXPECT_EQ(fake().launch.num_attributes, 0u);
}

TEST_F(CudaDeviceTest, more_shared_memory_than_the_default_is_asked_for_once) {
  const auto device = open();
  const auto kernel = device->load(recorded_cubin(), "plain");
  ASSERT_TRUE(kernel.ok());
  const Params params = {};
  Launch launch = launch_of(params);
  ASSERT_TRUE(device->launch(*kernel, launch).ok());
  EXPECT_EQ(FakeDriver::count("function_set_attribute"), 0);
  launch.shared_bytes = 200 * 1024;
  ASSERT_TRUE(device->launch(*kernel, launch).ok());
  ASSERT_TRUE(device->launch(*kernel, launch).ok());
  EXPECT_EQ(FakeDriver::count("function_set_attribute"), 1);
  EXPECT_EQ(fake().max_shared_bytes, 200 * 1024);
}

TEST_F(CudaDeviceTest, a_refused_launch_names_kernel_and_shape) {
  const auto device = open();
  const auto kernel = device->load(recorded_cubin(), "plain");
  ASSERT_TRUE(kernel.ok());
  fake().answers["launch_kernel"] = DriverStatus{720};
  const Params params = {};
  EXPECT_EQ(
      device->launch(*kernel, launch_of(params)).error().message(),
      "GPU 0: cuLaunchKernelEx: CUDA_ERROR_OTHER (words of the driver), plain: 132 CTAs of 256 threads and 1024 bytes "
      "of shared memory, cooperative (device_failed)");
}

TEST_F(CudaDeviceTest, parameters_of_another_size_are_our_fault) {
  const auto device = open();
  const auto kernel = device->load(recorded_cubin(), "plain");
  ASSERT_TRUE(kernel.ok());
  const Params params = {};
  Launch launch = launch_of(params);
  launch.params_bytes = 32;
  EXPECT_DEATH(static_cast<void>(device->launch(*kernel, launch)), "the size that the kernel was compiled with");
}

TEST_F(CudaDeviceTest, idle_tells_running_done_and_failed_apart) {
  const auto device = open();
  EXPECT_TRUE(*device->idle());
  fake().answers["stream_query"] = DriverStatus::kNotReady;
  EXPECT_FALSE(*device->idle());
  fake().answers["stream_query"] = DriverStatus{719};
  EXPECT_EQ(device->idle().error().code, Code::kDeviceFailed);
}

TEST_F(CudaDeviceTest, elapsed_time_waits_for_the_end) {
  const auto device = open();
  ASSERT_TRUE(device->record(0).ok());
  ASSERT_TRUE(device->record(CudaDevice::kMaxEvents - 1).ok());
  ASSERT_TRUE(device->record(0).ok());
  EXPECT_EQ(FakeDriver::count("event_create"), 2);
  EXPECT_EQ(*device->elapsed_ms(0, CudaDevice::kMaxEvents - 1), 2.5f);
  EXPECT_EQ(FakeDriver::count("event_synchronize"), 1);
  EXPECT_DEATH(static_cast<void>(device->elapsed_ms(0, 1)), "an event that was recorded");
}

TEST_F(CudaDeviceTest, a_captured_graph_is_launched_and_its_source_freed) {
  const auto device = open();
  ASSERT_TRUE(device->begin_capture().ok());
  EXPECT_DEATH(static_cast<void>(device->synchronize()), "while a graph is captured");
  const auto graph = device->end_capture();
  ASSERT_TRUE(graph.ok());
  EXPECT_EQ(FakeDriver::count("graph_destroy"), 1);
  ASSERT_TRUE(device->launch(*graph).ok());
  EXPECT_EQ(FakeDriver::count("graph_launch"), 1);
}

TEST_F(CudaDeviceTest, a_graph_that_cannot_be_instantiated_leaves_nothing) {
  const auto device = open();
  const int num_live = fake().num_live;
  fake().answers["graph_instantiate"] = DriverStatus{1};
  ASSERT_TRUE(device->begin_capture().ok());
  EXPECT_FALSE(device->end_capture().ok());
  EXPECT_EQ(fake().num_live, num_live);
  EXPECT_TRUE(device->synchronize().ok());
}

// data/kernels.cu, `shares`: each value moves one place down.
void expect_moved(Device& device, Kernel kernel, bool captured) {
  std::vector<float> values(256);
  for (size_t idx = 0; idx < values.size(); ++idx) values[idx] = static_cast<float>(idx);
  const auto buffer = Buffer::create(device, 1024);
  ASSERT_TRUE(buffer.ok());
  ASSERT_TRUE(device.upload(buffer->ptr(), values.data(), 1024).ok());
  const Params params = {buffer->ptr(), 0, {}};
  const Launch launch = {1, 256, 64 * 1024, true, &params, sizeof(params)};
  if (captured) {
    ASSERT_TRUE(device.begin_capture().ok());
    ASSERT_TRUE(device.launch(kernel, launch).ok());
    const auto graph = device.end_capture();
    ASSERT_TRUE(graph.ok()) << graph.error().message();
    ASSERT_TRUE(device.launch(*graph).ok());
  } else {
    const Status launched = device.launch(kernel, launch);
    ASSERT_TRUE(launched.ok()) << launched.error().message();
  }
  ASSERT_TRUE(device.download(values.data(), buffer->ptr(), 1024).ok());
  for (size_t idx = 0; idx < values.size(); ++idx) EXPECT_EQ(values[idx], static_cast<float>((idx + 1) % 256));
}

TEST(CudaDeviceOnGpu, runs_a_kernel_alone_and_as_a_graph) {
  const auto device = CudaDevice::open(0);
  if (!device.ok()) GTEST_SKIP() << device.error().message();
  const auto kernel = (*device)->load(recorded_cubin(), "shares");
  if (!kernel.ok()) GTEST_SKIP() << "the GPU is not of sm_90a: " << kernel.error().message();
  ASSERT_TRUE((*device)->record(0).ok());
  expect_moved(**device, *kernel, false);
  expect_moved(**device, *kernel, true);
  ASSERT_TRUE((*device)->record(1).ok());
  const auto ms = (*device)->elapsed_ms(0, 1);
  ASSERT_TRUE(ms.ok());
  EXPECT_GT(*ms, 0.0f);
  EXPECT_TRUE(*(*device)->idle());
}

TEST(CudaDeviceOnGpu, mapped_memory_is_read_and_written_in_place) {
  const auto device = CudaDevice::open(0);
  if (!device.ok()) GTEST_SKIP() << device.error().message();
  const auto mapped = MappedBuffer::create(**device, 256);
  ASSERT_TRUE(mapped.ok());
  ASSERT_TRUE((*device)->fill(mapped->ptr(), 0x5a, 256).ok());
  ASSERT_TRUE((*device)->synchronize().ok());
  EXPECT_EQ(mapped->host()[255], std::byte{0x5a});
}

}  // namespace
}  // namespace monostep::gpu
