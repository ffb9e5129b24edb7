// The step kernel: one persistent CTA an SM walks the calls of a launch. Eight consumer warps run the stage bodies; one
// producer warp streams the weights ahead of them; where a launch has one more, it plays the peers. Compiled at load by
// NVRTC with the constants of one shape.
#include "gpu/device/next_step.h"
#include "gpu/device/peers.h"
#include "gpu/device/stage_attend.h"
#include "gpu/device/stage_attn_merge.h"
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

inline Cta make_cta() {
  auto& shared = *reinterpret_cast<Shared*>(shared_base());
  const int thread = thread_idx();
  return {shared.params, shared, thread, thread % 32, thread / 32, cta_idx(), cta_count()};
}

// Each stage is compiled apart. Nothing is held in registers across it: they are all its own. The call behind
// `call_idx`; -1: given up.
template <Stage S>
MONOSTEP_NOINLINE inline int run(int call_idx) {
  constexpr bool kStreams = streams_weights(static_cast<int>(S));
  Cta cta = make_cta();
  cta.call_idx = call_idx;
  const bool timed = cta.thread == 0 && cta.params.clocks != 0;
  if (timed) *call_clock(cta.params, call_idx) = {clock_cycles(), 0, 0, 0};
  if constexpr (kStreams) {  // such a stage begins with a barrier (map_rows): all have read when a thread is at its end
    cta.chunk_idx = cta.shared.chunk_idx;
    cta.ring_at = cta.shared.ring_at;
  }
  StageContext<S> ctx(cta);
  const bool alive = run_stage(ctx);
  if constexpr (kStreams) {
    if (cta.thread == 0) {
      cta.shared.chunk_idx = cta.chunk_idx;
      cta.shared.ring_at = cta.ring_at;
    }
  }
  if (timed) call_clock(cta.params, call_idx)->end = clock_cycles();
  return alive ? call_idx + 1 : -1;
}

inline int run_call(int stage, int call_idx) {
  switch (static_cast<Stage>(stage)) {
    case Stage::kEngramRows: return run<Stage::kEngramRows>(call_idx);
    case Stage::kEngramKv: return run<Stage::kEngramKv>(call_idx);
    case Stage::kEngramFold: return run<Stage::kEngramFold>(call_idx);
    case Stage::kFold: return run<Stage::kFold>(call_idx);
    case Stage::kAttnMix: return run<Stage::kAttnMix>(call_idx);
    case Stage::kAttnIn: return run<Stage::kAttnIn>(call_idx);
    case Stage::kQNorm: return run<Stage::kQNorm>(call_idx);
    case Stage::kQProj: return run<Stage::kQProj>(call_idx);
    case Stage::kKvNew: return run<Stage::kKvNew>(call_idx);
    case Stage::kIndexScore: return run<Stage::kIndexScore>(call_idx);
    case Stage::kIndexSelect: return run<Stage::kIndexSelect>(call_idx);
    case Stage::kAttend: return run<Stage::kAttend>(call_idx);
    case Stage::kAttnMerge: return run<Stage::kAttnMerge>(call_idx);
    case Stage::kWoA: return run<Stage::kWoA>(call_idx);
    case Stage::kOSum: return run<Stage::kOSum>(call_idx);
    case Stage::kWoB: return run<Stage::kWoB>(call_idx);
    case Stage::kFfnFold: return run<Stage::kFfnFold>(call_idx);
    case Stage::kFfnMix: return run<Stage::kFfnMix>(call_idx);
    case Stage::kFfnIn: return run<Stage::kFfnIn>(call_idx);
    case Stage::kExpertUp: return run<Stage::kExpertUp>(call_idx);
    case Stage::kExpertAct: return run<Stage::kExpertAct>(call_idx);
    case Stage::kExpertDown: return run<Stage::kExpertDown>(call_idx);
    case Stage::kHeadFold: return run<Stage::kHeadFold>(call_idx);
    case Stage::kHead: return run<Stage::kHead>(call_idx);
    case Stage::kSample: return run<Stage::kSample>(call_idx);
    case Stage::kVerdict: return run<Stage::kVerdict>(call_idx);
    case Stage::kMainProj: return run<Stage::kMainProj>(call_idx);
    case Stage::kContextProj: return run<Stage::kContextProj>(call_idx);
    case Stage::kContextNew: return run<Stage::kContextNew>(call_idx);
    case Stage::kMarkov: return run<Stage::kMarkov>(call_idx);
    case Stage::kDraftOut: return run<Stage::kDraftOut>(call_idx);
  }
  return -1;
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
    shared.left = 0;
    shared.chunk_idx = 0;
    shared.ring_at = 0;
    shared.routed_layer = -1;
    shared.scaled_key = -1;
    shared.num_experts = 0;
    shared.params = params;
  }
  for (int i = thread; i < constants::kPairCapacity; i += kThreads) shared.identity[i] = static_cast<int16_t>(i);
  const bool laid_out = params.previous_step != 0;
  copy_words(&shared.step, laid_out ? params.previous_step : params.step, sizeof(StepRecord), thread, kThreads);
  copy_words(&shared.calls[params.first_call & 1], record_address(params, params.first_call), sizeof(CallRecord),
             thread, kThreads);
  bar_sync_or(0, kThreads, false);
  if (!laid_out) return;
  if (!lay_out_next(shared) && thread == 0) give_up(shared, 0, ~0u, 4, shared.step.epoch);
  bar_sync_or(0, kThreads, false);
  if (cta_idx() != 0) return;
  for (int i = thread; i < static_cast<int>(sizeof(StepRecord) / 16); i += kThreads)
    reinterpret_cast<Word4*>(params.step)[i] = reinterpret_cast<const Word4*>(&shared.step)[i];
}

