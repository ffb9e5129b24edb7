// Record: named arrays of a recorded run or a trace, in a safetensors file. Values are held as float or int32; the
// file's dtype is kept. Read and written by trace; the names are those of golden/README.md ("Records").
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/result.h"

namespace monostep::cpu {

struct Array {
  std::string dtype;  // F32, BF16, I32 or U8
  std::vector<int64_t> shape;
  std::vector<float> values;  // F32 and BF16
  std::vector<int32_t> ids;   // I32 and U8
  // Elements of one row of the first axis.
  int64_t row_size() const;
  const float* row(int64_t idx) const { return values.data() + idx * row_size(); }
  float* row(int64_t idx) { return values.data() + idx * row_size(); }
};

class Record {
 public:
  // kCorrupt: an array of another dtype than F32, BF16, I32, U8.
  static Result<Record> load(const std::filesystem::path& path);
  Status save(const std::filesystem::path& path) const;

  bool has(const std::string& name) const { return arrays_.contains(name); }
  // An array of values (F32, BF16) or of ids (I32, U8). kNotFound where the record lacks it, kInvalidArgument where it
  // holds the other kind or its shape is another than `shape` (-1: any extent).
  Result<const Array*> get(const std::string& name, const std::vector<int64_t>& shape) const;
  Result<const Array*> get_ids(const std::string& name, const std::vector<int64_t>& shape) const;
  // Adds an array of zeros (ids or values by dtype) and returns it.
  Array& add(const std::string& name, const std::string& dtype, const std::vector<int64_t>& shape);
  Array* find(const std::string& name);
  const Array* find(const std::string& name) const;

 private:
  Result<const Array*> get_shaped(const std::string& name, const std::vector<int64_t>& shape) const;

  std::map<std::string, Array> arrays_;
  std::string place_;
};

}  // namespace monostep::cpu
