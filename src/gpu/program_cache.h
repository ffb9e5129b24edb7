// Compiled device programs on disk. A file's name is the SHA-256 of everything that went into the program (texts,
// options, compiler version); its content carries a digest of its own, and a damaged file is compiled anew. Any number
// of processes may use one folder. Called where programs are compiled: start of the GPU backend and `monostep compile`.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "gpu/cubin.h"
#include "gpu/nvrtc.h"

namespace monostep::gpu {

struct CachedCubin {
  Cubin cubin;
  bool from_cache = false;
  std::string warning;  // why the folder could not keep the program; empty if it did
};

// $MONOSTEP_CACHE_DIR, else $XDG_CACHE_HOME/monostep, else ~/.cache/monostep; empty (nothing is kept) without any of
// them.
std::filesystem::path default_cache_dir();

// 64 hex digits.
std::string program_digest(const Sources& sources, const CompileOptions& options, std::string_view compiler_version);

// The program of the digest from the folder, else made and put there. An empty folder name keeps nothing.
Result<CachedCubin> cached_cubin(const std::filesystem::path& dir, const std::string& digest,
                                 const std::function<Result<Cubin>()>& make);

// The same with NVRTC as the maker. Where NVRTC is not there, what any version of it has made.
Result<CachedCubin> cached_compile(const Result<Nvrtc>& nvrtc, const Sources& sources, const CompileOptions& options,
                                   const std::filesystem::path& dir);
inline Result<CachedCubin> cached_compile(const Sources& sources, const CompileOptions& options,
                                          const std::filesystem::path& dir) {
  return cached_compile(Nvrtc::open(), sources, options, dir);
}

}  // namespace monostep::gpu
