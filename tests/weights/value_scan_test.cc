// Tests of the value scan: every code of each format, and every position of one refused value.
#include "weights/value_scan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace monostep::weights {
namespace {

using model::Dtype;

template <typename Word>
std::optional<size_t> scan(Dtype dtype, const std::vector<Word>& words) {
  return find_refused_value(dtype, std::as_bytes(std::span(words)));
}

TEST(ValueScan, of_all_e4m3_codes_the_two_nan_codes_are_refused) {
  for (int code = 0; code < 256; ++code) {
    const bool refused = scan<uint8_t>(Dtype::kF8E4M3, {static_cast<uint8_t>(code)}).has_value();
    EXPECT_EQ(refused, code == 0x7f || code == 0xff) << code;
  }
}

TEST(ValueScan, of_all_e8m0_bytes_255_is_refused) {
  for (int code = 0; code < 256; ++code) {
    EXPECT_EQ(scan<uint8_t>(Dtype::kF8E8M0, {static_cast<uint8_t>(code)}).has_value(), code == 255) << code;
  }
}

TEST(ValueScan, of_all_bf16_codes_the_infinities_and_nans_are_refused) {
  for (uint32_t code = 0; code < 65536; ++code) {
    const uint32_t bits = code << 16;
    float value = 0;
    std::memcpy(&value, &bits, sizeof value);
    EXPECT_EQ(scan<uint16_t>(Dtype::kBF16, {static_cast<uint16_t>(code)}).has_value(), !std::isfinite(value)) << code;
  }
}

TEST(ValueScan, f32_infinities_and_nans_are_refused) {
  using Limits = std::numeric_limits<float>;
  for (const float value : {Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN(), -Limits::signaling_NaN()}) {
    EXPECT_EQ(scan<float>(Dtype::kF32, {0, value}), 1u);
  }
  EXPECT_EQ(scan<float>(Dtype::kF32, {0, Limits::max(), Limits::lowest(), Limits::denorm_min()}), std::nullopt);
}

TEST(ValueScan, packed_fp4_has_no_refused_code) {
  std::vector<uint8_t> codes(256);
  for (size_t idx = 0; idx < codes.size(); ++idx) codes[idx] = static_cast<uint8_t>(idx);
  EXPECT_EQ(scan(Dtype::kI8, codes), std::nullopt);
}

TEST(ValueScan, one_refused_value_is_found_at_every_position_and_alignment) {
  std::vector<std::byte> bytes(3 * 4096 + 2 * 100 + 1);
  for (size_t word_idx = 0; word_idx < (bytes.size() - 1) / 2; word_idx += 7) {
    std::byte* word = bytes.data() + 1 + word_idx * 2;
    word[0] = word[1] = std::byte{0xff};
    EXPECT_EQ(find_refused_value(Dtype::kBF16, std::span(bytes).subspan(1)), word_idx);
    word[0] = word[1] = std::byte{0};
  }
  EXPECT_EQ(find_refused_value(Dtype::kBF16, std::span(bytes).subspan(1)), std::nullopt);
}

TEST(ValueScan, the_first_of_several_is_named) {
  std::vector<uint8_t> codes(10000, 1);
  codes[9000] = codes[5000] = 255;
  EXPECT_EQ(scan(Dtype::kF8E8M0, codes), 5000u);
}

}  // namespace
}  // namespace monostep::weights
