// GpuBackend on the emulator: the engine writes the same text on it as on the CPU reference, launch cuts change
// nothing, a step is as many launches as its cut says, and a step that is stuck, lost or refused ends in an Error.
#include "gpu/backend.h"

#include <gtest/gtest.h>

#include "../cpu/tiny_models.h"
#include "emulated_program.h"
#include "engine/engine.h"

namespace monostep::gpu {
namespace {

using cpu::Part;
using cpu::prompt;
using cpu::step_of;
using namespace std::chrono_literals;

constexpr int kCtas = 3;

// Counts launches; may lose them, or hold them until the abort word is set.
class WatchedDevice : public EmulatedDevice {
 public:
  enum class Fate { kRun, kLose, kHold, kHang };

  WatchedDevice() : EmulatedDevice({.num_sms = kCtas, .total_bytes = int64_t{1} << 30, .max_turns = 4'000'000'000}) {}

  Result<MappedMemory> allocate_mapped(int64_t num_bytes) override {
    Result<MappedMemory> memory = EmulatedDevice::allocate_mapped(num_bytes);
    if (memory.ok()) mapped_.push_back(reinterpret_cast<const uint32_t*>(memory->host));
    return memory;
  }
  void free_mapped(const MappedMemory& memory) override {
    std::erase(mapped_, reinterpret_cast<const uint32_t*>(memory.host));
    EmulatedDevice::free_mapped(memory);
  }
  Status launch(Kernel kernel, const Launch& launch) override {
    (capturing_ ? num_captured : num_launches) += 1;
    if (fate == Fate::kRun) return EmulatedDevice::launch(kernel, launch);
    held_ = fate != Fate::kLose;
    first_words_ = first_words();
    return {};
  }
  Status launch(Graph graph) override {
    ++num_graphs;
    return EmulatedDevice::launch(graph);
  }
  Status begin_capture() override {
    capturing_ = true;
    return EmulatedDevice::begin_capture();
  }
  Result<Graph> end_capture() override {
    capturing_ = false;
    return EmulatedDevice::end_capture();
  }
  Result<bool> idle() override {
    if (fate == Fate::kHold && first_words() != first_words_) held_ = false;  // the abort word was set
    return !held_;
  }

  // Calls that would wait for a device that never answers.
  Status upload(DevicePtr to, const void* from, int64_t num_bytes) override {
    ++num_waits;
    return EmulatedDevice::upload(to, from, num_bytes);
  }
  Status synchronize() override {
    ++num_waits;
    return EmulatedDevice::synchronize();
  }
  void abandon(Error why) override {
    ++num_abandoned;
    EmulatedDevice::abandon(std::move(why));
  }

  Fate fate = Fate::kRun;
  int num_waits = 0;
  int num_abandoned = 0;
  int num_launches = 0;
  int num_captured = 0;
  int num_graphs = 0;

 private:
  std::vector<uint32_t> first_words() const {
    std::vector<uint32_t> out;
    for (const uint32_t* memory : mapped_) out.push_back(*memory);
    return out;
  }

  std::vector<const uint32_t*> mapped_;  // the abort word is the first of one of them
  std::vector<uint32_t> first_words_;    // at the launch
  bool held_ = false;
  bool capturing_ = false;
};

RankOptions rank_options() {
  const cpu::CpuOptions like = cpu::small_options();
  RankOptions options;
  options.num_ctas = kCtas;
  options.num_pages = like.num_pages;
  options.num_slots = like.num_slots;
  options.max_context = like.max_context;
  return options;
}

struct Gpu {
  explicit Gpu(const GpuOptions& options = {})
      : backend(device, Rank::make(device, cpu::micro(), rank_options(), emulated_maker()).value(), options) {}
  WatchedDevice device;
  GpuBackend backend;
};

program::StepOutputs decode(program::Backend& backend, const std::vector<Part>& parts) {
  const auto ticket = backend.decode(step_of(parts));
  EXPECT_TRUE(ticket.ok()) << ticket.error().message();
  if (!ticket.ok()) return {};
  const auto outputs = backend.wait(ticket.value());
  EXPECT_TRUE(outputs.ok()) << outputs.error().message();
  return outputs.ok() ? outputs.value() : program::StepOutputs{};
}

Part prompt_part(int slot, const std::vector<int32_t>& tokens) {
  Part part{slot, tokens};
  part.sample = part.draft = false;
  return part;
}

// Ids and drafts of a prompt of six, its last row and a step with two drafts.
std::vector<program::RequestOutput> three_steps(program::Backend& backend) {
  decode(backend, {prompt_part(0, prompt(6))});
  std::vector<program::RequestOutput> out;
  out.push_back(decode(backend, {{0, {5}, 6}}).requests.at(0));
  const std::vector<int32_t>& drafts = out[0].drafts;
  out.push_back(decode(backend, {{0, {out[0].tokens.at(0), drafts.at(0), drafts.at(1)}, 7, 2}}).requests.at(0));
  return out;
}

void expect_same(const std::vector<program::RequestOutput>& got, const std::vector<program::RequestOutput>& wanted,
                 bool bits) {
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t idx = 0; idx < got.size(); ++idx) {
    EXPECT_EQ(got[idx].num_accepted, wanted[idx].num_accepted);
    EXPECT_EQ(got[idx].tokens, wanted[idx].tokens);
    EXPECT_EQ(got[idx].drafts, wanted[idx].drafts);
    ASSERT_EQ(got[idx].confidence.size(), wanted[idx].confidence.size());
    for (size_t draft = 0; draft < got[idx].confidence.size(); ++draft)
      EXPECT_NEAR(got[idx].confidence[draft], wanted[idx].confidence[draft], bits ? 0 : 0.05);
  }
}

engine::Limits limits(int num_slots) {
  engine::Limits out;
  out.vocab_size = cpu::micro().geometry().vocab_size;
  out.max_context = cpu::kContext;
  out.max_spec = cpu::micro().geometry().dspark_block_size;
  out.num_slots = num_slots;
  out.num_pages = cpu::small_options().num_pages;
  out.chunk = 8;
  return out;
}

// What the engine writes for requests that are served together.
std::vector<std::vector<int32_t>> texts(program::Backend& backend, const std::vector<engine::Request>& requests) {
  engine::Engine engine(limits(static_cast<int>(requests.size())), backend);
  std::vector<std::vector<int32_t>> out(requests.size());
  for (size_t idx = 0; idx < requests.size(); ++idx) {
    engine::Request request = requests[idx];
    request.on_tokens = [&out, idx](const engine::Sequence&, std::span<const int32_t> tokens) {
      out[idx].insert(out[idx].end(), tokens.begin(), tokens.end());
    };
    EXPECT_TRUE(engine.submit(std::move(request)).ok());
  }
  while (engine.has_work()) {
    const Status done = engine.step();
    EXPECT_TRUE(done.ok()) << done.error().message();
    if (!done.ok()) break;
  }
  return out;
}

engine::Request request_of(const std::vector<int32_t>& tokens, const program::Sampling& sampling, int spec) {
  engine::Request request;
  request.prompt = tokens;
  request.max_tokens = 9;
  request.sampling = sampling;
  request.spec = spec;
  return request;
}

constexpr program::Sampling kSampled = {.temperature = 0.9f, .top_k = 30, .top_p = 0.95f, .seed = 7};

// The backends agree within rounding, so these are prompts whose choices are not close.
TEST(GpuBackend, the_engine_writes_the_text_of_the_cpu_backend) {
  Gpu gpu;
  const auto reference = cpu::made_backend(cpu::micro(), cpu::small_options());
  for (const program::Sampling& sampling : {program::Sampling{}, kSampled}) {
    const auto wanted = texts(*reference, {request_of(prompt(11), sampling, 0)});
    for (const int spec : {0, 5})
      EXPECT_EQ(texts(gpu.backend, {request_of(prompt(11), sampling, spec)}), wanted) << sampling.temperature << spec;
  }
}

TEST(GpuBackend, company_does_not_change_a_text) {
  Gpu gpu;
  const engine::Request one = request_of(prompt(5), {}, 5), other = request_of(prompt(3, 1), kSampled, 2);
  const auto together = texts(gpu.backend, {one, other});
  EXPECT_EQ(together[0], texts(gpu.backend, {one})[0]);
  EXPECT_EQ(together[1], texts(gpu.backend, {other})[0]);
  EXPECT_NE(together[0], together[1]);
}

TEST(GpuBackend, launch_cuts_do_not_change_a_bit) {
  Gpu whole, layers({.cut = Cut::kLayer}), stages({.cut = Cut::kStage});
  const auto wanted = three_steps(whole.backend);
  expect_same(wanted, three_steps(*cpu::made_backend(cpu::micro(), cpu::small_options())), false);
  expect_same(three_steps(layers.backend), wanted, true);
  expect_same(three_steps(stages.backend), wanted, true);
  EXPECT_EQ(whole.device.num_launches, 2 + 1 + 1);  // the prompt's step leaves the head out
  EXPECT_GT(layers.device.num_launches, 3 * cpu::micro().geometry().num_hidden_layers);
  EXPECT_EQ(stages.device.num_launches, 0);
}

TEST(GpuBackend, launches_of_stages_are_captured_once_and_used_again) {
  Gpu gpu({.cut = Cut::kStage});
  three_steps(gpu.backend);
  const int num_captured = gpu.device.num_captured;
  EXPECT_EQ(gpu.device.num_graphs, 2 + 1 + 1);
  const program::Program& program = gpu.backend.rank().band().layout.program();
  const int num_prompt_calls = program.section_begin(program::Section::kHead) +
                               program.section_begin(program::Section::kDraft) -
                               program.section_begin(program::Section::kContext);
  EXPECT_EQ(num_captured, num_prompt_calls + gpu.backend.rank().num_calls());
  gpu.backend.clear_slot(0);
  three_steps(gpu.backend);
  EXPECT_EQ(gpu.device.num_captured, num_captured);
}

TEST(GpuBackend, a_stuck_step_is_given_up_and_the_next_is_served) {
  Gpu gpu({.watchdog = 20ms});
  const auto wanted = three_steps(gpu.backend);
  gpu.device.fate = WatchedDevice::Fate::kHold;
  const auto ticket = gpu.backend.decode(step_of({{1, prompt(3)}}));
  ASSERT_TRUE(ticket.ok());
  for (int times = 0; times < 2; ++times) {
    const auto outputs = gpu.backend.wait(ticket.value());
    ASSERT_FALSE(outputs.ok());
    EXPECT_EQ(outputs.error().message(), "GPU step: step given up by the host (watchdog after 20 ms) (timeout)");
  }
  gpu.device.fate = WatchedDevice::Fate::kRun;
  gpu.backend.clear_slot(0);
  expect_same(three_steps(gpu.backend), wanted, true);
}

TEST(GpuBackend, a_device_that_does_not_heed_the_abort_word_is_lost) {
  Gpu gpu({.watchdog = 5ms});
  decode(gpu.backend, {prompt_part(0, prompt(2))});
  gpu.device.fate = WatchedDevice::Fate::kHang;
  const auto ticket = gpu.backend.decode(step_of({{1, prompt(3)}}));
  ASSERT_TRUE(ticket.ok());
  const int num_waits = gpu.device.num_waits;
  const Error lost = gpu.backend.wait(ticket.value()).error();
  EXPECT_EQ(lost.message(),
            "GPU step: the step is not done after 5 ms and does not heed its abort word (device_failed)");
  EXPECT_EQ(gpu.device.num_abandoned, 1);
  const int num_launches = gpu.device.num_launches;
  gpu.backend.clear_slot(1);
  EXPECT_EQ(gpu.backend.decode(step_of({{1, prompt(3)}})).error().message(), lost.message());
  EXPECT_EQ(gpu.backend.wait(ticket.value()).error().message(), lost.message());
  EXPECT_EQ(gpu.backend.prepare(48, 8).error().message(), lost.message());
  EXPECT_EQ(gpu.device.num_waits, num_waits);
  EXPECT_EQ(gpu.device.num_launches, num_launches);
}

// An error of the device while a step runs, as an illegal address is.
class FailingDevice : public EmulatedDevice {
 public:
  FailingDevice() : EmulatedDevice({.num_sms = kCtas, .max_turns = 4'000'000'000}) {}
  Result<bool> idle() override {
    if (failing) return Error{Code::kDeviceFailed, "an illegal address", "GPU 0"};
    return EmulatedDevice::idle();
  }
  bool failing = false;
};

TEST(GpuBackend, a_device_that_failed_gives_the_same_error_ever_after) {
  FailingDevice device;
  GpuBackend backend(device, Rank::make(device, cpu::micro(), rank_options(), emulated_maker()).value(), {});
  decode(backend, {prompt_part(0, prompt(2))});
  device.failing = true;
  const auto ticket = backend.decode(step_of({{1, prompt(3)}}));
  ASSERT_TRUE(ticket.ok());
  for (int times = 0; times < 2; ++times) {
    EXPECT_EQ(backend.wait(ticket.value()).error().message(), "GPU 0: an illegal address (device_failed)");
    EXPECT_EQ(backend.decode(step_of({{1, prompt(3)}})).error().message(), "GPU 0: an illegal address (device_failed)");
    device.failing = false;
  }
}

TEST(GpuBackend, results_that_the_step_did_not_write_are_not_taken) {
  Gpu gpu;
  three_steps(gpu.backend);  // leaves a verdict behind
  gpu.device.fate = WatchedDevice::Fate::kLose;
  const auto ticket = gpu.backend.decode(step_of({{1, prompt(3)}}));
  const auto outputs = gpu.backend.wait(ticket.value());
  ASSERT_FALSE(outputs.ok());
  EXPECT_EQ(outputs.error().message(), "GPU step: the step ended without its verdict (internal)");
}

TEST(GpuBackend, steps_and_tickets_that_it_cannot_serve_are_refused_by_name) {
  Gpu gpu;
  EXPECT_FALSE(gpu.backend.wait(0).ok());
  const auto refused = gpu.backend.decode(step_of({{cpu::kSlots, prompt(3)}}));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message(), "step: no such state slot (invalid_argument)");
  const auto first = gpu.backend.decode(step_of({prompt_part(0, prompt(2))})).value();
  const auto second = gpu.backend.decode(step_of({prompt_part(0, prompt(2))})).value();
  EXPECT_FALSE(gpu.backend.wait(first).ok());
  EXPECT_TRUE(gpu.backend.wait(second).ok());
}

TEST(GpuBackend, a_request_that_does_not_draft_may_come_before_one_that_does) {
  Gpu gpu;
  Part plain{0, prompt(3)}, drafting{1, prompt(4, 2)};
  plain.draft = false;
  const auto together = decode(gpu.backend, {plain, drafting}).requests;
  ASSERT_EQ(together.size(), 2u);
  EXPECT_TRUE(together[0].drafts.empty());
  for (int slot = 0; slot < 2; ++slot) gpu.backend.clear_slot(slot);
  expect_same({together[1]}, decode(gpu.backend, {drafting}).requests, true);
  expect_same({together[0]}, decode(gpu.backend, {plain}).requests, true);
}

TEST(GpuBackend, prepared_bands_serve_what_fits_into_them) {
  Gpu small, wide;
  ASSERT_TRUE(wide.backend.prepare(12, 2).ok());
  expect_same(three_steps(wide.backend), three_steps(small.backend), true);
  EXPECT_EQ(wide.backend.rank().band().layout.shape().band, 16);
  EXPECT_EQ(small.backend.rank().band().layout.shape().band, 8);
  ASSERT_TRUE(wide.backend.prepare(3, 1).ok());
  wide.backend.clear_slot(0);
  three_steps(wide.backend);
  EXPECT_EQ(wide.backend.rank().band().layout.shape().band, 8);
}

}  // namespace
}  // namespace monostep::gpu
