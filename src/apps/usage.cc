// The words of usage.h. Nearest is the smallest number of characters to insert, remove or replace.
#include "apps/usage.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

namespace monostep::apps {
namespace {

size_t edit_distance(std::string_view from, std::string_view to) {
  std::vector<size_t> costs(to.size() + 1);  // of the characters of `from` so far against each start of `to`
  std::iota(costs.begin(), costs.end(), size_t{0});
  for (const char letter : from) {
    size_t diagonal = costs[0]++;
    for (size_t idx = 0; idx < to.size(); ++idx) {
      const size_t replaced = diagonal + (letter == to[idx] ? 0 : 1);
      diagonal = costs[idx + 1];
      costs[idx + 1] = std::min({replaced, costs[idx] + 1, diagonal + 1});
    }
  }
  return costs.back();
}

void append_option_names(const CLI::App& command, std::vector<std::string>& names) {
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  for (const CLI::App* group : command.get_subcommands(nullptr)) {
    if (group->get_name().empty()) append_option_names(*group, names);  // an option group
  }
}

std::vector<std::string> known_names(const CLI::App& command, bool options) {
  std::vector<std::string> names;
  if (options) {
    append_option_names(command, names);
  } else {
    for (const CLI::App* subcommand : command.get_subcommands(nullptr)) names.push_back(subcommand->get_name());
    std::erase(names, "");
  }
  return names;
}

Error unknown_name(const CLI::App& command, std::string name) {
  const bool is_option = name.starts_with('-');
  if (is_option) name = name.substr(0, name.find('='));
  const std::vector<std::string> names = known_names(command, is_option);
  const bool is_subcommand = !is_option && !command.get_subcommands(nullptr).empty();
  const char* kind = is_option ? "option" : is_subcommand ? "subcommand" : "argument";
  std::string text = fmt::format("unknown {} of {}", kind, command.get_name());
  const auto nearest = std::min_element(names.begin(), names.end(), [&](const auto& left, const auto& right) {
    return edit_distance(name, left) < edit_distance(name, right);
  });
  if (nearest != names.end()) text += fmt::format(", the nearest is {}", *nearest);
  return {Code::kInvalidArgument, std::move(text), std::move(name)};
}

}  // namespace

Error usage_error(const CLI::App& root, const CLI::ParseError& refusal) {
  const CLI::App* innermost = &root;
  while (!innermost->get_subcommands().empty()) innermost = innermost->get_subcommands().front();
  const CLI::App& command = *innermost;
  const std::vector<std::string> unknown = command.remaining(true);
  if (!unknown.empty()) return unknown_name(command, unknown.front());
  std::string reason = refusal.what();
  std::replace(reason.begin(), reason.end(), '\n', ' ');
  return {Code::kInvalidArgument, std::move(reason), ""};
}

}  // namespace monostep::apps
