// Where the inputs of a linear come from, and how they get into shared memory: sources give eight neighbouring values
// of a row (bf16 values as fp32) from polled regions; row_scales makes the RMSNorm factor of each row; load_slice
// norms, quantises and stores one K slice. Formulas: model.md 3.2 and 3.3.
#pragma once

#include "gpu/device/linear.h"

namespace monostep::gpu {

inline constexpr int kOctet = 8;

// Eight neighbouring bf16 values of N rows (negative: none) from word first_word(n) on, as fp32.
template <int N, typename FirstWord>
inline void wait_octets(const Cta& cta, const Words& words, const int (&rows)[N], float (&out)[N][kOctet],
                        const FirstWord& first_word) {
  uint32_t raw[2 * N][2];
  wait_words2(cta, words, raw, [&](int i) { return rows[i / 2] < 0 ? kNoWord : first_word(i / 2) + i % 2 * 2; });
#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t word = raw[2 * n + i / 2][i % 2];
      out[n][2 * i] = low_bf16(word);
      out[n][2 * i + 1] = high_bf16(word);
    }
  }
}

// Rows of bf16 values that lie [slice][row][width] (collapsed inputs, taps) in a region.
struct SliceSource {
  Words words;
  int width;
  static constexpr int kBatch = 4;

  template <int N>
  void octets(const Cta& cta, const int (&rows)[N], const int (&begins)[N], float (&out)[N][kOctet]) const {
    wait_octets(cta, words, rows, out, [&](int n) {
      const auto begin = static_cast<uint32_t>(begins[n]);
      const uint32_t slice = begin / static_cast<uint32_t>(width);
      return ((slice * constants::kRows + static_cast<uint32_t>(rows[n])) * static_cast<uint32_t>(width) + begin -
              slice * static_cast<uint32_t>(width)) /
             2;
    });
  }
};

// Rows of bf16 values that lie [row][width] behind an offset of words.
struct RowSource {
  Words words;
  int64_t offset;  // words
  int width;
  static constexpr int kBatch = 4;

  template <int N>
  void octets(const Cta& cta, const int (&rows)[N], const int (&begins)[N], float (&out)[N][kOctet]) const {
    wait_octets(cta, words, rows, out, [&](int n) {
      return static_cast<uint32_t>(offset) + static_cast<uint32_t>(rows[n] * (width / 2) + begins[n] / 2);
    });
  }
};

// Sums over K slices, ascending, of partial sums [tile x splits + split][row][kTile] from tile `first_tile` on, rounded
// to bf16.
struct SplitSource {
  Words words;
  int first_tile;
  int splits;
  static constexpr int kBatch = 1;

  template <int N>
  void octets(const Cta& cta, const int (&rows)[N], const int (&begins)[N], float (&out)[N][kOctet]) const {
#pragma unroll
    for (int n = 0; n < N; ++n) {
      float sum[kOctet] = {};
      for (int split = 0; split < splits; ++split) {
        uint32_t raw[4][2];
        wait_words2(cta, words, raw, [&](int i) {
          if (rows[n] < 0) return kNoWord;
          const int granule = (first_tile + begins[n] / kTile) * splits + split;
          return static_cast<uint32_t>((granule * constants::kRows + rows[n]) * kTile + begins[n] % kTile + 2 * i);
        });
#pragma unroll
        for (int i = 0; i < kOctet; ++i) {
          const float part = std::bit_cast<float>(raw[i / 2][i % 2]);
          sum[i] = split == 0 ? part : sum[i] + part;
        }
      }
#pragma unroll
      for (int i = 0; i < kOctet; ++i) out[n][i] = round_bf16(sum[i]);
    }
  }
};

// The live rows of a call in order, for which the linears are computed: fills shared.map; the count. All consumers call
// it and meet in it.
template <typename Wanted>
inline int map_rows(const Cta& cta, int num_rows, const Wanted& wanted) {
  if (cta.warp == 0) {
    int count = 0;
    for (int begin = 0; begin < num_rows; begin += 32) {
      const int row = begin + cta.lane;
      const bool take = row < num_rows && wanted(row);
      const uint32_t mask = ballot(take);
      if (take) cta.shared.map[count + popcount(mask & ((1u << cta.lane) - 1))] = static_cast<int16_t>(row);
      count += popcount(mask);
    }
    if (cta.lane == 0) cta.shared.num_mapped = count;
  }
  cta.sync();
  return cta.shared.num_mapped;
}

