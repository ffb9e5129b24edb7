// Shared-memory sizes that the stages of linears and the host's choice of ring and scratch share: pure functions of
// rows and widths. The order of inputs is linear.h's.
#pragma once

namespace monostep::gpu {

inline constexpr int kWarps = 8;  // consumer warps
inline constexpr int kConsumers = kWarps * 32;
inline constexpr int kThreads = kConsumers + 32;      // and one warp that streams the weights
inline constexpr int kPlayedThreads = kThreads + 32;  // and one that plays the peers, where they are played
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
// The experts' stages: partials of several passes, twice; for expert-down the inputs of `pairs` (row, expert) pairs in
// front and the sums of the CTA's tiles behind.
inline constexpr int kExpertPasses = 4;
inline constexpr int kExpertPartialBytes = 2 * kExpertPasses * kPartials * 4;
constexpr int up_scratch(int rows, int width) { return partials_offset(rows, width) + kExpertPartialBytes; }
constexpr int down_scratch(int pairs, int width, int rows, int tiles) {
  return partials_offset(pairs, width) + kExpertPartialBytes + tiles * rows * kTile * 4;
}

// Words between rows of bf16 pairs that MMA fragments are read from: in pieces of 16 bytes `wanted` modulo 8, so that
// the lanes of a shared-memory phase fall on different banks.
constexpr int padded_words(int width, int wanted) {
  int pieces = width / 8;
  while (pieces % 8 != wanted) ++pieces;
  return pieces * 4;
}

// Attention: entries of a list that are unpacked together, heads that are worked on together, what both take, and the
// entries of a part.
inline constexpr int kListChunk = 64;
inline constexpr int kHeadTile = 8;
constexpr int attend_scratch(int head_dim, int rope_dim, int entries) {
  const int words = kListChunk * padded_words(head_dim, 2) + kHeadTile * padded_words(head_dim, 4) +
                    kHeadTile * (2 * (kListChunk + 4) + kListChunk / 2 + 8 + 1) + rope_dim;
  return words * 4 + entries / 8 + (entries + 8) * 8;
}

// Index scores: the keys of a chunk of groups, and of each row that is scored with them its queries, head weights,
// angles and kept candidates.
inline constexpr int kScoreRows = 6;  // an anchor and five drafts
struct ScoreSizes {
  int chunk;  // groups
  int head_dim;
  int heads;
  int rope_dim;
  int kept;
};
constexpr int score_scratch(const ScoreSizes& sizes, int rows) {
  const int groups = sizes.head_dim / kGroup;
  const int code_words = (groups | 1) * 4;
  const int heads = (sizes.heads + kTile - 1) / kTile * kTile;
  const int row_words = heads * (code_words + groups + 1) + sizes.rope_dim + sizes.kept + sizes.chunk / kGroup + 2;
  return (sizes.chunk * code_words + groups * (sizes.chunk + 8) + rows * row_words + 8) * 4;
}

// New cache rows.
constexpr int kv_scratch(int head_dim, int index_head_dim, int rope_dim) {
  return kWarps * 8 + (5 * head_dim + index_head_dim + head_dim / 2 + 2 * rope_dim) * 4;
}

// Bytes that the CTA's state takes at most, in front of ring and scratch.
constexpr int state_bytes(int max_experts, int pair_capacity) {
  return (19 * 1024 + 6 * max_experts + 2 * pair_capacity + 127) / 128 * 128;
}

}  // namespace monostep::gpu
