// Shared-memory sizes that the stages of linears and the host's choice of ring and scratch share: pure functions of
// rows and widths. The order of inputs is linear.h's.
#pragma once

namespace monostep::gpu {

inline constexpr int kWarps = 8;  // consumer warps
inline constexpr int kConsumers = kWarps * 32;
inline constexpr int kThreads = kConsumers + 32;  // and one warp that streams the weights
inline constexpr int kTile = 16;
inline constexpr int kGroup = 32;
inline constexpr int kPassRows = 8;  // rows of inputs of one MMA

// Words between rows of inputs of one K slice, and bytes of them all; quantised inputs come with fp32 scales.
constexpr int input_row_words(int width) { return (width / 2 + 31) / 32 * 32 + 16; }
constexpr int input_bytes(int rows, int width) { return rows * (input_row_words(width) + width / kGroup) * 4; }

// The warps' shares of a chunk's sums, twice.
inline constexpr int kPartials = kWarps * kPassRows * kTile;
inline constexpr int kPartialBytes = 2 * kPartials * 8;

// Inputs, then partials; for whole K the sums of a batch of tasks behind them.
constexpr int partials_offset(int rows, int width) { return (input_bytes(rows, width) + 127) / 128 * 128; }
constexpr int linear_scratch(int rows, int width) { return partials_offset(rows, width) + kPartialBytes; }
constexpr int whole_scratch(int rows, int width, int task_batch) {
  return linear_scratch(rows, width) + task_batch * rows * kTile * 8;
}
// Expert-down: inputs of `pairs` (row, expert) pairs, partials, the sums of the CTA's tiles.
constexpr int down_scratch(int pairs, int width, int rows, int tiles) {
  return linear_scratch(pairs, width) + tiles * rows * kTile * 4;
}

// Bytes that the CTA's state takes at most, in front of ring and scratch.
constexpr int state_bytes(int max_experts, int pair_capacity) {
  return (19 * 1024 + 6 * max_experts + 2 * pair_capacity + 127) / 128 * 128;
}

}  // namespace monostep::gpu
