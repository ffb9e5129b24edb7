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

// A kernel beside the step's: its file, then the headers that it includes.
Sources side_sources(std::initializer_list<std::string_view> names) {
  Sources sources;
  sources.headers = standard_headers();
  for (const std::string_view name : names) {
    const EmbeddedFile* file = find_device_source(name);
    CHECK(file != nullptr, "a source of a side kernel that is not embedded");
    SourceFile source{std::string(file->name), std::string(file->text)};
    if (name.ends_with(".cu")) {
      sources.main = std::move(source);
    } else {
      sources.headers.push_back(std::move(source));
    }
  }
  return sources;
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

Sources fill_sources() { return side_sources({"gpu/device/fill.cu", "weights/fill_record.h", "base/numeric.h"}); }

Sources read_sources() { return side_sources({"gpu/device/read.cu", "gpu/device/read_params.h", "gpu/device/ptx.h"}); }

CompileOptions program_options() {
  CompileOptions options;
  options.further = {"--fmad=false"};  // every rounding is written down
  return options;
}

}  // namespace monostep::gpu
