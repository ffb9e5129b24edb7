// The owners of device memory: freed once, by the last owner.
#include "gpu/device_api.h"

#include <gtest/gtest.h>

#include <utility>

#include "fake_driver.h"
#include "gpu/cuda_device.h"

namespace monostep::gpu {
namespace {

class DeviceApi : public testing::Test {
 protected:
  void SetUp() override {
    FakeDriver::reset();
    auto opened = CudaDevice::open(FakeDriver::table(), 0);
    ASSERT_TRUE(opened.ok());
    device_ = std::move(*opened);
    num_live_before_ = FakeDriver::state().num_live;
  }
  int num_live() const { return FakeDriver::state().num_live - num_live_before_; }

  std::unique_ptr<CudaDevice> device_;
  int num_live_before_ = 0;
};

TEST_F(DeviceApi, a_buffer_is_freed_once_by_its_last_owner) {
  {
    auto created = Buffer::create(*device_, 128);
    ASSERT_TRUE(created.ok());
    Buffer outer;
    {
      Buffer inner = std::move(*created);
      EXPECT_EQ(inner.num_bytes(), 128);
      outer = std::move(inner);
    }
    EXPECT_NE(outer.ptr(), 0u);
    EXPECT_EQ(num_live(), 1);
  }
  EXPECT_EQ(num_live(), 0);
  EXPECT_EQ(FakeDriver::count("mem_free"), 1);
}

TEST_F(DeviceApi, a_mapped_buffer_is_freed_once_by_its_last_owner) {
  {
    auto created = MappedBuffer::create(*device_, 128);
    ASSERT_TRUE(created.ok());
    MappedBuffer outer;
    {
      MappedBuffer inner = std::move(*created);
      outer = std::move(inner);
    }
    EXPECT_NE(outer.host(), nullptr);
    EXPECT_EQ(outer.num_bytes(), 128);
    EXPECT_EQ(num_live(), 1);
  }
  EXPECT_EQ(num_live(), 0);
  EXPECT_EQ(FakeDriver::count("mem_free_host"), 1);
}

TEST_F(DeviceApi, a_refused_allocation_is_the_error_of_create) {
  FakeDriver::state().answers["mem_alloc"] = DriverStatus::kOutOfMemory;
  EXPECT_EQ(Buffer::create(*device_, 128).error().code, Code::kExhausted);
}

}  // namespace
}  // namespace monostep::gpu
