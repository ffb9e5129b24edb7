// Forms of a benchmark's result (apps/bench_report.h).
#include "apps/bench_report.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>
#include <utility>
#include <vector>

#include "base/mapped_file.h"

namespace monostep::apps {
namespace {

constexpr size_t kMaxCsvBytes = size_t{64} << 20;

std::string_view cut_name(gpu::Cut cut) {
  switch (cut) {
    case gpu::Cut::kStep: return "step";
    case gpu::Cut::kLayer: return "layer";
    case gpu::Cut::kStage: break;
  }
  return "stage";
}

// A field of a CSV file: quoted where it has to be.
std::string field(const std::string& text) {
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char letter : text) {
    if (letter == '"') quoted += '"';
    quoted += letter == '\n' || letter == '\r' ? ' ' : letter;
  }
  return quoted + '"';
}

using Fields = std::vector<std::pair<std::string, std::string>>;  // column, value

template <typename T>
std::string number(T value) {
  return fmt::format("{}", value);
}
std::string ms(double value) { return fmt::format("{:.4f}", value); }

void add_shape(const BenchReport& r, Fields& out) {
  out.insert(out.end(), {{"date", r.date},
                         {"commit", field(r.commit)},
                         {"machine", field(r.machine)},
                         {"sms", number(r.num_sms)},
                         {"model", field(r.model)},
                         {"tp", number(r.tp)},
                         {"rank", number(r.rank)},
                         {"requests", number(r.shape.requests)},
                         {"rows", number(r.rows)},
                         {"context", number(r.shape.context)},
                         {"acceptance", fmt::format("{:.2f}", r.shape.acceptance)},
                         {"cut", std::string(cut_name(r.shape.cut))},
                         {"laid_by", r.shape.device_rounds ? "device" : "host"},
                         {"peer_delay_us", fmt::format("{:.1f}", r.shape.peer_delay_us)},
                         {"seed", number(r.shape.seed)},
                         {"warmup", number(r.shape.warmup)},
                         {"steps", number(r.shape.steps)},
                         {"engram_gib", number(r.engram_gib)}});
}

void add_times(const BenchReport& r, Fields& out) {
  const StepFigures& f = r.figures;
  out.insert(out.end(), {{"step_ms", ms(f.step_ms.median)},
                         {"step_ms_p90", ms(f.step_ms.p90)},
                         {"step_ms_least", ms(f.step_ms.least)},
                         {"step_ms_most", ms(f.step_ms.most)},
                         {"step_to_step_ms", ms(f.step_to_step_ms.median)},
                         {"step_to_step_ms_p90", ms(f.step_to_step_ms.p90)},
                         {"target_ms", ms(f.target_ms.median)},
                         {"draft_ms", ms(f.draft_ms.median)},
                         {"launches", number(f.launches)},
                         {"tokens", fmt::format("{:.3f}", f.tokens)}});
}

void add_bytes(const BenchReport& r, Fields& out) {
  out.insert(out.end(), {{"bytes", number(r.bytes.total)},
                         {"draft_bytes", number(r.bytes.draft)},
                         {"read_tb_s", fmt::format("{:.4f}", r.bandwidth.median / 1e12)},
                         {"read_tb_s_least", fmt::format("{:.4f}", r.bandwidth.least / 1e12)},
                         {"read_tb_s_most", fmt::format("{:.4f}", r.bandwidth.most / 1e12)},
                         {"share", fmt::format("{:.4f}", r.share())},
                         {"floor_ms", ms(r.floor_ms())},
                         {"experts", fmt::format("{:.2f}", r.figures.backbone_experts)},
                         {"draft_experts", fmt::format("{:.2f}", r.figures.draft_experts)},
                         {"model_bytes", number(r.model_bytes)},
                         {"model_ms", ms(r.model_ms)},
                         {"model_experts", fmt::format("{:.2f}", r.model_experts)}});
}

void add_start(const BenchReport& r, Fields& out) {
  const gpu::LoadReport& load = r.start.load;
  out.insert(out.end(), {{"start", r.start.from_cache() ? "warm" : "cold"},
                         {"program_s", fmt::format("{:.3f}", r.start.program_s())},
                         {"weights_from", gpu::weights_from_name(load.weights.from)},
                         {"weights_s", fmt::format("{:.3f}", load.weights_s)},
                         {"engram_s", fmt::format("{:.3f}", load.engram_s)},
                         {"first_step_ms", ms(r.figures.first_step_ms)},
                         {"weight_bytes", number(r.start.memory.weights)},
                         {"table_bytes", number(r.start.memory.tables)},
                         {"pool_bytes", number(r.start.memory.pools)},
                         {"arena_bytes", number(r.start.memory.arena)},
                         {"pinned_bytes", number(r.start.memory.pinned)},
                         {"code_bytes", number(r.start.code_bytes())},
                         {"packed_file_bytes", number(load.weights.file_bytes)}});
}

Fields fields_of(const BenchReport& report) {
  Fields out;
  add_shape(report, out);
  add_times(report, out);
  add_bytes(report, out);
  add_start(report, out);
  return out;
}

std::string engram_text(const BenchReport& r) {
  if (r.engram_rows_all == 0) return "";
  if (r.engram_rows == r.engram_rows_all) return fmt::format("engram         all {} rows pinned\n", r.engram_rows);
  return fmt::format("engram         {} of {} rows pinned (at most {} GiB), row numbers taken modulo\n", r.engram_rows,
                     r.engram_rows_all, r.engram_gib);
}

std::string spread_text(const char* name, const Spread& s) {
  return fmt::format("{:<14} median {:9.3f}   P90 {:9.3f}   least {:9.3f}   most {:9.3f} ms\n", name, s.median, s.p90,
                     s.least, s.most);
}

std::string times_text(const BenchReport& r) {
  const StepFigures& f = r.figures;
  return spread_text("step", f.step_ms) + spread_text("step to step", f.step_to_step_ms) +
         spread_text("target part", f.target_ms) + spread_text("draft part", f.draft_ms) +
         fmt::format("launches       {} a step\ntokens         {:.3f} a step and request\n", f.launches, f.tokens);
}

std::string bytes_text(const BenchReport& r) {
  return fmt::format("experts        {:.2f} distinct a layer, {:.2f} a draft layer (uniform routing: {:.2f})\n",
                     r.figures.backbone_experts, r.figures.draft_experts, r.model_experts) +
         fmt::format("bytes          {:.4f} GB a step, of them draft {:.4f} GB\n",
                     static_cast<double>(r.bytes.total) / 1e9, static_cast<double>(r.bytes.draft) / 1e9) +
         fmt::format("bandwidth      {:.3f} TB/s read ({:.3f} to {:.3f})\n", r.bandwidth.median / 1e12,
                     r.bandwidth.least / 1e12, r.bandwidth.most / 1e12) +
         fmt::format("floor          {:.3f} ms, the step reads at {:.1f} % of the bandwidth\n", r.floor_ms(),
                     100 * r.share()) +
         fmt::format("time model     {:.4f} GB, {:.3f} ms\n", static_cast<double>(r.model_bytes) / 1e9, r.model_ms);
}

std::string start_text(const BenchReport& r) {
  return fmt::format("start          {}, first step {:.1f} ms\nmemory         {}\n", start_words(r.start),
                     r.figures.first_step_ms, memory_words(r.start));
}

std::string peers_text(const BenchReport& r) {
  if (r.tp == 1) return "";
  if (r.shape.peer_delay_us == 0) return "peers          played: own words at every rank's place, without delay\n";
  return fmt::format("peers          played: own words at every rank's place, {:.1f} us after they are seen\n",
                     r.shape.peer_delay_us);
}

std::string line_of(const Fields& fields, bool names) {
  std::string line;
  for (const auto& [name, value] : fields) line += (names ? name : value) + ",";
  line.back() = '\n';
  return line;
}

// The first line of a file, with its end; empty where there is none.
Result<std::string> first_line(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::string();
  TRY_ASSIGN(const std::string text, read_text_file(path, kMaxCsvBytes));
  return text.substr(0, text.find('\n') + (text.find('\n') == std::string::npos ? 0 : 1));
}

}  // namespace

