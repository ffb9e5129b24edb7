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

// One version of a hot function per instruction set, picked at load. Contraction is off and lanes are fixed, so all give the same
// bits. Sanitizers cannot run the picker, which is called before they start.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(__clang__)
#define MONOSTEP_CLONES
#else
#define MONOSTEP_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#endif

typedef float Lanes __attribute__((vector_size(kTile * sizeof(float))));

constexpr int kGroup = 32;
constexpr int kRowsAtOnce = 4;

int code_bytes(Kind kind, int64_t elements) {
  switch (kind) {
    case Kind::kFp8: return static_cast<int>(elements);
    case Kind::kFp4: return static_cast<int>(elements / 2);
    case Kind::kBf16: return static_cast<int>(elements * 2);
    case Kind::kF32: return static_cast<int>(elements * 4);
  }
  return 0;
}

__attribute__((always_inline)) inline void decode_fp8(const uint8_t* codes, int count, float* out) {
  for (int k_idx = 0; k_idx < count; ++k_idx) {
    for (int lane = 0; lane < kTile; ++lane) {
      const uint32_t code = codes[k_idx * kTile + lane];
      const uint32_t magnitude = code & 0x7fu;
      const bool subnormal = magnitude < 8;
      // A subnormal is decoded one binade up and the implicit one taken off again.
      const uint32_t bits = ((subnormal ? magnitude | 8u : magnitude) << 20) + (120u << 23);
      const float value = std::bit_cast<float>(bits) - (subnormal ? 0x1p-6f : 0.0f);
      out[k_idx * kTile + lane] = (code & 0x80u) ? -value : value;
    }
  }
}

__attribute__((always_inline)) inline float nibble_value(uint32_t code) {
  const uint32_t magnitude = code & 7u;
  const bool subnormal = magnitude < 2;
  const uint32_t bits = ((subnormal ? magnitude | 2u : magnitude) << 22) + (126u << 23);
  const float value = std::bit_cast<float>(bits) - (subnormal ? 1.0f : 0.0f);
  return (code & 8u) ? -value : value;
}

__attribute__((always_inline)) inline void decode_fp4(const uint8_t* codes, int count, float* out) {
  for (int pair = 0; pair < count / 2; ++pair) {
    for (int lane = 0; lane < kTile; ++lane) {
      const uint32_t byte = codes[pair * kTile + lane];
      out[2 * pair * kTile + lane] = nibble_value(byte & 15u);
      out[(2 * pair + 1) * kTile + lane] = nibble_value(byte >> 4);
    }
  }
}

__attribute__((always_inline)) inline void decode_group(const PackedLinear& weights, int64_t element, int count, float* out) {
  const uint8_t* codes = weights.codes.data();
  switch (weights.kind) {
    case Kind::kFp8: decode_fp8(codes + element, count, out); break;
    case Kind::kFp4: decode_fp4(codes + element / 2, count, out); break;
    case Kind::kBf16:
      for (int idx = 0; idx < count * kTile; ++idx) {
        uint16_t bits;
        std::memcpy(&bits, codes + (element + idx) * 2, sizeof(bits));
        out[idx] = std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
      }
      break;
    case Kind::kF32: std::memcpy(out, codes + element * 4, static_cast<size_t>(count) * kTile * sizeof(float)); break;
  }
}

// Adds one group's products of `Rows` rows to their accumulators.
template <int Rows>
__attribute__((always_inline)) inline void add_group(const float* group, int count, const float* const* inputs,
                                                     const Lanes* scales, Lanes* sums) {
  Lanes inner[Rows] = {};
  for (int k_idx = 0; k_idx < count; ++k_idx) {
    Lanes weight;
    std::memcpy(&weight, group + k_idx * kTile, sizeof(weight));
    for (int row = 0; row < Rows; ++row) inner[row] += inputs[row][k_idx] * weight;
  }
  for (int row = 0; row < Rows; ++row) sums[row] += inner[row] * scales[row];
}

struct RowGroup {
  std::span<const int> rows;
  const float* group;
  Lanes weight_scale;
  int k_begin;
  int count;
};

template <int Rows>
__attribute__((always_inline)) inline void add_rows(const RowGroup& work, const Activations& inputs, size_t first, Lanes* sums) {
  const float* values[Rows];
  Lanes scales[Rows];
  for (int row = 0; row < Rows; ++row) {
    const int row_idx = work.rows[first + static_cast<size_t>(row)];
    values[row] = inputs.row(row_idx) + work.k_begin;
    const float scale = inputs.scales.empty() ? 1.0f : inputs.row_scales(row_idx)[work.k_begin / kGroup];
    scales[row] = work.weight_scale * scale;
  }
  add_group<Rows>(work.group, work.count, values, scales, sums + first);
}

MONOSTEP_CLONES void multiply(const PackedLinear& weights, const TileProduct& product, const Activations& inputs,
                              std::span<const int> rows, Lanes* sums) {
  alignas(64) float group[kGroup * kTile];
  for (int k_begin = product.k_begin; k_begin < product.k_end; k_begin += kGroup) {
    const int count = std::min(kGroup, product.k_end - k_begin);
    decode_group(weights, (static_cast<int64_t>(product.tile) * weights.k + k_begin) * kTile, count, group);
    Lanes scale;
    for (int lane = 0; lane < kTile; ++lane) {
      scale[lane] = weights.scales.empty()
                        ? 1.0f
                        : e8m0_value(weights.scales[static_cast<size_t>(
                              (static_cast<int64_t>(product.tile) * (weights.k / kGroup) + k_begin / kGroup) * kTile + lane)]);
    }
    const RowGroup work{rows, group, scale, k_begin, count};
    size_t first = 0;
    for (; first + kRowsAtOnce <= rows.size(); first += kRowsAtOnce) add_rows<kRowsAtOnce>(work, inputs, first, sums);
    for (; first < rows.size(); ++first) add_rows<1>(work, inputs, first, sums);
  }
}

MONOSTEP_CLONES float dot_lanes(const float* a, const float* b, int count) {
  Lanes sums = {};
  int idx = 0;
  for (; idx + kTile <= count; idx += kTile) {
    Lanes left;
    Lanes right;
    std::memcpy(&left, a + idx, sizeof(left));
    std::memcpy(&right, b + idx, sizeof(right));
    sums += left * right;
  }
  for (int lane = 0; idx < count; ++idx, ++lane) sums[lane] += a[idx] * b[idx];
  float total = 0;
  for (int lane = 0; lane < kTile; ++lane) total += sums[lane];
  return total;
}

MONOSTEP_CLONES void add_scaled_lanes(float* acc, const float* values, float scale, int count) {
  for (int idx = 0; idx < count; ++idx) acc[idx] += scale * values[idx];
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
  CHECK(row_indices.size() <= program::kMaxBand * 2, "more rows than a step holds");
  Lanes sums[program::kMaxBand * 2];
  std::fill_n(sums, row_indices.size(), Lanes{});
  multiply(weights, product, inputs, row_indices, sums);
  for (size_t idx = 0; idx < row_indices.size(); ++idx) {
    std::memcpy(out + static_cast<int64_t>(row_indices[idx]) * kTile, &sums[idx], sizeof(Lanes));
  }
}

float dot(const float* a, const float* b, int count) { return dot_lanes(a, b, count); }
void add_scaled(float* acc, const float* values, float scale, int count) { add_scaled_lanes(acc, values, scale, count); }

}  // namespace monostep::cpu
