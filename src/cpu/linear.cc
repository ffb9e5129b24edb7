// Packing, quantising and the tile product of the CPU reference (cpu/linear.h).
#include "cpu/linear.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/numeric.h"

namespace monostep::cpu {
namespace {

using program::kTile;

// Vectors of the base instruction set: the compiler keeps them in registers on every x86-64, and lanes never depend on the machine.
constexpr int kLanes = 4;
constexpr int kVectors = kTile / kLanes;  // of a tile
typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float))));
typedef int32_t Words __attribute__((vector_size(kLanes * sizeof(int32_t))));
typedef int16_t Halves __attribute__((vector_size(16)));
typedef int8_t Bytes __attribute__((vector_size(16)));

constexpr int kGroup = 32;

int code_bytes(Kind kind, int64_t elements) {
  switch (kind) {
    case Kind::kFp8: return static_cast<int>(elements);
    case Kind::kFp4: return static_cast<int>(elements / 2);
    case Kind::kBf16: return static_cast<int>(elements * 2);
    case Kind::kF32: return static_cast<int>(elements * 4);
  }
  return 0;
}

// Sixteen bytes widened to 32 bits, in order.
__attribute__((always_inline)) inline void widen(const Bytes& bytes, Words* out) {
  const Bytes zero = {};
  const auto low = reinterpret_cast<Halves>(__builtin_shuffle(bytes, zero, Bytes{0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23}));
  const auto high =
      reinterpret_cast<Halves>(__builtin_shuffle(bytes, zero, Bytes{8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31}));
  const Halves none = {};
  const Halves first = {0, 8, 1, 9, 2, 10, 3, 11};
  const Halves second = {4, 12, 5, 13, 6, 14, 7, 15};
  out[0] = reinterpret_cast<Words>(__builtin_shuffle(low, none, first));
  out[1] = reinterpret_cast<Words>(__builtin_shuffle(low, none, second));
  out[2] = reinterpret_cast<Words>(__builtin_shuffle(high, none, first));
  out[3] = reinterpret_cast<Words>(__builtin_shuffle(high, none, second));
}

// A format whose exponent and mantissa, moved into an fp32 and rebiased, are the value; a subnormal is decoded one binade up with an
// implicit one that is worth `correction`, which is taken off again.
struct CodeFormat {
  int32_t implicit;
  int mantissa_shift;
  int32_t bias;
  float correction;
};
constexpr CodeFormat kE4m3{8, 20, 120 << 23, 0x1p-6f};
constexpr CodeFormat kE2m1{2, 22, 126 << 23, 1.0f};

// `sign` has bit 31 alone.
template <const CodeFormat& Format>
__attribute__((always_inline)) inline Lanes decode_lanes(const Words& magnitude, const Words& sign) {
  const Words subnormal = magnitude < Format.implicit;
  const Words bits = ((magnitude | (subnormal & Format.implicit)) << Format.mantissa_shift) + Format.bias;
  const Words correction = subnormal & std::bit_cast<int32_t>(Format.correction);
  const Lanes value = reinterpret_cast<Lanes>(bits) - reinterpret_cast<Lanes>(correction);
  return reinterpret_cast<Lanes>(reinterpret_cast<Words>(value) ^ sign);
}

inline void decode_fp8(const uint8_t* codes, int count, Lanes* out) {
  for (int k_idx = 0; k_idx < count; ++k_idx) {
    Bytes bytes;
    std::memcpy(&bytes, codes + k_idx * kTile, sizeof(bytes));
    Words code[kVectors];
    widen(bytes, code);
    for (int vector = 0; vector < kVectors; ++vector) {
      out[k_idx * kVectors + vector] = decode_lanes<kE4m3>(code[vector] & 0x7f, (code[vector] >> 7) << 31);
    }
  }
}

inline void decode_fp4(const uint8_t* codes, int count, Lanes* out) {
  for (int pair = 0; pair < count / 2; ++pair) {
    Bytes bytes;
    std::memcpy(&bytes, codes + pair * kTile, sizeof(bytes));
    Words code[kVectors];
    widen(bytes, code);
    for (int vector = 0; vector < kVectors; ++vector) {
      out[2 * pair * kVectors + vector] = decode_lanes<kE2m1>(code[vector] & 7, (code[vector] >> 3) << 31);
      out[(2 * pair + 1) * kVectors + vector] = decode_lanes<kE2m1>((code[vector] >> 4) & 7, (code[vector] >> 7) << 31);
    }
  }
}

inline void decode_bf16(const uint8_t* codes, int count, Lanes* out) {
  const Halves none = {};
  for (int half = 0; half < count * 2; ++half) {
    Halves bits;
    std::memcpy(&bits, codes + half * static_cast<int>(sizeof(bits)), sizeof(bits));
    out[2 * half] = reinterpret_cast<Lanes>(__builtin_shuffle(none, bits, Halves{0, 8, 1, 9, 2, 10, 3, 11}));
    out[2 * half + 1] = reinterpret_cast<Lanes>(__builtin_shuffle(none, bits, Halves{4, 12, 5, 13, 6, 14, 7, 15}));
  }
}

