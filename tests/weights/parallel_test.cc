// Tests of parallel_for: every piece of work once.
#include "weights/parallel.h"

#include <gtest/gtest.h>

namespace monostep::weights {
namespace {

TEST(ParallelFor, every_index_is_worked_on_once) {
  for (const size_t count : {0, 1, 2, 1000}) {
    std::vector<std::atomic<int>> calls(count);
    parallel_for(count, [&](size_t idx) { ++calls[idx]; });
    for (size_t idx = 0; idx < count; ++idx) EXPECT_EQ(calls[idx], 1) << idx << " of " << count;
  }
}

}  // namespace
}  // namespace monostep::weights
