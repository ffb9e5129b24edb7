// The read kernel reads every chunk once, whatever the number of chunks, and the measurement notices one that does not.
// Runs on the emulator.
#include "gpu/read_bandwidth.h"

#include <gtest/gtest.h>

#include "emulated_program.h"
#include "gpu/compile_program.h"
#include "gpu/device/ptx.h"
#include "gpu/device/read_params.h"

namespace monostep::gpu {
namespace {

Kernel emulated_read(EmulatedDevice& device) {
  const std::string main =
      "#include \"gpu/device/read.cu\"\nextern \"C\" void monostep_read(const void* params) {\n"
      "  monostep::gpu::read_kernel(*static_cast<const monostep::gpu::ReadParams*>(params));\n}\n";
  void* function = emulated_function(read_sources(), main, kReadKernelName).value();
  device.add_kernel(kReadKernelName, reinterpret_cast<EmulatedDevice::KernelFunction>(function));
  return device.load({}, kReadKernelName).value();
}

TEST(ReadBandwidth, any_number_of_chunks_is_read_once) {
  EmulatedDevice device({.num_sms = 3});
  const Kernel kernel = emulated_read(device);
  for (const int num_chunks : {1, 2, 3, 36, 37, 100}) {
    const auto measured = measure_read_bandwidth(device, kernel, int64_t{num_chunks} * kReadChunkBytes + 5, 3);
    ASSERT_TRUE(measured.ok()) << num_chunks << ": " << measured.error().message();
    EXPECT_GT(measured->least, 0);
    EXPECT_LE(measured->least, measured->median);
    EXPECT_LE(measured->median, measured->most);
  }
  EXPECT_EQ(device.info()->free_bytes, device.info()->total_bytes);
}

void read_nothing(const void* params) {
  if (thread_idx() == 0) reinterpret_cast<uint64_t*>(static_cast<const ReadParams*>(params)->sums)[cta_idx()] = 0;
}

TEST(ReadBandwidth, a_kernel_that_does_not_read_is_refused) {
  EmulatedDevice device({.num_sms = 2});
  device.add_kernel("nothing", read_nothing);
  const auto measured = measure_read_bandwidth(device, device.load({}, "nothing").value(), 4 * kReadChunkBytes, 1);
  ASSERT_FALSE(measured.ok());
  EXPECT_EQ(measured.error().code, Code::kInternal);
}

}  // namespace
}  // namespace monostep::gpu
