// The contract checker (level L0 of ARCHITECTURE.md): proves over the flattened program of a geometry that regions have
// one writer, waits name earlier calls of the right layer, nothing is overwritten before its readers are done, and
// scopes, copies and launch cuts hold. Reads the tables as data, so that tests can break them. Called by `monostep
// plan`, tests and the backends' start.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "program/program.h"

namespace monostep::program {

struct Contract {
  explicit Contract(const model::Geometry& checked) : geometry(checked), program(build_program(checked)) {}

  model::Geometry geometry;
  Program program;
  std::array<RegionDecl, kNumRegions> regions = kRegions;
  std::array<StageDecl, kNumStages> stages = kStages;
};

// What breaks the contract, each naming rule, region, stage and layer; empty where it holds. The rules do not depend on
// band, shard or CTA count: every put and poll is a task's, and tasks of a call are ordered only through the regions.
std::vector<std::string> check_contract(const Contract& contract);

// Calls whose content of `region` the call at `reader_idx` takes. One, but for the regions that several calls fill part
// by part: all taps for kMainProj, all draft positions for kDraftOut. Empty: there is none before it.
std::vector<int> contents_read(const Contract& contract, Region region, int reader_idx);

}  // namespace monostep::program
