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
  return {inputs.pairs + begin / 2, inputs.scales + begin / kGroup * inputs.num_rows, inputs.row_words, inputs.num_rows};
}
// Word of the pair `pair` (0..15) of a group inside its 16 words.
constexpr int pair_place(int pair) { return pair % 4 * 4 + pair / 8 * 2 + pair % 8 / 4; }

// What a chunk of fragments holds (program/packing.h).
struct ChunkShape {
  int groups;  // of 32 along K
  int tiles;
  int parts;
  int units() const { return tiles * parts; }
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
  return storage == Storage::kBf16 ? kGroup * kTile * 2 : storage == Storage::kFp8 ? kGroup * kTile : kGroup * kTile / 2;
}

inline float e8m0_f32(uint8_t byte) { return e8m0_value(byte); }

// One warp's share of a chunk for the rows map[0..7] of a pass: unit u = warp / (kWarps / units), a run of its groups.
// `acc` is [kWarps][kPassRows][kTile] of shared memory, this warp's part of which is overwritten.
template <Storage kStorage, bool kPlain>
inline void multiply_pass(const Cta& cta, const char* chunk, const ChunkShape& shape, const Inputs& inputs,
                          const int16_t* map, int count, double* acc) {
  const int units = shape.units();
  const int warps_per_unit = kWarps / units;
  const int unit = cta.warp / warps_per_unit;
  const int part = cta.warp % warps_per_unit;
  const int first = shape.groups * part / warps_per_unit;
  const int last = shape.groups * (part + 1) / warps_per_unit;
  const int g = cta.lane >> 2;
  const int t = cta.lane & 3;
  const char* codes = chunk + unit * shape.groups * group_code_bytes(kStorage);
  const char* scales = chunk + units * shape.groups * group_code_bytes(kStorage);
  const auto row_at = [&](int n) { return static_cast<int>(map[n < count ? n : 0]); };
  const uint32_t* b_row = inputs.pairs + row_at(g) * inputs.row_words + t * 4;
  const int row0 = row_at(2 * t);
  const int row1 = row_at(2 * t + 1);
  float sum[4] = {};
  double exact[4] = {};
#pragma unroll 2
  for (int group = first; group < last; ++group) {
    const Word4 bw = *reinterpret_cast<const Word4*>(b_row + group * 16);
    const uint32_t b[4] = {bw.x, bw.y, bw.z, bw.w};
    float d[4];
    add_group<kStorage, kPlain>(codes + group * group_code_bytes(kStorage), cta.lane, b, d);
    float w_low = 1;
    float w_high = 1;
    if constexpr (kStorage == Storage::kFp8) {
      w_low = w_high = e8m0_f32(static_cast<uint8_t>(scales[unit * shape.groups + group]));
    } else if constexpr (kStorage == Storage::kFp4) {
      const char* line = scales + (unit * shape.groups + group) * kTile;
      w_low = e8m0_f32(static_cast<uint8_t>(line[g]));
      w_high = e8m0_f32(static_cast<uint8_t>(line[g + 8]));
    }
    if constexpr (kPlain) {
      exact[0] += static_cast<double>(d[0] * w_low);
      exact[1] += static_cast<double>(d[1] * w_low);
      exact[2] += static_cast<double>(d[2] * w_high);
      exact[3] += static_cast<double>(d[3] * w_high);
    } else {
      constexpr float kExpand = kStorage == Storage::kFp4 ? 0x1p14f : 1.0f;  // the codes came 2^-14 times too small
      const float s0 = inputs.scales[group * inputs.num_rows + row0] * kExpand;
      const float s1 = inputs.scales[group * inputs.num_rows + row1] * kExpand;
      sum[0] += d[0] * (w_low * s0);
      sum[1] += d[1] * (w_low * s1);
      sum[2] += d[2] * (w_high * s0);
      sum[3] += d[3] * (w_high * s1);
    }
  }
  double* out = acc + cta.warp * kPassRows * kTile;
  const auto value = [&](int i) { return kPlain ? exact[i] : static_cast<double>(sum[i]); };
  out[2 * t * kTile + g] = value(0);
  out[(2 * t + 1) * kTile + g] = value(1);
  out[2 * t * kTile + g + 8] = value(2);
  out[(2 * t + 1) * kTile + g + 8] = value(3);
}

// The memory that multiply_chunk adds the warps' shares up in: two parts, used in turn.
struct Multiplier {
  double* partials;  // [2][kPartials] of shared memory
  int turn = 0;
};

// The warps' shares of one value, ascending: in fp64 for plain inputs, in fp32 for quantised ones.
template <bool kPlain>
inline double sum_partials(const double* from, int num_warps) {
  double exact = from[0];
  float sum = static_cast<float>(from[0]);
  for (int warp = 1; warp < num_warps; ++warp) {
    if constexpr (kPlain) {
      exact += from[warp * kPassRows * kTile];
    } else {
      sum += static_cast<float>(from[warp * kPassRows * kTile]);
    }
  }
  return kPlain ? exact : static_cast<double>(sum);
}

// All consumers: takes the next chunk of the ring and multiplies it with the inputs' rows map[0..count); calls
// emit(unit, n, column, value) in one thread for each. The sum over the warps is ascending. False: given up.
template <Storage kStorage, bool kPlain, typename Emit>
inline bool multiply_chunk(Cta& cta, Multiplier& multiplier, int bytes, const ChunkShape& shape, const Inputs& inputs,
                           const int16_t* map, int count, const Emit& emit) {
  const char* chunk = next_chunk(cta, bytes);
  const int units = shape.units();
  const int warps_per_unit = kWarps / units;
  bool alive = true;
  for (int begin = 0; begin == 0 || begin < count; begin += kPassRows) {
    double* partials = multiplier.partials + multiplier.turn * kPartials;
    multiplier.turn ^= 1;
    if (count > 0)
      multiply_pass<kStorage, kPlain>(cta, chunk, shape, inputs, map + begin, count - begin, partials);
    const bool last = begin + kPassRows >= count;
    if (last) release_chunk(cta);
    alive = cta.sync_alive();
    for (int i = cta.thread; alive && i < units * kPassRows * kTile; i += kConsumers) {
      const int unit = i / (kPassRows * kTile);
      const int n = begin + i / kTile % kPassRows;
      if (n >= count) continue;
      const double* from = partials + unit * warps_per_unit * kPassRows * kTile + i % (kPassRows * kTile);
      emit(unit, n, i % kTile, sum_partials<kPlain>(from, warps_per_unit));
    }
  }
  return alive;
}

}  // namespace monostep::gpu
