// Pages and slots: what is handed out is free, unique and in range; nothing changes where too little is left; what is
// given back comes again; giving back what is not held is caught.
#include "kv/allocator.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <set>

#include "program/layout.h"

namespace monostep::kv {
namespace {

constexpr int kPage = program::kPageTokens;

TEST(PageAllocator, covers_positions_with_whole_pages) {
  EXPECT_EQ(PageAllocator::pages_for(0), 0);
  EXPECT_EQ(PageAllocator::pages_for(1), 1);
  EXPECT_EQ(PageAllocator::pages_for(kPage), 1);
  EXPECT_EQ(PageAllocator::pages_for(kPage + 1), 2);
  PageAllocator allocator(4);
  std::vector<int32_t> pages;
  EXPECT_TRUE(allocator.cover(pages, kPage));
  EXPECT_EQ(pages.size(), 1u);
  EXPECT_TRUE(allocator.cover(pages, kPage + 1));
  EXPECT_EQ(pages.size(), 2u);
  EXPECT_TRUE(allocator.cover(pages, 3));  // already covered
  EXPECT_EQ(pages.size(), 2u);
  EXPECT_EQ(allocator.num_free(), 2);
}

TEST(PageAllocator, takes_nothing_where_too_few_are_free) {
  PageAllocator allocator(3);
  std::vector<int32_t> first, second;
  ASSERT_TRUE(allocator.cover(first, 2 * kPage));
  EXPECT_FALSE(allocator.cover(second, 2 * kPage));
  EXPECT_TRUE(second.empty());
  EXPECT_EQ(allocator.num_free(), 1);
  allocator.release(first);
  EXPECT_TRUE(first.empty());
  EXPECT_TRUE(allocator.cover(second, 3 * kPage));
}

TEST(PageAllocator, no_page_has_two_holders_in_any_history) {
  EXPECT_TRUE(rc::check("grow and release at random", [] {
    PageAllocator allocator(12);
    std::vector<std::vector<int32_t>> holders(4);
    const auto actions = *rc::gen::container<std::vector<int>>(60, rc::gen::inRange(0, 40));
    for (const int action : actions) {
      std::vector<int32_t>& pages = holders[static_cast<size_t>(action % 4)];
      if (action >= 32) {
        allocator.release(pages);
      } else {
        allocator.cover(pages, (action / 4) * kPage);
      }
      std::set<int32_t> held;
      size_t num_held = 0;
      for (const auto& holder : holders) {
        held.insert(holder.begin(), holder.end());
        num_held += holder.size();
      }
      RC_ASSERT(held.size() == num_held);
      RC_ASSERT(num_held + static_cast<size_t>(allocator.num_free()) == 12u);
      if (!held.empty()) RC_ASSERT(*held.begin() >= 0);
      if (!held.empty()) RC_ASSERT(*held.rbegin() < 12);
    }
  }));
}

TEST(PageAllocatorDeathTest, a_page_that_is_not_held_cannot_be_given_back) {
  PageAllocator allocator(2);
  std::vector<int32_t> pages;
  ASSERT_TRUE(allocator.cover(pages, 1));
  std::vector<int32_t> copy = pages;
  allocator.release(pages);
  EXPECT_DEATH(allocator.release(copy), "is held");
  copy = {2};
  EXPECT_DEATH(allocator.release(copy), "is held");
}

TEST(SlotAllocator, hands_out_each_slot_once_until_it_is_back) {
  SlotAllocator allocator(2);
  EXPECT_EQ(allocator.take(), 0);
  EXPECT_EQ(allocator.take(), 1);
  EXPECT_EQ(allocator.take(), std::nullopt);
  EXPECT_EQ(allocator.num_free(), 0);
  allocator.release(0);
  EXPECT_EQ(allocator.num_free(), 1);
  EXPECT_EQ(allocator.take(), 0);
}

TEST(SlotAllocatorDeathTest, a_slot_that_is_not_held_cannot_be_given_back) {
  SlotAllocator allocator(2);
  EXPECT_DEATH(allocator.release(0), "is held");
  EXPECT_DEATH(allocator.release(2), "is held");
}

}  // namespace
}  // namespace monostep::kv
