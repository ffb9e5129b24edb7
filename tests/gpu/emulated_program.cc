// Compiling device programs for the emulator (tests/gpu/emulated_program.h).
#include "emulated_program.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "gpu/compile_program.h"

namespace monostep::gpu {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMain =
    "#include \"gpu/device/step.cu\"\n"
    "extern \"C\" void monostep_step(const void* params) {\n"
    "  monostep::gpu::step_kernel(*static_cast<const monostep::gpu::KernelParams*>(params));\n}\n";

Result<fs::path> compile(const Sources& sources) {
  const std::string digest = program_digest(sources, {}, "emulated");
  const fs::path dir = fs::path(MONOSTEP_BINARY_DIR) / "emulated" / digest;
  const fs::path library = dir / "program.so";
  if (fs::exists(library)) return library;
  fs::create_directories(dir);
  for (const SourceFile& header : sources.headers) {
    if (header.name == "constants.h") std::ofstream(dir / header.name) << header.text;
  }
  std::ofstream(dir / "program.cc") << kMain;
  const std::string made = (dir / fmt::format("program.{}.so", getpid())).string();
  const std::string command = fmt::format(
      "c++ -std=c++20 -O1 -g1 -shared -fPIC -ffp-contract=off -w -DMONOSTEP_EMULATED='\"emulator/emulated_ptx.h\"' -I{0}/src -I{0}/tests/gpu -I{1} {1}/program.cc "
      "-o {2} 2> {1}/log",
      MONOSTEP_SOURCE_DIR, dir.string(), made);
  if (std::system(command.c_str()) != 0)
    return Error{Code::kInternal, "the device sources do not compile for the emulator", (dir / "log").string()};
  fs::rename(made, library);
  return library;
}

}  // namespace

KernelMaker emulated_maker() {
  return [](Device& device, const program::Layout& layout, const program::Plan& plan,
            const ProgramSizes& sizes) -> Result<Kernel> {
    TRY_ASSIGN(const fs::path library, compile(program_sources(layout, plan, sizes)));
    void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return Error{Code::kInternal, dlerror(), library.string()};
    void* function = dlsym(handle, kKernelName);
    const std::string name = library.parent_path().filename().string();
    static_cast<EmulatedDevice&>(device).add_kernel(name.c_str(),
                                                    reinterpret_cast<EmulatedDevice::KernelFunction>(function));
    return device.load({}, name.c_str());
  };
}

}  // namespace monostep::gpu
