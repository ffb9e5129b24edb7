// EmulatedDevice keeps the promises of gpu::Device that its users' tests lean on: order, ranges, guard zones, errors
// that stay, graphs.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "emulator/device.h"
#include "emulator/kernel_case.h"
#include "gpu/device/ptx.h"

namespace monostep::gpu {
namespace {

struct AddParams {
  uint64_t* cells;
  uint64_t value;
  int offset;  // cells
};
void add_kernel(const void* p) {
  const auto& params = *static_cast<const AddParams*>(p);
  if (thread_idx() == 0) params.cells[params.offset + cta_idx()] += params.value;
}
Launch add_launch(const AddParams& params) {
  return {.num_ctas = 2, .threads = 32, .cooperative = true, .params = &params, .params_bytes = sizeof(params)};
}

class EmulatedDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    device_.add_kernel("add", add_kernel);
    kernel_ = device_.load({}, "add").value();
    memory_ = device_.allocate(16).value();
    ASSERT_TRUE(device_.fill(memory_, 0, 16).ok());
  }
  std::vector<uint64_t> cells() {
    std::vector<uint64_t> values(2);
    EXPECT_TRUE(device_.download(values.data(), memory_, 16).ok());
    return values;
  }
  AddParams params(uint64_t value, int offset) const { return {reinterpret_cast<uint64_t*>(memory_), value, offset}; }

  EmulatedDevice device_{{.num_sms = 2, .total_bytes = 1000, .order_seed = 1, .max_turns = 1000}};
  Kernel kernel_;
  DevicePtr memory_ = 0;
};

TEST_F(EmulatedDeviceTest, launches_and_graphs_run_with_the_parameters_of_their_time) {
  AddParams added = params(3, 0);
  EXPECT_TRUE(device_.launch(kernel_, add_launch(added)).ok());
  EXPECT_EQ(cells(), (std::vector<uint64_t>{3, 3}));
  ASSERT_TRUE(device_.begin_capture().ok());
  added.value = 10;
  EXPECT_TRUE(device_.launch(kernel_, add_launch(added)).ok());
  EXPECT_TRUE(device_.launch(kernel_, add_launch(added)).ok());
  EXPECT_FALSE(device_.fill(memory_, 0, 16).ok());
  const Graph graph = device_.end_capture().value();
  added.value = 1000;
  EXPECT_EQ(cells(), (std::vector<uint64_t>{3, 3}));
  EXPECT_TRUE(device_.launch(graph).ok());
  EXPECT_EQ(cells(), (std::vector<uint64_t>{23, 23}));
  EXPECT_TRUE(device_.synchronize().ok());
  EXPECT_TRUE(device_.idle().value());
}

TEST_F(EmulatedDeviceTest, memory_is_counted_and_ranges_are_checked) {
  EXPECT_EQ(device_.info().value().free_bytes, 984);
  EXPECT_EQ(device_.allocate(985).error().code, Code::kExhausted);
  EXPECT_EQ(memory_ % 256, 0u);
  const uint64_t value = 77;
  EXPECT_TRUE(device_.upload(memory_ + 8, &value, 8).ok());
  EXPECT_EQ(cells(), (std::vector<uint64_t>{0, 77}));
  EXPECT_FALSE(device_.upload(memory_ + 9, &value, 8).ok());
  EXPECT_FALSE(device_.fill(memory_ - 1, 0, 1).ok());
  const MappedMemory mapped = device_.allocate_mapped(5000).value();
  mapped.host[4999] = std::byte{9};
  uint8_t last = 0;
  EXPECT_TRUE(device_.download(&last, mapped.device + 4999, 1).ok());
  EXPECT_EQ(last, 9);
  device_.free_mapped(mapped);
  device_.free(memory_);
  EXPECT_EQ(device_.info().value().free_bytes, 1000);
}

TEST_F(EmulatedDeviceTest, a_write_outside_an_allocation_is_reported_when_it_is_freed) {
  EXPECT_TRUE(device_.launch(kernel_, add_launch(params(1, 1))).ok());
  EXPECT_TRUE(device_.idle().ok());
  device_.free(memory_);
  EXPECT_PRED2(contains, device_.idle().error().text, "something wrote above an allocation of 16 bytes");
}

TEST_F(EmulatedDeviceTest, a_failed_launch_stays_failed) {
  device_.add_kernel("hang", [](const void*) {
    while (true) sleep_nanoseconds(1);
  });
  const Kernel hang = device_.load({}, "hang").value();
  EXPECT_EQ(device_.launch(hang, {.num_ctas = 1, .threads = 32}).error().code, Code::kDeviceFailed);
  EXPECT_FALSE(device_.idle().ok());
  EXPECT_FALSE(device_.launch(kernel_, add_launch(params(1, 0))).ok());
  EXPECT_FALSE(device_.synchronize().ok());
}

TEST_F(EmulatedDeviceTest, what_a_gpu_refuses_is_refused) {
  EXPECT_EQ(device_.load({}, "subtract").error().code, Code::kNotFound);
  Launch launch = add_launch(params(1, 0));
  launch.num_ctas = 3;
  EXPECT_PRED2(contains, device_.launch(kernel_, launch).error().text, "3 CTAs cannot be resident on 2 SMs");
  launch.num_ctas = 2;
  launch.shared_bytes = (227 << 10) + 1;
  EXPECT_PRED2(contains, device_.launch(kernel_, launch).error().text, "shared memory");
  EXPECT_FALSE(device_.end_capture().ok());
  EXPECT_FALSE(device_.elapsed_ms(0, 1).ok());
  ASSERT_TRUE(device_.record(0).ok());
  ASSERT_TRUE(device_.record(1).ok());
  EXPECT_GE(device_.elapsed_ms(0, 1).value(), 0.0f);
}

}  // namespace
}  // namespace monostep::gpu
