// The subcommands of `monostep`. Each add_* declares its options on the root parser and stores its exit code in *status
// when it runs; errors go to standard error through report(), results to standard output. Called by main.cc alone.
#pragma once

#include <CLI/CLI.hpp>

#include "base/result.h"

namespace monostep::apps {

// Prints "monostep: <message>" as the last line of standard error and returns the exit code of the error.
int report(const Error& error);

void add_generate(CLI::App& root, int* status);
void add_trace(CLI::App& root, int* status);
void add_tokenize(CLI::App& root, int* status);
void add_plan(CLI::App& root, int* status);
void add_compile(CLI::App& root, int* status);
void add_bench(CLI::App& root, int* status);
void add_inspect(CLI::App& root, int* status);
void add_make_model(CLI::App& root, int* status);

}  // namespace monostep::apps
