// Launch cuts: which calls of a step one launch runs. The program is the same, and so are the bits. Read by GpuBackend
// and by trace.
#pragma once

#include <string_view>
#include <vector>

#include "base/result.h"
#include "program/step_rules.h"

namespace monostep::gpu {

enum class Cut { kStep, kLayer, kStage };  // calls of one launch; kStage is the ordinary path

// kInvalidArgument where the name is none of step, layer and stage.
Result<Cut> parse_cut(std::string_view name);

// The launches of a range of calls, in order.
std::vector<program::CallRange> cut_calls(const program::Program& program, const program::CallRange& range, Cut cut);

}  // namespace monostep::gpu
