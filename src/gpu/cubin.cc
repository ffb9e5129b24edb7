// Reads the ELF sections of a cubin. The formats are not documented; what is used here was found by compiling kernels
// of known needs with ptxas 13.0 -v for sm_90a and is held by tests/gpu/cubin_test.cc:
//   .text.K             the code of kernel K and of the functions it calls, 16 bytes an instruction, opcode in 12 low
//   bits .nv.info            attributes of functions: (symbol, value) for registers, frame and stack bytes .nv.info.K
//   attributes of kernel K: bytes of its parameters .nv.shared.K        static shared memory, 1 KiB of the system in
//   front; absent if none
#include "gpu/cubin.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <string_view>

namespace monostep::gpu {
namespace {

constexpr uint16_t kMachineCuda = 190;
constexpr uint32_t kSymbolTable = 2;
constexpr uint32_t kNoBits = 8;
constexpr uint8_t kFunction = 2;
constexpr size_t kMaxNameBytes = 4096;
constexpr int64_t kSystemSharedBytes = 1024;
constexpr size_t kInstructionBytes = 16;

// Attributes of .nv.info: one byte of format, one of kind, two of value or size.
enum class Format : uint8_t { kNone = 1, kByte = 2, kHalf = 3, kSized = 4 };
enum class Kind : uint8_t { kFrameBytes = 0x11, kMinStackBytes = 0x12, kParamsBytes = 0x19, kRegisters = 0x2f };

// Instructions that store to and load from the thread's stack.
constexpr uint64_t kOpcodeMask = 0xfff;
constexpr uint64_t kStoreLocal = 0x387;
constexpr uint64_t kLoadLocal = 0x983;

struct FileHeader {
  uint8_t ident[16];
  uint16_t type, machine;
  uint32_t version;
  uint64_t entry, program_offset, section_offset;
  uint32_t flags;
  uint16_t header_bytes, program_bytes, num_programs, section_bytes, num_sections, names_section;
};
static_assert(sizeof(FileHeader) == 64);

struct SectionHeader {
  uint32_t name, type;
  uint64_t flags, address, offset, num_bytes;
  uint32_t link, info;
  uint64_t alignment, entry_bytes;
};
static_assert(sizeof(SectionHeader) == 64);

struct Symbol {
  uint32_t name;
  uint8_t info, other;
  uint16_t section;
  uint64_t value, num_bytes;
};
static_assert(sizeof(Symbol) == 24);

struct Section {
  std::string_view name;
  uint32_t type = 0;
  uint32_t link = 0;
  uint64_t num_bytes = 0;  // in memory; contents is empty for a section without bits
  std::span<const std::byte> contents;
};

Error corrupt(std::string_view place, std::string text) {
  return {Code::kCorrupt, std::move(text), std::string(place)};
}

// Whether [offset, offset + num_bytes) lies in `total` bytes.
bool inside(uint64_t offset, uint64_t num_bytes, uint64_t total) {
  return offset <= total && num_bytes <= total - offset;
}

template <typename T>
T value_at(std::span<const std::byte> bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

Result<std::string_view> name_at(std::span<const std::byte> names, uint64_t offset) {
  if (offset >= names.size()) return corrupt("cubin", "a name lies outside its table");
  const auto rest = names.subspan(offset, std::min<size_t>(names.size() - offset, kMaxNameBytes));
  const auto end = std::find(rest.begin(), rest.end(), std::byte{0});
  if (end == rest.end()) return corrupt("cubin", "a name has no end");
  return std::string_view(reinterpret_cast<const char*>(rest.data()), static_cast<size_t>(end - rest.begin()));
}

Result<FileHeader> read_header(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(FileHeader)) {
    return corrupt("cubin", "expected at least 64 bytes, found " + std::to_string(bytes.size()));
  }
  const auto header = value_at<FileHeader>(bytes, 0);
  constexpr uint8_t kElf64[] = {0x7f, 'E', 'L', 'F', 2, 1, 1};  // 64 bits, little endian
  if (std::memcmp(header.ident, kElf64, sizeof(kElf64)) != 0 || header.machine != kMachineCuda) {
    return corrupt("cubin", "expected a 64-bit ELF file for CUDA");
  }
  if (header.section_bytes != sizeof(SectionHeader) ||
      !inside(header.section_offset, uint64_t{header.num_sections} * sizeof(SectionHeader), bytes.size())) {
    return corrupt("cubin", "the section table lies outside the file");
  }
  return header;
}

// Every section with its contents; they may not add up to more than the file, which bounds all later work.
Result<std::vector<Section>> read_sections(std::span<const std::byte> bytes) {
  TRY_ASSIGN(const FileHeader header, read_header(bytes));
  std::vector<Section> sections(header.num_sections);
  std::vector<uint32_t> names(header.num_sections);
  uint64_t total_bytes = 0;
  for (size_t section_idx = 0; section_idx < sections.size(); ++section_idx) {
    const auto entry = value_at<SectionHeader>(bytes, header.section_offset + section_idx * sizeof(SectionHeader));
    names[section_idx] = entry.name;
    sections[section_idx] = {{}, entry.type, entry.link, entry.num_bytes, {}};
    if (entry.type == kNoBits) continue;
    if (!inside(entry.offset, entry.num_bytes, bytes.size()) || (total_bytes += entry.num_bytes) > bytes.size()) {
      return corrupt("cubin", "section " + std::to_string(section_idx) + " lies outside the file");
    }
    sections[section_idx].contents = bytes.subspan(entry.offset, entry.num_bytes);
  }
  if (header.names_section >= sections.size()) return corrupt("cubin", "the section names are missing");
  for (size_t section_idx = 0; section_idx < sections.size(); ++section_idx) {
    TRY_ASSIGN(sections[section_idx].name, name_at(sections[header.names_section].contents, names[section_idx]));
  }
  return sections;
}

using SymbolIdxs = std::map<std::string_view, uint32_t>;

Result<SymbolIdxs> read_functions(const std::vector<Section>& sections) {
  const auto table = std::find_if(sections.begin(), sections.end(),
                                  [](const Section& section) { return section.type == kSymbolTable; });
  if (table == sections.end() || table->link >= sections.size()) return corrupt("cubin", "the symbols are missing");
  SymbolIdxs functions;
  for (size_t symbol_idx = 0; symbol_idx < table->contents.size() / sizeof(Symbol); ++symbol_idx) {
    const auto symbol = value_at<Symbol>(table->contents, symbol_idx * sizeof(Symbol));
    if ((symbol.info & 0xf) != kFunction) continue;
    TRY_ASSIGN(const std::string_view name, name_at(sections[table->link].contents, symbol.name));
    functions.emplace(name, static_cast<uint32_t>(symbol_idx));
  }
  return functions;
}

struct Attribute {
  Kind kind;
  uint16_t value;                     // of the formats without size
  std::span<const std::byte> values;  // of kSized
};

Result<std::vector<Attribute>> read_attributes(const Section& section) {
  std::vector<Attribute> attributes;
  std::span<const std::byte> rest = section.contents;
  while (rest.size() >= 4) {
    const auto format = static_cast<Format>(rest[0]);
    const auto value = value_at<uint16_t>(rest, 2);
    if (format < Format::kNone || format > Format::kSized)
      return corrupt(section.name, "an attribute of unknown format");
    const size_t num_bytes = format == Format::kSized ? value : 0;
    if (num_bytes > rest.size() - 4) return corrupt(section.name, "an attribute is longer than the section");
    attributes.push_back({static_cast<Kind>(rest[1]), value, rest.subspan(4, num_bytes)});
    rest = rest.subspan(4 + num_bytes);
  }
  if (!rest.empty()) return corrupt(section.name, "an attribute is cut off");
  return attributes;
}

struct FunctionInfo {
  std::optional<uint32_t> registers;
  uint32_t stack_bytes = 0;
};

// .nv.info: what is known of each function, by symbol.
Result<std::map<uint32_t, FunctionInfo>> read_function_info(const Section& section) {
  TRY_ASSIGN(const std::vector<Attribute> attributes, read_attributes(section));
  std::map<uint32_t, FunctionInfo> infos;
  for (const Attribute& attribute : attributes) {
    if (attribute.values.size() != 8) continue;
    const auto value = value_at<uint32_t>(attribute.values, 4);
    FunctionInfo& info = infos[value_at<uint32_t>(attribute.values, 0)];
    switch (attribute.kind) {
      case Kind::kRegisters: info.registers = value; break;
      case Kind::kFrameBytes:
      case Kind::kMinStackBytes: info.stack_bytes = std::max(info.stack_bytes, value); break;
      default: break;
    }
  }
  return infos;
}

void read_code(std::span<const std::byte> code, KernelResources& kernel) {
  kernel.code_bytes = static_cast<int64_t>(code.size());
  for (size_t offset = 0; offset + kInstructionBytes <= code.size(); offset += kInstructionBytes) {
    const uint64_t opcode = value_at<uint64_t>(code, offset) & kOpcodeMask;
    kernel.local_stores += opcode == kStoreLocal ? 1 : 0;
    kernel.local_loads += opcode == kLoadLocal ? 1 : 0;
  }
}

Status read_params(const Section& section, KernelResources& kernel) {
  TRY_ASSIGN(const std::vector<Attribute> attributes, read_attributes(section));
  for (const Attribute& attribute : attributes) {
    if (attribute.kind == Kind::kParamsBytes) kernel.params_bytes = attribute.value;
  }
  return {};
}

class CubinReader {
 public:
  static Result<CubinReader> open(std::span<const std::byte> bytes) {
    CubinReader reader;
    TRY_ASSIGN(reader.sections_, read_sections(bytes));
    TRY_ASSIGN(reader.functions_, read_functions(reader.sections_));
    for (const Section& section : reader.sections_) reader.by_name_.emplace(section.name, &section);
    const Section* info = reader.find(".nv.info");
    if (info == nullptr) return corrupt("cubin", "section .nv.info is missing");
    TRY_ASSIGN(reader.infos_, read_function_info(*info));
    return reader;
  }

