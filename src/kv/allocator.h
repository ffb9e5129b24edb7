// Hands out the indices of the two pools: KV pages (a sequence takes more as it grows) and state slots (one a
// sequence). Single-threaded; an index is free or held by one holder, and what is given back must be held. Used by the
// scheduler.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace monostep::kv {

class PageAllocator {
 public:
  explicit PageAllocator(int num_pages);

  static int pages_for(int num_positions);
  int num_pages() const { return static_cast<int>(held_.size()); }
  int num_free() const { return static_cast<int>(free_.size()); }

  // Appends pages until `pages` covers positions 0 .. num_positions - 1. False, and nothing changed, where too few are
  // free.
  bool cover(std::vector<int32_t>& pages, int num_positions);

  // Takes all pages back and empties the list.
  void release(std::vector<int32_t>& pages);

 private:
  std::vector<int32_t> free_;  // the last one is taken next
  std::vector<bool> held_;     // [num_pages]
};

class SlotAllocator {
 public:
  explicit SlotAllocator(int num_slots);

  int num_slots() const { return static_cast<int>(held_.size()); }
  int num_free() const;

  // The lowest free slot.
  std::optional<int> take();
  void release(int slot);

 private:
  std::vector<bool> held_;  // [num_slots]
};

}  // namespace monostep::kv
