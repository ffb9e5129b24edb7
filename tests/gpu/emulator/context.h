// Fibers' stacks and the switch between them. A stack pool keeps its mapping from launch to launch; each stack has a
// guard page below it (while the kernel's limit on mappings allows). On x86-64 the switch is a few instructions;
// elsewhere it is ucontext. Under the address sanitizer each switch is announced. Used by machine.cc.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__) && !defined(MONOSTEP_EMULATOR_UCONTEXT)
#define MONOSTEP_EMULATOR_ASM 1
#else
#include <ucontext.h>
#endif

namespace monostep::gpu::emulator {

struct Context {
#ifdef MONOSTEP_EMULATOR_ASM
  void* stack_pointer = nullptr;
#else
  ucontext_t state;
#endif
  void* fake_stack = nullptr;          // the address sanitizer's
  const void* stack_bottom = nullptr;  // lowest byte
  size_t stack_bytes = 0;
};

// `context` will start `entry` on this stack; `entry` must not return.
void make_context(Context& context, std::byte* stack_bottom, size_t stack_bytes, void (*entry)());

// Leaves `from` for `to`; returns when something switches to `from`.
void switch_context(Context& from, Context& to);

// The first thing that a fiber's entry calls; `main` is the context of the thread's own stack.
void enter_context(Context& main);

// The stacks of one OS thread's fibers.
class StackPool {
 public:
  static constexpr size_t kStackBytes = 64 << 10;

  StackPool() = default;
  StackPool(const StackPool&) = delete;
  StackPool& operator=(const StackPool&) = delete;
  ~StackPool() { release(); }

  // At least `num_stacks` stacks; those there were are lost when it grows. None may be in use.
  void reserve(int num_stacks);

  // Lowest byte and usable bytes of a stack.
  std::byte* bottom(int stack_idx) const;
  static size_t usable_bytes(int stack_idx);

 private:
  static size_t stride();
  void release();

  std::byte* memory_ = nullptr;
  int num_stacks_ = 0;
};

}  // namespace monostep::gpu::emulator
