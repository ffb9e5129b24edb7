// `monostep compile` compiles the step programs of a geometry for sm_90a where no GPU need be, puts them into the cache
// from which the GPU backend takes them, and prints what each needs of the machine. Reads a config at most, no weights;
// needs NVRTC.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/commands.h"
#include "base/json_text.h"
#include "gpu/compile_program.h"

namespace monostep::apps {
namespace {

using program::kBands;
using program::kPageTokens;

constexpr int kMaxSms = 1 << 10;
constexpr int kDefaultContext = 8192;

struct ProgramOptions {
  std::string geometry = "flash";
  std::optional<std::string> model;
  int tp = 1;
  std::optional<int> rows;
  std::optional<int> context;
  int num_sms = 132;
  std::optional<std::string> cache;
  bool json = false;
};

// What the programs of all bands share.
struct ProgramTarget {
  std::string name;
  model::Geometry geometry;
  model::Shard shard;
  int context = 0;
  int num_sms = 0;
  std::filesystem::path cache;
};

struct CompiledProgram {
  int rows = 0;
  gpu::KernelResources kernel;
  int shared_bytes = 0;  // state, ring and scratch of a CTA
  double seconds = 0;
  bool from_cache = false;
};

Error refused(std::string_view option, std::string text) {
  return Error{Code::kInvalidArgument, std::move(text), std::string(option)};
}

Status check_between(std::string_view option, int value, int least, int most) {
  if (value >= least && value <= most) return {};
  return refused(option, fmt::format("expected {} to {}, found {}", least, most, value));
}

Result<model::Geometry> read_geometry(const ProgramOptions& options) {
  if (options.model) return model::load_geometry(*options.model);
  Result<model::Geometry> known = model::named_geometry(options.geometry);
  return known.ok() ? known : refused("--geometry", known.error().text);
}

Result<ProgramTarget> settle_target(const ProgramOptions& options) {
  TRY_ASSIGN(model::Geometry geometry, read_geometry(options));
  if (options.rows && std::find(kBands.begin(), kBands.end(), *options.rows) == kBands.end()) {
    return refused("--rows",
                   fmt::format("expected one of the bands {}, found {}", fmt::join(kBands, ", "), *options.rows));
  }
  const int context = options.context.value_or(std::min(kDefaultContext, geometry.max_position_embeddings));
  TRY(check_between("--context", context, 1, geometry.max_position_embeddings));
  TRY(check_between("--sms", options.num_sms, 1, kMaxSms));
  TRY_ASSIGN(const model::Shard shard, model::make_shard(geometry, options.tp));
  return ProgramTarget{options.model.value_or(options.geometry),
                       std::move(geometry),
                       shard,
                       round_up(context, kPageTokens),
                       options.num_sms,
                       options.cache ? std::filesystem::path(*options.cache) : gpu::default_cache_dir()};
}

Result<gpu::KernelResources> step_kernel(const gpu::Cubin& cubin) {
  TRY_ASSIGN(const std::vector<gpu::KernelResources> kernels, gpu::read_cubin(cubin.bytes));
  for (const gpu::KernelResources& kernel : kernels) {
    if (kernel.name == gpu::kKernelName) return kernel;
  }
  return Error{Code::kInternal, "the compiled program has no such kernel", gpu::kKernelName};
}

Result<CompiledProgram> compile_band(const ProgramTarget& target, int band) {
  const program::Layout layout(target.geometry, target.shard,
                               program::shape_for(target.geometry, band, 1, target.context));
  const program::Plan plan(layout, target.num_sms);
  TRY_ASSIGN(const gpu::ProgramSizes sizes, gpu::program_sizes(layout, plan, gpu::kSharedLimit));
  const auto begin = std::chrono::steady_clock::now();
  TRY_ASSIGN(const gpu::CachedCubin made,
             gpu::cached_compile(gpu::program_sources(layout, plan, sizes), gpu::program_options(), target.cache));
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  if (!made.warning.empty()) std::fprintf(stderr, "monostep: %s\n", made.warning.c_str());
  TRY_ASSIGN(gpu::KernelResources kernel, step_kernel(made.cubin));
  return CompiledProgram{band, std::move(kernel), sizes.shared.total_bytes, seconds.count(), made.from_cache};
}

void print_line(const CompiledProgram& program) {
  const gpu::KernelResources& kernel = program.kernel;
  fmt::print("{:>4} {:>9} {:>11} {:>12} {:>11} {:>12} {:>10} {:>7.1f}  {}\n", program.rows, kernel.registers,
             kernel.stack_bytes, kernel.local_stores, kernel.local_loads, program.shared_bytes, kernel.code_bytes,
             program.seconds, program.from_cache ? "cache" : "compiler");
  std::fflush(stdout);  // the next program may take a minute
}

std::string program_json(const CompiledProgram& program) {
  const gpu::KernelResources& kernel = program.kernel;
  return fmt::format(
      "{{\"rows\":{},\"registers\":{},\"stack_bytes\":{},\"local_stores\":{},\"local_loads\":{},\"shared_bytes\":{},"
      "\"code_bytes\":{},\"seconds\":{:.3f},\"from_cache\":{}}}",
      program.rows, kernel.registers, kernel.stack_bytes, kernel.local_stores, kernel.local_loads, program.shared_bytes,
      kernel.code_bytes, program.seconds, program.from_cache);
}

std::string all_json(const ProgramTarget& target, const std::vector<std::string>& programs) {
  std::string text = "{\"geometry\":";
  append_json_string(text, target.name, false);
  text += ",\"cache\":";
  append_json_string(text, target.cache.string(), false);
  return text + fmt::format(",\"tp\":{},\"context\":{},\"sms\":{},\"programs\":[{}]}}\n", target.shard.tp,
                            target.context, target.num_sms, fmt::join(programs, ","));
}

Status run_compile(const ProgramOptions& options) {
  TRY_ASSIGN(const ProgramTarget target, settle_target(options));
  TRY(gpu::Nvrtc::open());  // told before anything is printed
  if (!options.json) {
    fmt::print("{}, TP {}, context {}, {} CTAs, kept in {}\n", target.name, target.shard.tp, target.context,
               target.num_sms, target.cache.empty() ? "no folder" : target.cache.string());
    fmt::print("rows registers stack_bytes local_stores local_loads shared_bytes code_bytes seconds  from\n");
    std::fflush(stdout);
  }
  std::vector<std::string> programs;
  for (const int band : kBands) {
    if (options.rows && *options.rows != band) continue;
    TRY_ASSIGN(const CompiledProgram program, compile_band(target, band));
    if (!options.json) print_line(program);
    programs.push_back(program_json(program));
  }
  if (options.json) fmt::print("{}", all_json(target, programs));
  return {};
}

}  // namespace

void add_compile(CLI::App& root, int* status) {
  auto options = std::make_shared<ProgramOptions>();
  CLI::App* command = root.add_subcommand(
      "compile", "compile the step programs for the GPU (none need be there) and print their needs");
  CLI::Option* geometry =
      command->add_option("--geometry", options->geometry, "a known geometry")->capture_default_str();
  command->add_option("-m,--model", options->model, "checkpoint folder, of which the config is read")
      ->excludes(geometry);
  command->add_option("--tp", options->tp, "ranks: 1, 2, 4 or 8")->capture_default_str();
  command->add_option("--rows", options->rows, "band: 8, 16, 24 or 48 rows (all four)");
  command->add_option("--context", options->context,
                      fmt::format("positions a request may have, rounded up to whole pages ({} or, if it is less, the "
                                  "model's limit). The GPU backend finds a program in the cache if this and --sms are "
                                  "its own",
                                  kDefaultContext));
  command->add_option("--sms", options->num_sms, "multiprocessors of the GPU, a CTA each")->capture_default_str();
  command->add_option("--cache", options->cache,
                      "folder for compiled programs ($MONOSTEP_CACHE_DIR, else monostep in the user's cache folder)");
  command->add_flag("--json", options->json, "one JSON object");
  command->callback([options, status] {
    const Status done = run_compile(*options);
    *status = done.ok() ? 0 : report(done.error());
  });
}

}  // namespace monostep::apps