  // A kernel is a code section with attributes of its own.
  Result<std::vector<KernelResources>> kernels() const {
    constexpr std::string_view kCode = ".text.";
    std::vector<KernelResources> kernels;
    for (const auto& [name, section] : by_name_) {
      if (!name.starts_with(kCode)) continue;
      const std::string kernel_name(name.substr(kCode.size()));
      const Section* params = find(".nv.info." + kernel_name);
      if (params == nullptr) continue;
      TRY_ASSIGN(KernelResources kernel, function_resources(kernel_name));
      read_code(section->contents, kernel);
      TRY(read_params(*params, kernel));
      kernels.push_back(std::move(kernel));
    }
    return kernels;
  }

 private:
  const Section* find(std::string_view name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : found->second;
  }

  Result<KernelResources> function_resources(const std::string& name) const {
    KernelResources kernel;
    kernel.name = name;
    const auto symbol = functions_.find(name);
    const auto info = symbol == functions_.end() ? infos_.end() : infos_.find(symbol->second);
    if (info == infos_.end() || !info->second.registers.has_value() || *info->second.registers > 255) {
      return corrupt(".nv.info", "expected the registers of kernel " + name + ", found none");
    }
    kernel.registers = static_cast<int>(*info->second.registers);
    kernel.stack_bytes = info->second.stack_bytes;
    const Section* shared = find(".nv.shared." + name);
    if (shared != nullptr) {
      constexpr uint64_t kMaxSharedBytes = 1 << 20;  // more than any machine has
      if (shared->num_bytes > kMaxSharedBytes) return corrupt(shared->name, "more than any machine has");
      kernel.shared_bytes = std::max<int64_t>(0, static_cast<int64_t>(shared->num_bytes) - kSystemSharedBytes);
    }
    return kernel;
  }

  std::vector<Section> sections_;
  std::map<std::string_view, const Section*> by_name_;
  SymbolIdxs functions_;
  std::map<uint32_t, FunctionInfo> infos_;  // by symbol
};

}  // namespace

Result<std::vector<KernelResources>> read_cubin(std::span<const std::byte> bytes) {
  TRY_ASSIGN(const CubinReader reader, CubinReader::open(bytes));
  return reader.kernels();
}

}  // namespace monostep::gpu
