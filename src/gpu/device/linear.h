// Linears on MMA: kTile weight rows of a chunk times up to eight rows of inputs at a time, K shared out among the
// consumer warps. Quantised inputs (e4m3 with a power-of-two scale a 32-group) meet FP8 and FP4 weights as exact f16
// products whose 32-group sums are scaled and added in fp32; plain bf16 inputs meet BF16 and FP8 weights as exact bf16
// products whose 32-group sums are added in fp64. The order of additions depends on the chunk's format alone, never on
// the band. Inputs lie in shared memory, in the order in which a lane needs them.
#pragma once

#include "gpu/device/codes.h"
#include "gpu/device/ring.h"

namespace monostep::gpu {

using program::Storage;

// Inputs of one K slice: [row][group][lane of four][8 values] as f16 or bf16 pairs; scales [group][row] of quantised
// ones.
struct Inputs {
  uint32_t* pairs;
  float* scales;
  int row_words;  // distance between rows
  int num_rows;   // rows of `scales`
};
inline Inputs inputs_at(char* at, int rows, int width) {
  Inputs inputs;
  inputs.row_words = input_row_words(width);
  inputs.num_rows = rows;
  inputs.pairs = reinterpret_cast<uint32_t*>(at);
  inputs.scales = reinterpret_cast<float*>(at + static_cast<int64_t>(rows) * inputs.row_words * 4);
  return inputs;
}
// The inputs from value `begin` (a multiple of 32) on.
inline Inputs part_of(const Inputs& inputs, int begin) {
  return {inputs.pairs + begin / 2, inputs.scales + begin / kGroup * inputs.num_rows, inputs.row_words,
          inputs.num_rows};
}
// Word of the pair `pair` (0..15) of a group inside its 16 words.
constexpr int pair_place(int pair) { return pair % 4 * 4 + pair / 8 * 2 + pair % 8 / 4; }

// What a chunk of fragments holds (program/packing.h): `tiles` x `parts` units of `groups` 32-groups along K. The warps
// share out each unit's groups.
template <int kGroupsOfUnit, int kTiles, int kParts>
struct ChunkShape {
  static constexpr int kGroups = kGroupsOfUnit;
  static constexpr int kUnits = kTiles * kParts;
  static constexpr int kWarpsOfUnit = kWarps / kUnits;
  static_assert(kWarps % kUnits == 0);
};

// One 32-group of one unit for one pass of rows.
template <Storage kStorage, bool kPlain>
inline void add_group(const char* codes, int lane, const uint32_t (&b)[4], float (&d)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) d[i] = 0;
  uint32_t a[2][4];
  if constexpr (kStorage == Storage::kBf16) {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const Word4 w = *reinterpret_cast<const Word4*>(codes + step * 512 + lane * 16);
      a[step][0] = w.x;
      a[step][1] = w.y;
      a[step][2] = w.z;
      a[step][3] = w.w;
    }
  } else if constexpr (kStorage == Storage::kFp8) {
    const Word4 w = *reinterpret_cast<const Word4*>(codes + lane * 16);
    if constexpr (kPlain) {
      e4m3x4_to_bf16(w.x, a[0][0], a[0][1]);
      e4m3x4_to_bf16(w.y, a[0][2], a[0][3]);
      e4m3x4_to_bf16(w.z, a[1][0], a[1][1]);
      e4m3x4_to_bf16(w.w, a[1][2], a[1][3]);
    } else {
      e4m3x4_to_f16(w.x, a[0][0], a[0][1]);
      e4m3x4_to_f16(w.y, a[0][2], a[0][3]);
      e4m3x4_to_f16(w.z, a[1][0], a[1][1]);
      e4m3x4_to_f16(w.w, a[1][2], a[1][3]);
    }
  } else {
    const uint64_t w = *reinterpret_cast<const uint64_t*>(codes + lane * 8);
    spread_e2m1x8_to_f16(static_cast<uint32_t>(w), a[0]);
    spread_e2m1x8_to_f16(static_cast<uint32_t>(w >> 32), a[1]);
  }
  if constexpr (kPlain) {
    mma_bf16(d, a[0], b[0], b[1]);
    mma_bf16(d, a[1], b[2], b[3]);
  } else {
    mma_f16(d, a[0], b[0], b[1]);
    mma_f16(d, a[1], b[2], b[3]);
  }
}

