// The maker of CUDA kernels: other devices are refused before anything is compiled, and a kept program needs no
// compiler.
#include "gpu/kernel_maker.h"

#include <gtest/gtest.h>

#include "../base/temp_dir.h"
#include "emulator/device.h"
#include "gpu/compile_program.h"
#include "gpu/program_cache.h"

namespace monostep::gpu {
namespace {

class ComputeDevice : public EmulatedDevice {
 public:
  explicit ComputeDevice(int major) : major_(major) {
    add_kernel(kKernelName, [](const void*) {});
  }
  Result<DeviceInfo> info() override {
    TRY_ASSIGN(DeviceInfo info, EmulatedDevice::info());
    info.compute_major = major_;
    return info;
  }
  Result<Kernel> load(std::span<const std::byte> cubin, const char* name) override {
    loaded.assign(cubin.begin(), cubin.end());
    return EmulatedDevice::load(cubin, name);
  }
  std::vector<std::byte> loaded;

 private:
  int major_;
};

struct Case {
  model::Geometry geometry = model::named_geometry("micro").value();
  program::Layout layout{geometry, model::make_shard(geometry, 1).value(), {8, 1, 128}};
  program::Plan plan{layout, 3};
  ProgramSizes sizes = program_sizes(layout, plan, kSharedLimit).value();
};

TEST(KernelMaker, another_device_is_refused_before_anything_is_compiled) {
  const TempDir dir;
  const Case micro;
  ComputeDevice device(8);
  const auto made =
      cuda_maker(dir.path(), [](const MadeProgram&) { FAIL(); })(device, micro.layout, micro.plan, micro.sizes);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().message(),
            "emulated: compute capability 8.0, but the device programs are for 9.0 (unavailable)");
}

TEST(KernelMaker, a_kept_program_is_loaded_and_told_of) {
  const TempDir dir;
  const Case micro;
  ComputeDevice device(9);
  const Result<Nvrtc> nvrtc = Nvrtc::open();
  const std::string digest = program_digest(program_sources(micro.layout, micro.plan, micro.sizes), program_options(),
                                            nvrtc.ok() ? nvrtc->version() : "any");
  const Cubin kept{{std::byte{1}, std::byte{2}}};
  ASSERT_TRUE(cached_cubin(dir.path(), digest, [&]() -> Result<Cubin> { return kept; }).ok());
  std::vector<MadeProgram> programs;
  const KernelMaker maker =
      cuda_maker(dir.path(), [&programs](const MadeProgram& program) { programs.push_back(program); });
  ASSERT_TRUE(maker(device, micro.layout, micro.plan, micro.sizes).ok());
  EXPECT_EQ(device.loaded, kept.bytes);
  ASSERT_EQ(programs.size(), 1u);
  EXPECT_EQ(programs[0].band, 8);
  EXPECT_TRUE(programs[0].from_cache);
  EXPECT_EQ(programs[0].warning, "");
}

}  // namespace
}  // namespace monostep::gpu
