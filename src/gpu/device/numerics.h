// Numerics that the attention stages share: polled sums over K slices, RMSNorm and RoPE of a row, and the cache records
// (window, compressed, index key) with the bits of cpu/numerics.cc, and where they lie in slots and pages. A row in
// shared memory is owned by pairs of values: thread i owns pairs i, i + kConsumers, ... through sums, norm and RoPE, so
// no barrier lies between them. Formulas: model.md 3.2-3.4, 3.6 and 4.1. Included by stage_kv, stage_attend,
// stage_index.
#pragma once

#include "base/math.h"
#include "gpu/device/linear.h"

namespace monostep::gpu {

// Partial sums [tile x splits + split][row][kTile] from tile `first_tile` on.
struct SplitSums {
  Words words;
  int first_tile;
  int splits;
};
struct SumPlace {
  int row;     // negative: none
  int column;  // even
};

// out[i] = the sums over K slices, ascending in fp32, of columns place(i).column and the next; kAtOnce slices of all N
// places are outstanding together.
template <int N, int kAtOnce, typename Place>
inline void wait_sums(const Cta& cta, const SplitSums& from, float (&out)[N][2], const Place& place) {
#pragma unroll
  for (int i = 0; i < N; ++i) out[i][0] = out[i][1] = 0;
  for (int begin = 0; begin < from.splits; begin += kAtOnce) {
    uint32_t raw[N * kAtOnce][2];
    wait_words2(cta, from.words, raw, [&](int i) {
      const SumPlace at = place(i / kAtOnce);
      const int split = begin + i % kAtOnce;
      if (at.row < 0 || split >= from.splits) return kNoWord;
      // Unsigned, 32 bits: what differs between the places by a constant then does so in registers.
      const auto column = static_cast<uint32_t>(at.column);
      const uint32_t granule =
          (static_cast<uint32_t>(from.first_tile) + column / kTile) * static_cast<uint32_t>(from.splits) +
          static_cast<uint32_t>(split);
      return (granule * constants::kRows + static_cast<uint32_t>(at.row)) * kTile + column % kTile;
    });
#pragma unroll
    for (int i = 0; i < N * kAtOnce; ++i) {
      const int split = begin + i % kAtOnce;
      if (split >= from.splits) continue;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float part = std::bit_cast<float>(raw[i][half]);
        float& sum = out[i / kAtOnce][half];
        sum = split == 0 ? part : sum + part;
      }
    }
  }
}

// Sums of a row's columns [0, kWidth) into shared memory, unrounded; each thread fills the pairs that it owns, up to
// three of which are waited for together.
template <int kWidth>
inline void load_sums(const Cta& cta, const SplitSums& from, int row, float* out) {
  constexpr int kPairs = (kWidth / 2 + kConsumers - 1) / kConsumers;  // of a thread
  constexpr int kAtOnce = kPairs < 3 ? kPairs : 3;
  for (int base = cta.thread; base < kWidth / 2; base += kConsumers * kAtOnce) {
    const auto pair = [&](int i) { return base + i * kConsumers; };
    float sums[kAtOnce][2];
    wait_sums<kAtOnce, 4>(cta, from, sums,
                          [&](int i) { return SumPlace{pair(i) < kWidth / 2 ? row : -1, 2 * pair(i)}; });
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (pair(i) >= kWidth / 2) continue;
      out[2 * pair(i)] = sums[i][0];
      out[2 * pair(i) + 1] = sums[i][1];
    }
  }
}

// Sum over the consumers in every thread: over a warp by halves, over the warps ascending. `partials`: [kWarps].
inline double cta_sum(const Cta& cta, double value, double* partials) {
#pragma unroll
  for (int mask = 16; mask > 0; mask >>= 1) value += shuffle_xor(value, mask);
  if (cta.lane == 0) partials[cta.warp] = value;
  cta.sync();
  double sum = 0;
  for (int warp = 0; warp < kWarps; ++warp) sum += partials[warp];
  cta.sync();
  return sum;
}

