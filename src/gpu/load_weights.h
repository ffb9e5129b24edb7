// The packed weights of a checkpoint's rank on their way to a device: from the packed file of an earlier start, else
// packed tensor by tensor and kept in such a file. Pieces go through two pinned buffers, so that reading or packing one
// goes beside the copy of the one before and the host never holds them all. Called by gpu/rank.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "gpu/device_api.h"
#include "program/layout.h"
#include "weights/checkpoint.h"

namespace monostep::gpu {

enum class WeightsFrom {
  kSynthetic,   // filled on the device
  kCheckpoint,  // packed
  kCache,       // the packed file of an earlier start
};
const char* weights_from_name(WeightsFrom from);

struct WeightsLoad {
  WeightsFrom from = WeightsFrom::kSynthetic;
  int64_t file_bytes = 0;  // of the packed weights in the packed file that is now there; 0: none
  std::string warning;     // why a file was not taken or none could be kept; empty if all went well
};

// Packed weights of `rank`, on the device. `cache_dir`: folder of packed files; empty: none is read or written. What a
// file lacks (room, or its bytes are damaged) is a warning and never an error. Errors: the packer's and the device's.
Result<Buffer> load_weights(Device& device, const weights::Checkpoint& checkpoint, const program::Layout& layout,
                            int rank, const std::filesystem::path& cache_dir, WeightsLoad& load);

}  // namespace monostep::gpu
