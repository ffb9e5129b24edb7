// CHECK: a broken invariant of ours prints its words and aborts. Never reachable by user input (that is a Result).
#pragma once

#include <cstdio>
#include <cstdlib>

namespace monostep {

[[noreturn]] inline void check_failed(const char* condition, const char* words, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: check failed: %s: %s\n", file, line, condition, words);
  std::abort();
}

}  // namespace monostep

#define CHECK(condition, words) \
  ((condition) ? static_cast<void>(0) : ::monostep::check_failed(#condition, words, __FILE__, __LINE__))
