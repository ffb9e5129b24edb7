// Nvrtc: CUDA's run-time compiler, opened at run time (no GPU and no toolkit needed). Takes a main source and headers
// from memory and gives a cubin. Looked for in $MONOSTEP_NVRTC_DIR, then where the system's loader looks. Called by the
// program cache.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/result.h"
#include "gpu/cubin.h"

namespace monostep::gpu {

struct SourceFile {
  std::string name;  // as it is included
  std::string text;
};

struct Sources {
  SourceFile main;
  std::vector<SourceFile> headers;  // every file that is included; the disk is not looked at
};

struct CompileOptions {
  std::string arch = "sm_90a";
  bool line_info = false;            // source lines for profilers
  std::vector<std::string> further;  // passed on as they are, e.g. --fmad=false

  // What the compiler is given, in order: the architecture, C++20, unmarked functions as device functions, and the
  // above.
  std::vector<std::string> arguments() const;
};

// The libraries that are tried, in order: those in $MONOSTEP_NVRTC_DIR, then the names that the system's loader looks
// for.
std::vector<std::string> nvrtc_libraries();

class Nvrtc {
 public:
  // Errors: kUnavailable, with how to get it.
  static Result<Nvrtc> open() { return open(nvrtc_libraries()); }
  static Result<Nvrtc> open(const std::vector<std::string>& libraries);

  // e.g. "13.0".
  const std::string& version() const { return version_; }

  // Errors: kInvalidArgument with the first lines of the compiler's log where the sources or options are wrong.
  Result<Cubin> compile(const Sources& sources, const CompileOptions& options) const;

 private:
  using Program = struct NvrtcProgram*;
  enum class Outcome : int { kSuccess = 0, kOutOfMemory = 1, kInvalidOption = 5, kCompilation = 6 };  // nvrtcResult
  struct EntryPoints {
    const char* (*get_error_string)(Outcome outcome);
    Outcome (*version)(int* major, int* minor);
    Outcome (*create_program)(Program* program, const char* text, const char* name, int num_headers,
                              const char* const* header_texts, const char* const* header_names);
    Outcome (*destroy_program)(Program* program);
    Outcome (*compile_program)(Program program, int num_options, const char* const* options);
    Outcome (*get_cubin_size)(Program program, size_t* num_bytes);
    Outcome (*get_cubin)(Program program, char* cubin);
    Outcome (*get_log_size)(Program program, size_t* num_bytes);
    Outcome (*get_log)(Program program, char* log);
  };
  class Compilation;

  static Result<EntryPoints> bind(void* library);

  EntryPoints entry_ = {};
  std::string version_;
};

}  // namespace monostep::gpu