constexpr int group_code_bytes(Storage storage) {
  return storage == Storage::kBf16  ? kGroup * kTile * 2
         : storage == Storage::kFp8 ? kGroup * kTile
                                    : kGroup * kTile / 2;
}

// 2^(byte - 127), but 0 for byte 0: what a weight below 2^-124 adds is below every rounding behind it.
inline float scale_f32(char byte) {
  return std::bit_cast<float>(static_cast<uint32_t>(static_cast<uint8_t>(byte)) << 23);
}

// The largest number of rounds up to ten that divides `rounds`, or all but a few of them.
constexpr int unrolled_rounds(int rounds) {
  for (int count = rounds < 10 ? rounds : 10; count > 4; --count) {
    if (rounds % count == 0) return count;
  }
  return rounds < 8 ? rounds : 8;
}

// One warp's share of a chunk for the rows map[0..7] of a pass: unit u = warp / kWarpsOfUnit, a run of its groups.
// kFew: at most four rows, which lie in the MMA's even columns, so that half of the sums need no scale. `acc` is
// [kWarps][kPassRows][kTile] of shared memory (fp64 for plain inputs, fp32 for quantised ones), this warp's part of
// which is overwritten.
template <Storage kStorage, bool kPlain, bool kFew, typename Shape, typename Sum>
inline void multiply_pass(const Cta& cta, const char* chunk, const Inputs& inputs, const int16_t* map, int count,
                          Sum* acc) {
  constexpr int kGroups = Shape::kGroups;
  constexpr int kMost = (kGroups + Shape::kWarpsOfUnit - 1) / Shape::kWarpsOfUnit;  // groups of a warp
  constexpr int kUnrolled = unrolled_rounds(kMost);
  const int unit = cta.warp / Shape::kWarpsOfUnit;
  const int part = cta.warp % Shape::kWarpsOfUnit;
  const int first = kGroups * part / Shape::kWarpsOfUnit;
  const int last = kGroups * (part + 1) / Shape::kWarpsOfUnit;
  const int g = cta.lane >> 2;
  const int t = cta.lane & 3;
  const char* codes = chunk + unit * kGroups * group_code_bytes(kStorage);
  const char* scales = chunk + Shape::kUnits * kGroups * group_code_bytes(kStorage);
  const auto row_at = [&](int n) { return static_cast<int>(map[n < count ? n : 0]); };
  const uint32_t* b_row = inputs.pairs + row_at(kFew ? g / 2 : g) * inputs.row_words + t * 4;
  const int row0 = row_at(kFew ? t : 2 * t);
  const int row1 = row_at(kFew ? t : 2 * t + 1);
  Sum sum[4] = {};
  // A fixed number of rounds, so that the rounds' products overlap; what lies behind `last` is computed from the last
  // group again and not added.
#pragma unroll kUnrolled
  for (int i = 0; i < kMost; ++i) {
    const bool inside = kGroups % Shape::kWarpsOfUnit == 0 || first + i < last;
    const int group = inside ? first + i : last > first ? last - 1 : 0;
    const Word4 bw = *reinterpret_cast<const Word4*>(b_row + group * 16);
    const uint32_t b[4] = {bw.x, bw.y, bw.z, bw.w};
    float d[4];
    add_group<kStorage, kPlain>(codes + group * group_code_bytes(kStorage), cta.lane, b, d);
    float weight[2] = {1, 1};  // scales of rows g and g + 8
    if constexpr (kStorage == Storage::kFp8) {
      weight[0] = weight[1] = scale_f32(scales[unit * kGroups + group]);
    } else if constexpr (kStorage == Storage::kFp4) {
      const char* line = scales + (unit * kGroups + group) * kTile;
      weight[0] = scale_f32(line[g]);
      weight[1] = scale_f32(line[g + 8]);
    }
    if (!inside) continue;
    float input[2] = {1, 1};
    if constexpr (!kPlain) {
      constexpr float kExpand = kStorage == Storage::kFp4 ? 0x1p14f : 1.0f;  // the codes came 2^-14 times too small
      input[0] = inputs.scales[group * inputs.num_rows + row0] * kExpand;
      if constexpr (!kFew) input[1] = inputs.scales[group * inputs.num_rows + row1] * kExpand;
    }
#pragma unroll
    for (int n = 0; n < 4; n += kFew ? 2 : 1) {
      // Products of scales are exact: powers of two.
      if constexpr (kPlain) {
        sum[n] += static_cast<double>(d[n] * weight[n / 2]);
      } else {
        sum[n] = fmaf(d[n], weight[n / 2] * input[n % 2], sum[n]);
      }
    }
  }
  Sum* out = acc + cta.warp * kPassRows * kTile;
#pragma unroll
  for (int n = 0; n < 4; n += kFew ? 2 : 1) out[(kFew ? t : 2 * t + n % 2) * kTile + g + n / 2 * 8] = sum[n];
}