std::string bench_text(const BenchReport& r) {
  return fmt::format("{}, TP {} rank {} on {}, {} CTAs, commit {}\n", r.model, r.tp, r.rank, r.machine, r.num_sms,
                     r.commit) +
         fmt::format("{} requests, {} rows, context {}, acceptance {:.2f}, cut {}, laid out by the {}, {} steps\n",
                     r.shape.requests, r.rows, r.shape.context, r.shape.acceptance, cut_name(r.shape.cut),
                     r.shape.device_rounds ? "device" : "host", r.shape.steps) +
         peers_text(r) + engram_text(r) + times_text(r) + bytes_text(r) + start_text(r);
}

std::string bench_csv_header() { return line_of(fields_of({}), true); }

std::string bench_csv_row(const BenchReport& report) { return line_of(fields_of(report), false); }

Status append_bench_csv(const std::filesystem::path& path, const BenchReport& report) {
  TRY_ASSIGN(const std::string header, first_line(path));
  if (!header.empty() && header != bench_csv_header())
    return Error{Code::kInvalidArgument, "the file has other columns", path.string()};
  const std::string text = (header.empty() ? bench_csv_header() : "") + bench_csv_row(report);
  std::FILE* file = std::fopen(path.c_str(), "a");
  if (file == nullptr) return Error{Code::kInvalidArgument, std::strerror(errno), path.string()};
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  if (std::fclose(file) == 0 && written) return {};
  return Error{Code::kInvalidArgument, std::string("cannot be written: ") + std::strerror(errno), path.string()};
}

}  // namespace monostep::apps
