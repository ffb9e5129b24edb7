// The backend that `monostep generate` runs on: the GPU where it is asked for or there is one that serves, else the CPU
// reference. Used by generate.cc.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "apps/start_report.h"
#include "gpu/backend.h"
#include "program/step.h"
#include "weights/checkpoint.h"

namespace monostep::apps {

struct BackendOptions {
  std::string backend = "auto";  // auto, cpu, gpu
  std::string mono = "auto";     // gpu/gate.h
  int tp = 1;
  std::optional<int> threads;  // of the cpu
  int num_slots = 0;
  int num_pages = 0;
  int max_context = 0;
  int prompt_rows = 0;                 // of the largest step
  int decode_rows = 0;                 // of all requests
  std::filesystem::path packed_cache;  // gpu/rank.h
  gpu::KernelMaker maker;              // of the programs; empty: program_maker()
};

// Settled before the weights are read.
struct BackendChoice {
  std::unique_ptr<gpu::Device> device;  // null: the cpu
  gpu::Cut cut = gpu::Cut::kStep;
  std::string reason;  // why it is the cpu, or why the launches are cut; may be empty
};
// Errors: kInvalidArgument; kUnavailable where what was asked for cannot be had.
Result<BackendChoice> choose_backend(const BackendOptions& options, const model::Geometry& geometry);
// The same with this device.
Result<BackendChoice> choose_on_device(std::unique_ptr<gpu::Device> device, const BackendOptions& options,
                                       const model::Geometry& geometry);

struct ServingBackend {
  std::unique_ptr<gpu::Device> device;  // outlives the backend
  std::unique_ptr<program::Backend> backend;
  std::string words;                 // "cpu, tp 1 (why)"
  std::optional<StartReport> start;  // of a gpu
};
// The checkpoint must outlive the backend. Where `auto` chose a GPU on which the model cannot be loaded, it is the cpu.
Result<ServingBackend> make_backend(BackendChoice choice, const BackendOptions& options,
                                    const weights::Checkpoint& checkpoint);

}  // namespace monostep::apps
