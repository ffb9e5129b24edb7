// Recorded arrays in safetensors files (cpu/record.h).
#include "cpu/record.h"

#include <cstring>

#include "base/numeric.h"
#include "weights/safetensors.h"

namespace monostep::cpu {
namespace {

bool holds_ids(const std::string& dtype) { return dtype == "I32" || dtype == "U8"; }

int64_t count_of(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return count;
}

template <typename T>
T read_element(std::span<const std::byte> data, int64_t idx) {
  T value;
  std::memcpy(&value, data.data() + static_cast<size_t>(idx) * sizeof(T), sizeof(T));
  return value;
}

void unpack(std::span<const std::byte> data, int64_t count, Array& out) {
  for (int64_t idx = 0; idx < count; ++idx) {
    if (out.dtype == "F32") out.values.push_back(read_element<float>(data, idx));
    if (out.dtype == "BF16") out.values.push_back(bf16_value(read_element<uint16_t>(data, idx)));
    if (out.dtype == "I32") out.ids.push_back(read_element<int32_t>(data, idx));
    if (out.dtype == "U8") out.ids.push_back(read_element<uint8_t>(data, idx));
  }
}

template <typename T>
void append_element(std::vector<std::byte>& out, T value) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&value);
  out.insert(out.end(), bytes, bytes + sizeof(T));
}

std::vector<std::byte> packed(const Array& array) {
  std::vector<std::byte> out;
  for (const float value : array.values) {
    if (array.dtype == "F32") append_element(out, value);
    if (array.dtype == "BF16") append_element(out, bf16_bits(value));
  }
  for (const int32_t id : array.ids) {
    if (array.dtype == "I32") append_element(out, id);
    if (array.dtype == "U8") append_element(out, static_cast<uint8_t>(id));
  }
  return out;
}

}  // namespace

int64_t Array::row_size() const {
  return shape.empty() ? 1 : count_of(std::vector<int64_t>(shape.begin() + 1, shape.end()));
}

Result<Record> Record::load(const std::filesystem::path& path) {
  TRY_ASSIGN(const weights::SafetensorsFile file, weights::SafetensorsFile::open(path));
  Record out;
  out.place_ = path.string();
  for (const weights::SafetensorsEntry& entry : file.entries()) {
    if (!holds_ids(entry.dtype) && entry.dtype != "F32" && entry.dtype != "BF16") {
      return Error{Code::kCorrupt, "a record holds F32, BF16, I32 or U8, found " + entry.dtype,
                   out.place_ + ": " + entry.name};
    }
    Array& array = out.arrays_[entry.name];
    array.dtype = entry.dtype;
    array.shape = entry.shape;
    unpack(file.data(entry), count_of(entry.shape), array);
  }
  return out;
}

Status Record::save(const std::filesystem::path& path) const {
  std::vector<std::vector<std::byte>> bytes;
  std::vector<weights::TensorToWrite> tensors;
  bytes.reserve(arrays_.size());
  for (const auto& [name, array] : arrays_) {
    bytes.push_back(packed(array));
    tensors.push_back({name, array.dtype, array.shape, bytes.back()});
  }
  return weights::write_safetensors(path, tensors);
}

Result<const Array*> Record::get(const std::string& name, const std::vector<int64_t>& shape) const {
  TRY_ASSIGN(const Array* array, get_shaped(name, shape));
  if (!holds_ids(array->dtype)) return array;
  return Error{Code::kInvalidArgument, "\"" + name + "\" is " + array->dtype + ", expected F32 or BF16", place_};
}

Result<const Array*> Record::get_ids(const std::string& name, const std::vector<int64_t>& shape) const {
  TRY_ASSIGN(const Array* array, get_shaped(name, shape));
  if (holds_ids(array->dtype)) return array;
  return Error{Code::kInvalidArgument, "\"" + name + "\" is " + array->dtype + ", expected I32 or U8", place_};
}

Result<const Array*> Record::get_shaped(const std::string& name, const std::vector<int64_t>& shape) const {
  const Array* array = find(name);
  if (array == nullptr) return Error{Code::kNotFound, "the record lacks \"" + name + "\"", place_};
  bool fits = array->shape.size() == shape.size();
  for (size_t axis = 0; fits && axis < shape.size(); ++axis)
    fits = shape[axis] < 0 || shape[axis] == array->shape[axis];
  if (!fits) {
    return Error{Code::kInvalidArgument,
                 "\"" + name + "\" has shape " + weights::shape_text(array->shape) + ", the model needs " +
                     weights::shape_text(shape),
                 place_};
  }
  return array;
}

Array& Record::add(const std::string& name, const std::string& dtype, const std::vector<int64_t>& shape) {
  Array& array = arrays_[name];
  array = Array{dtype, shape, {}, {}};
  const auto count = static_cast<size_t>(count_of(shape));
  holds_ids(dtype) ? array.ids.resize(count) : array.values.resize(count);
  return array;
}

Array* Record::find(const std::string& name) {
  const auto found = arrays_.find(name);
  return found == arrays_.end() ? nullptr : &found->second;
}

const Array* Record::find(const std::string& name) const {
  const auto found = arrays_.find(name);
  return found == arrays_.end() ? nullptr : &found->second;
}

}  // namespace monostep::cpu
