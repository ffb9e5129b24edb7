// Engine: serves requests together on a backend, one step at a time: pick, build, decode, commit. Single-threaded; owns
// the sequences. Used by the programs and the server.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "engine/request.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"
#include "program/step.h"

namespace monostep::engine {

class Engine {
 public:
  // `backend` must outlive the engine and have the limits' slots, pages and context.
  Engine(const Limits& limits, program::Backend& backend);

  // The request's id, or why it is refused (check_parameters, check_fits).
  Result<uint64_t> submit(Request request);

  // One step. Does nothing where no request is unfinished. After an error nothing of the step was committed.
  Status step();

  bool has_work() const;

  // Ends a request without further tokens; its memory is free for the next step. Unknown and finished ids are ignored.
  void cancel(uint64_t id);

  // A request that is not finished; nullptr for others.
  const Sequence* find(uint64_t id) const;

 private:
  void commit(const StepDecision& decision, const program::StepOutputs& outputs);
  void advance(const Choice& choice, const program::RequestOutput& output);
  void retire_finished();

  Limits limits_;
  program::Backend& backend_;
  Scheduler scheduler_;
  std::map<uint64_t, std::unique_ptr<Sequence>> sequences_;
  uint64_t next_id_ = 1;
  uint32_t epoch_ = 0;  // steps so far
};

}  // namespace monostep::engine
