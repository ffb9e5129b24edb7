// The stage bodies of the CPU reference, one specialisation a stage, in the files stage_*.cc. Each computes the tasks
// of one CTA for one call and leaves early when a poll gives up. Called by the executor.
#pragma once

#include "cpu/context.h"

namespace monostep::cpu {

template <program::Stage S>
void run_stage(StageContext<S>& ctx);

template <>
void run_stage(StageContext<program::Stage::kEngramRows>& ctx);
template <>
void run_stage(StageContext<program::Stage::kEngramKv>& ctx);
template <>
void run_stage(StageContext<program::Stage::kEngramFold>& ctx);
template <>
void run_stage(StageContext<program::Stage::kFold>& ctx);
template <>
void run_stage(StageContext<program::Stage::kAttnMix>& ctx);
template <>
void run_stage(StageContext<program::Stage::kAttnIn>& ctx);
template <>
void run_stage(StageContext<program::Stage::kQNorm>& ctx);
template <>
void run_stage(StageContext<program::Stage::kQProj>& ctx);
template <>
void run_stage(StageContext<program::Stage::kKvNew>& ctx);
template <>
void run_stage(StageContext<program::Stage::kIndexScore>& ctx);
template <>
void run_stage(StageContext<program::Stage::kIndexSelect>& ctx);
template <>
void run_stage(StageContext<program::Stage::kAttend>& ctx);
template <>
void run_stage(StageContext<program::Stage::kAttnMerge>& ctx);
template <>
void run_stage(StageContext<program::Stage::kWoA>& ctx);
template <>
void run_stage(StageContext<program::Stage::kOSum>& ctx);
template <>
void run_stage(StageContext<program::Stage::kWoB>& ctx);
template <>
void run_stage(StageContext<program::Stage::kFfnFold>& ctx);
template <>
void run_stage(StageContext<program::Stage::kFfnMix>& ctx);
template <>
void run_stage(StageContext<program::Stage::kFfnIn>& ctx);
template <>
void run_stage(StageContext<program::Stage::kExpertUp>& ctx);
template <>
void run_stage(StageContext<program::Stage::kExpertAct>& ctx);
template <>
void run_stage(StageContext<program::Stage::kExpertDown>& ctx);
template <>
void run_stage(StageContext<program::Stage::kHeadFold>& ctx);
template <>
void run_stage(StageContext<program::Stage::kHead>& ctx);
template <>
void run_stage(StageContext<program::Stage::kSample>& ctx);
template <>
void run_stage(StageContext<program::Stage::kVerdict>& ctx);
template <>
void run_stage(StageContext<program::Stage::kMainProj>& ctx);
template <>
void run_stage(StageContext<program::Stage::kContextProj>& ctx);
template <>
void run_stage(StageContext<program::Stage::kContextNew>& ctx);
template <>
void run_stage(StageContext<program::Stage::kMarkov>& ctx);
template <>
void run_stage(StageContext<program::Stage::kDraftOut>& ctx);

}  // namespace monostep::cpu
