// The tensor core of the emulator: m16n8k16 with exact products, summed in double over k; the caller adds the sum to
// its fp32 accumulator and rounds once. (A GPU rounds otherwise, within the bounds of the stages.) Called by
// machine.cc.
#include <cstdint>
#include <cstring>

#include "base/numeric.h"
#include "emulator/half.h"
#include "emulator/machine.h"

namespace monostep::gpu::emulator {

namespace {

constexpr int kRows = 16, kColumns = 8, kDepth = 16;
using Columns = double __attribute__((vector_size(kColumns * sizeof(double))));  // of one row

// Registers' pairs to values, in the order of the registers.
template <bool kBf16>
void unpack(const uint32_t* pairs, int num_pairs, double* values) {
  const auto value = [](uint32_t half) {
    return kBf16 ? bf16_value(static_cast<uint16_t>(half)) : f16_value(static_cast<uint16_t>(half));
  };
  for (int pair_idx = 0; pair_idx < num_pairs; ++pair_idx) {
    values[2 * pair_idx] = value(pairs[pair_idx] & 0xffffu);
    values[2 * pair_idx + 1] = value(pairs[pair_idx] >> 16);
  }
}

// The layout of mma.m16n8k16 with lane = 4 g + t: A's register r holds (row g + 8 (r % 2), k 2 t + 8 (r / 2)) and the
// next k; B's (k 2 t + 8 r, column g) and the next k.
template <bool kBf16>
void multiply_as(Warp& warp) {
  double a[kWarpLanes][4][2], b[kWarpLanes][2][2];
  unpack<kBf16>(&warp.mma_a[0][0], kWarpLanes * 4, &a[0][0][0]);
  unpack<kBf16>(&warp.mma_b[0][0], kWarpLanes * 2, &b[0][0][0]);
  Columns b_rows[kDepth];
  for (int k_idx = 0; k_idx < kDepth; ++k_idx) {
    for (int g = 0; g < kColumns; ++g) b_rows[k_idx][g] = b[4 * g + k_idx % 8 / 2][k_idx / 8][k_idx % 2];
  }
  for (int row_idx = 0; row_idx < kRows; ++row_idx) {
    const int lane = row_idx % 8 * 4, upper = row_idx / 8;
    Columns sum = {};
    for (int k_idx = 0; k_idx < kDepth; ++k_idx) {
      sum += a[lane + k_idx % 8 / 2][upper + k_idx / 8 * 2][k_idx % 2] * b_rows[k_idx];
    }
    for (int t = 0; t < 4; ++t) {
      warp.mma_sum[lane + t][2 * upper] = sum[2 * t];
      warp.mma_sum[lane + t][2 * upper + 1] = sum[2 * t + 1];
    }
  }
}

}  // namespace

void multiply(Warp& warp, bool bf16) {
  if (bf16) {
    multiply_as<true>(warp);
  } else {
    multiply_as<false>(warp);
  }
}

}  // namespace monostep::gpu::emulator
