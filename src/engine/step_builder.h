// Turns a routing decision into the step that a backend is given. Called by Engine::step.
#pragma once

#include <cstdint>

#include "engine/scheduler.h"
#include "program/step.h"

namespace monostep::engine {

// The page tables in the result point into the decision's sequences, which must not change before the step is done.
program::StepInputs build_step(const StepDecision& decision, uint32_t epoch);

}  // namespace monostep::engine