// values = bf16(weight * (x * rsqrt(mean(x^2) + eps))) with x = bf16(values), by the owners of the pairs. `weight`:
// bf16 [width]. The sum of squares is taken in fp64.
inline void norm_row(const Cta& cta, float* values, int width, uint64_t weight, double* partials) {
  double sum = 0;
  for (int pair = cta.thread; pair < width / 2; pair += kConsumers) {
    const float low = round_bf16(values[2 * pair]);
    const float high = round_bf16(values[2 * pair + 1]);
    sum += static_cast<double>(low) * low + static_cast<double>(high) * high;
  }
  const auto mean = static_cast<float>(cta_sum(cta, sum, partials) / width);
  const float scale = 1.0f / sqrtf(mean + constants::kRmsNormEps);
  const auto* weights = reinterpret_cast<const uint32_t*>(weight);
  for (int pair = cta.thread; pair < width / 2; pair += kConsumers) {
    const uint32_t both = load_constant(weights + pair);
    values[2 * pair] = round_bf16(low_bf16(both) * (round_bf16(values[2 * pair]) * scale));
    values[2 * pair + 1] = round_bf16(high_bf16(both) * (round_bf16(values[2 * pair + 1]) * scale));
  }
}

inline constexpr int kRopePairs = constants::kRopeDim / 2;

MONOSTEP_NOINLINE inline CosSin angle_at(uint64_t frequencies, int position, int pair) {
  const uint32_t frequency = load_constant(reinterpret_cast<const uint32_t*>(frequencies) + pair);
  return rope_angle(position, std::bit_cast<float>(frequency));
}

// cos and sin of a position for a pair of the rope tail; ratio-0 and draft layers take the base frequencies, the others
// YaRN's.
inline CosSin rope_angle_of(const Cta& cta, int ratio, int position, int pair) {
  return angle_at(cta.params.rope + (ratio == 0 ? 0 : kRopePairs * sizeof(float)), position, pair);
}
// Of every pair, [kRopePairs]. Needs a barrier behind it.
inline void load_angles(const Cta& cta, int ratio, int position, CosSin* angles) {
  for (int pair = cta.thread; pair < kRopePairs; pair += kConsumers)
    angles[pair] = rope_angle_of(cta, ratio, position, pair);
}

inline void rotate_pair(float& a, float& b, float cosine, float sine) {
  const float first = round_bf16(a * cosine - b * sine);
  b = round_bf16(a * sine + b * cosine);
  a = first;
}

// Rotates the rope tail of a row, by the owners of the pairs.
inline void rotate_row(const Cta& cta, float* values, int width, const CosSin* angles) {
  const int first = width / 2 - kRopePairs;
  for (int pair = cta.thread; pair < width / 2; pair += kConsumers) {
    if (pair < first) continue;
    rotate_pair(values[2 * pair], values[2 * pair + 1], angles[pair - first].cos, angles[pair - first].sin);
  }
}

// Largest power of two up to 16 that divides a record's size and the places where records begin.
constexpr int alignment_of(long long bytes) {
  int alignment = 16;
  while (bytes % alignment != 0) alignment /= 2;
  return alignment;
}
template <int N>
constexpr int alignment_of(const long long (&begins)[N], long long record) {
  int alignment = alignment_of(record);
  for (const long long begin : begins) {
    if (alignment_of(begin) < alignment) alignment = alignment_of(begin);
  }
  return alignment;
}

