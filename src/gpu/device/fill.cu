// Fills packed weights and tables of a synthetic shard where they lie (weights/fill_record.h says what each word is).
// Every CTA takes its share of every record. Compiled at load by NVRTC, apart from the step kernel.
#include "weights/fill_record.h"

namespace monostep::gpu {

// Byte `idx` of a table of FP8 rows, or of its scale plane.
inline uint32_t table_byte(const weights::FillRecord& record, int64_t idx) {
  const weights::ValueRule& rule = record.rules[0];
  if (record.parts == 2) return weights::scale_byte(rule, idx);
  return weights::code_byte(rule, idx / record.num_columns, idx % record.num_columns);
}

inline uint32_t word_of(const weights::FillRecord& record, int64_t idx, bool table) {
  if (!table) return weights::packed_word(record, idx);
  uint32_t word = 0;
  for (int byte = 0; byte < 4; ++byte) word |= table_byte(record, idx * 4 + byte) << (8 * byte);
  return word;
}

}  // namespace monostep::gpu

struct FillParams {
  uint64_t records;
  uint64_t to;
  int32_t num_records;
  int32_t table;  // 1: bytes of a table of FP8 rows (parts 1) or of its scales (parts 2)
};

extern "C" __global__ void __launch_bounds__(256) monostep_fill(const __grid_constant__ FillParams params) {
  using namespace monostep;
  __shared__ weights::FillRecord record;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int i = 0; i < params.num_records; ++i) {
    __syncthreads();
    const auto* from = reinterpret_cast<const uint32_t*>(params.records) + i * (sizeof(weights::FillRecord) / 4);
    for (int word = threadIdx.x; word < static_cast<int>(sizeof(weights::FillRecord) / 4); word += blockDim.x)
      reinterpret_cast<uint32_t*>(&record)[word] = from[word];
    __syncthreads();
    auto* to = reinterpret_cast<uint32_t*>(params.to + static_cast<uint64_t>(record.first_offset));
    for (int64_t word = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; word < record.num_words;
         word += threads)
      to[word] = gpu::word_of(record, word, params.table != 0);
  }
}
