// Cache records for positions that nobody computed: valid random codes and scales of moderate size in pages (compressed
// KV, index keys) and in a state slot (window and draft rings, pending rows, token classes). Used by tests of long
// contexts.
#pragma once

#include <cstring>
#include <random>

#include "kv/state.h"
#include "model/shard.h"

namespace monostep::gpu {

class SyntheticRecords {
 public:
  explicit SyntheticRecords(const model::Geometry& geometry) : geometry_(geometry) {}

  void fill_page(kv::Pools& pools, int page_idx) {
    std::byte* page = pools.page(page_idx);
    const int compressed = model::compressed_record_bytes(geometry_), index = model::index_record_bytes(geometry_);
    for (int owner_idx = 0; owner_idx < static_cast<int>(geometry_.kv_source_layer_ids.size()); ++owner_idx) {
      for (int group = 0; group < pools.page_layout.groups_per_page(owner_idx); ++group) {
        std::byte* record = page + pools.page_layout.compressed_offset(owner_idx, group);
        fill(record, geometry_.head_dim / 2, 0, 256);                                        // e2m1 pairs
        fill(record + geometry_.head_dim / 2, compressed - geometry_.head_dim / 2, 40, 16);  // e4m3: 1/4 .. 15/16
        std::byte* key = page + pools.page_layout.index_key_offset(owner_idx, group);
        fill(key, geometry_.index_head_dim / 2, 0, 256);
        fill(key + geometry_.index_head_dim / 2, index - geometry_.index_head_dim / 2, 125, 2);  // e8m0: 1/4, 1/2
      }
    }
  }

  void fill_slot(kv::Pools& pools, int slot_idx) {
    std::byte* slot = pools.slot(slot_idx);
    const kv::SlotLayout& layout = pools.slot_layout;
    const int window = model::window_record_bytes(geometry_);
    for (int layer_idx = 0; layer_idx < geometry_.num_layers(); ++layer_idx) {
      for (int row = 0; row < layout.ring_rows(); ++row) {
        std::byte* record = slot + layout.ring_offset(layer_idx, row);
        fill(record, geometry_.head_dim, 40, 24);  // e4m3: 1/4 .. 15/8
        for (int idx = 0; idx < geometry_.head_dim; ++idx) record[idx] |= static_cast<std::byte>(random_() & 0x80);
        fill(record + geometry_.head_dim, window - geometry_.head_dim, 126, 2);  // e8m0: 1/2, 1
      }
    }
    for (int owner_idx = 0; owner_idx < static_cast<int>(geometry_.kv_source_layer_ids.size()); ++owner_idx) {
      for (int row = 0; row < layout.pending_rows(); ++row)
        fill_pending(slot + layout.pending_offset(owner_idx, 2 * row));
    }
    for (int row = 0; row < layout.history_rows(); ++row) {
      const auto value =
          static_cast<int32_t>(random_() % static_cast<uint32_t>(geometry_.engram_compressed_vocab_size));
      std::memcpy(slot + layout.class_offset(row), &value, sizeof(value));
    }
  }

 private:
  // Bytes first .. first + count - 1.
  void fill(std::byte* bytes, int num_bytes, uint32_t first, uint32_t count) {
    for (int idx = 0; idx < num_bytes; ++idx) bytes[idx] = static_cast<std::byte>(first + random_() % count);
  }
  void fill_pending(std::byte* record) {
    for (int idx = 0; idx < 2 * geometry_.head_dim; ++idx) {
      const float value = static_cast<float>(random_() % 2001) / 1000.0f - 1.0f;
      std::memcpy(record + sizeof(float) * static_cast<size_t>(idx), &value, sizeof(value));
    }
  }

  const model::Geometry& geometry_;
  std::minstd_rand random_{17};
};

}  // namespace monostep::gpu
