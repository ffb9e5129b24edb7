// Runs the program `monostep` of this build with arguments and keeps what it prints and its exit code. Used by tests of
// the subcommands.
#pragma once

#include <sys/wait.h>

#include <cstdlib>
#include <string>

#include "../base/temp_dir.h"
#include "base/mapped_file.h"

namespace monostep::apps {

struct ProgramRun {
  int code = -1;  // exit code; -1: ended by a signal
  std::string out;
  std::string err;
};

// `arguments` is shell text.
inline ProgramRun run_program(const std::string& arguments) {
  const TempDir dir;
  const std::string command = MONOSTEP_BINARY_DIR "/monostep " + arguments + " </dev/null >" + (dir / "out").string() +
                              " 2>" + (dir / "err").string();
  const int status = std::system(command.c_str());
  constexpr size_t kMaxOutput = 64 << 20;
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_text_file(dir / "out", kMaxOutput).value(),
          read_text_file(dir / "err", kMaxOutput).value()};
}

}  // namespace monostep::apps
