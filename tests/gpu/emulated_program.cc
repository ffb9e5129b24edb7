// Compiling device programs for the emulator (tests/gpu/emulated_program.h).
#include "emulated_program.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "gpu/compile_program.h"

namespace monostep::gpu {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMain =
    "#include \"gpu/device/step.cu\"\n"
    "extern \"C\" void monostep_step(const void* params) {\n"
    "  monostep::gpu::step_kernel(*static_cast<const monostep::gpu::KernelParams*>(params));\n}\n";

// Programs of one process share nothing: without -fno-gnu-unique the first one's inline constants would serve all.
constexpr const char* kCompiler =
    "c++ -std=c++20 -O1 -g1 -shared -fPIC -ffp-contract=off -fno-gnu-unique -Wl,-Bsymbolic -w "
    "-DMONOSTEP_EMULATED='\"emulator/emulated_ptx.h\"'";

// One process at a time compiles into a folder.
class FolderLock {
 public:
  explicit FolderLock(const fs::path& dir) : file_(open((dir / "lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644)) {
    flock(file_, LOCK_EX);
  }
  ~FolderLock() { close(file_); }

 private:
  int file_;
};

// The sources with the emulator's headers, which are compiled into every program too.
Sources with_emulator(Sources sources, const std::string& main) {
  sources.headers.push_back(sources.main);
  sources.main = {"main", main};
  for (const char* name : {"context.h", "emulated_ptx.h", "half.h", "machine.h", "run.h"}) {
    std::ifstream file(fs::path(MONOSTEP_SOURCE_DIR) / "tests/gpu/emulator" / name);
    sources.headers.push_back({name, {std::istreambuf_iterator<char>(file), {}}});
  }
  return sources;
}

// All but the replacements of the standard headers: the host's compiler has its own.
void write_sources(const Sources& sources, const std::string& main, const fs::path& dir) {
  const auto write = [&](const SourceFile& file) {
    if (file.name.find('.') == std::string::npos) return;
    fs::create_directories((dir / file.name).parent_path());
    std::ofstream(dir / file.name) << file.text;
  };
  for (const SourceFile& header : sources.headers) write(header);
  write(sources.main);
  std::ofstream(dir / "program.cc") << main;
}

Result<fs::path> compile(const Sources& sources, const std::string& main) {
  const std::string digest = program_digest(with_emulator(sources, main), {}, kCompiler);
  const fs::path dir = fs::path(MONOSTEP_BINARY_DIR) / "emulated" / digest;
  const fs::path library = dir / "program.so";
  fs::create_directories(dir);
  const FolderLock lock(dir);
  if (fs::exists(library)) return library;
  write_sources(sources, main, dir);
  const std::string made = (dir / "made.so").string();
  const std::string command = fmt::format("{3} -I{1} -I{0}/src -I{0}/tests/gpu {1}/program.cc -o {2} 2> {1}/log",
                                          MONOSTEP_SOURCE_DIR, dir.string(), made, kCompiler);
  if (std::system(command.c_str()) != 0)
    return Error{Code::kInternal, "the device sources do not compile for the emulator", (dir / "log").string()};
  fs::rename(made, library);
  return library;
}

}  // namespace

Result<void*> emulated_function(const Sources& sources, const std::string& main, const char* name) {
  TRY_ASSIGN(const fs::path library, compile(sources, main));
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return Error{Code::kInternal, dlerror(), library.string()};
  void* function = dlsym(handle, name);
  if (function == nullptr) return Error{Code::kInternal, dlerror(), library.string()};
  return function;
}

KernelMaker emulated_maker() {
  return [](Device& device, const program::Layout& layout, const program::Plan& plan,
            const ProgramSizes& sizes) -> Result<Kernel> {
    TRY_ASSIGN(void* function, emulated_function(program_sources(layout, plan, sizes), kMain, kKernelName));
    const std::string name = fmt::format("{}", function);
    static_cast<EmulatedDevice&>(device).add_kernel(name.c_str(),
                                                    reinterpret_cast<EmulatedDevice::KernelFunction>(function));
    return device.load({}, name.c_str());
  };
}

}  // namespace monostep::gpu
