// The program `monostep`: parses the command line (CLI11, whose exceptions end here) and runs one subcommand.
// Exit codes: 0 done; 1 failure at run time; 2 usage or configuration; 3 model files missing or damaged; 4 no usable
// device.
#include <cstdio>

#include "apps/commands.h"
#include "apps/usage.h"

namespace monostep::apps {

int report(const Error& error) {
  std::fflush(stdout);
  std::fprintf(stderr, "monostep: %s\n", error.message().c_str());
  return exit_code(error.code);
}

}  // namespace monostep::apps

int main(int argc, char** argv) {
  int status = 0;
  try {
    CLI::App root("monostep: low-latency inference for DeepSeek-V4.1-Flash", "monostep");
    root.require_subcommand(1);
    root.set_version_flag("--version", "monostep " MONOSTEP_VERSION "\nbackends: cpu, gpu");
    monostep::apps::add_generate(root, &status);
    monostep::apps::add_trace(root, &status);
    monostep::apps::add_tokenize(root, &status);
    monostep::apps::add_plan(root, &status);
    monostep::apps::add_compile(root, &status);
    monostep::apps::add_bench(root, &status);
    monostep::apps::add_inspect(root, &status);
    monostep::apps::add_make_model(root, &status);
    try {
      root.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      if (error.get_exit_code() == 0) return root.exit(error);  // --help and --version
      return monostep::apps::report(monostep::apps::usage_error(root, error));
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "monostep: %s\n", error.what());
    return 1;
  }
  return status;
}
