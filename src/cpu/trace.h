// Trace: runs the engine's step program on a record's tokens and, by mode, on its recorded inputs, and gives what it
// computed under the record's tensor names. Modes and names are the contract of golden/README.md ("Records", "How to
// compare"). Called by `monostep trace`; it is how anyone compares the engine with another program.
#pragma once

#include <functional>
#include <string_view>

#include "cpu/backend.h"
#include "cpu/record.h"

namespace monostep::cpu {

enum class TraceMode { kLayer, kStep, kCached, kFfn, kDraft, kFree, kDecode };
Result<TraceMode> parse_trace_mode(std::string_view name);

// Calls that run together. What is fed between two calls cuts further; kStep then is kLayer. To see what later layers
// overwrite, an unfed step runs anew up to the end of each layer.
enum class TraceSpan { kCall, kLayer, kStep };

struct TraceOptions {
  TraceMode mode = TraceMode::kFree;
  int tp = 1;
  int chunk = program::kMaxBand;  // rows of a prompt step
  TraceSpan span = TraceSpan::kCall;
  // Called with the backend that trace has made, before its first step: may set a runner.
  std::function<Status(CpuBackend&)> on_backend = nullptr;
};

// `record` must hold at least `tokens` I32 [S]; what else a mode needs is checked by name and shape.
Result<Record> run_trace(const weights::Checkpoint& checkpoint, const Record& record, const TraceOptions& options);

}  // namespace monostep::cpu
