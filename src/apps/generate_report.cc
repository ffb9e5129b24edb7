// The report of a request (apps/generate_report.h).
#include "apps/generate_report.h"

#include <fmt/format.h>

#include "base/json_text.h"

namespace monostep::apps {
namespace {

const char* finish_name(const Generation& generation) {
  if (!generation.finish) return "none";
  switch (*generation.finish) {
    case engine::Finish::kStop: return "stop";
    case engine::Finish::kLength: return "length";
    case engine::Finish::kCancelled: return "cancelled";
  }
  return "none";
}

double share(const engine::DraftPosition& position) {
  return static_cast<double>(position.num_accepted) / static_cast<double>(position.num_verified);
}

void append_stats(std::string& out, const Generation& generation) {
  out += "{\"tokens_per_second\": ";
  append_json_number(out, generation.tokens_per_second());
  out += ", \"time_to_first_token_ms\": ";
  append_json_number(out, generation.time_to_first_token_ms());
  out += ", \"tokens_per_step\": ";
  append_json_number(out, generation.tokens_per_step());
  out += ", \"acceptance\": [";
  const char* separator = "";
  for (const engine::DraftPosition& position : generation.draft_positions) {
    if (position.num_verified == 0) break;  // nor was any later one
    out += separator;
    append_json_number(out, share(position));
    separator = ", ";
  }
  out += "]}";
}

}  // namespace

double Generation::time_to_first_token_ms() const {
  return std::chrono::duration<double, std::milli>(first_token - submitted).count();
}

double Generation::tokens_per_second() const {
  const double seconds = std::chrono::duration<double>(last_token - first_token).count();
  return seconds > 0 ? static_cast<double>(token_ids.size() - 1) / seconds : 0;
}

double Generation::tokens_per_step() const {
  return num_steps > 1 ? static_cast<double>(token_ids.size() - 1) / (num_steps - 1) : 1;
}

std::string to_json(const Generation& generation, const std::optional<StartReport>& start) {
  std::string out = "{\"token_ids\": [";
  const char* separator = "";
  for (const int32_t token : generation.token_ids) {
    out += separator;
    append_json_integer(out, token);
    separator = ", ";
  }
  out += "], \"text\": ";
  append_json_string(out, generation.text, true);
  out += ", \"stats\": ";
  append_stats(out, generation);
  if (start) out += ", \"start\": " + start_json(*start);
  return out + "}";
}

std::string to_table(const Generation& generation) {
  std::string out;
  const auto line = [&out](const char* name, const std::string& value) {
    out += fmt::format("{:<21}{}\n", name, value);
  };
  line("tokens", fmt::format("{} (prompt {}), finish: {}", generation.token_ids.size(), generation.num_prompt_tokens,
                             finish_name(generation)));
  line("tokens/s", fmt::format("{:.2f}", generation.tokens_per_second()));
  line("time to first token", fmt::format("{:.1f} ms", generation.time_to_first_token_ms()));
  line("tokens per step", fmt::format("{:.2f}", generation.tokens_per_step()));
  int position_idx = 0;
  for (const engine::DraftPosition& position : generation.draft_positions) {
    if (position.num_verified == 0) break;
    line(fmt::format("acceptance at {}", ++position_idx).c_str(),
         fmt::format("{:.0f}% ({} of {})", 100 * share(position), position.num_accepted, position.num_verified));
  }
  return out;
}

}  // namespace monostep::apps
