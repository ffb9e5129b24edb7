// Faults on the GPU: a call that is left out is reported by name within the bound of a wait, a launch that waits for
// ever ends when the host gives it up, and the next step is right again - for a rank and for the backend's watchdog.
#include <thread>

#include "device_fixture.h"

namespace monostep::gpu {
namespace {

using program::Region;
using program::Stage;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// Another device whose launches may be lost.
class LosingDevice : public Device {
 public:
  explicit LosingDevice(Device& device) : device_(device) {}
  Result<DeviceInfo> info() override { return device_.info(); }
  Result<DevicePtr> allocate(int64_t num_bytes) override { return device_.allocate(num_bytes); }
  void free(DevicePtr memory) override { device_.free(memory); }
  Result<MappedMemory> allocate_mapped(int64_t num_bytes) override { return device_.allocate_mapped(num_bytes); }
  void free_mapped(const MappedMemory& memory) override { device_.free_mapped(memory); }
  Status upload(DevicePtr to, const void* from, int64_t num_bytes) override {
    return device_.upload(to, from, num_bytes);
  }
  Status upload_later(DevicePtr to, const std::byte* from, int64_t num_bytes) override {
    return device_.upload_later(to, from, num_bytes);
  }
  Status download(void* to, DevicePtr from, int64_t num_bytes) override {
    return device_.download(to, from, num_bytes);
  }
  Status fill(DevicePtr to, uint8_t value, int64_t num_bytes) override { return device_.fill(to, value, num_bytes); }
  Result<Kernel> load(std::span<const std::byte> cubin, const char* name) override { return device_.load(cubin, name); }
  Status launch(Kernel kernel, const Launch& launch) override {
    if (num_launches++ == lost_launch) return {};
    return device_.launch(kernel, launch);
  }
  Status synchronize() override { return device_.synchronize(); }
  Result<bool> idle() override { return device_.idle(); }
  Status record(int event_idx) override { return device_.record(event_idx); }
  Result<float> elapsed_ms(int begin_event_idx, int end_event_idx) override {
    return device_.elapsed_ms(begin_event_idx, end_event_idx);
  }
  Status begin_capture() override { return device_.begin_capture(); }
  Result<Graph> end_capture() override { return device_.end_capture(); }
  Status launch(Graph graph) override { return device_.launch(graph); }
  void abandon(Error why) override { device_.abandon(std::move(why)); }

  int num_launches = 0;
  int lost_launch = -1;

