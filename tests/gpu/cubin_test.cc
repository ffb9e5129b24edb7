// The reader of cubins against a recorded one (data/kernels.cu) whose needs ptxas printed, and against damaged bytes.
#include "gpu/cubin.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <vector>

#include "base/mapped_file.h"

namespace monostep::gpu {
namespace {

std::vector<std::byte> recorded_cubin() {
  const Result<MappedFile> file = MappedFile::open(MONOSTEP_SOURCE_DIR "/tests/gpu/data/kernels.cubin");
  CHECK(file.ok(), "the recorded cubin");
  return {file->bytes().begin(), file->bytes().end()};
}

KernelResources resources(std::string_view name) {
  const auto kernels = read_cubin(recorded_cubin());
  CHECK(kernels.ok(), "the recorded cubin is whole");
  const auto found = std::find_if(kernels->begin(), kernels->end(),
                                  [name](const KernelResources& kernel) { return kernel.name == name; });
  CHECK(found != kernels->end(), "a recorded kernel");
  return *found;
}

TEST(Cubin, lists_the_kernels_by_name_and_no_called_function) {
  const auto kernels = read_cubin(recorded_cubin());
  ASSERT_TRUE(kernels.ok()) << kernels.error().message();
  std::vector<std::string> names;
  for (const KernelResources& kernel : *kernels) names.push_back(kernel.name);
  EXPECT_EQ(names, (std::vector<std::string>{"calls", "indexes", "plain", "shares", "spills"}));
}

TEST(Cubin, registers_are_those_ptxas_prints) {
  EXPECT_EQ(resources("plain").registers, 10);
  EXPECT_EQ(resources("shares").registers, 10);
  EXPECT_EQ(resources("calls").registers, 24);
  EXPECT_EQ(resources("indexes").registers, 32);
  EXPECT_EQ(resources("spills").registers, 32);
}

TEST(Cubin, shared_memory_is_what_the_kernel_declares) {
  EXPECT_EQ(resources("shares").shared_bytes, 1200);
  EXPECT_EQ(resources("plain").shared_bytes, 0);
}

TEST(Cubin, parameters_have_the_size_of_the_struct) {
  EXPECT_EQ(resources("plain").params_bytes, 40);
  EXPECT_EQ(resources("calls").params_bytes, 12);
}

TEST(Cubin, a_kernel_in_registers_has_neither_stack_nor_local_accesses) {
  for (const char* name : {"plain", "shares"}) {
    EXPECT_EQ(resources(name).stack_bytes, 0) << name;
    EXPECT_EQ(resources(name).local_stores, 0) << name;
    EXPECT_EQ(resources(name).local_loads, 0) << name;
    EXPECT_GT(resources(name).code_bytes, 0) << name;
  }
}

TEST(Cubin, spills_are_counted_as_ptxas_does) {
  const KernelResources kernel = resources("spills");
  EXPECT_EQ(kernel.stack_bytes, 136);
  EXPECT_EQ(kernel.local_stores * 4, 152);
  EXPECT_EQ(kernel.local_loads * 4, 196);
}

TEST(Cubin, an_array_in_memory_shows_as_stack) {
  EXPECT_EQ(resources("indexes").stack_bytes, 256);
  EXPECT_GT(resources("indexes").local_stores, 0);
}

TEST(Cubin, spills_of_a_recursive_callee_show_as_local_accesses) {
  EXPECT_EQ(resources("calls").stack_bytes, 0);
  EXPECT_EQ(resources("calls").local_stores * 4, 16);
  EXPECT_EQ(resources("calls").local_loads * 4, 16);
}

TEST(Cubin, every_shorter_file_is_refused) {
  const std::vector<std::byte> cubin = recorded_cubin();
  for (size_t num_bytes = 0; num_bytes < cubin.size(); num_bytes += num_bytes < 128 ? 1 : 61) {
    // A file that ends behind the section table would still be whole; this one's tables lie near its end.
    const auto kernels = read_cubin(std::span(cubin).first(num_bytes));
    if (kernels.ok()) {
      EXPECT_EQ(kernels->size(), 5u) << num_bytes;
    } else {
      EXPECT_EQ(kernels.error().code, Code::kCorrupt) << num_bytes;
    }
  }
  EXPECT_FALSE(read_cubin(std::span(cubin).first(cubin.size() / 2)).ok());
}

TEST(Cubin, other_files_are_refused) {
  const std::string text(4096, 'x');
  EXPECT_EQ(read_cubin(std::as_bytes(std::span(text))).error().code, Code::kCorrupt);
  std::vector<std::byte> host = recorded_cubin();
  host[18] = std::byte{62};  // x86-64
  EXPECT_EQ(read_cubin(host).error().text, "expected a 64-bit ELF file for CUDA");
}

TEST(Cubin, damaged_bytes_give_kernels_or_an_error_never_a_crash) {
  const std::vector<std::byte> cubin = recorded_cubin();
  rc::check("damaged cubin", [&cubin] {
    std::vector<std::byte> damaged = cubin;
    const int num_changes = *rc::gen::inRange(1, 40);
    // Most changes hit the header or the section table, where they matter.
    const auto table = static_cast<int>(*reinterpret_cast<const uint64_t*>(cubin.data() + 40));
    for (int change_idx = 0; change_idx < num_changes; ++change_idx) {
      const int last = static_cast<int>(cubin.size());
      const int at = *rc::gen::oneOf(rc::gen::inRange(0, last), rc::gen::inRange(0, 64),
                                     rc::gen::inRange(table, std::min(table + 64 * 35, last)));
      damaged[static_cast<size_t>(at)] = static_cast<std::byte>(*rc::gen::inRange(0, 256));
    }
    if (*rc::gen::inRange(0, 4) == 0) damaged.resize(*rc::gen::inRange<size_t>(0, cubin.size()));
    const auto kernels = read_cubin(damaged);
    if (kernels.ok()) {
      for (const KernelResources& kernel : *kernels) RC_ASSERT(kernel.code_bytes <= static_cast<int64_t>(cubin.size()));
    } else {
      RC_ASSERT(kernels.error().code == Code::kCorrupt);
    }
  });
}

}  // namespace
}  // namespace monostep::gpu
