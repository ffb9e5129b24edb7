// See context.h.
#include "emulator/context.h"

#include <sys/mman.h>

#include "base/check.h"

#ifdef __SANITIZE_ADDRESS__
#define MONOSTEP_EMULATOR_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MONOSTEP_EMULATOR_ASAN 1
#endif
#endif
#ifdef MONOSTEP_EMULATOR_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace monostep::gpu::emulator {

#ifdef MONOSTEP_EMULATOR_ASAN
constexpr size_t kStackScale = 4;  // instrumented frames are larger
static void before_switch(Context& from, const Context& to) {
  __sanitizer_start_switch_fiber(&from.fake_stack, to.stack_bottom, to.stack_bytes);
}
static void after_switch(Context& self) { __sanitizer_finish_switch_fiber(self.fake_stack, nullptr, nullptr); }
void enter_context(Context& main) {
  const void* bottom = nullptr;
  size_t num_bytes = 0;
  __sanitizer_finish_switch_fiber(nullptr, &bottom, &num_bytes);
  if (main.stack_bottom == nullptr) {  // the first fiber comes from the main stack
    main.stack_bottom = bottom;
    main.stack_bytes = num_bytes;
  }
}
static void forget_frames(std::byte* memory, size_t num_bytes) { __asan_unpoison_memory_region(memory, num_bytes); }
#else
constexpr size_t kStackScale = 1;
static void before_switch(Context&, const Context&) {}
static void after_switch(Context&) {}
void enter_context(Context&) {}
static void forget_frames(std::byte*, size_t) {}
#endif

#ifdef MONOSTEP_EMULATOR_ASM
extern "C" void monostep_switch_stack(void** from, void* to);
asm(R"(
.text
.p2align 4
.type monostep_switch_stack, @function
monostep_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size monostep_switch_stack, .-monostep_switch_stack
)");

void make_context(Context& context, std::byte* stack_bottom, size_t stack_bytes, void (*entry)()) {
  forget_frames(stack_bottom, stack_bytes);
  constexpr int kSavedRegisters = 6;
  auto* top = reinterpret_cast<uint64_t*>(stack_bottom + stack_bytes);
  *--top = 0;  // where the entry's return address would be: 8 below a multiple of 16, as after a call
  *--top = reinterpret_cast<uint64_t>(entry);
  for (int register_idx = 0; register_idx < kSavedRegisters; ++register_idx) *--top = 0;
  context = {.stack_pointer = top, .stack_bottom = stack_bottom, .stack_bytes = stack_bytes};
}

void switch_context(Context& from, Context& to) {
  before_switch(from, to);
  monostep_switch_stack(&from.stack_pointer, to.stack_pointer);
  after_switch(from);
}
#else
void make_context(Context& context, std::byte* stack_bottom, size_t stack_bytes, void (*entry)()) {
  forget_frames(stack_bottom, stack_bytes);
  context.fake_stack = nullptr;
  context.stack_bottom = stack_bottom;
  context.stack_bytes = stack_bytes;
  CHECK(getcontext(&context.state) == 0, "getcontext failed");
  context.state.uc_stack.ss_sp = stack_bottom;
  context.state.uc_stack.ss_size = stack_bytes;
  context.state.uc_link = nullptr;
  makecontext(&context.state, entry, 0);
}

void switch_context(Context& from, Context& to) {
  before_switch(from, to);
  swapcontext(&from.state, &to.state);
  after_switch(from);
}
#endif

namespace {
constexpr size_t kGuardBytes = 4096;
constexpr int kMaxGuardedStacks = 16384;  // two mappings each; Linux allows 65530 a process
}  // namespace

size_t StackPool::stride() { return kStackBytes * kStackScale + kGuardBytes; }

std::byte* StackPool::bottom(int stack_idx) const {
  return memory_ + static_cast<size_t>(stack_idx) * stride() + kGuardBytes;
}

// Stacks of equal alignment would meet in the same cache sets: each begins some lines lower than its neighbour.
size_t StackPool::usable_bytes(int stack_idx) {
  constexpr size_t kLineBytes = 64, kLinesApart = 5, kLinesOfPage = 64;
  return kStackBytes * kStackScale - static_cast<size_t>(stack_idx) * kLinesApart % kLinesOfPage * kLineBytes;
}

void StackPool::reserve(int num_stacks) {
  if (num_stacks <= num_stacks_) return;
  release();
  const size_t num_bytes = static_cast<size_t>(num_stacks) * stride();
  void* memory = mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK(memory != MAP_FAILED, "no address space for the stacks of the fibers");
  memory_ = static_cast<std::byte*>(memory);
  num_stacks_ = num_stacks;
  madvise(memory, num_bytes, MADV_NOHUGEPAGE);
  for (int stack_idx = 0; stack_idx < num_stacks && num_stacks <= kMaxGuardedStacks; ++stack_idx) {
    CHECK(mprotect(bottom(stack_idx) - kGuardBytes, kGuardBytes, PROT_NONE) == 0, "no guard page");
  }
}

void StackPool::release() {
  if (memory_ == nullptr) return;
  const size_t num_bytes = static_cast<size_t>(num_stacks_) * stride();
  forget_frames(memory_, num_bytes);
  munmap(memory_, num_bytes);
  memory_ = nullptr;
  num_stacks_ = 0;
}

}  // namespace monostep::gpu::emulator
