// Launch cuts (gpu/launch_cuts.h).
#include "gpu/launch_cuts.h"

#include <string>

namespace monostep::gpu {

using program::Call;
using program::CallRange;

Result<Cut> parse_cut(std::string_view name) {
  if (name == "step") return Cut::kStep;
  if (name == "layer") return Cut::kLayer;
  if (name == "stage") return Cut::kStage;
  return Error{Code::kInvalidArgument, "\"" + std::string(name) + "\" is none of step, layer, stage", "--cut"};
}

std::vector<CallRange> cut_calls(const program::Program& program, const CallRange& range, Cut cut) {
  const auto together = [&](int call_idx, int next_idx) {
    const Call& call = program.calls[static_cast<size_t>(call_idx)];
    const Call& next = program.calls[static_cast<size_t>(next_idx)];
    return cut == Cut::kStep || (cut == Cut::kLayer && call.layer == next.layer && call.section == next.section);
  };
  std::vector<CallRange> out;
  for (int call_idx = range.first; call_idx < range.last; ++call_idx) {
    if (!out.empty() && together(call_idx - 1, call_idx)) {
      out.back().last = call_idx + 1;
    } else {
      out.push_back({call_idx, call_idx + 1});
    }
  }
  return out;
}

}  // namespace monostep::gpu
