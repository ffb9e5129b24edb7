// `monostep trace`: runs the engine on a record's tokens and recorded inputs and writes what it computed under the
// record's names (cpu/trace.h). With --token-ids instead of --case it is mode free on these tokens.
#include "cpu/trace.h"

#include <cstdio>
#include <string>

#include "apps/commands.h"
#include "apps/generate_options.h"

namespace monostep::apps {
namespace {

struct Options {
  std::string model;
  std::string record;
  std::string token_ids;
  std::string mode = "free";
  std::string out;
  std::string backend = "cpu";
  int tp = 1;
  int chunk = program::kMaxBand;
};

Status run(const Options& options) {
  if (options.backend != "cpu")
    return Error{Code::kUnavailable, "no usable device: this build has the cpu backend alone", "--backend"};
  if (options.record.empty() == options.token_ids.empty())
    return Error{Code::kInvalidArgument, "give --case or --token-ids", "trace"};
  cpu::TraceOptions trace;
  TRY_ASSIGN(trace.mode, cpu::parse_trace_mode(options.mode));
  trace.tp = options.tp;
  trace.chunk = options.chunk;
  if (!options.token_ids.empty() && trace.mode != cpu::TraceMode::kFree) {
    return Error{Code::kInvalidArgument, "--token-ids runs in mode free", "--mode"};
  }
  TRY_ASSIGN(const weights::Checkpoint checkpoint, weights::Checkpoint::open(options.model));
  cpu::Record record;
  if (!options.record.empty()) {
    TRY_ASSIGN(record, cpu::Record::load(options.record));
  } else {
    TRY_ASSIGN(const std::vector<int32_t> ids, parse_token_ids(options.token_ids));
    record.add("tokens", "I32", {static_cast<int64_t>(ids.size())}).ids.assign(ids.begin(), ids.end());
  }
  TRY_ASSIGN(const cpu::Record result, cpu::run_trace(checkpoint, record, trace));
  return result.save(options.out);
}

}  // namespace

void add_trace(CLI::App& root, int* status) {
  CLI::App* command =
      root.add_subcommand("trace", "Run on recorded tokens and inputs; write what was computed, name by name");
  auto options = std::make_shared<Options>();
  command->add_option("--model", options->model, "checkpoint directory")->required();
  command->add_option("--case", options->record, "record (safetensors) with tokens and the inputs that the mode feeds");
  command->add_option("--token-ids", options->token_ids, "ids separated by spaces or commas, instead of --case");
  command->add_option("--mode", options->mode, "layer, step, cached, ffn, draft, free or decode")
      ->capture_default_str();
  command->add_option("--out", options->out, "file to write (safetensors)")->required();
  command->add_option("--backend", options->backend, "cpu")->capture_default_str();
  command->add_option("--tp", options->tp, "simulated ranks")->capture_default_str();
  command->add_option("--chunk", options->chunk, "rows of a prompt step")->capture_default_str();
  command->callback([options, status] {
    const Status done = run(*options);
    *status = done.ok() ? 0 : report(done.error());
  });
}

}  // namespace monostep::apps
