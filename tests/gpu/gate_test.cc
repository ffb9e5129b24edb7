// The gate of the persistent kernel: each reason is forced alone, a machine that has all it takes is served, and the
// three values of --mono do what they say.
#include "gpu/gate.h"

#include <gtest/gtest.h>

namespace monostep::gpu {
namespace {

DeviceInfo h200() {
  DeviceInfo device;
  device.name = "NVIDIA H200";
  device.num_sms = 132;
  device.compute_major = 9;
  device.total_bytes = int64_t{150} << 30;
  device.free_bytes = int64_t{139} << 30;
  device.max_shared_bytes_per_cta = 232448;
  device.cooperative = true;
  return device;
}

model::Geometry geometry(const char* name = "micro") { return model::named_geometry(name).value(); }

GateOptions options(int tp = 1, int max_context = 1024) {
  GateOptions options;
  options.tp = tp;
  options.max_context = max_context;
  return options;
}

std::string reason(const DeviceInfo& device, const model::Geometry& geometry, const GateOptions& options) {
  return mono_refusal(device, geometry, options).value_or("");
}

TEST(Gate, an_h200_serves_every_geometry) {
  for (const char* name : {"micro", "clone40"}) EXPECT_EQ(reason(h200(), geometry(name), options()), "") << name;
  EXPECT_EQ(reason(h200(), geometry("realdims"), options(2)), "");
  for (const int tp : {4, 8}) EXPECT_EQ(reason(h200(), geometry("flash"), options(tp, 8192)), "") << tp;
}

TEST(Gate, another_compute_capability_is_refused) {
  DeviceInfo device = h200();
  device.compute_major = 10;
  EXPECT_EQ(reason(device, geometry(), options()), "compute capability 10.0; the step program is made for 9.0");
  device = h200();
  device.compute_minor = 1;
  EXPECT_EQ(reason(device, geometry(), options()), "compute capability 9.1; the step program is made for 9.0");
}

TEST(Gate, more_ctas_than_multiprocessors_are_refused) {
  GateOptions wanted = options();
  wanted.num_ctas = 133;
  EXPECT_EQ(reason(h200(), geometry(), wanted), "133 CTAs; the device has 132 multiprocessors");
  wanted.num_ctas = 132;
  EXPECT_EQ(reason(h200(), geometry(), wanted), "");
}

TEST(Gate, a_device_without_cooperative_launches_is_refused) {
  DeviceInfo device = h200();
  device.cooperative = false;
  EXPECT_EQ(reason(device, geometry(), options()), "the device has no cooperative launches");
}

TEST(Gate, a_tp_size_that_does_not_divide_is_refused_by_name) {
  EXPECT_EQ(reason(h200(), geometry(), options(8)), "tp: num_attention_heads = 4 does not split into 8 ranks");
}

TEST(Gate, too_little_shared_memory_is_refused) {
  DeviceInfo device = h200();
  device.max_shared_bytes_per_cta = 48 * 1024;
  EXPECT_EQ(reason(device, geometry(), options()), "8 rows of this geometry do not fit 49152 bytes of shared memory");
}

TEST(Gate, limits_of_the_program_are_refused_by_name) {
  model::Geometry many = geometry();
  many.num_experts_per_tok = 9;
  EXPECT_EQ(reason(h200(), many, options()), "9 experts a row; at most 8");
}

TEST(Gate, too_little_free_memory_is_refused_with_the_needs) {
  const RankMemory need = rank_memory(geometry(), options(), 132).value();
  DeviceInfo device = h200();
  device.free_bytes = need.total();
  EXPECT_EQ(reason(device, geometry(), options()), "");
  --device.free_bytes;
  EXPECT_EQ(reason(device, geometry(), options()),
            std::to_string(device.free_bytes) + " bytes of device memory are free; weights take " +
                std::to_string(need.weights) + ", pools " + std::to_string(need.pools) + ", regions " +
                std::to_string(need.arenas));
}

TEST(Gate, a_rank_of_the_released_geometry_takes_73_gib_of_weights_at_tp_4) {
  const RankMemory need = rank_memory(geometry("flash"), options(4, 8192), 132).value();
  EXPECT_NEAR(static_cast<double>(need.weights) / (int64_t{1} << 30), 73, 3);
  EXPECT_GT(need.pools, 0);
  EXPECT_GT(need.arenas, 0);
}

TEST(Gate, mono_takes_three_words_only) {
  EXPECT_EQ(parse_mono("auto").value(), Mono::kAuto);
  EXPECT_EQ(parse_mono("on").value(), Mono::kOn);
  EXPECT_EQ(parse_mono("off").value(), Mono::kOff);
  const Result<Mono> wrong = parse_mono("On");
  ASSERT_FALSE(wrong.ok());
  EXPECT_EQ(wrong.error().message(), "--mono: expected auto, on or off, found \"On\" (invalid_argument)");
}

TEST(Gate, auto_falls_back_on_fails_and_off_does_not_ask) {
  DeviceInfo device = h200();
  device.cooperative = false;
  const Result<MonoChoice> fallen = choose_mono(Mono::kAuto, device, geometry(), options());
  ASSERT_TRUE(fallen.ok());
  EXPECT_FALSE(fallen->persistent);
  EXPECT_EQ(fallen->reason, "the device has no cooperative launches");
  const Result<MonoChoice> refused = choose_mono(Mono::kOn, device, geometry(), options());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message(), "--mono on: the device has no cooperative launches (unavailable)");
  for (const DeviceInfo& any : {device, h200()}) {
    const MonoChoice off = choose_mono(Mono::kOff, any, geometry(), options()).value();
    EXPECT_FALSE(off.persistent);
    EXPECT_EQ(off.reason, "");
  }
  for (const Mono mono : {Mono::kAuto, Mono::kOn})
    EXPECT_TRUE(choose_mono(mono, h200(), geometry(), options()).value().persistent);
}

}  // namespace
}  // namespace monostep::gpu
