// The device program's sources, embedded in the binary when it is built: everything under src/gpu/device and the
// headers of base and program that it includes. Read by the compile at load; nothing of the source tree is needed at
// run time.
#pragma once

#include <span>
#include <string_view>

namespace monostep::gpu {

struct EmbeddedFile {
  std::string_view name;  // relative to src/, as it is included: "gpu/device/ptx.h"
  std::string_view text;
};

std::span<const EmbeddedFile> device_sources();

// The file of a name, or null.
const EmbeddedFile* find_device_source(std::string_view name);

}  // namespace monostep::gpu
