// Ids on the GPU: fed the CPU's ids for 1,000 greedy steps its argmax is the CPU's wherever the CPU's margin is not
// within the noise that the recorded runs allow, and every drawn id is what the host draws from the GPU's own logits.
#include <algorithm>

#include "device_fixture.h"
#include "program/sampling.h"

namespace monostep::gpu {
namespace {

// tests/golden/micro/bounds.json: logits, quantile 0.99, of the modes "free" and "step".
constexpr double kFreeBound = 4.452391700744586;
constexpr double kStepBound = 0.1492047309875484;

class DeviceTokens : public OnDevice {
 protected:
  // One row of slot 0, which samples and does not draft.
  static program::StepInputs one_row(std::span<const int32_t> pages, int token, int position) {
    program::StepInputs inputs;
    program::StepRequest& request = inputs.requests.emplace_back();
    request.state_slot = 0;
    request.pages = pages;
    request.num_rows = 1;
    request.first_position = position;
    request.sample = true;
    request.context = false;
    inputs.rows.push_back({token, position, 0, false, true});
    return inputs;
  }
  static double margin_of(std::vector<float> logits) {
    std::partial_sort(logits.begin(), logits.begin() + 2, logits.end(), std::greater<>());
    return logits[0] - logits[1];
  }
};

TEST_F(DeviceTokens, fed_the_cpus_ids_for_1000_greedy_steps_the_argmax_is_the_cpus) {
  const int num_steps = count(1000, 40);
  constexpr int kPages = 16;
  cpu::CpuOptions options = cpu::small_options();
  options.max_context = kPages * program::kPageTokens;
  options.num_pages = kPages;
  const auto reference = cpu::made_backend(cpu::micro(), options);
  GpuBackend gpu(device(), micro_rank(micro_options(kPages)), {});
  std::vector<int32_t> pages(kPages);
  std::iota(pages.begin(), pages.end(), 0);
  reference->clear_slot(0);
  gpu.clear_slot(0);
  cpu::Probe probe(*reference);
  int token = 7, decided = 0, different = 0;
  double worst = 0, widest = 0;
  for (int position = 0; position < num_steps; ++position) {
    const program::StepInputs inputs = one_row(pages, token, position);
    token = decode(*reference, inputs).requests.at(0).tokens.at(0);
    const int found = decode(gpu, inputs).requests.at(0).tokens.at(0);
    ASSERT_FALSE(HasFailure()) << "position " << position;
    const std::vector<float> wanted = probe.logits(0);
    const std::vector<float> logits = logits_of(gpu.rank(), words_of(gpu.rank(), program::Region::kLogits), 0);
    EXPECT_EQ(found, program::sample_token(logits, {}, position + 1)) << "position " << position;
    for (size_t id = 0; id < logits.size(); ++id)
      worst = std::max(worst, std::fabs(static_cast<double>(logits[id]) - static_cast<double>(wanted[id])));
    const double margin = margin_of(wanted);
    if (margin > 2 * kFreeBound) {
      EXPECT_EQ(found, token) << "position " << position;
    }
    if (margin > 2 * kStepBound) ++decided;
    if (found == token) continue;
    ++different;
    widest = std::max(widest, margin);
  }
  std::printf("%d steps, %d with a margin above 2 x %.3f, %d other ids (widest margin %.3g), worst logit error %.3g\n",
              num_steps, decided, kStepBound, different, widest, worst);
  EXPECT_LT(different, num_steps / 5);
}

// Eight requests of six rows each, of every sampling.
TEST_F(DeviceTokens, every_drawn_id_is_what_the_host_draws_from_the_gpus_logits) {
  const auto gpu = micro_backend();
  const program::Sampling samplings[] = {{},
                                         {.temperature = 1.0f, .seed = 1},
                                         {.temperature = 0.8f, .top_k = 40, .seed = 77},
                                         {.temperature = 1.4f, .top_p = 0.9f, .seed = 0x1234567890abcdefull},
                                         {.temperature = 2.5f, .min_p = 0.02f, .seed = 3},
                                         {.temperature = 0.6f, .top_k = 25, .top_p = 0.95f, .seed = ~uint64_t{0}},
                                         {.temperature = 5.0f, .top_k = 3, .min_p = 0.001f, .seed = 9},
                                         {.temperature = 1.2f, .top_k = 60, .top_p = 0.8f, .min_p = 0.01f, .seed = 5}};
  for (int slot = 0; slot < cpu::kSlots; ++slot) gpu->clear_slot(slot);
  int num_draws = 0, not_argmax = 0;
  for (int step = 0; step < count(6, 1); ++step) {
    std::vector<cpu::Part> parts;
    for (int slot = 0; slot < cpu::kSlots; ++slot) {
      cpu::Part& part = parts.emplace_back(cpu::Part{slot, cpu::prompt(6, slot + 8 * step), 6 * step, 5});
      part.sampling = samplings[static_cast<size_t>((slot + step) % 8)];
    }
    const program::StepInputs inputs = cpu::step_of(parts);
    decode(*gpu, inputs);
    const std::vector<uint32_t> words = words_of(gpu->rank(), program::Region::kLogits);
    const std::vector<uint32_t> ids = words_of(gpu->rank(), program::Region::kSampled);
    for (size_t row = 0; row < inputs.rows.size(); ++row) {
      const std::vector<float> logits = logits_of(gpu->rank(), words, static_cast<int>(row));
      const program::Sampling& sampling = inputs.requests[static_cast<size_t>(inputs.rows[row].request)].sampling;
      const int position = inputs.rows[row].position + 1;
      EXPECT_EQ(static_cast<int>(ids[row]), program::sample_token(logits, sampling, position)) << "row " << row;
      ++num_draws;
      if (static_cast<int>(ids[row]) != program::sample_token(logits, {}, position)) ++not_argmax;
    }
  }
  std::printf("%d draws, %d of them not the argmax\n", num_draws, not_argmax);
  EXPECT_GT(not_argmax, num_draws / 10) << "the draws are not those of the argmax";
}

}  // namespace
}  // namespace monostep::gpu
