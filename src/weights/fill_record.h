// The values of synthetic tensors element by element, and the words of a packed run that is filled with them where it
// lies: plain data and pure functions, the same on host and device (includes only what device sources may). The
// values are those of the golden recipe (recipe.h), the places those of program/packing.h. Used by the recipe, by
// synthetic_pack, and by the fill kernel for shards that are too large to be packed from a checkpoint.
#pragma once

#include <bit>
#include <cstdint>

#include "base/numeric.h"

namespace monostep::weights {

// Word `idx` of a stream of random words: splitmix64.
inline uint64_t stream_word(uint64_t start, uint64_t idx) {
  uint64_t z = start + (idx + 1) * 0x9e3779b97f4a7c15;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return z ^ z >> 31;
}
inline uint32_t stream_byte(uint64_t start, uint64_t idx) {
  return static_cast<uint32_t>(stream_word(start, idx / 8) >> (8 * (idx % 8))) & 0xff;
}
inline uint32_t stream_half(uint64_t start, uint64_t idx) {
  return static_cast<uint32_t>(stream_word(start, idx / 2) >> (32 * (idx % 2)));
}

enum class ValueKind : int32_t { kFp8, kFp4, kBf16, kBf16Positive, kF32, kF32Positive };

struct ValueRule {  // of a tensor
  ValueKind kind = ValueKind::kBf16;
  int32_t zero_rows = 0;      // about one row in so many is zero, a power of two; 0: none
  int32_t scale_base = 0;     // FP8 and FP4: the smallest E8M0 byte of three
  float step = 0;             // value of one unit of the integer that is drawn
  int32_t first_columns = 0;  // columns below this number are special:
  float first_factor = 1;     // multiplied by this (embed.weight), or
  float first_value = 0;      // set to this (kBf16Positive: norm.weight)
  float factor = 1;
  int32_t hc_mult = 0;
  int32_t adds_ring = 0;       // hc_attn_base: +3 where comb leads to the next stream
  int32_t doubles_comb = 0;    // hc_ffn_base
  int64_t source_columns = 0;  // of the tensor whose streams are read; elements, of FP4 bytes
  uint64_t codes = 0;          // starts of the streams
  uint64_t scales = 0;
  uint64_t zeros = 0;
};

// The E4M3 code of a random byte: mostly the upper half of the magnitudes, some zeros and subnormals, some at the
// maximum.
constexpr uint32_t fp8_code(uint32_t byte) {
  const uint32_t low = byte & 127;
  const uint32_t magnitude = low < 112 ? 64 + low / 2 : low < 120 ? low - 112 : low < 127 ? 8 * (low - 119) : 126;
  return magnitude | (byte & 128);
}

inline bool is_zero_row(const ValueRule& rule, int64_t row) {
  if (rule.zero_rows == 0) return false;
  return (stream_word(rule.zeros, static_cast<uint64_t>(row)) & static_cast<uint64_t>(rule.zero_rows - 1)) == 0;
}

// A stored byte of FP8 or FP4 (`column` counts bytes), in a row that is not zero.
inline uint32_t code_byte(const ValueRule& rule, int64_t row, int64_t column) {
  const uint32_t byte = stream_byte(rule.codes, static_cast<uint64_t>(row * rule.source_columns + column));
  return rule.kind == ValueKind::kFp8 ? fp8_code(byte) : byte;
}

// `idx`: position in the scale plane.
inline uint32_t scale_byte(const ValueRule& rule, int64_t idx) {
  return static_cast<uint32_t>(rule.scale_base) + stream_byte(rule.scales, static_cast<uint64_t>(idx)) % 3;
}

// The bits of a bf16 element in a row that is not zero.
inline uint32_t bf16_element(const ValueRule& rule, int64_t row, int64_t column) {
  const uint32_t word = stream_half(rule.codes, static_cast<uint64_t>(row * rule.source_columns + column));
  float value;
  if (rule.kind == ValueKind::kBf16Positive) {
    const float size = static_cast<float>(128 + static_cast<int32_t>(word & 127)) * rule.step;
    value = column < rule.first_columns ? rule.first_value : word >> 28 == 0 ? -size : size;
  } else {
    const auto sum = static_cast<int32_t>((word & 127) + (word >> 8 & 127) + (word >> 16 & 127) + (word >> 24 & 127));
    value = static_cast<float>(sum - 254) * rule.step;
    if (column < rule.first_columns) value *= rule.first_factor;
  }
  return std::bit_cast<uint32_t>(value * rule.factor) >> 16;  // exact: at most 8 significant bits
}

// The bits of an fp32 element.
inline uint32_t f32_element(const ValueRule& rule, int64_t row, int64_t column) {
  const uint64_t word = stream_word(rule.codes, static_cast<uint64_t>(row * rule.source_columns + column));
  if (rule.kind == ValueKind::kF32Positive) {
    return std::bit_cast<uint32_t>(static_cast<float>(65536 + static_cast<int32_t>(word & 65535)) * rule.step);
  }
  const auto sum = static_cast<int32_t>((word & 65535) + (word >> 16 & 65535) + (word >> 32 & 65535) + (word >> 48));
  float value = static_cast<float>(sum - 131070) * rule.step;
  const int64_t comb_idx = column - 2 * rule.hc_mult;  // from * hc_mult + to
  if (rule.adds_ring != 0 && comb_idx >= 0 && comb_idx % rule.hc_mult == (comb_idx / rule.hc_mult + 1) % rule.hc_mult) {
    value += 3;
  }
  if (rule.doubles_comb != 0 && comb_idx >= 0) value *= 2;
  return std::bit_cast<uint32_t>(value);
}

enum class FillOrder : int32_t { kFragments, kSlices, kPlain };

// The chunks of one expert (or the only ones) of a run: num_words words from first_offset on.
struct FillRecord {
  int64_t first_offset = 0;  // bytes, in the rank's packed file
  int64_t num_words = 0;     // 32-bit
  FillOrder order = FillOrder::kPlain;
  int32_t chunk_bytes = 0;
  int32_t width = 0;  // kFragments: K elements of a chunk; kSlices: columns of a slice
  int32_t tiles = 1;
  int32_t parts = 1;
  int32_t num_pieces = 1;
  int32_t tile_code_bytes = 0;
  int32_t tile_scale_bytes = 0;
  int64_t first_row = 0;  // the rank's share of the tensor
  int64_t num_rows = 0;
  int64_t first_column = 0;
  int64_t num_columns = 0;
  int64_t columns = 0;  // of the whole tensor, elements
  ValueRule rules[2];   // [parts]
};

// A 32-bit word of codes: `offset` bytes into the codes of a tile whose first row is `row` and whose first column is
// `k`, of the whole tensor; rows from `end` on are zero. The order is that of program::code_offset.
inline uint32_t fragment_word(const ValueRule& rule, int32_t offset, int64_t row, int64_t k, int64_t end) {
  const bool fp4 = rule.kind == ValueKind::kFp4;
  const bool fp8 = rule.kind == ValueKind::kFp8;
  const int32_t pair_bytes = fp4 ? 1 : fp8 ? 2 : 4;  // of two K neighbours
  const int32_t lane_bytes = fp4 ? 8 : 16;           // FP4 and FP8: of 32 K elements, BF16: of 16
  const int32_t unit_width = fp4 || fp8 ? 32 : 16;
  const int32_t unit = offset / (lane_bytes * 32);
  const int32_t lane = offset / lane_bytes % 32;
  uint32_t word = 0;
  for (int32_t byte = 0; byte < 4; byte += pair_bytes) {
    const int32_t pair = (offset % lane_bytes + byte) / pair_bytes;  // [quad][row half]
    const int64_t whole_row = row + pair % 2 * 8 + lane / 4;
    const int64_t column = k + unit * unit_width + pair / 2 * 8 + lane % 4 * 2;
    if (whole_row >= end || is_zero_row(rule, whole_row)) continue;
    if (fp4) {
      word |= code_byte(rule, whole_row, column / 2) << (8 * byte);
    } else if (fp8) {
      word |= (code_byte(rule, whole_row, column) | code_byte(rule, whole_row, column + 1) << 8) << (8 * byte);
    } else {
      word = bf16_element(rule, whole_row, column) | bf16_element(rule, whole_row, column + 1) << 16;
    }
  }
  return fp4 ? spread_e2m1x8(word) : word;
}

// Four bytes behind the codes of a chunk of fragments: scales, then zeros.
inline uint32_t scale_word(const FillRecord& record, int32_t offset, int64_t first_row, int64_t k) {
  constexpr int32_t kTileRows = 16, kGroup = 32;
  uint32_t word = 0;
  for (int32_t byte = 0; byte < 4; ++byte) {
    const int32_t at = offset + byte;
    if (at >= record.tiles * record.parts * record.tile_scale_bytes) break;
    const int32_t tile_idx = at / record.tile_scale_bytes;
    const int32_t inside = at % record.tile_scale_bytes;
    const ValueRule& rule = record.rules[tile_idx % record.parts];
    const int64_t row = first_row + tile_idx / record.parts * kTileRows;
    const bool fp4 = rule.kind == ValueKind::kFp4;
    const int64_t scale_row = fp4 ? row + inside % kTileRows : row / kGroup;
    const int64_t group = k / kGroup + (fp4 ? inside / kTileRows : inside);
    word |= scale_byte(rule, scale_row * (record.columns / kGroup) + group) << (8 * byte);
  }
  return word;
}

inline uint32_t plain_word(const FillRecord& record, int64_t word_idx) {
  const ValueRule& rule = record.rules[0];
  const int64_t count = record.num_rows * record.num_columns;
  const bool f32 = rule.kind == ValueKind::kF32 || rule.kind == ValueKind::kF32Positive;
  if (f32) {
    if (word_idx >= count) return 0;
    return f32_element(rule, word_idx / record.num_columns, record.first_column + word_idx % record.num_columns);
  }
  uint32_t word = 0;
  for (int64_t idx = word_idx * 2; idx < word_idx * 2 + 2 && idx < count; ++idx) {
    word |= bf16_element(rule, idx / record.num_columns, record.first_column + idx % record.num_columns)
            << (16 * (idx % 2));
  }
  return word;
}

// Word `word_idx` of the record's words, to be stored at first_offset + 4 x word_idx.
inline uint32_t packed_word(const FillRecord& record, int64_t word_idx) {
  const int64_t chunk = word_idx / (record.chunk_bytes / 4);
  const auto offset = static_cast<int32_t>(word_idx % (record.chunk_bytes / 4)) * 4;
  if (record.order == FillOrder::kPlain) return plain_word(record, word_idx);
  if (record.order == FillOrder::kSlices) {
    const int64_t row = offset / 4 / record.width / record.rules[0].hc_mult;
    if (row >= record.num_rows) return 0;
    const int64_t stream = offset / 4 / record.width % record.rules[0].hc_mult;
    const int64_t hidden = record.columns / record.rules[0].hc_mult;
    return f32_element(record.rules[0], row, stream * hidden + chunk * record.width + offset / 4 % record.width);
  }
  const int64_t row = record.first_row + chunk / record.num_pieces * record.tiles * 16;
  const int64_t k = record.first_column + chunk % record.num_pieces * record.width;
  const int32_t code_bytes = record.tiles * record.parts * record.tile_code_bytes;
  if (offset >= code_bytes) return scale_word(record, offset - code_bytes, row, k);
  const int32_t tile_idx = offset / record.tile_code_bytes;
  return fragment_word(record.rules[tile_idx % record.parts], offset % record.tile_code_bytes,
                       row + tile_idx / record.parts * 16, k, record.first_row + record.num_rows);
}

}  // namespace monostep::weights
