// The command line of `monostep generate`: its options, and what can be refused before a model is read. Used by
// generate.cc.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/request.h"

namespace monostep::apps {

struct GenerateOptions {
  std::string model;                   // empty: models/default of the repository
  std::vector<std::string> prompts;    // at most one of the three kinds is given
  std::vector<std::string> token_ids;  // each a list of ids
  std::vector<std::string> prompt_files;
  engine::Request request;  // what all requests share
  std::string spec;         // empty: the model's draft length; "off"; a number
  int tp = 1;
  int chunk = program::kMaxBand;
  std::optional<int> max_model_len;
  std::optional<int> threads;
  std::string backend = "auto";
  std::string mono = "auto";
  std::string packed_cache;  // apps/gpu_start.h
  bool ignore_eos = false;
  bool json = false;

  size_t num_prompts() const { return prompts.size() + token_ids.size() + prompt_files.size(); }
  // The option that gave the prompts.
  const char* prompt_flag() const;
};

void declare_options(CLI::App& command, GenerateOptions& options);

// Everything that needs no model. Sets request.spec where --spec is given.
Status check_options(GenerateOptions& options);

// Ids separated by spaces or commas.
Result<std::vector<int32_t>> parse_token_ids(const std::string& text);

// An error about a request's field names the option instead.
Error name_option(Error error, const GenerateOptions& options);

}  // namespace monostep::apps
