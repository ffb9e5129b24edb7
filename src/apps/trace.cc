// `monostep trace`: runs the engine on a record's tokens and recorded inputs and writes what it computed under the
// record's names (cpu/trace.h). With --token-ids instead of --case it is mode free on these tokens.
#include "cpu/trace.h"

#include <cstdio>
#include <string>

#include "apps/commands.h"
#include "apps/generate_options.h"
#include "apps/gpu_mirror.h"
#include "apps/gpu_start.h"

namespace monostep::apps {
namespace {

struct Options {
  std::string model;
  std::string record;
  std::string token_ids;
  std::string mode = "free";
  std::string out;
  std::string backend = "auto";
  std::string cut;  // empty: settle_cut
  int tp = 1;
  int chunk = program::kMaxBand;
};

cpu::TraceSpan span_of(Cut cut) {
  switch (cut) {
    case Cut::kStep: return cpu::TraceSpan::kStep;
    case Cut::kLayer: return cpu::TraceSpan::kLayer;
    case Cut::kStage: break;
  }
  return cpu::TraceSpan::kCall;
}

// The launches: as asked, else whole steps on the GPU, where ranks do not take turns, and stage by stage elsewhere.
Result<Cut> settle_cut(const Options& options) {
  const bool alone = options.backend == "gpu" && options.tp == 1;
  if (options.cut.empty()) return alone ? Cut::kStep : Cut::kStage;
  TRY_ASSIGN(const Cut cut, gpu::parse_cut(options.cut));
  if (options.backend == "gpu" && !alone && cut != Cut::kStage) {
    return Error{Code::kInvalidArgument, "with more than one rank the ranks take turns stage by stage", "--cut"};
  }
  return cut;
}

Result<cpu::Record> read_record(const Options& options) {
  if (!options.record.empty()) return cpu::Record::load(options.record);
  TRY_ASSIGN(const std::vector<int32_t> ids, parse_token_ids(options.token_ids));
  cpu::Record record;
  record.add("tokens", "I32", {static_cast<int64_t>(ids.size())}).ids.assign(ids.begin(), ids.end());
  return record;
}

Result<cpu::TraceOptions> settle(const Options& options, Cut cut) {
  if (options.backend != "auto" && options.backend != "cpu" && options.backend != "gpu") {
    return Error{Code::kInvalidArgument, "\"" + options.backend + "\" is not auto, cpu or gpu", "--backend"};
  }
  if (options.record.empty() == options.token_ids.empty())
    return Error{Code::kInvalidArgument, "give --case or --token-ids", "trace"};
  cpu::TraceOptions trace;
  TRY_ASSIGN(trace.mode, cpu::parse_trace_mode(options.mode));
  trace.tp = options.tp;
  trace.chunk = options.chunk;
  trace.span = span_of(cut);
  if (!options.token_ids.empty() && trace.mode != cpu::TraceMode::kFree) {
    return Error{Code::kInvalidArgument, "--token-ids runs in mode free", "--mode"};
  }
  return trace;
}

Status run(const Options& options) {
  TRY_ASSIGN(const Cut cut, settle_cut(options));
  TRY_ASSIGN(cpu::TraceOptions trace, settle(options, cut));
  std::unique_ptr<gpu::CudaDevice> device;
  if (options.backend == "gpu") {
    TRY_ASSIGN(device, open_gpu());
  }
  TRY_ASSIGN(const weights::Checkpoint checkpoint, weights::Checkpoint::open(options.model));
  TRY_ASSIGN(const cpu::Record record, read_record(options));
  std::unique_ptr<GpuMirror> mirror;
  trace.on_backend = [&](cpu::CpuBackend& backend) -> Status {
    if (device == nullptr) return {};
    TRY_ASSIGN(mirror, GpuMirror::make(*device, checkpoint, backend, cut, program_maker()));
    backend.set_runner([&](cpu::Machine& machine, const cpu::CallRange& range) { return mirror->run(machine, range); });
    return {};
  };
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
  command->add_option("--backend", options->backend, "auto (cpu), cpu or gpu")->capture_default_str();
  command->add_option("--cut", options->cut,
                      "what runs at once, as far as nothing is fed in between: step, layer or stage (default: step on "
                      "one gpu rank, else stage)");
  command->add_option("--tp", options->tp, "simulated ranks")->capture_default_str();
  command->add_option("--chunk", options->chunk, "rows of a prompt step")->capture_default_str();
  command->callback([options, status] {
    const Status done = run(*options);
    *status = done.ok() ? 0 : report(done.error());
  });
}

}  // namespace monostep::apps
