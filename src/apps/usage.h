// What is said about a command line that the parser refused: one reason, and for an unknown name the nearest known one.
// Used by main.cc.
#pragma once

#include <CLI/CLI.hpp>

#include "base/result.h"

namespace monostep::apps {

// `root` has just thrown `refusal` while it parsed. An unknown name is the reason wherever there is one.
Error usage_error(const CLI::App& root, const CLI::ParseError& refusal);

}  // namespace monostep::apps
