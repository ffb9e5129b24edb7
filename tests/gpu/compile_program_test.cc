// The step programs compile for sm_90a within the declared bounds, where NVRTC is installed (skipped elsewhere): what a
// CTA of the H200 has, no stack and no spill, and the time that one core takes.
#include "gpu/compile_program.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <map>

namespace monostep::gpu {
namespace {

struct Program {
  const char* geometry;
  int tp;
  int rows;
};

// What every program must stay within. Nine warps take the registers of twelve: 65,536 / 384, in eights.
constexpr int kMaxRegisters = 168;
constexpr int64_t kMaxStackBytes = 0;
constexpr int64_t kMaxLocal = 0;  // instructions
constexpr int64_t kMaxSharedBytes = 232448;
constexpr double kMaxSeconds = 90;

constexpr Program kPrograms[] = {{"flash", 4, 8}, {"flash", 4, 48}, {"flash", 8, 8},  {"flash", 8, 48},
                                 {"micro", 1, 8}, {"micro", 1, 16}, {"micro", 1, 24}, {"micro", 1, 48}};

constexpr int kNumSms = 132;

class CompileProgram : public testing::TestWithParam<Program> {};

TEST_P(CompileProgram, stays_within_its_bounds) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer sees nothing of the compiler";
#endif
  const Result<Nvrtc> nvrtc = Nvrtc::open();
  if (!nvrtc.ok()) GTEST_SKIP() << nvrtc.error().message();
  const auto& [name, tp, rows] = GetParam();
  const model::Geometry geometry = model::named_geometry(name).value();
  const int context = std::min(8192, geometry.max_position_embeddings);
  const program::Layout layout(geometry, model::make_shard(geometry, tp).value(),
                               program::shape_for(geometry, rows, 1, context));
  const program::Plan plan(layout, kNumSms);
  const ProgramSizes sizes = program_sizes(layout, plan, kSharedLimit).value();
  const std::clock_t begin = std::clock();  // CPU time: other load does not count
  const Result<Cubin> cubin = nvrtc->compile(program_sources(layout, plan, sizes), program_options());
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  ASSERT_TRUE(cubin.ok()) << cubin.error().message();
  const std::vector<KernelResources> kernels = read_cubin(cubin->bytes).value();
  ASSERT_EQ(kernels.size(), 1u);
  const KernelResources& kernel = kernels.front();
  std::printf("%s TP %d, %d rows: %d registers, stack %ld, local stores %ld, loads %ld, shared %d, code %ld, %.1f s\n",
              name, tp, rows, kernel.registers, static_cast<long>(kernel.stack_bytes),
              static_cast<long>(kernel.local_stores), static_cast<long>(kernel.local_loads), sizes.shared.total_bytes,
              static_cast<long>(kernel.code_bytes), seconds);
  EXPECT_EQ(kernel.name, kKernelName);
  EXPECT_LE(kernel.registers, kMaxRegisters);
  EXPECT_LE(kernel.stack_bytes, kMaxStackBytes);
  EXPECT_LE(kernel.local_stores, kMaxLocal);
  EXPECT_LE(kernel.local_loads, kMaxLocal);
  EXPECT_LE(kernel.shared_bytes + sizes.shared.total_bytes, kMaxSharedBytes);
  EXPECT_LE(seconds, kMaxSeconds);
}

INSTANTIATE_TEST_SUITE_P(Programs, CompileProgram, testing::ValuesIn(kPrograms), [](const auto& info) {
  const Program& program = info.param;
  return std::string(program.geometry) + "_tp" + std::to_string(program.tp) + "_rows" + std::to_string(program.rows);
});

TEST(ProgramSources, hold_every_header_once_and_the_constants) {
  const model::Geometry geometry = model::named_geometry("micro").value();
  const program::Layout layout(geometry, model::make_shard(geometry, 1).value(), {});
  const program::Plan plan(layout, kNumSms);
  const Sources sources = program_sources(layout, plan, program_sizes(layout, plan, kSharedLimit).value());
  EXPECT_EQ(sources.main.name, "gpu/device/step.cu");
  std::map<std::string, int> names;
  for (const SourceFile& header : sources.headers) ++names[header.name];
  for (const auto& [header, count] : names) EXPECT_EQ(count, 1) << header;
  for (const char* needed :
       {"gpu/device/constants.h", "cstdint", "gpu/device/ptx.h", "gpu/device/records.h", "program/stage.h"})
    EXPECT_EQ(names.count(needed), 1u) << needed;
}

// The bounds see what they are there for: an array that is indexed at run time.
TEST(ProgramBounds, a_spilling_program_is_seen) {
  const Result<Nvrtc> nvrtc = Nvrtc::open();
  if (!nvrtc.ok()) GTEST_SKIP() << nvrtc.error().message();
  const Sources sources = {{"spill.cu",
                            "extern \"C\" __global__ void kernel(int* x) {\n"
                            "  int values[64] = {};\n"
                            "  for (int i = 0; i < x[0]; ++i) values[x[i] & 63] += i;\n"
                            "  for (int i = 0; i < x[0]; ++i) x[i] = values[x[i] & 63];\n}\n"},
                           {}};
  const KernelResources kernel = read_cubin(nvrtc->compile(sources, program_options()).value().bytes).value().front();
  EXPECT_GT(kernel.stack_bytes, kMaxStackBytes);
  EXPECT_GT(kernel.local_stores, kMaxLocal);
  EXPECT_GT(kernel.local_loads, kMaxLocal);
}

}  // namespace
}  // namespace monostep::gpu
