// Opening the driver's library where it is absent or is another library, and the words of its errors.
#include "gpu/cuda_driver.h"

#include <gtest/gtest.h>

#include <string>

#include "fake_driver.h"

namespace monostep::gpu {
namespace {

TEST(CudaDriver, an_absent_library_is_named) {
  const Result<Driver> driver = open_driver("libno_such_driver.so.1");
  ASSERT_FALSE(driver.ok());
  EXPECT_EQ(driver.error().code, Code::kUnavailable);
  EXPECT_TRUE(driver.error().text.starts_with("no CUDA driver (libno_such_driver.so.1) found")) << driver.error().text;
}

TEST(CudaDriver, a_library_without_an_entry_point_is_refused_with_its_name) {
  const Result<Driver> driver = open_driver("libc.so.6");
  ASSERT_FALSE(driver.ok());
  EXPECT_EQ(driver.error().code, Code::kUnavailable);
  EXPECT_EQ(driver.error().text, "the CUDA driver is too old: it has no cuInit");
}

TEST(CudaDriver, an_error_names_call_status_and_detail) {
  const Error error = driver_error(FakeDriver::table(), DriverStatus::kOutOfMemory, "cuMemAlloc", "5 bytes asked for");
  EXPECT_EQ(error.code, Code::kExhausted);
  EXPECT_EQ(error.text, "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (words of the driver), 5 bytes asked for");
}

TEST(CudaDriver, a_status_unknown_to_the_driver_is_given_as_its_number) {
  Driver driver = FakeDriver::table();
  driver.get_error_name = [](DriverStatus, const char**) { return DriverStatus{1}; };
  driver.get_error_string = [](DriverStatus, const char**) { return DriverStatus{1}; };
  const Error error = driver_error(driver, DriverStatus{719}, "cuStreamSynchronize");
  EXPECT_EQ(error.code, Code::kDeviceFailed);
  EXPECT_EQ(error.text, "cuStreamSynchronize: status 719");
}

}  // namespace
}  // namespace monostep::gpu
