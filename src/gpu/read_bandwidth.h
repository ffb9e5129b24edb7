// Read bandwidth of a device's memory, measured with a kernel that does nothing but read (device/read.cu): the
// yardstick of `monostep bench`, in the same run, because machines differ.
#pragma once

#include <cstdint>

#include "gpu/device_api.h"

namespace monostep::gpu {

struct ReadBandwidth {  // bytes/s over the repeats, launch and set-up included
  double median = 0;
  double least = 0;
  double most = 0;
};

// Reads `num_bytes` (rounded down to whole chunks) of memory that it allocates for the time. `kernel` is the one of
// read_sources(). Errors: the device's, and kInternal where the kernel did not read what was there.
Result<ReadBandwidth> measure_read_bandwidth(Device& device, Kernel kernel, int64_t num_bytes, int repeats);

}  // namespace monostep::gpu
