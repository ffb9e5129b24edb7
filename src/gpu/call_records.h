// The records that tell the step kernel what each call of a program reads, writes and streams (device/records.h), for
// one layout, plan and place of the packed weights; and the record of a step. Called by gpu/rank.
#pragma once

#include <cstdint>
#include <vector>

#include "gpu/device/records.h"
#include "program/plan.h"

namespace monostep::gpu {

// One a call of the program. `weights`: address of the rank's packed weights.
std::vector<CallRecord> call_records(const program::Layout& layout, const program::Plan& plan, uint64_t weights);

// The step's rows and requests; inputs must fit the layout's shape.
StepRecord step_record(const program::StepInputs& inputs, uint32_t epoch);

}  // namespace monostep::gpu
