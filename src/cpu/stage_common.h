// What several stage bodies do with the regions that they have polled: sums over K-splits, normed and quantised inputs,
// tile tasks. Layout of partial sums: [granule = tile x splits + split][row][kTile].
#pragma once

#include <algorithm>
#include <vector>

#include "base/numeric.h"
#include "cpu/context.h"
#include "cpu/linear.h"
#include "cpu/numerics.h"
#include "program/plan.h"

namespace monostep::cpu {

using program::kTile;
using program::Linear;
using program::Region;
using program::Stage;

// Where a linear's outputs lie in a region of partial sums.
struct PartialSums {
  const float* words = nullptr;
  int rows = 0;  // row capacity
  int first_tile = 0;
  int splits = 1;
};

// out[i] = sum over splits, ascending, of output begin + i of a row.
inline void sum_splits(const PartialSums& from, int row, int begin, std::span<float> out) {
  const int64_t stride = int64_t{from.rows} * kTile;  // between splits
  size_t done = 0;
  while (done < out.size()) {
    const int n = begin + static_cast<int>(done);
    const float* part =
        from.words + (int64_t{from.first_tile + n / kTile} * from.splits * from.rows + row) * kTile + n % kTile;
    const size_t count = std::min(out.size() - done, static_cast<size_t>(kTile - n % kTile));
    std::copy_n(part, count, out.data() + done);
    for (int split = 1; split < from.splits; ++split) {
      for (size_t idx = 0; idx < count; ++idx) out[done + idx] += part[split * stride + static_cast<int64_t>(idx)];
    }
    done += count;
  }
}

inline void round_all(std::span<float> values) {
  for (float& value : values) value = round_bf16(value);
}

inline std::vector<int> row_indices(const std::vector<Row>& rows) {
  std::vector<int> out;
  for (const Row& row : rows) out.push_back(row.idx);
  return out;
}

// Rows that buffers indexed by region row need: up to the last live one.
inline int used_rows(const std::vector<Row>& rows) { return rows.empty() ? 0 : rows.back().idx + 1; }

// Rows of bf16 values indexed by region row: [rows][width].
struct RowValues {
  int width = 0;
  std::vector<float> values;
  RowValues(int num_rows, int row_width)
      : width(row_width), values(static_cast<size_t>(num_rows) * static_cast<size_t>(row_width)) {}
  std::span<float> row(int idx) {
    return std::span(values).subspan(static_cast<size_t>(idx) * static_cast<size_t>(width), static_cast<size_t>(width));
  }
};

// Rows [row][width] of a region, up to the last live one, as they lie there.
inline RowValues rows_at(const float* words, int num_rows, int width) {
  RowValues out(num_rows, width);
  std::copy_n(words, out.values.size(), out.values.begin());
  return out;
}

// Collapsed inputs [slice][row][width] of the live rows, normed: [row][hidden] bf16.
RowValues normed_rows(const program::Layout& layout, const float* u, const std::vector<Row>& rows,
                      const std::vector<float>& norm);

// The live row with this region row, null where it is dead.
inline const Row* live_row(const std::vector<Row>& rows, int row_idx) {
  for (const Row& row : rows) {
    if (row.idx == row_idx) return &row;
  }
  return nullptr;
}

// What a site left behind: partial sums of its sublayer, its streams, and its coefficients.
struct SiteOutput {
  const float* exchange = nullptr;  // [rank][tile][row][kTile]
  const float* streams = nullptr;   // [slice][row][hc][width]
  const float* mix = nullptr;       // [row][mix outputs]
};
// One slice of one row: the streams, [hc][width].
using SliceStreams = std::vector<float>;
// X'[k] = bf16(post[k] y + sum_j comb[j][k] X[j]), y the bf16 of the ranks' partial sums.
SliceStreams expand(const program::Layout& layout, const SiteOutput& site, int slice, int row);

// Logits of a row over the whole vocabulary, from the head's tiles of every rank.
std::vector<float> row_logits(const program::Layout& layout, const float* words, int row);

// The gates of a row's Engram, one a stream, from the partial dots of all slices (model.md 3.8).
std::vector<float> engram_gates(const program::Layout& layout, const float* dots, int row);

// The K slice of a split.
inline program::TileTask linear_task(int task, int splits) { return {0, task / splits, task % splits}; }
inline TileProduct slice_of(const PackedLinear& weights, int tile, int split, int splits) {
  const int width = weights.k / splits;
  return {tile, split * width, (split + 1) * width};
}

// A verdict as it lies in its region: accepted, count of tokens, last committed position, tokens.
struct VerdictView {
  int num_accepted = 0;
  int num_tokens = 0;
  int last_position = 0;
  int anchor = 0;
};
VerdictView verdict_of(const program::Layout& layout, const float* words, int request);

// Position of a row: known for target rows, behind the verdict's last committed position for draft rows.
template <Stage S>
int position_of(StageContext<S>& ctx, const Row& row) {
  if (!ctx.draft()) return row.position;
  return verdict_of(ctx.layout(), ctx.template read<Region::kVerdictOut>(), row.request).last_position + 1 +
         row.draft_pos;
}

template <Stage S>
bool poll_verdicts(StageContext<S>& ctx) {
  for (const Row& row : ctx.rows()) {
    if (ctx.draft() && !ctx.template poll<Region::kVerdictOut>(row.request)) return false;
  }
  return true;
}

inline const uint8_t* record_at(const std::byte* base, int64_t offset) {
  return reinterpret_cast<const uint8_t*>(base + offset);
}
inline uint8_t* record_at(std::byte* base, int64_t offset) { return reinterpret_cast<uint8_t*>(base + offset); }

}  // namespace monostep::cpu
