// Where a sequence's caches lie: byte offsets inside KV pages and per-request state slots, and the host memory that
// holds them. Pages: compressed KV and index keys of kPageTokens positions, one part a KV source layer. Slots: window
// rings, draft rings, pending rows of unclosed ratio-2 groups, token-class history. Rings are indexed by position, so a
// rejected row is simply overwritten and nothing is copied back. Source: model.md 4.1, 4.2. Read by the backends; the
// engine only hands out indices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/geometry.h"
#include "program/layout.h"

namespace monostep::kv {

class PageLayout {
 public:
  explicit PageLayout(const model::Geometry& geometry);
  int64_t page_bytes() const { return page_bytes_; }
  // Offset inside a page of a group's record; `group_in_page` counts from 0 to kPageTokens / ratio - 1.
  int64_t compressed_offset(int owner_idx, int group_in_page) const;  // codes, then E4M3 scales
  int64_t index_key_offset(int owner_idx, int group_in_page) const;   // codes, then E8M0 scales
  int groups_per_page(int owner_idx) const { return groups_per_page_[static_cast<size_t>(owner_idx)]; }

 private:
  std::vector<int64_t> compressed_begin_;  // [owners]
  std::vector<int64_t> index_key_begin_;   // [owners]
  std::vector<int> groups_per_page_;       // [owners]
  int64_t compressed_record_ = 0;
  int64_t index_record_ = 0;
  int64_t page_bytes_ = 0;
};

class SlotLayout {
 public:
  explicit SlotLayout(const model::Geometry& geometry);
  int64_t slot_bytes() const { return slot_bytes_; }
  int ring_rows() const { return ring_rows_; }
  int pending_rows() const { return pending_rows_; }
  int history_rows() const { return history_rows_; }
  // Window ring of a layer (draft layers too): a record of codes, then scales, for a position.
  int64_t ring_offset(int layer_idx, int position) const;
  // Pending (kv, gate) of an even position at a ratio-2 owner: 2 x head_dim f32.
  int64_t pending_offset(int owner_idx, int position) const;
  // Token class (int32) of a position.
  int64_t class_offset(int position) const;

 private:
  int ring_rows_ = 0;
  int pending_rows_ = 0;
  int history_rows_ = 0;
  int64_t record_ = 0;
  int64_t pending_record_ = 0;
  int64_t pending_begin_ = 0;
  int64_t history_begin_ = 0;
  int64_t slot_bytes_ = 0;
};

// One rank's page pool and state pool on the host.
struct Pools {
  Pools(const model::Geometry& geometry, int num_pages, int num_slots);
  std::byte* page(int32_t page_idx) { return pages.data() + page_idx * page_layout.page_bytes(); }
  std::byte* slot(int slot_idx) { return slots.data() + slot_idx * slot_layout.slot_bytes(); }

  PageLayout page_layout;
  SlotLayout slot_layout;
  std::vector<std::byte> pages;  // [num_pages][page_bytes]
  std::vector<std::byte> slots;  // [num_slots][slot_bytes]
};

}  // namespace monostep::kv
