// Linears on MMA: kTile weight rows of a chunk times up to eight rows of inputs at a time, K shared out among the
// consumer warps. Quantised inputs (e4m3 with a power-of-two scale a 32-group) meet FP8 and FP4 weights as exact f16
// products whose 32-group sums are scaled and added in fp32; plain bf16 inputs meet BF16 and FP8 weights as exact bf16
// products whose 32-group sums are added in fp64. The order of additions depends on the chunk's format alone, never on
// the band. Inputs lie in shared memory, in the order in which a lane needs them.
#pragma once

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

// e4m3 codes as bf16 pairs, exact.
inline void e4m3x4_to_bf16(uint32_t codes, uint32_t& low, uint32_t& high) {
  uint32_t pairs[2];
  e4m3x4_to_f16(codes, pairs[0], pairs[1]);
  float a, b;
  f16x2_to_f32(pairs[0], a, b);
  low = permute_bytes(std::bit_cast<uint32_t>(a), std::bit_cast<uint32_t>(b), 0x7632);
  f16x2_to_f32(pairs[1], a, b);
  high = permute_bytes(std::bit_cast<uint32_t>(a), std::bit_cast<uint32_t>(b), 0x7632);
}

// Eight e2m1 codes as f16 pairs times 2^-14, exact.
inline void e2m1x8_to_f16(uint32_t codes, uint32_t (&pairs)[4]) {
  const uint32_t even = ((codes << 4) & 0x80808080u) | ((codes << 1) & 0x0e0e0e0eu);
  const uint32_t odd = (codes & 0x80808080u) | ((codes >> 3) & 0x0e0e0e0eu);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    // Bytes: even's byte i high in the low half, odd's byte i high in the high half, zeros below.
    const uint32_t both = permute_bytes(even, odd, static_cast<uint32_t>(i | ((4 + i) << 4)));
    pairs[i] = permute_bytes(both, 0, 0x1404);
  }
}

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
    e2m1x8_to_f16(static_cast<uint32_t>(w), a[0]);
    e2m1x8_to_f16(static_cast<uint32_t>(w >> 32), a[1]);
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

inline float e8m0_f32(uint8_t byte) { return e8m0_value(byte); }

// One warp's share of a chunk for the rows map[0..7] of a pass: unit u = warp / kWarpsOfUnit, a run of its groups.
// `acc` is [kWarps][kPassRows][kTile] of shared memory (fp64 for plain inputs, fp32 for quantised ones), this warp's
// part of which is overwritten.
template <Storage kStorage, bool kPlain, typename Shape, typename Sum>
inline void multiply_pass(const Cta& cta, const char* chunk, const Inputs& inputs, const int16_t* map, int count,
                          Sum* acc) {
  constexpr int kGroups = Shape::kGroups;
  constexpr int kMost = (kGroups + Shape::kWarpsOfUnit - 1) / Shape::kWarpsOfUnit;  // groups of a warp
  constexpr int kUnrolled = kMost <= 10 ? kMost : 8;
  const int unit = cta.warp / Shape::kWarpsOfUnit;
  const int part = cta.warp % Shape::kWarpsOfUnit;
  const int first = kGroups * part / Shape::kWarpsOfUnit;
  const int last = kGroups * (part + 1) / Shape::kWarpsOfUnit;
  const int g = cta.lane >> 2;
  const int t = cta.lane & 3;
  const char* codes = chunk + unit * kGroups * group_code_bytes(kStorage);
  const char* scales = chunk + Shape::kUnits * kGroups * group_code_bytes(kStorage);
  const auto row_at = [&](int n) { return static_cast<int>(map[n < count ? n : 0]); };
  const uint32_t* b_row = inputs.pairs + row_at(g) * inputs.row_words + t * 4;
  const int row0 = row_at(2 * t);
  const int row1 = row_at(2 * t + 1);
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
    float w_low = 1;
    float w_high = 1;
    if constexpr (kStorage == Storage::kFp8) {
      w_low = w_high = e8m0_f32(static_cast<uint8_t>(scales[unit * kGroups + group]));
    } else if constexpr (kStorage == Storage::kFp4) {
      const char* line = scales + (unit * kGroups + group) * kTile;
      w_low = e8m0_f32(static_cast<uint8_t>(line[g]));
      w_high = e8m0_f32(static_cast<uint8_t>(line[g + 8]));
    }
    if (!inside) continue;
    if constexpr (kPlain) {
      sum[0] += static_cast<double>(d[0] * w_low);
      sum[1] += static_cast<double>(d[1] * w_low);
      sum[2] += static_cast<double>(d[2] * w_high);
      sum[3] += static_cast<double>(d[3] * w_high);
    } else {
      constexpr float kExpand = kStorage == Storage::kFp4 ? 0x1p14f : 1.0f;  // the codes came 2^-14 times too small
      const float s0 = inputs.scales[group * inputs.num_rows + row0] * kExpand;
      const float s1 = inputs.scales[group * inputs.num_rows + row1] * kExpand;
      // The products are exact: powers of two.
      sum[0] = fmaf(d[0], w_low * s0, sum[0]);
      sum[1] = fmaf(d[1], w_low * s1, sum[1]);
      sum[2] = fmaf(d[2], w_high * s0, sum[2]);
      sum[3] = fmaf(d[3], w_high * s1, sum[3]);
    }
  }
  Sum* out = acc + cta.warp * kPassRows * kTile;
  out[2 * t * kTile + g] = sum[0];
  out[(2 * t + 1) * kTile + g] = sum[1];
  out[2 * t * kTile + g + 8] = sum[2];
  out[(2 * t + 1) * kTile + g + 8] = sum[3];
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
      multiply_pass<kStorage, kPlain, Shape>(cta, chunk, inputs, map + begin, count - begin, as_sums<kPlain>(partials));
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