// The three kinds of records: codes, then one scale byte a group.
struct WindowFormat {  // QA: e4m3, E8M0
  static constexpr int kSpan = kActivationGroup;
  static constexpr int kBits = 8;
  static constexpr int kAlign = alignment_of(constants::kWindowRecord);
  static float scale(float amax) { return activation_scale(amax); }
  static uint8_t scale_bits(float scale) { return e8m0_bits(scale); }
  static uint32_t code(float value) { return e4m3_bits(value); }
  static float value(uint32_t code) { return e4m3_value(static_cast<uint8_t>(code)); }
};
struct CompressedFormat {  // QC: e2m1, E4M3
  static constexpr int kSpan = kCompressedGroup;
  static constexpr int kBits = 4;
  static constexpr int kAlign = alignment_of(constants::kCompressedBegin, constants::kCompressedRecord);
  static float scale(float amax) { return e4m3_value(compressed_scale_bits(amax)); }
  static uint8_t scale_bits(float scale) { return e4m3_bits(scale); }
  static uint32_t code(float value) { return e2m1_bits(value); }
  static float value(uint32_t code) { return e2m1_value(static_cast<uint8_t>(code)); }
};
struct IndexFormat {  // QI: e2m1, E8M0
  static constexpr int kSpan = kIndexGroup;
  static constexpr int kBits = 4;
  static constexpr int kAlign = alignment_of(constants::kIndexKeyBegin, constants::kIndexRecord);
  static float scale(float amax) { return index_scale(amax); }
  static uint8_t scale_bits(float scale) { return e8m0_bits(scale); }
  static uint32_t code(float value) { return e2m1_bits(value); }
  static float value(uint32_t code) { return e2m1_value(static_cast<uint8_t>(code)); }
};

inline constexpr int kQuad = 4;

// Quantises four neighbouring values, replaced by what the record holds; the lanes of a group are neighbours. All lanes
// of the warp call it. The codes, first value lowest.
template <typename Format>
inline uint32_t pack_quad(float (&values)[kQuad], float& scale) {
  float amax = 0;
#pragma unroll
  for (int i = 0; i < kQuad; ++i) amax = fmaxf(amax, fabsf(values[i]));
#pragma unroll
  for (int mask = 1; mask < Format::kSpan / kQuad; mask *= 2) amax = fmaxf(amax, shuffle_xor(amax, mask));
  scale = Format::scale(amax);
  uint32_t codes = 0;
#pragma unroll
  for (int i = 0; i < kQuad; ++i) {
    const uint32_t code = Format::code(values[i] / scale);
    codes |= code << (i * Format::kBits);
    values[i] = round_bf16(Format::value(code) * scale);
  }
  return codes;
}

template <int kBytes, int kAlign>
inline void store_codes(uint8_t* to, uint32_t codes) {
  if constexpr (kBytes == 4 && kAlign >= 4) {
    *reinterpret_cast<uint32_t*>(to) = codes;
  } else if constexpr (kBytes == 2 && kAlign >= 2) {
    *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(codes);
  } else {
#pragma unroll
    for (int i = 0; i < kBytes; ++i) to[i] = static_cast<uint8_t>(codes >> (8 * i));
  }
}

// Quantises a row of shared memory into its record (null: none) and puts what the record holds as words from
// `first_word` on. Needs a barrier before it.
template <typename Format>
inline void pack_row(const Cta& cta, const float* values, int width, uint8_t* record, const Sink& sink,
                     int64_t first_word) {
  for (int base = 0; base < width; base += kConsumers * kQuad) {
    const int at = base + cta.thread * kQuad;
    float quad[kQuad];
#pragma unroll
    for (int i = 0; i < kQuad; ++i) quad[i] = at < width ? values[at + i] : 0.0f;
    float scale;
    const uint32_t codes = pack_quad<Format>(quad, scale);
    if (at >= width) continue;
    put_words2(cta, sink, first_word + at / 2, bf16_pair(quad[0], quad[1]), bf16_pair(quad[2], quad[3]));
    if (record == nullptr) continue;
    store_codes<Format::kBits / 2, Format::kAlign>(record + at * Format::kBits / 8, codes);
    if (at % Format::kSpan == 0) record[width * Format::kBits / 8 + at / Format::kSpan] = Format::scale_bits(scale);
  }
}