 private:
  Device& device_;
};

class DeviceFaults : public OnDevice {
 protected:
  static program::StepInputs step() {
    cpu::Part part{1, cpu::prompt(4)};
    return cpu::step_of({part});
  }
  static std::unique_ptr<Rank> bounded_rank(int looks, Device& on = device()) {
    RankOptions options = micro_options();
    options.poll_limit = looks;
    return micro_rank(options, on);
  }
  static std::string failure_of(const Status& status) { return status.ok() ? "" : status.error().text; }
  // Calls of a step but for one.
  static Status run_without(Rank& rank, int call_idx, uint32_t epoch) {
    TRY(rank.begin_step(step(), epoch));
    TRY(rank.launch(0, call_idx));
    TRY(rank.finish());
    return rank.launch(call_idx + 1, rank.num_calls());
  }
  static void expect_report(const Rank& rank, const std::string& text, Region region) {
    EXPECT_NE(text.find("step given up: rank 0 CTA "), std::string::npos) << text;
    EXPECT_NE(text.find("waits for region " + cpu::region_name(region) + " copy "), std::string::npos) << text;
    EXPECT_EQ(rank.options().rank, 0);
  }
  // Logits and verdict of a whole step from a cleared slot.
  static std::vector<uint32_t> whole_step(Rank& rank, uint32_t epoch) {
    EXPECT_TRUE(rank.clear_slot(1).ok());
    EXPECT_EQ(failure_of(rank.begin_step(step(), epoch)), "");
    EXPECT_EQ(failure_of(rank.launch(0, rank.num_calls())), "");
    EXPECT_EQ(failure_of(rank.finish()), "");
    std::vector<uint32_t> out = words_of(rank, Region::kVerdictOut);
    const std::vector<uint32_t> words = words_of(rank, Region::kLogits);
    for (const float logit : logits_of(rank, words, 3)) out.push_back(std::bit_cast<uint32_t>(logit));
    return out;
  }
};

TEST_F(DeviceFaults, a_call_that_is_left_out_is_reported_by_name_and_the_next_step_is_right) {
  const auto rank = bounded_rank(count(1 << 18, 1 << 14));
  uint32_t epoch = 100;
  const std::vector<uint32_t> wanted = whole_step(*rank, ++epoch);
  struct Lost {
    Stage stage;
    int layer;
    Region region;
  };
  const program::Program& program = rank->band().layout.program();
  for (const Lost& lost :
       {Lost{Stage::kEngramRows, 0, Region::kEngramRowsOut}, Lost{Stage::kAttnIn, 1, Region::kAttnInPart},
        Lost{Stage::kIndexSelect, 3, Region::kTopk}, Lost{Stage::kWoB, 4, Region::kAttnExchange},
        Lost{Stage::kExpertDown, 2, Region::kFfnExchange}, Lost{Stage::kHead, -1, Region::kLogits}}) {
    const int call_idx = program.find(lost.stage, lost.layer);
    const Clock::time_point start = Clock::now();
    ASSERT_EQ(failure_of(run_without(*rank, call_idx, ++epoch)), "");
    expect_report(*rank, failure_of(rank->finish()), lost.region);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    std::printf("%s: reported after %.3f s\n", cpu::region_name(lost.region).c_str(), seconds);
    EXPECT_LT(seconds, 20);
  }
  EXPECT_EQ(whole_step(*rank, ++epoch), wanted);
}

TEST_F(DeviceFaults, a_launch_that_waits_for_ever_ends_when_the_host_gives_it_up) {
  if (emulated()) GTEST_SKIP() << "the emulator's launches return when they are done";
  const auto rank = bounded_rank(0);  // waits have no bound of their own
  const std::vector<uint32_t> wanted = whole_step(*rank, 1);
  ASSERT_EQ(failure_of(run_without(*rank, rank->band().layout.program().find(Stage::kWoA, 2), 2)), "");
  std::this_thread::sleep_for(200ms);
  EXPECT_FALSE(device().idle().value()) << "the launch was not stuck";
  rank->abort();
  const Clock::time_point deadline = Clock::now() + 5s;
  while (!device().idle().value() && Clock::now() < deadline) std::this_thread::yield();
  ASSERT_TRUE(device().idle().value()) << "the launch does not heed the abort word";
  expect_report(*rank, failure_of(rank->finish()), Region::kOaPart);
  EXPECT_EQ(whole_step(*rank, 3), wanted);
}

TEST_F(DeviceFaults, the_watchdog_gives_a_stuck_step_up_and_the_backend_serves_the_next) {
  if (emulated()) GTEST_SKIP() << "the emulator's launches return when they are done";
  LosingDevice losing(device());
  GpuBackend backend(losing, bounded_rank(0, losing), {.cut = Cut::kLayer, .watchdog = 300ms});
  backend.clear_slot(1);
  const program::RequestOutput wanted = decode(backend, step()).requests.at(0);
  losing.lost_launch = losing.num_launches + 3;
  const auto ticket = backend.decode(step());
  ASSERT_TRUE(ticket.ok()) << ticket.error().message();
  const auto outputs = backend.wait(ticket.value());
  ASSERT_FALSE(outputs.ok());
  EXPECT_EQ(outputs.error().code, Code::kTimeout);
  std::printf("%s\n", outputs.error().message().c_str());
  EXPECT_NE(outputs.error().text.find("waits for region "), std::string::npos) << outputs.error().text;
  EXPECT_NE(outputs.error().text.find("(watchdog after 300 ms)"), std::string::npos) << outputs.error().text;
  losing.lost_launch = -1;
  backend.clear_slot(1);
  const program::RequestOutput found = decode(backend, step()).requests.at(0);
  EXPECT_EQ(found.tokens, wanted.tokens);
  EXPECT_EQ(found.drafts, wanted.drafts);
  EXPECT_EQ(found.confidence, wanted.confidence);
}

}  // namespace
}  // namespace monostep::gpu
