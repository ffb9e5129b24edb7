// `monostep bench step` measures decode steps of one rank on a GPU: makes a synthetic shard of a known geometry (or
// loads a rank of a checkpoint), plays its peers, runs steps and says how long they take, what they read, and how near
// that is to the read bandwidth that it measures in the same run. Needs a GPU.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/bench_report.h"
#include "apps/bench_step.h"
#include "apps/commands.h"
#include "apps/gpu_start.h"
#include "gpu/compile_program.h"
#include "gpu/cuda_device.h"
#include "gpu/kernel_maker.h"
#include "gpu/program_cache.h"
#include "program/time_model.h"

namespace monostep::apps {
namespace {

using program::kMaxRequests;

constexpr int kSpan = 1024;                       // positions that a request walks through
constexpr int kContextStep = 4096;                // programs are shared by contexts up to the next multiple
constexpr int64_t kReadBytes = int64_t{8} << 30;  // of the bandwidth measurement: 1.8 ms at 4.7 TB/s
constexpr int kReadRepeats = 9;
constexpr int kMaxSms = 1 << 10;
constexpr int kMaxEngramGib = 1 << 12;
constexpr int kMaxDelayUs = 1000;

struct Options {
  std::string geometry = "flash";
  std::optional<std::string> model;
  int tp = 4;
  int rank = 0;
  int requests = 1;
  int context = 4096;
  double acceptance = 3.51;
  std::string cut = "step";
  std::string laid_by = "host";
  double delay_us = 2.0;
  std::string packed_cache;
  uint64_t seed = 1;
  int steps = 700;
  int warmup = 50;
  int engram_gib = 8;
  std::optional<int> num_sms;
  std::string csv;
  std::string commit = MONOSTEP_COMMIT;
};

// What the options say, checked.
struct Settled {
  std::string name;
  model::Geometry geometry;
  BenchShape shape;
  gpu::RankOptions rank;
};

Error refused(std::string_view option, std::string text) {
  return Error{Code::kInvalidArgument, std::move(text), std::string(option)};
}

Status check_between(std::string_view option, double value, double least, double most) {
  if (value >= least && value <= most) return {};
  return refused(option, fmt::format("expected {} to {}, found {}", least, most, value));
}

Result<model::Geometry> read_geometry(const Options& options) {
  if (options.model) return model::load_geometry(*options.model);
  Result<model::Geometry> known = model::named_geometry(options.geometry);
  return known.ok() ? known : refused("--geometry", known.error().text);
}

Status check_options(const Options& options, const model::Geometry& geometry) {
  if (geometry.num_nextn_predict_layers == 0)
    return refused(options.model ? "--model" : "--geometry", "has no draft layers");
  TRY(check_between("--rank", options.rank, 0, options.tp - 1));
  TRY(check_between("--requests", options.requests, 1,
                    std::min(kMaxRequests, program::kMaxBand / (geometry.dspark_block_size + 1))));
  TRY(check_between("--context", options.context, 1, geometry.max_position_embeddings - program::kPageTokens));
  TRY(check_between("--acceptance", options.acceptance, 1, geometry.dspark_block_size + 1));
  TRY(check_between("--steps", options.steps, 1, kMaxBenchSteps));
  TRY(check_between("--warmup", options.warmup, 0, kMaxBenchSteps - options.steps));
  TRY(check_between("--engram-gib", options.engram_gib, 0, kMaxEngramGib));
  if (options.num_sms) TRY(check_between("--sms", *options.num_sms, 1, kMaxSms));
  TRY(check_between("--delay-us", options.delay_us, 0, kMaxDelayUs));
  if (options.laid_by != "host" && options.laid_by != "device")
    return refused("--laid-by", fmt::format("\"{}\" is none of host, device", options.laid_by));
  if (options.laid_by == "device" && options.cut != "step")
    return refused("--laid-by", "a step that the device lays out is one launch: it needs --cut step");
  return {};
}

BenchShape shape_of(const Options& options, gpu::Cut cut, int max_positions) {
  BenchShape shape;
  shape.requests = options.requests;
  shape.context = options.context;
  shape.span = std::min(kSpan, max_positions - options.context);
  shape.acceptance = static_cast<float>(options.acceptance);
  shape.cut = cut;
  shape.device_rounds = options.laid_by == "device";
  shape.peer_delay_us = options.tp > 1 ? options.delay_us : 0;
  shape.seed = options.seed;
  shape.steps = options.steps;
  shape.warmup = options.warmup;
  return shape;
}

Result<Settled> settle(const Options& options) {
  Settled out;
  TRY_ASSIGN(out.geometry, read_geometry(options));
  TRY(model::make_shard(out.geometry, options.tp));
  TRY(check_options(options, out.geometry));
  TRY_ASSIGN(const gpu::Cut cut, gpu::parse_cut(options.cut));
  const int max_positions = out.geometry.max_position_embeddings;
  out.name = options.model.value_or(options.geometry);
  out.shape = shape_of(options, cut, max_positions);
  out.rank.tp = options.tp;
  out.rank.rank = options.rank;
  out.rank.num_ctas = options.num_sms.value_or(0);
  out.rank.num_pages = options.requests * request_pages(out.shape);
  out.rank.num_slots = options.requests;
  out.rank.max_context =
      std::min(round_up(request_context(out.shape), kContextStep), round_up(max_positions, program::kPageTokens));
  out.rank.push = out.shape.peer_delay_us > 0 ? gpu::Push::kPlayed : gpu::Push::kSelf;
  out.rank.push_delay_ns = static_cast<int>(out.shape.peer_delay_us * 1e3);
  if (options.model) out.rank.packed_cache = packed_cache_dir(options.packed_cache);
  out.rank.engram_bytes = int64_t{options.engram_gib} << 30;
  return out;
}

Result<std::unique_ptr<gpu::CudaDevice>> open_device() {
  Result<std::unique_ptr<gpu::CudaDevice>> device = gpu::CudaDevice::open(0);
  if (device.ok()) return device;
  return Error{Code::kUnavailable, "no usable device: " + device.error().text, "bench step"};
}

Result<gpu::Kernel> side_kernel(gpu::Device& device, const gpu::Sources& sources, const char* name) {
  TRY_ASSIGN(const gpu::CachedCubin made, gpu::cached_compile(sources, {}, gpu::default_cache_dir()));
  return device.load(made.cubin.bytes, name);
}

// Weights in place and the program of the steps loaded. `programs` must outlive the rank.
Result<std::unique_ptr<gpu::Rank>> start_rank(gpu::Device& device, const Options& options, const Settled& settled,
                                              std::vector<gpu::MadeProgram>& programs) {
  const gpu::KernelMaker maker =
      program_maker([&programs](const gpu::MadeProgram& program) { programs.push_back(program); });
  const auto fill = [](gpu::Device& on) { return side_kernel(on, gpu::fill_sources(), gpu::kFillKernelName); };
  std::unique_ptr<gpu::Rank> rank;
  if (options.model) {
    TRY_ASSIGN(const weights::Checkpoint checkpoint, weights::Checkpoint::open(*options.model));
    TRY_ASSIGN(rank, gpu::Rank::make(device, checkpoint, settled.rank, maker));
  } else {
    TRY_ASSIGN(rank, gpu::Rank::make_synthetic(device, settled.geometry, options.seed, settled.rank, maker, fill));
  }
  const int rows = settled.shape.requests * (settled.geometry.dspark_block_size + 1);
  TRY(rank->prepare(rows, settled.shape.requests));
  return rank;
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts = {};
  gmtime_r(&now, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

Status add_model(const Settled& settled, const gpu::Rank& rank, BenchReport& report) {
  const program::Layout& layout = rank.band().layout;
  program::TimeQuery query;
  query.requests = settled.shape.requests;
  query.context = settled.shape.context;
  query.bandwidth = report.bandwidth.median;
  const program::TimeModel model = program::model_time(layout, query);
  report.model_bytes = model.bytes;
  report.model_ms = model.floor_ms;
  report.model_experts = model.distinct_experts;
  report.bytes = step_bytes(layout, rank.band().plan.chunk_runs(), report.figures.distinct_experts);
  return {};
}

Result<BenchReport> measure(const Options& options, const Settled& settled) {
  TRY_ASSIGN(const std::unique_ptr<gpu::CudaDevice> device, open_device());
  TRY_ASSIGN(const gpu::DeviceInfo info, device->info());
  BenchReport report;
  TRY_ASSIGN(const gpu::Kernel read, side_kernel(*device, gpu::read_sources(), gpu::kReadKernelName));
  TRY_ASSIGN(report.bandwidth, gpu::measure_read_bandwidth(*device, read, kReadBytes, kReadRepeats));
  TRY_ASSIGN(const std::unique_ptr<gpu::Rank> rank, start_rank(*device, options, settled, report.start.programs));
  TRY_ASSIGN(report.figures, measure_steps(*device, *rank, settled.shape));
  TRY(add_model(settled, *rank, report));
  report.date = utc_now();
  report.commit = options.commit;
  report.machine = info.name;
  report.model = settled.name;
  report.num_sms = rank->options().num_ctas;
  report.tp = options.tp;
  report.rank = options.rank;
  report.rows = settled.shape.requests * (settled.geometry.dspark_block_size + 1);
  report.engram_gib = options.engram_gib;
  report.engram_rows = rank->pinned_engram_rows();
  for (const int64_t rows : settled.geometry.engram_num_embeddings) report.engram_rows_all += rows;
  report.shape = settled.shape;
  report.start.load = rank->load_report();
  report.start.memory = rank->memory();
  if (const std::string& warning = report.start.load.weights.warning; !warning.empty())
    fmt::print(stderr, "{}\n", warning);
  return report;
}

Status run_bench_step(const Options& options) {
  TRY_ASSIGN(const Settled settled, settle(options));
  TRY_ASSIGN(const BenchReport report, measure(options, settled));
  fmt::print("{}", bench_text(report));
  std::fflush(stdout);
  if (options.csv.empty()) return {};
  return append_bench_csv(options.csv, report);
}

void add_step_options(CLI::App& command, Options& options) {
  CLI::Option* geometry = command.add_option("--geometry", options.geometry, "a known geometry")->capture_default_str();
  command.add_option("-m,--model", options.model, "checkpoint folder instead of synthetic weights")->excludes(geometry);
  command.add_option("--tp", options.tp, "ranks: 1, 2, 4 or 8; all but one are played")->capture_default_str();
  command.add_option("--rank", options.rank, "the rank that is measured")->capture_default_str();
  command.add_option("--requests", options.requests, "requests of a whole draft block each")->capture_default_str();
  command
      .add_option("--context", options.context,
                  "position that each request begins at, with synthetic caches behind it; it walks at most 1024 "
                  "positions on and begins there again")
      ->capture_default_str();
  command.add_option("--acceptance", options.acceptance, "mean tokens a step, forced")->capture_default_str();
  command.add_option("--cut", options.cut, "calls of a launch: step, layer or stage (one graph)")
      ->capture_default_str();
  command
      .add_option("--laid-by", options.laid_by,
                  "who lays steps out: host, which waits for each, or device, which learns its ids one step late")
      ->capture_default_str();
  command
      .add_option(
          "--delay-us", options.delay_us,
          "from when a CTA's push to the other ranks is seen until theirs are there, in microseconds; 0: at once")
      ->capture_default_str();
  command
      .add_option(
          "--packed-cache", options.packed_cache,
          "with --model: folder of packed weights, or off (default: packed, in the folder of compiled programs)")
      ->envname(kPackedCacheVariable);
  command.add_option("--seed", options.seed, "of weights, ids and caches")->capture_default_str();
  command.add_option("--steps", options.steps, "steps that are measured")->capture_default_str();
  command.add_option("--warmup", options.warmup, "steps before them")->capture_default_str();
  command
      .add_option("--engram-gib", options.engram_gib,
                  "most pinned host memory for the Engram tables, rows taken modulo; 0: all of them")
      ->capture_default_str();
  command.add_option("--sms", options.num_sms, "CTAs of the step (one a multiprocessor)");
  command.add_option("--csv", options.csv, "file to append a row to");
  command.add_option("--commit", options.commit, "name of the build in the row")->capture_default_str();
}

}  // namespace

void add_bench(CLI::App& root, int* status) {
  auto options = std::make_shared<Options>();
  CLI::App* bench = root.add_subcommand("bench", "measure on a GPU");
  bench->require_subcommand(1);
  CLI::App* command = bench->add_subcommand("step", "time decode steps of one rank with synthetic weights");
  add_step_options(*command, *options);
  command->callback([options, status] {
    const Status done = run_bench_step(*options);
    *status = done.ok() ? 0 : report(done.error());
  });
}

}  // namespace monostep::apps