// The memory that multiply_chunk adds the warps' shares up in: two parts, used in turn.
// fp64 for plain inputs, fp32 for quantised ones.
template <bool kPlain>
inline auto as_sums(double* partials) {
  if constexpr (kPlain) {
    return partials;
  } else {
    return reinterpret_cast<float*>(partials);
  }
}

struct Multiplier {
  double* partials;  // [2][kPartials] of shared memory
  int turn = 0;
};

// The warps' shares of one value of a unit, ascending.
template <typename Shape, typename Sum>
inline Sum sum_partials(const Sum* partials, int unit, int n, int column) {
  const Sum* from = partials + (unit * Shape::kWarpsOfUnit * kPassRows + n) * kTile + column;
  Sum sum = from[0];
#pragma unroll
  for (int warp = 1; warp < Shape::kWarpsOfUnit; ++warp) sum += from[warp * kPassRows * kTile];
  return sum;
}

// All consumers: takes the next chunk of the ring and multiplies it with the inputs' rows map[0..count); calls
// emit(unit, n, column, value) in one thread for each. False: given up.
template <Storage kStorage, bool kPlain, typename Shape, typename Emit>
inline bool multiply_chunk(Cta& cta, Multiplier& multiplier, int bytes, const Inputs& inputs, const int16_t* map,
                           int count, const Emit& emit) {
  const char* chunk = next_chunk(cta, bytes);
  bool alive = true;
  for (int begin = 0; begin == 0 || begin < count; begin += kPassRows) {
    double* partials = multiplier.partials + multiplier.turn * kPartials;
    multiplier.turn ^= 1;
    if (count > 0)
      multiply_pass<kStorage, kPlain, false, Shape>(cta, chunk, inputs, map + begin, count - begin,
                                                    as_sums<kPlain>(partials));
    if (begin + kPassRows >= count) release_chunk(cta);
    alive = cta.sync_alive();
    for (int i = cta.thread; alive && i < Shape::kUnits * kPassRows * kTile; i += kConsumers) {
      const int unit = i / (kPassRows * kTile);
      const int n = i / kTile % kPassRows;
      if (begin + n >= count) continue;
      emit(unit, begin + n, i % kTile,
           static_cast<double>(sum_partials<Shape>(as_sums<kPlain>(partials), unit, n, i % kTile)));
    }
  }
  return alive;
}

}  // namespace monostep::gpu