// shared.row_scale[row] = 1 / sqrt(mean(x^2) + eps) of the mapped rows, x of `width` values. The sum is taken in fp64
// (an fp32 sum moves bf16 roundings behind it): over the threads of a warp by halves, over the warps ascending. False:
// given up.
// `key` names the rows: a launch that has made the factors of the same key last does not make them again.
template <typename Source>
inline bool row_scales(const Cta& cta, const Source& source, int width, int count, int key) {
  if (cta.shared.scaled_key == key) return true;
  constexpr int kRowsAtOnce = Source::kBatch;
  for (int n = 0; n < count; n += kRowsAtOnce) {
    double sums[kRowsAtOnce] = {};
    for (int begin = 0; begin < width; begin += kConsumers * kOctet) {
      const int d = begin + cta.thread * kOctet;
      int rows[kRowsAtOnce];
      int begins[kRowsAtOnce];
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i) {
        rows[i] = d < width && n + i < count ? cta.shared.map[n + i] : -1;
        begins[i] = d;
      }
      float values[kRowsAtOnce][kOctet];
      source.octets(cta, rows, begins, values);
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i) {
        if (rows[i] < 0) continue;
#pragma unroll
        for (int j = 0; j < kOctet; ++j) sums[i] += static_cast<double>(values[i][j]) * values[i][j];
      }
    }
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
#pragma unroll
      for (int mask = 16; mask > 0; mask >>= 1) sums[i] += shuffle_xor(sums[i], mask);
      if (cta.lane == 0 && n + i < count) cta.shared.row_sums[n + i][cta.warp] = sums[i];
    }
  }
  if (!cta.sync_alive()) return false;
  if (cta.thread < count) {
    double sum = 0;
    for (int warp = 0; warp < kWarps; ++warp) sum += cta.shared.row_sums[cta.thread][warp];
    const auto mean = static_cast<float>(sum / width);
    cta.shared.row_scale[cta.shared.map[cta.thread]] = 1.0f / sqrtf(mean + constants::kRmsNormEps);
  }
  if (cta.thread == 0) cta.shared.scaled_key = key;
  cta.sync();
  return true;
}

// A bf16 vector of the packed weights: one value, and eight from a multiple of eight on.
inline float vector_bf16(uint64_t address, int idx) {
  return bf16_value(reinterpret_cast<const uint16_t*>(address)[idx]);
}
inline void vector_octet(uint64_t address, int begin, float (&out)[kOctet]) {
  const Word4 words = load_constant(reinterpret_cast<const Word4*>(address) + begin / kOctet);
  const uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out[2 * i] = low_bf16(pairs[i]);
    out[2 * i + 1] = high_bf16(pairs[i]);
  }
}

// Eight neighbouring values of a row (negative: none) into the inputs; four lanes hold a 32-group between them.
template <bool kPlain>
inline void store_octet(const Inputs& inputs, int row, int at, const float (&values)[kOctet]) {
  const int quarter = at / kOctet % 4;
  uint32_t pairs[4];
  if constexpr (kPlain) {
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = bf16_pair(values[2 * i], values[2 * i + 1]);
  } else {
    float amax = 0;
#pragma unroll
    for (int i = 0; i < kOctet; ++i) amax = fmaxf(amax, fabsf(values[i]));
    amax = fmaxf(amax, shuffle_xor(amax, 1));
    amax = fmaxf(amax, shuffle_xor(amax, 2));
    const float scale = activation_scale(amax);
    const float inverse = 1.0f / scale;  // exact: a power of two
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const uint32_t codes = e4m3x2_of(values[2 * i] * inverse, values[2 * i + 1] * inverse) |
                             e4m3x2_of(values[2 * i + 2] * inverse, values[2 * i + 3] * inverse) << 16;
      e4m3x4_to_f16(codes, pairs[i], pairs[i + 1]);
    }
    if (quarter == 0 && row >= 0) inputs.scales[at / kGroup * inputs.num_rows + row] = scale;
  }
  if (row < 0) return;
  uint32_t* to = inputs.pairs + row * inputs.row_words + at / kGroup * (kGroup / 2);
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i * 4 + quarter] = pairs[i];
}

// Stores values [begin, begin + width) of the mapped rows as one K slice of inputs, rows of `inputs` by region row.
// kNorm: times row_scale and the norm's weights at `norm`, rounded to bf16. kPlain: as bf16; else quantised (QA).
// Needs a barrier behind it.
template <bool kPlain, bool kNorm, typename Source>
inline void load_slice(const Cta& cta, const Source& source, uint64_t norm, int begin, int width, int count,
                       const Inputs& inputs) {
  constexpr int kItems = Source::kBatch;
  const int octets = width / kOctet;
  const int total = count * octets;
  for (int base = 0; base < total; base += kConsumers * kItems) {
    int rows[kItems];
    int begins[kItems];
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int item = base + i * kConsumers + cta.thread;
      rows[i] = item < total ? cta.shared.map[item / octets] : -1;
      begins[i] = begin + item % octets * kOctet;
    }
    float values[kItems][kOctet];
    source.octets(cta, rows, begins, values);
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if constexpr (kNorm) {
        if (rows[i] >= 0) {
          const float scale = cta.shared.row_scale[rows[i]];
          float weights[kOctet];
          vector_octet(norm, begins[i], weights);
#pragma unroll
          for (int j = 0; j < kOctet; ++j) values[i][j] = round_bf16(weights[j] * (values[i][j] * scale));
        }
      }
      store_octet<kPlain>(inputs, rows[i], begins[i] - begin, values[i]);
    }
  }
}

}  // namespace monostep::gpu
