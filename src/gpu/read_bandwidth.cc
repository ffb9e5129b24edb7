// Measuring reads (gpu/read_bandwidth.h).
#include "gpu/read_bandwidth.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "gpu/device/read_params.h"

namespace monostep::gpu {
namespace {

constexpr uint8_t kPattern = 0x01;
constexpr uint64_t kPatternWord = 0x0101010101010101;

Launch launch_of(const ReadParams& params, int num_ctas) {
  Launch launch;
  launch.num_ctas = num_ctas;
  launch.threads = kReadThreads;
  launch.shared_bytes = kReadSharedBytes;
  launch.params = &params;
  launch.params_bytes = sizeof(params);
  return launch;
}

// The kernel read every chunk once.
Status check_sums(Device& device, const ReadParams& params, int num_ctas) {
  std::vector<uint64_t> sums(static_cast<size_t>(num_ctas));
  TRY(device.download(sums.data(), params.sums, static_cast<int64_t>(sums.size() * sizeof(uint64_t))));
  const uint64_t sum = std::accumulate(sums.begin(), sums.end(), uint64_t{0});
  if (sum == kPatternWord * static_cast<uint64_t>(params.num_chunks)) return {};
  return Error{Code::kInternal, "the kernel did not read what was there", "read bandwidth"};
}

}  // namespace

Result<ReadBandwidth> measure_read_bandwidth(Device& device, Kernel kernel, int64_t num_bytes, int repeats) {
  CHECK(num_bytes >= kReadChunkBytes && repeats > 0, "a chunk at least, once at least");
  TRY_ASSIGN(const DeviceInfo info, device.info());
  ReadParams params = {0, 0, num_bytes / kReadChunkBytes};
  const int64_t bytes = params.num_chunks * kReadChunkBytes;
  TRY_ASSIGN(const Buffer memory, Buffer::create(device, bytes));
  TRY_ASSIGN(const Buffer sums, Buffer::create(device, info.num_sms * int64_t{sizeof(uint64_t)}));
  params.from = memory.ptr();
  params.sums = sums.ptr();
  TRY(device.fill(memory.ptr(), kPattern, bytes));
  const Launch launch = launch_of(params, info.num_sms);
  TRY(device.launch(kernel, launch));  // the first one also loads the code
  TRY(device.synchronize());
  TRY(check_sums(device, params, info.num_sms));
  std::vector<double> rates;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    TRY(device.record(0));
    TRY(device.launch(kernel, launch));
    TRY(device.record(1));
    TRY_ASSIGN(const float ms, device.elapsed_ms(0, 1));
    rates.push_back(static_cast<double>(bytes) / (static_cast<double>(ms) * 1e-3));
  }
  TRY(check_sums(device, params, info.num_sms));
  std::sort(rates.begin(), rates.end());
  return ReadBandwidth{rates[rates.size() / 2], rates.front(), rates.back()};
}

}  // namespace monostep::gpu
