// Sources of the device program (gpu/compile_program.h).
#include "gpu/compile_program.h"

#include "base/check.h"
#include "gpu/embedded_sources.h"

namespace monostep::gpu {
namespace {

// What the device sources use of the standard library. NVRTC has no standard headers.
std::vector<SourceFile> standard_headers() {
  return {
      {"cstdint",
       "#pragma once\n"
       "using int8_t = signed char; using uint8_t = unsigned char; using int16_t = short; using uint16_t = unsigned "
       "short;\n"
       "using int32_t = int; using uint32_t = unsigned int; using int64_t = long long; using uint64_t = unsigned long "
       "long;\n"
       "#define INFINITY __int_as_float(0x7f800000)\n"},
      {"bit",
       "#pragma once\n"
       "namespace std { template <typename To, typename From> constexpr To bit_cast(const From& from) {\n"
       "  return __builtin_bit_cast(To, from); } }\n"},
      {"cmath",
       "#pragma once\n"
       "namespace std { inline float fabs(float x) { return ::fabsf(x); } inline double fabs(double x) { return "
       "::fabs(x); }\n"
       "inline float copysign(float x, float y) { return ::copysignf(x, y); }\n"
       "inline float sqrt(float x) { return ::sqrtf(x); }\n"
       "inline bool signbit(float x) { return (__float_as_int(x) & 0x80000000) != 0; } }\n"},
      {"array",
       "#pragma once\n"
       "namespace std { template <typename T, unsigned long N> struct array { T values[N];\n"
       "  constexpr T& operator[](unsigned long i) { return values[i]; }\n"
       "  constexpr const T& operator[](unsigned long i) const { return values[i]; } }; }\n"},
      {"string_view",
       "#pragma once\n"
       "namespace std { struct string_view { const char* text; constexpr string_view() : text(nullptr) {}\n"
       "  constexpr string_view(const char* t) : text(t) {} }; }\n"},
  };
}

}  // namespace

Sources program_sources(const program::Layout& layout, const program::Plan& plan, const ProgramSizes& sizes) {
  Sources sources;
  for (const EmbeddedFile& file : device_sources()) {
    SourceFile text{std::string(file.name), std::string(file.text)};
    if (file.name == "gpu/device/step.cu") {
      sources.main = std::move(text);
    } else if (!file.name.ends_with(".cu") && file.name != "weights/fill_record.h" &&
               file.name != "gpu/device/read_params.h") {
      sources.headers.push_back(std::move(text));
    }
  }
  for (SourceFile& header : standard_headers()) sources.headers.push_back(std::move(header));
  sources.headers.push_back({"gpu/device/constants.h", constants_header(layout, plan, sizes)});
  return sources;
}

Sources fill_sources() {
  Sources sources;
  const EmbeddedFile* main = find_device_source("gpu/device/fill.cu");
  const EmbeddedFile* record = find_device_source("weights/fill_record.h");
  CHECK(main != nullptr && record != nullptr, "the sources of the fill kernel");
  sources.main = {std::string(main->name), std::string(main->text)};
  sources.headers = standard_headers();
  sources.headers.push_back({std::string(record->name), std::string(record->text)});
  return sources;
}

Sources read_sources() {
  Sources sources;
  for (const char* name : {"gpu/device/read.cu", "gpu/device/read_params.h", "gpu/device/ptx.h"}) {
    const EmbeddedFile* file = find_device_source(name);
    CHECK(file != nullptr, "the sources of the read kernel");
    SourceFile text{std::string(file->name), std::string(file->text)};
    if (file->name.ends_with(".cu")) {
      sources.main = std::move(text);
    } else {
      sources.headers.push_back(std::move(text));
    }
  }
  for (SourceFile& header : standard_headers()) sources.headers.push_back(std::move(header));
  return sources;
}

CompileOptions program_options() {
  CompileOptions options;
  options.further = {"--fmad=false"};  // every rounding is written down
  return options;
}

}  // namespace monostep::gpu
