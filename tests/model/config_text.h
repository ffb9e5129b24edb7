// Edits of config texts for tests: replaces or removes one member of the JSON that the writers make. Also reads test
// data.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

namespace monostep::model {

inline std::string data_dir(const std::string& name) {
  return std::string(MONOSTEP_SOURCE_DIR) + "/tests/model/data/" + name;
}

inline std::string read_text(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  EXPECT_TRUE(stream) << path;
  return {std::istreambuf_iterator<char>(stream), {}};
}

// Start and end of the value of the first member of that name.
inline std::pair<size_t, size_t> value_range(const std::string& text, const std::string& key) {
  const std::string member = "\"" + key + "\": ";
  size_t start = text.find(member);
  if (start == std::string::npos) {
    ADD_FAILURE() << "the text has no member " << key;
    return {0, 0};
  }
  start += member.size();
  int depth = 0;
  size_t end = start;
  while (depth > 0 || (text[end] != ',' && text[end] != '\n')) {
    if (text[end] == '[' || text[end] == '{') ++depth;
    if (text[end] == ']' || text[end] == '}') --depth;
    ++end;
  }
  return {start, end};
}

inline std::string with_value(std::string text, const std::string& key, const std::string& json) {
  const auto [start, end] = value_range(text, key);
  return text.replace(start, end - start, json);
}

inline std::string without_key(const std::string& text, const std::string& key) {
  const std::string member = "\"" + key + "\": ";
  const auto [start, end] = value_range(text, key);
  const size_t name_start = start - member.size();
  // The comma behind it goes with it; a last member takes the comma before it.
  if (text[end] == ',') return text.substr(0, name_start) + text.substr(end + 1);
  return text.substr(0, text.rfind(',', name_start)) + text.substr(end);
}

}  // namespace monostep::model
