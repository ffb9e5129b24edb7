// Program: the ordered calls of a whole decode step, flattened from the geometry: Engram rows, all layers, head,
// sampling, verdict, DSpark context and draft. Shape: the sizes of a step. Read by the contract checker, the CPU
// executor, the plan and the GPU.
#pragma once

#include <vector>

#include "model/geometry.h"
#include "model/shard.h"
#include "program/stage.h"
#include "program/step.h"

namespace monostep::program {

// A launch may stop before any section: a prompt step without a draft ends before kDraftLayers.
enum class Section : uint8_t { kTarget, kHead, kContext, kDraft };

// One call of a stage. `layer` is the layer index (backbone then draft); for kMarkov the draft position; -1 where the
// stage belongs to no layer.
struct Call {
  Stage stage = Stage::kFold;
  int layer = -1;
  Section section = Section::kTarget;
  RegionSet reads = 0;  // the regions that this call polls, by the layer's role
  RegionSet writes = 0;
};

struct Program {
  std::vector<Call> calls;
  std::vector<model::Role> roles;  // [num_layers]
  // Position of the first call of a section; calls.size() where the geometry has none (no draft layers).
  int section_begin(Section section) const;
  int find(Stage stage, int layer) const;  // position of a call; CHECK fails where there is none
};
Program build_program(const model::Geometry& geometry);

// The sizes of a step.
struct Shape {
  int band = 8;  // rows of the target
  int max_requests = kMaxRequests;
  int max_context = 4096;  // positions a request may have
};

// The shape of a step of so many rows and requests: the smallest band that holds the rows and, at a full draft block
// each, the requests. CHECK fails beyond the widest band.
Shape shape_for(const model::Geometry& geometry, int num_rows, int num_requests, int max_context);

// Which copy of a region a call's content lives in, and whether `reader` takes it from that call (pure functions of
// Program).
int copy_of(const Program& program, const model::Geometry& geometry, Region region, const Call& writer);
int copy_of(Copies copies, const Program& program, const model::Geometry& geometry, const Call& writer);
// The call whose content `reader_idx` (position of a call) sees in `region`: the latest writer before it in the program
// that serves the reader's role (the owner's call for compressed KV, the index source's for the selection). -1: none
// (first layer).
int writer_of(const Program& program, const model::Geometry& geometry, Region region, int reader_idx);

}  // namespace monostep::program