// `count` columns of a tile from the given element on, as fp32: [count][kTile].
void decode_group(const PackedLinear& weights, int64_t element, int count, Lanes* out) {
  const uint8_t* codes = weights.codes.data();
  switch (weights.kind) {
    case Kind::kFp8: decode_fp8(codes + element, count, out); break;
    case Kind::kFp4: decode_fp4(codes + element / 2, count, out); break;
    case Kind::kBf16: decode_bf16(codes + element * 2, count, out); break;
    case Kind::kF32: std::memcpy(out, codes + element * 4, static_cast<size_t>(count) * kTile * sizeof(float)); break;
  }
}

struct TileSums {
  Lanes vectors[kVectors];
};

// One group's weights and where it lies.
struct Group {
  const Lanes* weights;  // [count][kVectors]
  Lanes scale[kVectors];
  int k_begin;
  int count;
};

// Adds the group's products of `Rows` rows to their sums.
template <int Rows>
inline void add_rows(const Group& group, const Activations& inputs, const int* rows, TileSums* sums) {
  const float* values[Rows];
  Lanes inner[Rows][kVectors] = {};
  for (int row = 0; row < Rows; ++row) values[row] = inputs.row(rows[row]) + group.k_begin;
  for (int k_idx = 0; k_idx < group.count; ++k_idx) {
    for (int row = 0; row < Rows; ++row) {
      const float value = values[row][k_idx];
      for (int vector = 0; vector < kVectors; ++vector) inner[row][vector] += value * group.weights[k_idx * kVectors + vector];
    }
  }
  for (int row = 0; row < Rows; ++row) {
    const float scale = inputs.scales.empty() ? 1.0f : inputs.row_scales(rows[row])[group.k_begin / kGroup];
    for (int vector = 0; vector < kVectors; ++vector) sums[row].vectors[vector] += inner[row][vector] * (group.scale[vector] * scale);
  }
}

void multiply(const PackedLinear& weights, const TileProduct& product, const Activations& inputs, std::span<const int> rows,
              TileSums* sums) {
  Lanes decoded[kGroup * kVectors];
  for (int k_begin = product.k_begin; k_begin < product.k_end; k_begin += kGroup) {
    Group group{decoded, {}, k_begin, std::min(kGroup, product.k_end - k_begin)};
    decode_group(weights, (static_cast<int64_t>(product.tile) * weights.k + k_begin) * kTile, group.count, decoded);
    const int64_t scale_begin = (static_cast<int64_t>(product.tile) * (weights.k / kGroup) + k_begin / kGroup) * kTile;
    for (int lane = 0; lane < kTile; ++lane) {
      const float scale = weights.scales.empty() ? 1.0f : e8m0_value(weights.scales[static_cast<size_t>(scale_begin + lane)]);
      group.scale[lane / kLanes][lane % kLanes] = scale;
    }
    size_t first = 0;
    for (; first + 2 <= rows.size(); first += 2) add_rows<2>(group, inputs, rows.data() + first, sums + first);
    if (first < rows.size()) add_rows<1>(group, inputs, rows.data() + first, sums + first);
  }
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
      std::memcpy(to + static_cast<int64_t>(element) * kTile * bytes, from + element * bytes, static_cast<size_t>(bytes));
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
  const int bytes_per_two = matrix.kind == Kind::kFp4 ? 1 : matrix.kind == Kind::kFp8 ? 2 : matrix.kind == Kind::kBf16 ? 4 : 8;
  out.codes.assign(static_cast<size_t>(elements / 2 * bytes_per_two), 0);
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
      for (int idx = 0; idx < kGroup; ++idx) out.values[group * kGroup + idx] = e4m3_value(e4m3_bits(from[idx] / scale));
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

void multiply_tile(const PackedLinear& weights, const TileProduct& product, const Activations& inputs,
                   std::span<const int> row_indices, float* out) {
  CHECK(row_indices.size() <= program::kMaxBand, "more rows than a step holds");
  TileSums sums[program::kMaxBand];
  std::fill_n(sums, row_indices.size(), TileSums{});
  multiply(weights, product, inputs, row_indices, sums);
  for (size_t idx = 0; idx < row_indices.size(); ++idx) {
    std::memcpy(out + static_cast<int64_t>(row_indices[idx]) * kTile, &sums[idx], sizeof(TileSums));
  }
}

float dot(const float* a, const float* b, int count) {
  TileSums sums = {};
  int idx = 0;
  for (; idx + kTile <= count; idx += kTile) {
    TileSums left;
    TileSums right;
    std::memcpy(&left, a + idx, sizeof(left));
    std::memcpy(&right, b + idx, sizeof(right));
    for (int vector = 0; vector < kVectors; ++vector) sums.vectors[vector] += left.vectors[vector] * right.vectors[vector];
  }
  float lanes[kTile];
  std::memcpy(lanes, &sums, sizeof(lanes));
  for (int lane = 0; idx < count; ++idx, ++lane) lanes[lane] += a[idx] * b[idx];
  float total = 0;
  for (const float lane : lanes) total += lane;
  return total;
}

void add_scaled(float* acc, const float* values, float scale, int count) {
  for (int idx = 0; idx < count; ++idx) acc[idx] += scale * values[idx];
}

}  // namespace monostep::cpu
