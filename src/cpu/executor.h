// Executor: walks calls of a program over the simulated CTAs of all ranks. Each CTA runs its tasks of every call in
// program order and waits for what it polls, as a CTA of the persistent kernel does. Two ways: a thread a CTA
// (generate), or one CTA at a time in a random legal order with the checks of level L2 (tests). Called by the backend
// and by trace.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "cpu/machine.h"
#include "program/step_rules.h"

namespace monostep::cpu {

using program::CallRange;

// Runs the calls on all ranks and CTAs; returns when all are done. Error: kInternal when nothing can proceed (names
// region, granule, wanted and seen tag, and who waits). The machine must have been made without checks, which CTAs that
// run at one time would upset.
Status run_calls(Machine& machine, const CallRange& range);

// The same, one CTA at a time: order, task order inside a call and interleaving come from `seed`. Also kInternal when a
// put would overwrite unread content or holds what was never put. The machine must have been made with checks.
Status run_calls_in_random_order(Machine& machine, const CallRange& range, uint64_t seed);

}  // namespace monostep::cpu
