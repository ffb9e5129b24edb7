// The step kernel: one persistent CTA an SM walks the calls of a launch. Eight consumer warps run the stage bodies; one
// producer warp streams the weights ahead of them. Compiled at load by NVRTC with the constants of one shape.
#include "gpu/device/next_step.h"
#include "gpu/device/stage_attend.h"
#include "gpu/device/stage_engram_rows.h"
#include "gpu/device/stage_ffn.h"
#include "gpu/device/stage_finish.h"
#include "gpu/device/stage_fold.h"
#include "gpu/device/stage_index.h"
#include "gpu/device/stage_kv.h"
#include "gpu/device/stage_linear.h"
#include "gpu/device/stage_markov.h"
#include "gpu/device/stage_mix.h"
#include "gpu/device/stage_sample.h"
#include "gpu/device/stage_select.h"

namespace monostep::gpu {

// Where the consumers are in the ring, and whether the step goes on: what a stage takes and gives, in registers.
struct Walk {
  uint32_t chunk_idx;
  uint32_t ring_at;
  bool alive;
};

inline Cta make_cta() {
  auto& shared = *reinterpret_cast<Shared*>(shared_base());
  const int thread = thread_idx();
  return {shared.params, shared, thread, thread % 32, thread / 32, cta_idx(), cta_count()};
}

// Each stage is compiled apart, with registers of its own.
template <Stage S>
MONOSTEP_NOINLINE inline Walk run(Walk walk, int call_idx) {
  Cta cta = make_cta();
  cta.call_idx = call_idx;
  cta.chunk_idx = walk.chunk_idx;
  cta.ring_at = walk.ring_at;
  StageContext<S> ctx(cta);
  const bool alive = run_stage(ctx);
  return {cta.chunk_idx, cta.ring_at, alive};
}

inline Walk run_call(Walk walk, int stage, int call_idx) {
  switch (static_cast<Stage>(stage)) {
    case Stage::kEngramRows: return run<Stage::kEngramRows>(walk, call_idx);
    case Stage::kEngramKv: return run<Stage::kEngramKv>(walk, call_idx);
    case Stage::kEngramFold: return run<Stage::kEngramFold>(walk, call_idx);
    case Stage::kFold: return run<Stage::kFold>(walk, call_idx);
    case Stage::kAttnMix: return run<Stage::kAttnMix>(walk, call_idx);
    case Stage::kAttnIn: return run<Stage::kAttnIn>(walk, call_idx);
    case Stage::kQNorm: return run<Stage::kQNorm>(walk, call_idx);
    case Stage::kQProj: return run<Stage::kQProj>(walk, call_idx);
    case Stage::kKvNew: return run<Stage::kKvNew>(walk, call_idx);
    case Stage::kIndexScore: return run<Stage::kIndexScore>(walk, call_idx);
    case Stage::kIndexSelect: return run<Stage::kIndexSelect>(walk, call_idx);
    case Stage::kAttend: return run<Stage::kAttend>(walk, call_idx);
    case Stage::kWoA: return run<Stage::kWoA>(walk, call_idx);
    case Stage::kOSum: return run<Stage::kOSum>(walk, call_idx);
    case Stage::kWoB: return run<Stage::kWoB>(walk, call_idx);
    case Stage::kFfnFold: return run<Stage::kFfnFold>(walk, call_idx);
    case Stage::kFfnMix: return run<Stage::kFfnMix>(walk, call_idx);
    case Stage::kFfnIn: return run<Stage::kFfnIn>(walk, call_idx);
    case Stage::kExpertUp: return run<Stage::kExpertUp>(walk, call_idx);
    case Stage::kExpertAct: return run<Stage::kExpertAct>(walk, call_idx);
    case Stage::kExpertDown: return run<Stage::kExpertDown>(walk, call_idx);
    case Stage::kHeadFold: return run<Stage::kHeadFold>(walk, call_idx);
    case Stage::kHead: return run<Stage::kHead>(walk, call_idx);
    case Stage::kSample: return run<Stage::kSample>(walk, call_idx);
    case Stage::kVerdict: return run<Stage::kVerdict>(walk, call_idx);
    case Stage::kMainProj: return run<Stage::kMainProj>(walk, call_idx);
    case Stage::kContextProj: return run<Stage::kContextProj>(walk, call_idx);
    case Stage::kContextNew: return run<Stage::kContextNew>(walk, call_idx);
    case Stage::kMarkov: return run<Stage::kMarkov>(walk, call_idx);
    case Stage::kDraftOut: return run<Stage::kDraftOut>(walk, call_idx);
  }
  return {0, 0, false};
}

inline void copy_words(void* to, uint64_t from, int bytes, int thread, int threads) {
  for (int i = thread; i < bytes / 16; i += threads)
    static_cast<Word4*>(to)[i] = load_constant(reinterpret_cast<const Word4*>(from) + i);
}

inline uint64_t record_address(const KernelParams& params, int call) {
  return params.calls + static_cast<uint64_t>(call) * sizeof(CallRecord);
}

inline void set_up(const KernelParams& params) {
  auto& shared = *reinterpret_cast<Shared*>(shared_base());
  const int thread = thread_idx();
  if (thread == 0) {
    for (int slot = 0; slot < kRingSlots; ++slot) {
      mbarrier_init(&shared.full[slot], 1);
      mbarrier_init(&shared.empty[slot], kWarps);
    }
    mbarrier_init(&shared.routed, 1);
    mbarrier_init_fence();
    shared.dead = 0;
    shared.routed_layer = -1;
    shared.scaled_key = -1;
    shared.num_experts = 0;
    shared.params = params;
  }
  for (int i = thread; i < constants::kPairCapacity; i += kThreads) shared.identity[i] = static_cast<int16_t>(i);
  const bool laid_out = params.previous_step != 0;
  copy_words(&shared.step, laid_out ? params.previous_step : params.step, sizeof(StepRecord), thread, kThreads);
  copy_words(&shared.calls[params.first_call & 1], record_address(params, params.first_call), sizeof(CallRecord), thread,
             kThreads);
  bar_sync_or(0, kThreads, false);
  if (!laid_out) return;
  if (!lay_out_next(shared) && thread == 0) give_up(0, ~0u, 4, shared.step.epoch);
  bar_sync_or(0, kThreads, false);
  if (cta_idx() != 0) return;
  for (int i = thread; i < static_cast<int>(sizeof(StepRecord) / 16); i += kThreads)
    reinterpret_cast<Word4*>(params.step)[i] = reinterpret_cast<const Word4*>(&shared.step)[i];
}

// The consumers' walk. The next call's record is fetched while a call runs.
inline void consume() {
  auto& shared = *reinterpret_cast<Shared*>(shared_base());
  const int first = shared.params.first_call;
  const int last = shared.params.last_call;
  Walk walk{0, 0, true};
  for (int call = first; call < last; ++call) {
    if (call + 1 < last)
      copy_words(&shared.calls[(call + 1) & 1], record_address(shared.params, call + 1), sizeof(CallRecord), thread_idx(),
                 kConsumers);
    CallClock* clock = thread_idx() == 0 ? call_clock(shared.params, call) : nullptr;
    if (clock != nullptr) *clock = {clock_cycles(), 0, 0, 0};
    walk = run_call(walk, shared.calls[call & 1].stage, call);
    if (clock != nullptr) clock->end = clock_cycles();
    if (!walk.alive) break;
    bar_sync(1, kConsumers);
  }
}

MONOSTEP_NOINLINE inline void produce() {
  Cta cta = make_cta();
  Producer(cta, cta.shared.ring_sizes).run();
}

inline void step_kernel(const KernelParams& params) {
  set_up(params);
  if (thread_idx() < kConsumers) {
    consume();
  } else {
    produce();
  }
}

}  // namespace monostep::gpu

#ifndef MONOSTEP_EMULATED
extern "C" __global__ void __launch_bounds__(monostep::gpu::kThreads, 1)
    monostep_step(const __grid_constant__ monostep::gpu::KernelParams params) {
  monostep::gpu::step_kernel(params);
}
#endif
