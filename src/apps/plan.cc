// `monostep plan` prints what a step of a geometry is on one rank: calls, regions, tasks, weight chunks, the time model
// and the contract's result, readably or (--json) as one object with all of it. Reads a config at most, no checkpoint.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/commands.h"
#include "apps/plan_view.h"
#include "base/mapped_file.h"

namespace monostep::apps {
namespace {

using program::Contract;
using program::kBands;
using program::kMaxBand;
using program::kMaxRequests;
using program::Layout;
using program::Plan;
using program::Shape;
using program::TimeQuery;

constexpr size_t kMaxConfigBytes = size_t{1} << 20;
constexpr int kMaxCtas = 1 << 16;

struct PlanOptions {
  std::string geometry = "flash";
  int tp = 1;
  std::optional<int> rows;
  std::optional<int> requests;
  int context = 4096;
  int num_ctas = 132;
  double bandwidth = 4.7e12;
  std::optional<double> distinct_experts;
  std::string show = "summary";
  bool json = false;
};

Error refused(std::string_view option, std::string text) {
  return Error{Code::kInvalidArgument, std::move(text), std::string(option)};
}

Status check_between(std::string_view option, double value, double least, double most) {
  if (value >= least && value <= most) return {};
  return refused(option, fmt::format("expected {} to {}, found {}", least, most, value));
}

Result<model::Geometry> read_geometry(const std::string& name) {
  Result<model::Geometry> known = model::named_geometry(name);
  if (known.ok()) return known;
  std::error_code error;
  if (std::filesystem::is_directory(name, error)) return model::load_geometry(name);
  if (!std::filesystem::exists(name, error))
    return refused("--geometry", known.error().text + ", and there is no such file");
  TRY_ASSIGN(const std::string text, read_text_file(name, kMaxConfigBytes));
  return model::parse_geometry(text, name);
}

// Fills requests and band from what was given: a band holds as many whole draft blocks with their anchors as fit.
Result<Shape> settle_shape(const PlanOptions& options, const model::Geometry& geometry) {
  const int rows_each = geometry.dspark_block_size + 1;
  if (rows_each > kMaxBand) {
    return Error{Code::kUnsupported, fmt::format("{} rows of a request exceed the widest band {}", rows_each, kMaxBand),
                 "dspark_block_size"};
  }
  const int given_band = options.rows.value_or(options.requests ? kMaxBand : kBands.front());
  if (std::find(kBands.begin(), kBands.end(), given_band) == kBands.end()) {
    return refused("--rows",
                   fmt::format("expected one of the bands {}, found {}", fmt::join(kBands, ", "), given_band));
  }
  Shape shape;
  shape.max_requests = options.requests.value_or(std::clamp(given_band / rows_each, 1, kMaxRequests));
  TRY(check_between("--requests", shape.max_requests, 1, kMaxRequests));
  const int rows = shape.max_requests * rows_each;
  if (rows > given_band) {
    return refused(options.requests ? "--requests" : "--rows",
                   fmt::format("{} requests of {} rows do not fit {} rows", shape.max_requests, rows_each, given_band));
  }
  shape.band = options.rows ? given_band : program::band_of(rows);
  shape.max_context = options.context;
  return shape;
}

Status check_options(const PlanOptions& options, const model::Geometry& geometry) {
  TRY(check_between("--context", options.context, 1, geometry.max_position_embeddings));
  TRY(check_between("--ctas", options.num_ctas, 1, kMaxCtas));
  if (!std::isfinite(options.bandwidth) || options.bandwidth <= 0) {
    return refused("--bandwidth", fmt::format("expected bytes/s above 0, found {}", options.bandwidth));
  }
  if (options.distinct_experts) {
    TRY(check_between("--distinct-experts", *options.distinct_experts, 0, geometry.n_routed_experts));
  }
  const std::vector<std::string_view> parts = plan_parts();
  if (std::find(parts.begin(), parts.end(), options.show) != parts.end()) return {};
  return refused("--show", fmt::format("expected one of {}, found \"{}\"", fmt::join(parts, ", "), options.show));
}

Status run_plan(const PlanOptions& options) {
  TRY_ASSIGN(const model::Geometry geometry, read_geometry(options.geometry));
  TRY(check_options(options, geometry));
  TRY_ASSIGN(const model::Shard shard, model::make_shard(geometry, options.tp));
  TRY_ASSIGN(const Shape shape, settle_shape(options, geometry));
  const Layout layout(geometry, shard, shape);
  const Plan plan(layout, options.num_ctas);
  const TimeQuery query{shape.max_requests, options.context, options.bandwidth, options.distinct_experts};
  const PlanView view{options.geometry,
                      query,
                      layout,
                      plan,
                      model_time(layout, query),
                      packed_size(layout, plan.chunk_runs()),
                      check_contract(Contract(geometry))};
  const std::string text = options.json ? plan_json(view) : plan_text(view, options.show);
  std::fwrite(text.data(), 1, text.size(), stdout);
  if (view.violations.empty()) return {};
  return Error{Code::kInternal, fmt::format("{} violations", view.violations.size()), "contract"};
}

}  // namespace

void add_plan(CLI::App& root, int* status) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* command =
      root.add_subcommand("plan", "print a step's calls, regions, tasks, chunks and times for one rank");
  command->add_option("--geometry", options->geometry, "a known geometry, a config.json or a model folder")
      ->capture_default_str();
  command->add_option("--tp", options->tp, "ranks: 1, 2, 4 or 8")->capture_default_str();
  command->add_option("--rows", options->rows, "band: 8, 16, 24 or 48 rows (8)");
  command->add_option("--requests", options->requests,
                      "requests of a whole draft block each (as many as the band holds)");
  command->add_option("--context", options->context, "positions behind each request")->capture_default_str();
  command->add_option("--ctas", options->num_ctas, "CTAs of the persistent kernel")->capture_default_str();
  command->add_option("--bandwidth", options->bandwidth, "bytes/s that weights are read at")->capture_default_str();
  command->add_option("--distinct-experts", options->distinct_experts,
                      "experts that a backbone layer reads (by default expected under uniform routing)");
  command->add_option("--show", options->show, "summary, calls, regions, tasks, chunks, time or contract")
      ->capture_default_str();
  command->add_flag("--json", options->json, "one JSON object with everything");
  command->callback([options, status] {
    const Status done = run_plan(*options);
    *status = done.ok() ? 0 : report(done.error());
  });
}

}  // namespace monostep::apps
