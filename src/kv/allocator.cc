// The pools' index lists (kv/allocator.h).
#include "kv/allocator.h"

#include <algorithm>

#include "base/check.h"
#include "base/integer.h"
#include "program/layout.h"

namespace monostep::kv {

PageAllocator::PageAllocator(int num_pages) : held_(static_cast<size_t>(num_pages), false) {
  for (int page = num_pages - 1; page >= 0; --page) free_.push_back(page);
}

int PageAllocator::pages_for(int num_positions) { return ceil_div(num_positions, program::kPageTokens); }

bool PageAllocator::cover(std::vector<int32_t>& pages, int num_positions) {
  const int num_missing = pages_for(num_positions) - static_cast<int>(pages.size());
  if (num_missing > num_free()) return false;
  for (int taken = 0; taken < num_missing; ++taken) {
    const int32_t page = free_.back();
    free_.pop_back();
    held_[static_cast<size_t>(page)] = true;
    pages.push_back(page);
  }
  return true;
}

void PageAllocator::release(std::vector<int32_t>& pages) {
  for (const int32_t page : pages) {
    CHECK(page >= 0 && page < num_pages() && held_[static_cast<size_t>(page)], "a page that is given back is held");
    held_[static_cast<size_t>(page)] = false;
    free_.push_back(page);
  }
  pages.clear();
}

SlotAllocator::SlotAllocator(int num_slots) : held_(static_cast<size_t>(num_slots), false) {}

int SlotAllocator::num_free() const { return static_cast<int>(std::count(held_.begin(), held_.end(), false)); }

std::optional<int> SlotAllocator::take() {
  const auto free = std::find(held_.begin(), held_.end(), false);
  if (free == held_.end()) return std::nullopt;
  *free = true;
  return static_cast<int>(free - held_.begin());
}

void SlotAllocator::release(int slot) {
  CHECK(slot >= 0 && slot < num_slots() && held_[static_cast<size_t>(slot)], "a slot that is given back is held");
  held_[static_cast<size_t>(slot)] = false;
}

}  // namespace monostep::kv
