// Linears of the CPU reference: weights repacked so that 16 output rows lie beside each other, activations with their
// group scales, and the product of one tile. Quantised inputs: sums run over k inside a group of 32, then over the
// groups in order, in fp32. Plain inputs: one rounding of the exact sum. One lane is an output row: the same bits on
// every instruction set. Source of the formula: model.md 3.3. Called by the stage bodies.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "program/layout.h"

namespace monostep::cpu {

enum class Kind : uint8_t { kFp8, kFp4, kBf16, kF32 };

struct PackedLinear {
  Kind kind = Kind::kBf16;
  int n = 0;
  int k = 0;
  // [tile][k][kTile] codes; FP4 packs k pairs: [tile][k/2][kTile] bytes, even k in the low nibble. Rows beyond n are
  // zero.
  std::vector<uint8_t> codes;
  std::vector<uint8_t> scales;  // [tile][k/32][kTile] E8M0; FP8 and FP4 only
  int tiles() const { return ceil_div(n, program::kTile); }
};

// A weight matrix as it lies in the checkpoint. Scale planes: FP8 [ceil(N/32)][K/32], FP4 [N][K/32], else none.
struct MatrixView {
  Kind kind = Kind::kBf16;
  const uint8_t* codes = nullptr;
  const uint8_t* scales = nullptr;
  int k = 0;  // columns of the whole matrix
};
// Packs rows [row_begin, row_begin + n) and columns [k_begin, k_begin + k); both offsets and k are multiples of 32 for
// FP4 and FP8 columns.
struct MatrixPart {
  int row_begin = 0;
  int n = 0;
  int k_begin = 0;
  int k = 0;
};
PackedLinear pack(const MatrixView& matrix, const MatrixPart& part);

// Rows of inputs. With scales: e4m3 grid values and one power of two per 32; without: plain values.
struct Activations {
  int k = 0;
  std::vector<float> values;  // [rows][k]
  std::vector<float> scales;  // [rows][k/32], or empty
  const float* row(int row_idx) const { return values.data() + static_cast<int64_t>(row_idx) * k; }
  const float* row_scales(int row_idx) const { return scales.data() + static_cast<int64_t>(row_idx) * (k / 32); }
};

// Quantises the listed bf16 rows by QA (e4m3 per 32); the others stay zero. values: [rows][k].
Activations quantize(const std::vector<float>& values, int k, std::span<const int> row_indices);
Activations plain(std::vector<float> values, int k);

// out[row_idx * kTile + lane] = sum over k in [k_begin, k_end) for the listed rows, in fp32; rows that are not listed
// stay.
struct TileProduct {
  int tile = 0;
  int k_begin = 0;
  int k_end = 0;
};
void multiply_tile(const PackedLinear& weights, const TileProduct& product, const Activations& inputs,
                   std::span<const int> row_indices, float* out);

// Whether tile products use the AVX2 version where the machine has it (the default). Returns what was set before. For
// tests, which hold the two versions against each other bit for bit.
bool set_wide_vectors(bool wide);

// Dot product of two fp32 vectors with 16 fixed lanes.
float dot(const float* a, const float* b, int count);
// acc[i] += scale * values[i].
void add_scaled(float* acc, const float* values, float scale, int count);

}  // namespace monostep::cpu
