// The first time model: bytes that one rank reads in a step, call by call, and the time that they take at a given
// bandwidth; and the hand-offs of a layer's critical path. Follows model.md section 9 (uniform independent routing).
// Called by `monostep plan`.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "program/layout.h"

namespace monostep::program {

struct TimeQuery {
  int requests = 1;
  int context = 4096;                      // positions behind a request
  double bandwidth = 4.7e12;               // bytes/s
  std::optional<double> distinct_experts;  // of a backbone layer; without it section 9's formula for the step's rows
};

// Experts that `rows` rows touch, each with `per_row` of `num_experts` chosen uniformly and independently.
double expected_distinct_experts(int num_experts, int per_row, int rows);

struct CallTime {
  int call_idx = 0;
  int64_t bytes = 0;             // weights that the rank reads: codes and scales as stored, looked-up rows
  int64_t bytes_replicated = 0;  // the same with engram.wkv on every rank, as section 9 counts it
  int64_t kv_bytes = 0;          // caches and Engram rows
};

struct TimeModel {
  std::vector<CallTime> calls;
  int64_t bytes = 0;
  int64_t bytes_replicated = 0;
  int64_t draft_bytes = 0;     // of `bytes`: the sections kContext and kDraft
  int64_t kv_bytes = 0;        // section 9.3: backbone caches and Engram rows
  int64_t draft_kv_bytes = 0;  // the draft rings, which section 9.3 leaves out
  double floor_ms = 0;         // bytes / bandwidth
  double distinct_experts = 0;
  double draft_distinct_experts = 0;
};
TimeModel model_time(const Layout& layout, const TimeQuery& query);

// Hand-offs on the longest chain of a layer, from the exchange before it to its own. With one rank both exchanges are
// local.
struct Handoffs {
  int local = 0;
  int cross_rank = 0;
  bool operator==(const Handoffs&) const = default;
};
Handoffs handoffs_of_layer(const Layout& layout, int layer_idx);

}  // namespace monostep::program
