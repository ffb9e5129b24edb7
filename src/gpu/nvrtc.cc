// Opens libnvrtc, hands it sources and options, and words what it says.
#include "gpu/nvrtc.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <string_view>

namespace monostep::gpu {
namespace {

constexpr const char* kLibraries[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
constexpr const char* kDirVariable = "MONOSTEP_NVRTC_DIR";
constexpr int kMaxLogLines = 40;

// NVRTC opens its builtins by bare name only when it compiles. Opening those beside it first makes that name found,
// wherever the pair lies; where they are not beside it, the system's loader has the say.
void open_builtins(const void* function, const std::string& version) {
  Dl_info library = {};
  if (dladdr(function, &library) == 0 || library.dli_fname == nullptr) return;
  const std::filesystem::path dir = std::filesystem::path(library.dli_fname).parent_path();
  if (!dir.empty()) dlopen((dir / ("libnvrtc-builtins.so." + version)).c_str(), RTLD_NOW | RTLD_LOCAL);
}

Error absent(const std::string& why) {
  return {Code::kUnavailable,
          why +
              "; install CUDA's run-time compiler (python3 -m pip install nvidia-cuda-nvrtc, or the CUDA toolkit) and "
              "set " +
              kDirVariable + " to the folder with libnvrtc.so.13 and libnvrtc-builtins",
          {}};
}

// The first lines of a log.
std::string first_lines(std::string_view log) {
  size_t end = 0;
  for (int line_idx = 0; line_idx < kMaxLogLines && end < log.size(); ++line_idx) {
    const size_t newline = log.find('\n', end);
    if (newline == std::string_view::npos) return std::string(log);
    end = newline + 1;
  }
  std::string text(log.substr(0, end));
  if (end < log.size()) text += "(further lines left out)\n";
  return text;
}

}  // namespace

std::vector<std::string> nvrtc_libraries() {
  std::vector<std::string> libraries;
  const char* dir = std::getenv(kDirVariable);
  if (dir != nullptr && *dir != 0) {
    for (const char* name : kLibraries) libraries.push_back((std::filesystem::path(dir) / name).string());
  }
  libraries.insert(libraries.end(), std::begin(kLibraries), std::end(kLibraries));
  return libraries;
}

std::vector<std::string> CompileOptions::arguments() const {
  std::vector<std::string> arguments = {"--gpu-architecture=" + arch, "-std=c++20", "-default-device"};
  if (line_info) arguments.emplace_back("-lineinfo");
  arguments.insert(arguments.end(), further.begin(), further.end());
  return arguments;
}

Result<Nvrtc::EntryPoints> Nvrtc::bind(void* library) {
  EntryPoints entry = {};
  const char* missing = nullptr;
  const auto find = [library, &missing]<typename Function>(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(dlsym(library, name));
    if (function == nullptr) missing = name;
  };
  find(entry.get_error_string, "nvrtcGetErrorString");
  find(entry.version, "nvrtcVersion");
  find(entry.create_program, "nvrtcCreateProgram");
  find(entry.destroy_program, "nvrtcDestroyProgram");
  find(entry.compile_program, "nvrtcCompileProgram");
  find(entry.get_cubin_size, "nvrtcGetCUBINSize");
  find(entry.get_cubin, "nvrtcGetCUBIN");
  find(entry.get_log_size, "nvrtcGetProgramLogSize");
  find(entry.get_log, "nvrtcGetProgramLog");
  if (missing != nullptr) return absent("the NVRTC library has no " + std::string(missing));
  return entry;
}

Result<Nvrtc> Nvrtc::open(const std::vector<std::string>& libraries) {
  // An opened library stays open: it keeps threads and memory of its own.
  void* library = nullptr;
  for (const std::string& name : libraries) {
    if (library == nullptr) library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) return absent("no NVRTC library found");
  Nvrtc nvrtc;
  TRY_ASSIGN(nvrtc.entry_, bind(library));
  int major = 0;
  int minor = 0;
  if (nvrtc.entry_.version(&major, &minor) != Outcome::kSuccess) return absent("NVRTC does not tell its version");
  nvrtc.version_ = std::to_string(major) + "." + std::to_string(minor);
  open_builtins(reinterpret_cast<const void*>(nvrtc.entry_.version), nvrtc.version_);
  return nvrtc;
}

// One program object of the library, destroyed at the end.
class Nvrtc::Compilation {
 public:
  explicit Compilation(const EntryPoints& entry) : entry_(entry) {}
  Compilation(const Compilation&) = delete;
  Compilation& operator=(const Compilation&) = delete;
  ~Compilation() {
    if (program_ != nullptr) entry_.destroy_program(&program_);
  }

  Status create(const Sources& sources) {
    std::vector<const char*> texts;
    std::vector<const char*> names;
    for (const SourceFile& header : sources.headers) {
      texts.push_back(header.text.c_str());
      names.push_back(header.name.c_str());
    }
    return check(entry_.create_program(&program_, sources.main.text.c_str(), sources.main.name.c_str(),
                                       static_cast<int>(names.size()), texts.data(), names.data()),
                 "nvrtcCreateProgram");
  }

  Status compile(const CompileOptions& options) {
    const std::vector<std::string> arguments = options.arguments();
    std::vector<const char*> pointers;
    for (const std::string& argument : arguments) pointers.push_back(argument.c_str());
    return check(entry_.compile_program(program_, static_cast<int>(pointers.size()), pointers.data()),
                 "nvrtcCompileProgram");
  }

  Result<Cubin> cubin() {
    size_t num_bytes = 0;
    TRY(check(entry_.get_cubin_size(program_, &num_bytes), "nvrtcGetCUBINSize"));
    if (num_bytes == 0)
      return Error{Code::kInvalidArgument, "expected a cubin: the architecture must be an sm_ one", {}};
    Cubin cubin{std::vector<std::byte>(num_bytes)};
    TRY(check(entry_.get_cubin(program_, reinterpret_cast<char*>(cubin.bytes.data())), "nvrtcGetCUBIN"));
    return cubin;
  }

 private:
  Status check(Outcome outcome, const char* call) const {
    if (outcome == Outcome::kSuccess) return {};
    const bool ours = outcome == Outcome::kCompilation || outcome == Outcome::kInvalidOption;
    const Code code = outcome == Outcome::kOutOfMemory ? Code::kExhausted
                      : ours                           ? Code::kInvalidArgument
                                                       : Code::kInternal;
    return Error{code, std::string(call) + ": " + entry_.get_error_string(outcome) + "\n" + log(), {}};
  }

  std::string log() const {
    size_t num_bytes = 0;
    if (program_ == nullptr || entry_.get_log_size(program_, &num_bytes) != Outcome::kSuccess || num_bytes == 0)
      return {};
    std::string log(num_bytes, '\0');
    if (entry_.get_log(program_, log.data()) != Outcome::kSuccess) return {};
    return first_lines(log.c_str());
  }

  const EntryPoints& entry_;
  Program program_ = nullptr;
};

Result<Cubin> Nvrtc::compile(const Sources& sources, const CompileOptions& options) const {
  Compilation compilation(entry_);
  Status done = compilation.create(sources);
  if (done.ok()) done = compilation.compile(options);
  if (done.ok()) {
    Result<Cubin> cubin = compilation.cubin();
    if (cubin.ok()) return cubin;
    done = cubin.error();
  }
  Error error = done.error();
  error.place = sources.main.name;
  return error;
}

}  // namespace monostep::gpu
