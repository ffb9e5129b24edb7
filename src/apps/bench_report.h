// What `monostep bench step` says: a table for a person and one row of a CSV file. Filled by bench.cc.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "apps/bench_experts.h"
#include "apps/bench_step.h"
#include "apps/start_report.h"
#include "gpu/read_bandwidth.h"

namespace monostep::apps {

struct BenchReport {
  std::string date;  // UTC, ISO 8601
  std::string commit;
  std::string machine;  // the GPU's name
  std::string model;    // a known geometry or a folder
  int num_sms = 0;      // CTAs of the step
  int tp = 1;
  int rank = 0;
  int rows = 0;                 // of a step
  int64_t engram_gib = 0;       // the limit of pinned Engram tables
  int64_t engram_rows = 0;      // pinned, of all Engram layers
  int64_t engram_rows_all = 0;  // of the model; where fewer are pinned, row numbers are taken modulo
  BenchShape shape;

  StepFigures figures;
  StepBytes bytes;
  gpu::ReadBandwidth bandwidth;
  int64_t model_bytes = 0;   // the time model's, for uniform independent routing
  double model_ms = 0;       // at the measured bandwidth
  double model_experts = 0;  // distinct ones of a backbone layer

  StartReport start;

  // Of the bandwidth, by the bytes that the step streams.
  double share() const { return floor_ms() / figures.step_ms.median; }
  double floor_ms() const { return static_cast<double>(bytes.total) / bandwidth.median * 1e3; }
};

std::string bench_text(const BenchReport& report);

// Columns that say less than their name: `peer_delay_us` 0: peers' words are there with the own ones. `engram_s` empty:
// within `weights_s`.
std::string bench_csv_header();  // one line, with its end
std::string bench_csv_row(const BenchReport& report);
// Appends a row; a file that is not there or empty gets the header first. Errors: kInvalidArgument where the file
// begins with another header, and where it cannot be written.
Status append_bench_csv(const std::filesystem::path& path, const BenchReport& report);

}  // namespace monostep::apps
