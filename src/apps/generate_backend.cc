// Choosing and making a backend (apps/generate_backend.h).
#include "apps/generate_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "apps/gpu_start.h"
#include "cpu/backend.h"
#include "gpu/gate.h"

namespace monostep::apps {
namespace {

Result<BackendChoice> choose_gpu(const BackendOptions& options, const model::Geometry& geometry) {
  if (options.tp > 1) return Error{Code::kInvalidArgument, "ranks are simulated on the cpu alone", "--tp"};
  TRY_ASSIGN(std::unique_ptr<gpu::Device> device, open_gpu());
  return choose_on_device(std::move(device), options, geometry);
}

std::string in_brackets(const std::string& reason) { return reason.empty() ? "" : " (" + reason + ")"; }

// Everything but the words.
Result<ServingBackend> make_on_gpu(gpu::Device& device, gpu::Cut cut, const BackendOptions& options,
                                   const weights::Checkpoint& checkpoint) {
  gpu::RankOptions rank_options;
  rank_options.num_pages = options.num_pages;
  rank_options.num_slots = options.num_slots;
  rank_options.max_context = options.max_context;
  rank_options.packed_cache = options.packed_cache;
  const auto programs = std::make_shared<std::vector<gpu::MadeProgram>>();  // as long as the rank may make more
  const auto maker = options.maker
                         ? options.maker
                         : program_maker([programs](const gpu::MadeProgram& program) { programs->push_back(program); });
  TRY_ASSIGN(std::unique_ptr<gpu::Rank> rank, gpu::Rank::make(device, checkpoint, rank_options, maker));
  for (const int rows : {options.decode_rows, options.prompt_rows})
    TRY(rank->prepare(std::min(rows, program::kMaxBand), options.num_slots));
  ServingBackend out;
  out.start = StartReport{*programs, rank->load_report(), rank->memory()};
  gpu::GpuOptions gpu_options;
  gpu_options.cut = cut;
  out.backend = std::make_unique<gpu::GpuBackend>(device, std::move(rank), gpu_options);
  return out;
}

Result<std::unique_ptr<program::Backend>> make_on_cpu(const BackendOptions& options,
                                                      const weights::Checkpoint& checkpoint) {
  cpu::CpuOptions cpu_options;
  cpu_options.tp = options.tp;
  if (options.threads) cpu_options.ctas = std::max(1, *options.threads / options.tp);
  cpu_options.num_slots = options.num_slots;
  cpu_options.num_pages = options.num_pages;
  cpu_options.max_context = options.max_context;
  TRY_ASSIGN(std::unique_ptr<cpu::CpuBackend> backend, cpu::CpuBackend::make(checkpoint, cpu_options));
  return std::unique_ptr<program::Backend>(std::move(backend));
}

}  // namespace

Result<BackendChoice> choose_backend(const BackendOptions& options, const model::Geometry& geometry) {
  TRY_ASSIGN(const gpu::Mono mono, gpu::parse_mono(options.mono));
  if (options.backend == "cpu") return BackendChoice{};
  Result<BackendChoice> choice = choose_gpu(options, geometry);
  const bool asked_for = options.backend == "gpu" || mono == gpu::Mono::kOn;
  if (choice.ok() || asked_for) return choice;
  return BackendChoice{nullptr, gpu::Cut::kStep, choice.error().text};
}

Result<BackendChoice> choose_on_device(std::unique_ptr<gpu::Device> device, const BackendOptions& options,
                                       const model::Geometry& geometry) {
  TRY_ASSIGN(const gpu::Mono mono, gpu::parse_mono(options.mono));
  TRY_ASSIGN(const gpu::DeviceInfo info, device->info());
  gpu::GateOptions gate;
  gate.num_pages = options.num_pages;
  gate.num_slots = options.num_slots;
  gate.max_context = options.max_context;
  TRY_ASSIGN(const gpu::MonoChoice served, gpu::choose_mono(mono, info, geometry, gate));
  BackendChoice choice;
  choice.device = std::move(device);
  choice.cut = served.persistent ? gpu::Cut::kStep : gpu::Cut::kStage;
  choice.reason = served.reason;
  return choice;
}

Result<ServingBackend> make_backend(BackendChoice choice, const BackendOptions& options,
                                    const weights::Checkpoint& checkpoint) {
  if (choice.device != nullptr) {
    Result<ServingBackend> made = make_on_gpu(*choice.device, choice.cut, options, checkpoint);
    if (made.ok()) {
      TRY_ASSIGN(const gpu::DeviceInfo info, choice.device->info());
      made->words = fmt::format("gpu {}, one launch a {}{}", info.name,
                                choice.cut == gpu::Cut::kStep ? "step" : "stage", in_brackets(choice.reason));
      made->device = std::move(choice.device);
      return made;
    }
    if (options.backend == "gpu" || options.mono == "on") return made.error();
    choice.reason = made.error().message();
  }
  ServingBackend out;
  TRY_ASSIGN(out.backend, make_on_cpu(options, checkpoint));
  out.words = fmt::format("cpu, tp {}{}", options.tp, in_brackets(choice.reason));
  return out;
}

}  // namespace monostep::apps
