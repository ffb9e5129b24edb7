// Reads and writes the safetensors container (safetensors.h). Every number of a header is checked before it is used.
#include "weights/safetensors.h"

#include <simdjson.h>

#include <algorithm>
#include <cstring>
#include <unordered_set>

#include "base/json_text.h"

namespace monostep::weights {
namespace {

namespace dom = simdjson::dom;

struct TagSize {
  std::string_view tag;
  uint64_t num_bytes;
};
constexpr TagSize kTags[] = {{"F8_E4M3", 1}, {"F8_E8M0", 1}, {"I8", 1},  {"BF16", 2}, {"F32", 4}, {"I32", 4},
                             {"I64", 8},     {"U8", 1},      {"F16", 2}, {"F64", 8},  {"I16", 2}, {"BOOL", 1},
                             {"F8_E5M2", 1}, {"U16", 2},     {"U32", 4}, {"U64", 8}};

// Bytes of one element; 0 for an unknown tag.
uint64_t element_bytes(std::string_view tag) {
  for (const TagSize& entry : kTags) {
    if (entry.tag == tag) return entry.num_bytes;
  }
  return 0;
}

// Bytes that dtype and shape ask for; false where the product leaves 63 bits.
bool expected_bytes(const SafetensorsEntry& entry, uint64_t* num_bytes) {
  int64_t product = static_cast<int64_t>(element_bytes(entry.dtype));
  for (const int64_t extent : entry.shape) {
    if (__builtin_mul_overflow(product, extent, &product)) return false;
  }
  *num_bytes = static_cast<uint64_t>(product);
  return true;
}

Error corrupt(const std::string& place, std::string text) { return {Code::kCorrupt, std::move(text), place}; }

Result<std::vector<int64_t>> parse_shape(dom::element value, const std::string& place) {
  dom::array extents;
  if (value.get(extents)) return corrupt(place, "expected an array as shape");
  std::vector<int64_t> shape;
  for (const dom::element item : extents) {
    int64_t extent = 0;
    if (item.get(extent) || extent < 0) return corrupt(place, "expected non-negative integers as shape");
    shape.push_back(extent);
  }
  return shape;
}

Status parse_offsets(dom::element value, const std::string& place, SafetensorsEntry& entry) {
  dom::array pair;
  if (value.get(pair) || pair.size() != 2) return corrupt(place, "expected two numbers as data_offsets");
  if (pair.at(0).get(entry.begin) || pair.at(1).get(entry.end) || entry.begin > entry.end) {
    return corrupt(place, "expected two ascending non-negative integers as data_offsets");
  }
  return {};
}

Status check_size(const SafetensorsEntry& entry, uint64_t data_bytes, const std::string& place) {
  uint64_t num_bytes = 0;
  if (!expected_bytes(entry, &num_bytes)) {
    return corrupt(place, "expected a shape of less than 2^63 bytes, found " + shape_text(entry.shape));
  }
  if (entry.end > data_bytes) {
    return corrupt(place, "expected data_offsets within the file's " + std::to_string(data_bytes) +
                              " bytes of data, found [" + std::to_string(entry.begin) + "," +
                              std::to_string(entry.end) + "]");
  }
  if (entry.end - entry.begin != num_bytes) {
    return corrupt(place, "expected " + std::to_string(num_bytes) + " bytes for " + entry.dtype + " " +
                              shape_text(entry.shape) + ", found data_offsets of " +
                              std::to_string(entry.end - entry.begin) + " bytes");
  }
  return {};
}

// One tensor's object: the keys dtype, shape and data_offsets, each once.
Result<SafetensorsEntry> parse_entry(std::string_view name, dom::element value, uint64_t data_bytes,
                                     const std::string& file) {
  SafetensorsEntry entry;
  entry.name = name;
  const std::string place = file + ": " + name_text(name);
  dom::object object;
  if (value.get(object)) return corrupt(place, "expected an object in the header");
  bool has_dtype = false, has_shape = false, has_offsets = false;
  for (const auto field : object) {
    bool& seen = field.key == "dtype" ? has_dtype : field.key == "shape" ? has_shape : has_offsets;
    const bool known = field.key == "dtype" || field.key == "shape" || field.key == "data_offsets";
    if (!known || seen) return corrupt(place, "unexpected or repeated key " + name_text(field.key));
    seen = true;
    if (field.key == "dtype") {
      std::string_view tag;
      if (field.value.get(tag)) return corrupt(place, "expected a string as dtype");
      entry.dtype = tag;
    } else if (field.key == "shape") {
      TRY_ASSIGN(entry.shape, parse_shape(field.value, place));
    } else {
      TRY(parse_offsets(field.value, place, entry));
    }
  }
  if (!has_dtype || !has_shape || !has_offsets) return corrupt(place, "expected dtype, shape and data_offsets");
  if (element_bytes(entry.dtype) == 0) return corrupt(place, "unknown dtype tag " + name_text(entry.dtype));
  TRY(check_size(entry, data_bytes, place));
  return entry;
}

// The tensors cover the data exactly: each byte belongs to one of them.
Status check_coverage(const std::vector<SafetensorsEntry>& entries, uint64_t data_bytes, const std::string& file) {
  std::vector<const SafetensorsEntry*> order;
  for (const SafetensorsEntry& entry : entries) order.push_back(&entry);
  std::sort(order.begin(), order.end(), [](const SafetensorsEntry* a, const SafetensorsEntry* b) {
    return a->begin != b->begin ? a->begin < b->begin : a->end < b->end;
  });
  uint64_t at = 0;
  for (const SafetensorsEntry* entry : order) {
    if (entry->begin != at) {
      const std::string kind = entry->begin < at ? "overlapping" : "a gap before the";
      return corrupt(file + ": " + name_text(entry->name), kind + " data: expected the tensor at offset " +
                                                               std::to_string(at) + ", found " +
                                                               std::to_string(entry->begin));
    }
    at = entry->end;
  }
  if (at == data_bytes) return {};
  return corrupt(file, "expected the file to end with its last tensor at " + std::to_string(at) +
                           " bytes of data, found " + std::to_string(data_bytes) + " bytes");
}

Status check_metadata(dom::element value, const std::string& file) {
  dom::object object;
  if (value.get(object)) return corrupt(file, "expected an object as __metadata__");
  for (const auto field : object) {
    if (!field.value.is_string()) return corrupt(file, "expected strings in __metadata__");
  }
  return {};
}

Result<std::vector<SafetensorsEntry>> parse_entries(std::string_view json, uint64_t data_bytes,
                                                    const std::string& file) {
  dom::parser parser;
  dom::object root;
  if (parser.parse(json.data(), json.size()).get(root)) return corrupt(file, "the header is not a JSON object");
  std::vector<SafetensorsEntry> entries;
  std::unordered_set<std::string_view> names;
  for (const auto field : root) {
    if (!names.insert(field.key).second) {
      return corrupt(file + ": " + name_text(field.key), "expected each name once, found a second entry");
    }
    if (field.key == "__metadata__") {
      TRY(check_metadata(field.value, file));
      continue;
    }
    TRY_ASSIGN(SafetensorsEntry entry, parse_entry(field.key, field.value, data_bytes, file));
    entries.push_back(std::move(entry));
  }
  return entries;
}

}  // namespace

Result<SafetensorsHeader> parse_safetensors_header(std::span<const std::byte> start, uint64_t file_bytes,
                                                   const std::string& place) {
  uint64_t length = 0;
  if (file_bytes < sizeof length || start.size() < sizeof length) {
    return corrupt(place, "expected a header length of 8 bytes, found a file of " + std::to_string(file_bytes));
  }
  std::memcpy(&length, start.data(), sizeof length);
  const uint64_t limit = std::min({kMaxHeaderBytes, file_bytes - sizeof length, start.size() - sizeof length});
  if (length > limit) {
    return corrupt(place, "expected a header of at most " + std::to_string(limit) + " bytes, found a length of " +
                              std::to_string(length));
  }
  const std::string_view json(reinterpret_cast<const char*>(start.data()) + sizeof length, length);
  SafetensorsHeader header;
  header.data_offset = sizeof length + length;
  const uint64_t data_bytes = file_bytes - header.data_offset;
  TRY_ASSIGN(header.entries, parse_entries(json, data_bytes, place));
  TRY(check_coverage(header.entries, data_bytes, place));
  return header;
}

Result<SafetensorsFile> SafetensorsFile::open(const std::filesystem::path& path) {
  SafetensorsFile file;
  file.path_ = path;
  TRY_ASSIGN(file.file_, MappedFile::open(path));
  const std::span<const std::byte> bytes = file.file_.bytes();
  TRY_ASSIGN(file.header_, parse_safetensors_header(bytes, bytes.size(), path.string()));
  for (size_t entry_idx = 0; entry_idx < file.header_.entries.size(); ++entry_idx) {
    file.index_.emplace(file.header_.entries[entry_idx].name, entry_idx);
  }
  return file;
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  const auto found = index_.find(std::string(name));
  return found == index_.end() ? nullptr : &header_.entries[found->second];
}

std::span<const std::byte> SafetensorsFile::data(const SafetensorsEntry& entry) const {
  return file_.bytes().subspan(header_.data_offset + entry.begin, entry.end - entry.begin);
}

std::string safetensors_header_bytes(std::span<const SafetensorsEntry> entries) {
  std::string json = R"({"__metadata__":{"format":"pt"})";
  uint64_t at = 0;
  for (const SafetensorsEntry& entry : entries) {
    uint64_t num_bytes = 0;
    CHECK(element_bytes(entry.dtype) > 0 && expected_bytes(entry, &num_bytes), "a tensor to write has a known size");
    json += ',';
    append_json_string(json, entry.name, false);
    json += ":{\"dtype\":\"" + entry.dtype + "\",\"shape\":" + shape_text(entry.shape) + ",\"data_offsets\":[" +
            std::to_string(at) + "," + std::to_string(at + num_bytes) + "]}";
    at += num_bytes;
  }
  json += '}';
  json.resize((json.size() + 7) / 8 * 8, ' ');
  const uint64_t length = json.size();
  std::string out(sizeof length, '\0');
  std::memcpy(out.data(), &length, sizeof length);
  return out + json;
}

Status write_safetensors(const std::filesystem::path& path, std::span<const TensorToWrite> tensors) {
  std::vector<SafetensorsEntry> entries;
  for (const TensorToWrite& tensor : tensors) {
    entries.push_back({tensor.name, tensor.dtype, tensor.shape, 0, 0});
    uint64_t num_bytes = 0;
    CHECK(expected_bytes(entries.back(), &num_bytes) && num_bytes == tensor.bytes.size(),
          "a tensor's bytes fit its dtype and shape");
  }
  std::string text = safetensors_header_bytes(entries);
  for (const TensorToWrite& tensor : tensors) {
    text.append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
  }
  return write_text_file(path, text);
}

std::string shape_text(std::span<const int64_t> shape) {
  std::string out = "[";
  for (size_t axis = 0; axis < shape.size(); ++axis) out += (axis ? "," : "") + std::to_string(shape[axis]);
  return out + "]";
}

std::string name_text(std::string_view name) {
  std::string quoted;
  append_json_string(quoted, name, true);
  return quoted.substr(1, quoted.size() - 2);
}

}  // namespace monostep::weights
