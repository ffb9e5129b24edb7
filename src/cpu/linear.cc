// Packing, quantising and the tile product of the CPU reference (cpu/linear.h).
#include "cpu/linear.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/numeric.h"

namespace monostep::cpu {
namespace {

using program::kTile;

// Hot loops are written on vectors of V lanes and compiled twice: 4 lanes for every x86-64, 8 lanes for AVX2, chosen at
// run time. A lane is an output row, contraction is off and rows never mix, so both give the same bits.
template <int L>
struct Vector {
  static constexpr int kLanes = L;
  static constexpr int kCount = kTile / L;  // vectors of a tile
  typedef float Floats __attribute__((vector_size(L * sizeof(float))));
  typedef int32_t Words __attribute__((vector_size(L * sizeof(int32_t))));
  typedef uint16_t Halves __attribute__((vector_size(L * sizeof(uint16_t))));
};

#define MONOSTEP_INLINE __attribute__((always_inline)) inline

constexpr int kGroup = 32;

// A format whose exponent and mantissa, moved into an fp32 and rebiased, are the value; a subnormal is decoded one
// binade up with an implicit one that is worth `correction`, which is taken off again.
struct CodeFormat {
  int32_t implicit;
  int mantissa_shift;
  int32_t bias;
  float correction;
};
constexpr CodeFormat kE4m3{8, 20, 120 << 23, 0x1p-6f};
constexpr CodeFormat kE2m1{2, 22, 126 << 23, 1.0f};

// `sign` has bit 31 alone.
template <typename V, const CodeFormat& Format>
MONOSTEP_INLINE void decode_lanes(const typename V::Words& magnitude, const typename V::Words& sign,
                                  typename V::Floats* out) {
  typedef typename V::Words Words;
  typedef typename V::Floats Floats;
  const Words subnormal = magnitude < Format.implicit;
  const Words bits = ((magnitude | (subnormal & Format.implicit)) << Format.mantissa_shift) + Format.bias;
  const Words correction = subnormal & std::bit_cast<int32_t>(Format.correction);
  const Floats value = reinterpret_cast<Floats>(bits) - reinterpret_cast<Floats>(correction);
  *out = reinterpret_cast<Floats>(reinterpret_cast<Words>(value) ^ sign);
}

// An e2m1 code in the low four bits: with eight lanes its magnitude is one table look-up across lanes.
template <typename V>
MONOSTEP_INLINE void decode_nibble(const typename V::Words& code, typename V::Floats* out) {
  [[maybe_unused]] typedef typename V::Words Words;
  [[maybe_unused]] typedef typename V::Floats Floats;
#ifndef __clang__  // which has no shuffle by a variable index
  if constexpr (V::kLanes == 8) {
    const Floats table = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    const Floats magnitude = __builtin_shuffle(table, code);  // takes the index modulo 8
    const Words sign = (code << 28) & static_cast<int32_t>(0x80000000u);
    *out = reinterpret_cast<Floats>(reinterpret_cast<Words>(magnitude) ^ sign);
    return;
  }
#endif
  decode_lanes<V, kE2m1>(code & 7, ((code >> 3) & 1) << 31, out);
}

typedef uint8_t TileBytes __attribute__((vector_size(kTile)));

// A tile's sixteen codes widened to 32 bits, in order. Written so that the compiler finds the unpack instructions of
// each width.
template <typename V>
MONOSTEP_INLINE void widen(const uint8_t* codes, typename V::Words* out) {
  TileBytes bytes;
  std::memcpy(&bytes, codes, sizeof(bytes));
  if constexpr (V::kLanes == 8) {
    typedef uint16_t TileHalves __attribute__((vector_size(kTile * sizeof(uint16_t))));
    const TileHalves halves = __builtin_convertvector(bytes, TileHalves);
    typename V::Halves parts[V::kCount];
    std::memcpy(parts, &halves, sizeof(halves));
    for (int vector = 0; vector < V::kCount; ++vector)
      out[vector] = __builtin_convertvector(parts[vector], typename V::Words);
  } else {
    typedef uint16_t Eight __attribute__((vector_size(16)));
    const TileBytes zero = {};
    const auto low = reinterpret_cast<Eight>(
        __builtin_shufflevector(bytes, zero, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23));
    const auto high = reinterpret_cast<Eight>(
        __builtin_shufflevector(bytes, zero, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31));
    const Eight none = {};
    typedef typename V::Words Words;
    out[0] = reinterpret_cast<Words>(__builtin_shufflevector(low, none, 0, 8, 1, 9, 2, 10, 3, 11));
    out[1] = reinterpret_cast<Words>(__builtin_shufflevector(low, none, 4, 12, 5, 13, 6, 14, 7, 15));
    out[2] = reinterpret_cast<Words>(__builtin_shufflevector(high, none, 0, 8, 1, 9, 2, 10, 3, 11));
    out[3] = reinterpret_cast<Words>(__builtin_shufflevector(high, none, 4, 12, 5, 13, 6, 14, 7, 15));
  }
}

// `count` columns of a tile from the given element on, as fp32: [count][kTile].
template <typename V>
MONOSTEP_INLINE void decode_group(const PackedLinear& weights, int64_t element, int count, typename V::Floats* out) {
  typedef typename V::Words Words;
  const uint8_t* codes = weights.codes.data();
  const int vectors = count * V::kCount;
  Words code[V::kCount];
  for (int column = 0; column < count && weights.kind == Kind::kFp8; ++column) {
    widen<V>(codes + element + column * kTile, code);
    for (int vector = 0; vector < V::kCount; ++vector) {
      decode_lanes<V, kE4m3>(code[vector] & 0x7f, (code[vector] >> 7) << 31, out + column * V::kCount + vector);
    }
  }
  for (int column = 0; column < count && weights.kind == Kind::kFp4; column += 2) {
    widen<V>(codes + (element + column * kTile) / 2, code);
    for (int vector = 0; vector < V::kCount; ++vector) {
      typename V::Floats* even = out + column * V::kCount + vector;
      decode_nibble<V>(code[vector], even);
      decode_nibble<V>(code[vector] >> 4, even + V::kCount);
    }
  }
  for (int idx = 0; idx < vectors && weights.kind == Kind::kBf16; ++idx) {
    typename V::Halves halves;
    std::memcpy(&halves, codes + (element + idx * V::kLanes) * 2, sizeof(halves));
    out[idx] = reinterpret_cast<typename V::Floats>(__builtin_convertvector(halves, Words) << 16);
  }
  if (weights.kind == Kind::kF32)
    std::memcpy(out, codes + element * 4, static_cast<size_t>(count) * kTile * sizeof(float));
}

inline int64_t scale_offset(const PackedLinear& weights, int tile, int k_begin) {
  return (static_cast<int64_t>(tile) * (weights.k / kGroup) + k_begin / kGroup) * kTile;
}

// E8M0 scales of a tile's rows.
template <typename V>
MONOSTEP_INLINE void decode_scales(const uint8_t* scales, typename V::Floats* out) {
  typename V::Words code[V::kCount];
  widen<V>(scales, code);
  for (int vector = 0; vector < V::kCount; ++vector) {
    const typename V::Words subnormal = code[vector] == 0;  // byte 0 is 2^-127
    const typename V::Words bits = (code[vector] << 23) | (subnormal & 0x00400000);
    out[vector] = reinterpret_cast<typename V::Floats>(bits);
  }
}

// One group of weights and where it lies.
template <typename V>
struct Group {
  const typename V::Floats* weights;  // [count][V::kCount]
  typename V::Floats scale[V::kCount];
  int k_begin;
  int count;
};

// Adds the group's products of `Rows` rows to their sums, [row][V::kCount].
template <typename V, int Rows>
MONOSTEP_INLINE void add_rows(const Group<V>& group, const Activations& inputs, const int* rows,
                              typename V::Floats* sums) {
  const float* values[Rows];
  typename V::Floats inner[Rows][V::kCount] = {};
  for (int row = 0; row < Rows; ++row) values[row] = inputs.row(rows[row]) + group.k_begin;
  for (int k_idx = 0; k_idx < group.count; ++k_idx) {
    for (int row = 0; row < Rows; ++row) {
      const float value = values[row][k_idx];
      for (int vector = 0; vector < V::kCount; ++vector)
        inner[row][vector] += value * group.weights[k_idx * V::kCount + vector];
    }
  }
  for (int row = 0; row < Rows; ++row) {
    const float scale = inputs.row_scales(rows[row])[group.k_begin / kGroup];
    for (int vector = 0; vector < V::kCount; ++vector) {
      sums[row * V::kCount + vector] += inner[row][vector] * (group.scale[vector] * scale);
    }
  }
}

// sums: [rows][kTile], zeroed by the caller.
template <typename V, int RowsAtOnce>
MONOSTEP_INLINE void multiply(const PackedLinear& weights, const TileProduct& product, const Activations& inputs,
                              std::span<const int> rows, float* sums_out) {
  typedef typename V::Floats Floats;
  Floats decoded[kGroup * V::kCount];
  Floats sums[program::kMaxBand * V::kCount];
  std::memset(sums, 0, rows.size() * kTile * sizeof(float));
  for (int k_begin = product.k_begin; k_begin < product.k_end; k_begin += kGroup) {
    Group<V> group{decoded, {}, k_begin, std::min(kGroup, product.k_end - k_begin)};
    decode_group<V>(weights, (static_cast<int64_t>(product.tile) * weights.k + k_begin) * kTile, group.count, decoded);
    decode_scales<V>(weights.scales.data() + scale_offset(weights, product.tile, k_begin), group.scale);
    size_t first = 0;
    for (; first + RowsAtOnce <= rows.size(); first += RowsAtOnce) {
      add_rows<V, RowsAtOnce>(group, inputs, rows.data() + first, sums + first * V::kCount);
    }
    for (; first < rows.size(); ++first) add_rows<V, 1>(group, inputs, rows.data() + first, sums + first * V::kCount);
  }
  std::memcpy(sums_out, sums, rows.size() * kTile * sizeof(float));
}

// Inputs that are not quantised: products are exact in double, and the sums nearly so, with one rounding at the end.
// The reference's bf16 products are such sums; fp32 sums over a wide K would round some of them to another bf16 value.
template <typename V>
MONOSTEP_INLINE void multiply_plain(const PackedLinear& weights, const TileProduct& product, const Activations& inputs,
                                    std::span<const int> rows, float* sums_out) {
  constexpr int kPairs = V::kLanes / 2;  // doubles of a vector
  constexpr int kCount = kTile / kPairs;
  typedef double Doubles __attribute__((vector_size(kPairs * sizeof(double))));
  typename V::Floats decoded[kGroup * V::kCount];
  Doubles wide[kGroup][kCount];
  Doubles sums[program::kMaxBand][kCount];
  std::memset(sums, 0, rows.size() * sizeof(sums[0]));
  for (int k_begin = product.k_begin; k_begin < product.k_end; k_begin += kGroup) {
    const int count = std::min(kGroup, product.k_end - k_begin);
    decode_group<V>(weights, (static_cast<int64_t>(product.tile) * weights.k + k_begin) * kTile, count, decoded);
    if (!weights.scales.empty()) {
      typename V::Floats scale[V::kCount];
      decode_scales<V>(weights.scales.data() + scale_offset(weights, product.tile, k_begin), scale);
      for (int idx = 0; idx < count * V::kCount; ++idx) decoded[idx] *= scale[idx % V::kCount];
    }
    for (int k_idx = 0; k_idx < count; ++k_idx) {
      for (int lane = 0; lane < kTile; ++lane) {
        wide[k_idx][lane / kPairs][lane % kPairs] = decoded[k_idx * V::kCount + lane / V::kLanes][lane % V::kLanes];
      }
    }
    for (size_t row = 0; row < rows.size(); ++row) {
      const float* values = inputs.row(rows[row]) + k_begin;
      Doubles sum[kCount];
      std::memcpy(sum, sums[row], sizeof(sum));
      for (int k_idx = 0; k_idx < count; ++k_idx) {
        const double value = values[k_idx];
        for (int vector = 0; vector < kCount; ++vector) sum[vector] += value * wide[k_idx][vector];
      }
      std::memcpy(sums[row], sum, sizeof(sum));
    }
  }
  for (size_t row = 0; row < rows.size(); ++row) {
    for (int lane = 0; lane < kTile; ++lane) {
      sums_out[row * kTile + static_cast<size_t>(lane)] = static_cast<float>(sums[row][lane / kPairs][lane % kPairs]);
    }
  }
}

template <typename V, int RowsAtOnce>
MONOSTEP_INLINE void multiply_any(const PackedLinear& weights, const TileProduct& product, const Activations& inputs,
                                  std::span<const int> rows, float* sums) {
  if (inputs.scales.empty()) {
    multiply_plain<V>(weights, product, inputs, rows, sums);
  } else {
    multiply<V, RowsAtOnce>(weights, product, inputs, rows, sums);
  }
}

void multiply_base(const PackedLinear& weights, const TileProduct& product, const Activations& inputs,
                   std::span<const int> rows, float* sums) {
  multiply_any<Vector<4>, 2>(weights, product, inputs, rows, sums);
}

__attribute__((target("avx2"))) void multiply_avx2(const PackedLinear& weights, const TileProduct& product,
                                                   const Activations& inputs, std::span<const int> rows, float* sums) {
  multiply_any<Vector<8>, 4>(weights, product, inputs, rows, sums);
}

std::atomic<bool> use_wide{__builtin_cpu_supports("avx2") != 0};

int64_t code_bytes(Kind kind, int64_t elements) {
  switch (kind) {
    case Kind::kFp8: return elements;
    case Kind::kFp4: return elements / 2;
    case Kind::kBf16: return elements * 2;
    case Kind::kF32: return elements * 4;
  }
  return 0;
}

void pack_codes(const MatrixView& matrix, const MatrixPart& part, PackedLinear& out) {
  const int unit = matrix.kind == Kind::kFp4 ? 2 : 1;  // columns a copied element holds
  const int bytes = matrix.kind == Kind::kBf16 ? 2 : matrix.kind == Kind::kF32 ? 4 : 1;
  const int64_t row_bytes = code_bytes(matrix.kind, matrix.k);
  for (int row = 0; row < part.n; ++row) {
    const uint8_t* from = matrix.codes + (part.row_begin + row) * row_bytes + code_bytes(matrix.kind, part.k_begin);
    const int64_t tile_begin = static_cast<int64_t>(row / kTile) * (part.k / unit) * kTile;
    uint8_t* to = out.codes.data() + (tile_begin + row % kTile) * bytes;
    for (int element = 0; element < part.k / unit; ++element) {
      std::memcpy(to + static_cast<int64_t>(element) * kTile * bytes, from + element * bytes,
                  static_cast<size_t>(bytes));
    }
  }
}

void pack_scales(const MatrixView& matrix, const MatrixPart& part, PackedLinear& out) {
  const int groups = part.k / kGroup;
  const int matrix_groups = ceil_div(matrix.k, kGroup);
  for (int row = 0; row < part.n; ++row) {
    const int source_row = matrix.kind == Kind::kFp8 ? (part.row_begin + row) / kGroup : part.row_begin + row;
    const uint8_t* from = matrix.scales + static_cast<int64_t>(source_row) * matrix_groups + part.k_begin / kGroup;
    uint8_t* to = out.scales.data() + static_cast<int64_t>(row / kTile) * groups * kTile + row % kTile;
    for (int group = 0; group < groups; ++group) to[group * kTile] = from[group];
  }
}

}  // namespace

PackedLinear pack(const MatrixView& matrix, const MatrixPart& part) {
  PackedLinear out{matrix.kind, part.n, part.k, {}, {}};
  const int64_t elements = static_cast<int64_t>(out.tiles()) * part.k * kTile;
  out.codes.assign(static_cast<size_t>(code_bytes(matrix.kind, elements)), 0);
  pack_codes(matrix, part, out);
  if (matrix.kind == Kind::kFp8 || matrix.kind == Kind::kFp4) {
    CHECK(part.k % kGroup == 0 && part.k_begin % kGroup == 0, "a quantised part that cuts a scale group");
    out.scales.assign(static_cast<size_t>(out.tiles()) * static_cast<size_t>(part.k / kGroup) * kTile, 127);
    pack_scales(matrix, part, out);
  }
  return out;
}

Activations quantize(const std::vector<float>& values, int k, std::span<const int> row_indices) {
  Activations out;
  out.k = k;
  out.values.resize(values.size());
  out.scales.resize(values.size() / kGroup);
  for (const int row_idx : row_indices) {
    const size_t first = static_cast<size_t>(row_idx) * static_cast<size_t>(k) / kGroup;
    for (size_t group = first; group < first + static_cast<size_t>(k / kGroup); ++group) {
      const float* from = values.data() + group * kGroup;
      float amax = 0;
      for (int idx = 0; idx < kGroup; ++idx) amax = std::max(amax, std::fabs(from[idx]));
      const float scale = activation_scale(amax);
      out.scales[group] = scale;
      for (int idx = 0; idx < kGroup; ++idx) out.values[group * kGroup + idx] = round_e4m3(from[idx] / scale);
    }
  }
  return out;
}

Activations plain(std::vector<float> values, int k) {
  Activations out;
  out.k = k;
  out.values = std::move(values);
  return out;
}

bool set_wide_vectors(bool wide) { return use_wide.exchange(wide && __builtin_cpu_supports("avx2") != 0); }

void multiply_tile(const PackedLinear& weights, const TileProduct& product, const Activations& inputs,
                   std::span<const int> row_indices, float* out) {
  float sums[program::kMaxBand * kTile];
  for (size_t first = 0; first < row_indices.size(); first += program::kMaxBand) {
    const std::span<const int> rows =
        row_indices.subspan(first, std::min<size_t>(program::kMaxBand, row_indices.size() - first));
    (use_wide.load(std::memory_order_relaxed) ? multiply_avx2 : multiply_base)(weights, product, inputs, rows, sums);
    for (size_t idx = 0; idx < rows.size(); ++idx) {
      std::memcpy(out + static_cast<int64_t>(rows[idx]) * kTile, sums + idx * kTile, kTile * sizeof(float));
    }
  }
}

float dot(const float* a, const float* b, int count) {
  Vector<4>::Floats sums[4] = {};
  int idx = 0;
  for (; idx + kTile <= count; idx += kTile) {
    Vector<4>::Floats left[4];
    Vector<4>::Floats right[4];
    std::memcpy(left, a + idx, sizeof(left));
    std::memcpy(right, b + idx, sizeof(right));
    for (int vector = 0; vector < 4; ++vector) sums[vector] += left[vector] * right[vector];
  }
  float lanes[kTile];
  std::memcpy(lanes, sums, sizeof(lanes));
  for (int lane = 0; idx < count; ++idx, ++lane) lanes[lane] += a[idx] * b[idx];
  for (int width = kTile / 2; width > 0; width /= 2) {  // a tree over the lanes
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

void add_scaled(float* acc, const float* values, float scale, int count) {
  for (int idx = 0; idx < count; ++idx) acc[idx] += scale * values[idx];
}

}  // namespace monostep::cpu