// Fetches a call's record, if the launch has the call.
inline void fetch_call(Shared& shared, int call) {
  if (call >= shared.params.last_call) return;
  copy_words(&shared.calls[call & 1], record_address(shared.params, call), sizeof(CallRecord), thread_idx(),
             kConsumers);
}

// Tests: up to 16 us of sleep, drawn from the seed, the step, the call and the CTA.
inline void delay(const Shared& shared, int call) {
  if (shared.params.delay_seed == 0) return;
  uint32_t draw = shared.params.delay_seed + shared.step.epoch * 0x9e3779b9u;
  draw = (draw ^ (static_cast<uint32_t>(call) * 0x85ebca6bu)) * 0xc2b2ae35u;
  draw = (draw ^ (draw >> 15) ^ (static_cast<uint32_t>(cta_idx()) * 0x27d4eb2fu)) * 0x165667b1u;
  sleep_nanoseconds(static_cast<int>(draw >> 18));
}

// The consumers' walk. The next call's record is fetched while a call runs.
inline void consume() {
  auto& shared = *reinterpret_cast<Shared*>(shared_base());
  int call = shared.params.first_call;
  while (call >= 0 && call < shared.params.last_call) {
    fetch_call(shared, call + 1);
    delay(shared, call);
    call = run_call(shared.calls[call & 1].stage, call);
    bar_sync(1, kConsumers);
  }
  if (thread_idx() == 0) *const_cast<volatile int*>(&shared.left) = 1;
  report_stuck(shared);
}

MONOSTEP_NOINLINE inline void produce() {
  Cta cta = make_cta();
  Producer(cta, cta.shared.ring_sizes).run();
}

MONOSTEP_NOINLINE inline void play() { Player(*reinterpret_cast<Shared*>(shared_base())).run(); }

inline constexpr int kMostThreads = constants::kTp > 1 ? kPlayedThreads : kThreads;

inline void step_kernel(const KernelParams& params) {
  const int thread = thread_idx();
  if (thread < kThreads) set_up(params);
  if constexpr (kMostThreads > kThreads) {
    if (params.push == static_cast<int32_t>(Push::kPlayed)) bar_sync(2, kPlayedThreads);
    if (thread >= kThreads) return play();
  }
  if (thread < kConsumers) {
    consume();
  } else {
    produce();
  }
}

}  // namespace monostep::gpu

#ifndef MONOSTEP_EMULATED
extern "C" __global__ void __launch_bounds__(monostep::gpu::kMostThreads, 1)
    monostep_step(const __grid_constant__ monostep::gpu::KernelParams params) {
  monostep::gpu::step_kernel(params);
}
#endif
