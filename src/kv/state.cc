// Offsets of the cache records (kv/state.h).
#include "kv/state.h"

#include "base/check.h"
#include "base/integer.h"
#include "model/shard.h"

namespace monostep::kv {

PageLayout::PageLayout(const model::Geometry& geometry)
    : compressed_record_(model::compressed_record_bytes(geometry)), index_record_(model::index_record_bytes(geometry)) {
  int64_t offset = 0;
  for (const int layer_idx : geometry.kv_source_layer_ids) {
    const int groups = program::kPageTokens / geometry.compress_ratios[static_cast<size_t>(layer_idx)];
    groups_per_page_.push_back(groups);
    compressed_begin_.push_back(offset);
    offset += groups * compressed_record_;
    index_key_begin_.push_back(offset);
    offset += groups * index_record_;
  }
  page_bytes_ = round_up<int64_t>(offset, 64);
}

int64_t PageLayout::compressed_offset(int owner_idx, int group_in_page) const {
  return compressed_begin_[static_cast<size_t>(owner_idx)] + group_in_page * compressed_record_;
}

int64_t PageLayout::index_key_offset(int owner_idx, int group_in_page) const {
  return index_key_begin_[static_cast<size_t>(owner_idx)] + group_in_page * index_record_;
}

SlotLayout::SlotLayout(const model::Geometry& geometry)
    : ring_rows_(program::window_ring_rows(geometry)),
      pending_rows_(program::kMaxBand / 2 + 1),
      history_rows_(program::kMaxBand + geometry.engram_max_ngram_size),
      record_(model::window_record_bytes(geometry)),
      pending_record_(int64_t{2} * geometry.head_dim * static_cast<int64_t>(sizeof(float))) {
  pending_begin_ = round_up<int64_t>(record_ * ring_rows_ * geometry.num_layers(), 64);
  const auto owners = static_cast<int64_t>(geometry.kv_source_layer_ids.size());
  history_begin_ = pending_begin_ + owners * pending_rows_ * pending_record_;
  slot_bytes_ = round_up<int64_t>(history_begin_ + history_rows_ * int64_t{sizeof(int32_t)}, 64);
}

int64_t SlotLayout::ring_offset(int layer_idx, int position) const {
  return (int64_t{layer_idx} * ring_rows_ + position % ring_rows_) * record_;
}

int64_t SlotLayout::pending_offset(int owner_idx, int position) const {
  return pending_begin_ + (int64_t{owner_idx} * pending_rows_ + (position / 2) % pending_rows_) * pending_record_;
}

int64_t SlotLayout::class_offset(int position) const {
  return history_begin_ + (position % history_rows_) * int64_t{sizeof(int32_t)};
}

Pools::Pools(const model::Geometry& geometry, int num_pages, int num_slots)
    : page_layout(geometry),
      slot_layout(geometry),
      pages(static_cast<size_t>(num_pages * page_layout.page_bytes())),
      slots(static_cast<size_t>(num_slots * slot_layout.slot_bytes())) {}

}  // namespace monostep::kv
