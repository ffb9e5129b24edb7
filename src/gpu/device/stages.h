// The body of a stage on one CTA: all consumer threads call it; false when the step was given up. One specialisation a
// stage, in the files stage_*.h.
#pragma once

#include "gpu/device/cta.h"

namespace monostep::gpu {

template <Stage S>
bool run_stage(StageContext<S>& ctx);

}  // namespace monostep::gpu