// kWords words of a record that no thread of this launch writes.
template <int kWords, int kAlign>
inline void load_record(const uint8_t* from, uint32_t* to) {
  if constexpr (kAlign >= 16 && kWords == 4) {
    const Word4 words = load_constant(reinterpret_cast<const Word4*>(from));
    to[0] = words.x;
    to[1] = words.y;
    to[2] = words.z;
    to[3] = words.w;
  } else if constexpr (kAlign >= 8 && kWords % 2 == 0) {
#pragma unroll
    for (int i = 0; i < kWords; i += 2) {
      const uint64_t both = load_constant(reinterpret_cast<const uint64_t*>(from + 4 * i));
      to[i] = static_cast<uint32_t>(both);
      to[i + 1] = static_cast<uint32_t>(both >> 32);
    }
  } else if constexpr (kAlign >= 4) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) to[i] = load_constant(reinterpret_cast<const uint32_t*>(from + 4 * i));
  } else {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      to[i] = from[4 * i] | (uint32_t{from[4 * i + 1]} << 8) | (uint32_t{from[4 * i + 2]} << 16) |
              (uint32_t{from[4 * i + 3]} << 24);
    }
  }
}

// A pair of f16 values times a scale as a bf16 pair, where the products are bf16 values.
inline uint32_t scaled_pair(uint32_t f16_pair, float scale) {
  float low, high;
  f16x2_to_f32(f16_pair, low, high);
  return permute_bytes(std::bit_cast<uint32_t>(low * scale), std::bit_cast<uint32_t>(high * scale), 0x7632);
}

// Places of the records (kv/state.h).
inline uint8_t* slot_at(const Cta& cta, const RequestRecord& request) {
  return reinterpret_cast<uint8_t*>(cta.params.slots) + int64_t{request.state_slot} * constants::kSlotBytes;
}
inline uint8_t* ring_record(const Cta& cta, const RequestRecord& request, int layer, int position) {
  const int64_t row = int64_t{layer} * constants::kRingRows + position % constants::kRingRows;
  return slot_at(cta, request) + row * constants::kWindowRecord;
}
// (kv, gate) of an even position, f32 [2][kHeadDim].
inline float* pending_pair(const Cta& cta, const RequestRecord& request, int owner_idx, int position) {
  const int64_t row = int64_t{owner_idx} * constants::kPendingRows + position / 2 % constants::kPendingRows;
  return reinterpret_cast<float*>(slot_at(cta, request) + constants::kPendingBegin) + row * 2 * constants::kHeadDim;
}
inline uint8_t* page_at(const Cta& cta, int request_idx, int position) {
  const auto* table = reinterpret_cast<const uint32_t*>(cta.params.page_table);
  const uint32_t page =
      load_constant(table + int64_t{request_idx} * cta.params.max_pages + position / constants::kPageTokens);
  return reinterpret_cast<uint8_t*>(cta.params.pages) + int64_t{page} * constants::kPageBytes;
}
// Ratios are 1 and 2: divisors that are known cost no division.
inline uint32_t group_in_page(int ratio, int group) {
  const auto idx = static_cast<uint32_t>(group);
  return ratio == 2 ? idx % (constants::kPageTokens / 2) : idx % constants::kPageTokens;
}
inline uint8_t* compressed_record(const Cta& cta, int request_idx, const CallRecord& record, int group) {
  const uint32_t in_page = group_in_page(record.ratio, group);
  return page_at(cta, request_idx, group * record.ratio) + constants::kCompressedBegin[record.owner_idx] +
         int64_t{in_page} * constants::kCompressedRecord;
}
inline uint8_t* index_record(const Cta& cta, int request_idx, const CallRecord& record, int group) {
  const uint32_t in_page = group_in_page(record.ratio, group);
  return page_at(cta, request_idx, group * record.ratio) + constants::kIndexKeyBegin[record.owner_idx] +
         int64_t{in_page} * constants::kIndexRecord;
}

// Last committed position of a request, by its verdict: [request][accepted, count, last position, tokens].
inline int wait_last_position(const Cta& cta, const Words& verdicts, int request_idx) {
  return static_cast<int>(wait_word(cta, verdicts, int64_t{request_idx} * (constants::kDraftLength + 4) + 2));
}

}  // namespace monostep::gpu
