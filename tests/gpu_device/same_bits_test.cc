// What must not change a bit on the GPU: the other requests of a step, the launch cut, the chunks of a prompt. And what
// must not change a greedy text: speculation.
#include "device_fixture.h"
#include "engine/engine.h"

namespace monostep::gpu {
namespace {

using cpu::Part;
using cpu::prompt;

class DeviceBits : public OnDevice {
 protected:
  static void clear(GpuBackend& backend) {
    for (int slot = 0; slot < cpu::kSlots; ++slot) backend.clear_slot(slot);
  }

  static void add_output(const program::RequestOutput& output, int step, cpu::State& state) {
    const std::string name = "step " + std::to_string(step);
    for (const std::vector<int32_t>* ids : {&output.tokens, &output.drafts}) {
      for (const int32_t id : *ids) state[name] += std::to_string(id) + " ";
    }
    state[name] += cpu::bytes_of(output.confidence);
  }

  // The prompt of a slot in steps of at most `chunk` rows; the last one samples and drafts.
  static program::RequestOutput prefill(GpuBackend& backend, int slot, const std::vector<int32_t>& tokens, int chunk) {
    const int total = static_cast<int>(tokens.size());
    for (int first = 0;; first += chunk) {
      const int last = std::min(first + chunk, total);
      Part part{slot, {tokens.begin() + first, tokens.begin() + last}, first};
      part.sample = part.draft = last == total;
      const program::StepOutputs outputs = decode(backend, cpu::step_of({part}));
      if (outputs.requests.empty() || last == total)
        return outputs.requests.empty() ? program::RequestOutput{} : outputs.requests[0];
    }
  }

  // Up to seven requests that come and go.
  static std::vector<Part> others(int step) {
    std::vector<Part> parts;
    for (int idx = 0; idx < (step * 5 + 3) % 8; ++idx) {
      Part& part = parts.emplace_back(Part{(idx + step) % 7, prompt(1 + (idx + step) % 6, idx + step)});
      part.num_drafts = std::min(idx % 3, static_cast<int>(part.tokens.size()) - 1);
      if (idx % 3 == 1) part.sampling = {.temperature = 1.0f, .top_k = 20, .seed = static_cast<uint64_t>(idx)};
    }
    return parts;
  }

  // What slot 7 gives and leaves behind: a prompt of 20 ids, then steps with the drafts that it proposed itself.
  static cpu::State run(GpuBackend& backend, bool company, const program::Sampling& sampling) {
    clear(backend);
    cpu::State state;
    program::RequestOutput output = prefill(backend, 7, prompt(20, 4), 8);
    add_output(output, 0, state);
    int position = 20;
    for (int step = 1; step <= count(15, 4) && !output.tokens.empty(); ++step) {
      Part part{7, {output.tokens.back()}, position, static_cast<int>(output.drafts.size())};
      part.tokens.insert(part.tokens.end(), output.drafts.begin(), output.drafts.end());
      part.sampling = sampling;
      std::vector<Part> parts = company ? others(step) : std::vector<Part>{};
      const size_t place = parts.size() / 2;
      parts.insert(parts.begin() + static_cast<std::ptrdiff_t>(place), part);
      const program::StepOutputs outputs = decode(backend, cpu::step_of(parts));
      if (outputs.requests.empty()) return state;
      output = outputs.requests[place];
      position += 1 + output.num_accepted;
      add_output(output, step, state);
    }
    cpu::State slot = slot_state(backend.rank(), 7, position);
    state.merge(slot);
    return state;
  }

  // What the engine writes for requests that are served together.
  static std::vector<std::vector<int32_t>> texts(GpuBackend& backend, const std::vector<engine::Request>& requests) {
    engine::Limits limits;
    limits.vocab_size = cpu::micro().geometry().vocab_size;
    limits.max_context = cpu::kContext;
    limits.max_spec = cpu::micro().geometry().dspark_block_size;
    limits.num_slots = cpu::kSlots;
    limits.num_pages = cpu::small_options().num_pages;
    engine::Engine engine(limits, backend);
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
  // Eight requests of different lengths, so that they leave one by one.
  static std::vector<engine::Request> eight_requests(int spec, bool sampled) {
    std::vector<engine::Request> out;
    for (int idx = 0; idx < count(8, 3); ++idx) {
      engine::Request& request = out.emplace_back();
      request.prompt = prompt(3 + 5 * idx, idx);
      request.max_tokens = count(12 + 6 * idx, 4 + idx);
      request.spec = spec;
      if (sampled && idx % 2 == 1)
        request.sampling = {.temperature = 0.9f, .top_k = 30, .top_p = 0.95f, .seed = 7u + static_cast<uint64_t>(idx)};
    }
    return out;
  }
};

constexpr program::Sampling kSampled = {.temperature = 0.7f, .top_p = 0.95f, .seed = 21};

TEST_F(DeviceBits, a_request_is_the_same_alone_and_among_others_that_come_and_go) {
  const auto gpu = micro_backend();
  for (const program::Sampling& sampling : {program::Sampling{}, kSampled}) {
    const cpu::State alone = run(*gpu, false, sampling);
    EXPECT_EQ(cpu::first_difference(alone, run(*gpu, true, sampling)), "") << sampling.temperature;
    EXPECT_EQ(cpu::first_difference(alone, run(*gpu, false, sampling)), "") << "a second time";
  }
  EXPECT_NE(cpu::first_difference(run(*gpu, false, {}), run(*gpu, false, kSampled)), "") << "a difference is seen";
}

TEST_F(DeviceBits, the_engine_writes_the_same_texts_one_by_one_and_together) {
  const auto gpu = micro_backend();
  const std::vector<engine::Request> requests = eight_requests(5, true);
  const auto together = texts(*gpu, requests);
  for (size_t idx = 0; idx < requests.size(); ++idx)
    EXPECT_EQ(texts(*gpu, {requests[idx]}).at(0), together[idx]) << "request " << idx;
}

TEST_F(DeviceBits, greedy_texts_are_the_same_with_and_without_speculation) {
  const auto gpu = micro_backend();
  EXPECT_EQ(texts(*gpu, eight_requests(5, false)), texts(*gpu, eight_requests(0, false)));
}

TEST_F(DeviceBits, one_launch_a_step_a_layer_and_a_stage_give_the_same) {
  const auto whole = micro_backend({.cut = Cut::kStep});
  const cpu::State alone = run(*whole, false, kSampled), among = run(*whole, true, kSampled);
  for (const Cut cut : {Cut::kLayer, Cut::kStage}) {
    const auto gpu = micro_backend({.cut = cut});
    EXPECT_EQ(cpu::first_difference(alone, run(*gpu, false, kSampled)), "") << static_cast<int>(cut);
    EXPECT_EQ(cpu::first_difference(among, run(*gpu, true, kSampled)), "") << static_cast<int>(cut);
  }
}

TEST_F(DeviceBits, every_chunking_of_a_prompt_gives_the_same) {
  const auto gpu = micro_backend();
  const int length = count(101, 20);
  const auto chunked = [&](int chunk) {
    clear(*gpu);
    cpu::State state;
    add_output(prefill(*gpu, 3, prompt(length), chunk), 0, state);
    cpu::State slot = slot_state(gpu->rank(), 3, length);
    state.merge(slot);
    return state;
  };
  const cpu::State whole = chunked(48);
  for (const int chunk : {1, 7, 16}) EXPECT_EQ(cpu::first_difference(whole, chunked(chunk)), "") << "chunk " << chunk;
}

}  // namespace
}  // namespace monostep::gpu
