// parallel_for: runs numbered pieces of work on a few threads. For work at load time only (value scan, synthetic
// weights).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

namespace monostep::weights {

// Calls `work(idx)` once for every idx in [0, count), in any order, from several threads.
template <typename Work>
void parallel_for(size_t count, const Work& work) {
  constexpr size_t kMaxThreads = 16;
  const size_t num_cores = std::max<size_t>(std::thread::hardware_concurrency(), 1);
  std::atomic<size_t> next = 0;
  const auto run = [&] {
    for (size_t idx = next++; idx < count; idx = next++) work(idx);
  };
  std::vector<std::thread> threads;
  for (size_t idx = 1; idx < std::min({num_cores, kMaxThreads, count}); ++idx) threads.emplace_back(run);
  run();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace monostep::weights
