// Must not compile: a fold that reads the logits, a region that its declaration does not list. With POSITIVE_CONTROL it
// reads one that it lists.
#include "cpu/context.h"

namespace monostep::cpu {

const float* words_of_fold(StageContext<program::Stage::kFold>& ctx) {
#ifdef POSITIVE_CONTROL
  return ctx.read<program::Region::kFfnExchange>();
#else
  return ctx.read<program::Region::kLogits>();
#endif
}

}  // namespace monostep::cpu
