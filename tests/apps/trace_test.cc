// `monostep trace` as a user runs it: launch cuts give the same record, and options that cannot be served are refused
// by name.
#include <gtest/gtest.h>

#include <string>

#include "gpu/cuda_device.h"
#include "program.h"

namespace monostep::apps {
namespace {

class TraceProgram : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    dir_ = new TempDir;
    ASSERT_EQ(run_program("make-model --geometry micro --out " + (*dir_ / "micro").string()).code, 0);
  }
  static void TearDownTestSuite() { delete dir_; }

  static ProgramRun run(const std::string& arguments) {
    return run_program("trace --model " + (*dir_ / "micro").string() + " --token-ids '3 1 4 1 5 9 2 6 5' --out " +
                       (*dir_ / "out").string() + " " + arguments);
  }
  static std::string record(const std::string& arguments) {
    const ProgramRun done = run(arguments);
    EXPECT_EQ(done.code, 0) << done.err;
    return read_text_file(*dir_ / "out", size_t{64} << 20).value();
  }
  static void expect_refused(const std::string& arguments, const std::string& words, int code) {
    const ProgramRun done = run(arguments);
    EXPECT_EQ(done.code, code) << done.err;
    EXPECT_NE(done.err.find(words), std::string::npos) << done.err;
  }

  static TempDir* dir_;
};

TempDir* TraceProgram::dir_ = nullptr;

TEST_F(TraceProgram, cuts_give_the_same_record) {
  const std::string stages = record("");
  EXPECT_EQ(record("--cut stage"), stages);
  EXPECT_EQ(record("--cut layer --chunk 4"), stages);
  EXPECT_EQ(record("--cut step --backend cpu"), stages);
}

TEST_F(TraceProgram, wrong_options_are_refused_by_name) {
  expect_refused("--cut half", "--cut", 2);
  expect_refused("--backend tpu", "--backend", 2);
  expect_refused("--backend gpu --tp 2 --cut step", "--cut", 2);
}

TEST_F(TraceProgram, a_missing_device_has_its_own_exit_code) {
  if (gpu::CudaDevice::open(0).ok()) GTEST_SKIP() << "this machine has a device";
  expect_refused("--backend gpu", "no usable device", 4);
}

}  // namespace
}  // namespace monostep::apps
