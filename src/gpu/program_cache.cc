// A cache file is "monostep program 1\n", the SHA-256 of the cubin in hex, "\n" and the cubin. It is written under a
// name of its own and renamed, so a reader sees a whole file or none.
#include "gpu/program_cache.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <optional>
#include <system_error>

#include "base/mapped_file.h"
#include "base/sha256.h"

namespace monostep::gpu {
namespace {

constexpr std::string_view kMagic = "monostep program 1\n";
constexpr size_t kDigestChars = 64;
constexpr size_t kHeaderBytes = kMagic.size() + kDigestChars + 1;

// Each part with its length in front: no two lists of parts give the same text.
void append_part(std::string& text, std::string_view part) {
  text += std::to_string(part.size()) + ":";
  text += part;
}

// The program in a file, or none if it is absent, damaged or cannot be read.
std::optional<Cubin> read_program(const std::filesystem::path& path) {
  const Result<MappedFile> file = MappedFile::open(path);
  if (!file.ok()) return std::nullopt;
  const std::string_view text = file->text();
  if (text.size() <= kHeaderBytes || !text.starts_with(kMagic)) return std::nullopt;
  const std::span<const std::byte> content = file->bytes().subspan(kHeaderBytes);
  if (sha256_hex(content) != text.substr(kMagic.size(), kDigestChars)) return std::nullopt;
  return Cubin{{content.begin(), content.end()}};
}

Status write_program(const std::filesystem::path& dir, const std::string& digest, const Cubin& cubin) {
  std::error_code failed;
  std::filesystem::create_directories(dir, failed);
  if (failed) return Error{Code::kUnavailable, "the folder cannot be made: " + failed.message(), dir.string()};
  std::string text(kMagic);
  text += sha256_hex(cubin.bytes) + "\n";
  text.append(reinterpret_cast<const char*>(cubin.bytes.data()), cubin.bytes.size());
  std::string unfinished = (dir / (digest + ".XXXXXX")).string();
  const int file = mkstemp(unfinished.data());
  if (file < 0)
    return Error{Code::kUnavailable, std::string("cannot be written: ") + std::strerror(errno), dir.string()};
  close(file);
  Status written = write_text_file(unfinished, text);
  if (written.ok()) {
    std::filesystem::rename(unfinished, dir / digest, failed);
    if (failed) written = Error{Code::kUnavailable, "cannot be renamed: " + failed.message(), unfinished};
  }
  if (!written.ok()) std::filesystem::remove(unfinished, failed);
  return written;
}

}  // namespace

std::filesystem::path default_cache_dir() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::filesystem::path(value == nullptr ? "" : value);
  };
  if (const auto dir = variable("MONOSTEP_CACHE_DIR"); !dir.empty()) return dir;
  if (const auto dir = variable("XDG_CACHE_HOME"); !dir.empty()) return dir / "monostep";
  if (const auto dir = variable("HOME"); !dir.empty()) return dir / ".cache" / "monostep";
  return {};
}

std::string program_digest(const Sources& sources, const CompileOptions& options, std::string_view compiler_version) {
  std::string text;
  append_part(text, compiler_version);
  const std::vector<std::string> arguments = options.arguments();
  append_part(text, std::to_string(arguments.size()));
  for (const std::string& argument : arguments) append_part(text, argument);
  append_part(text, sources.main.name);
  append_part(text, sources.main.text);
  for (const SourceFile& header : sources.headers) {
    append_part(text, header.name);
    append_part(text, header.text);
  }
  return sha256_hex(text);
}

Result<CachedCubin> cached_cubin(const std::filesystem::path& dir, const std::string& digest,
                                 const std::function<Result<Cubin>()>& make) {
  if (!dir.empty()) {
    std::optional<Cubin> known = read_program(dir / digest);
    if (known.has_value()) return CachedCubin{std::move(*known), true, {}};
  }
  TRY_ASSIGN(Cubin cubin, make());
  CachedCubin made{std::move(cubin), false, {}};
  if (dir.empty()) {
    made.warning = "compiled programs are not kept: no cache folder is known";
  } else if (const Status kept = write_program(dir, digest, made.cubin); !kept.ok()) {
    made.warning = "compiled programs are not kept: " + kept.error().message();
  }
  return made;
}

Result<CachedCubin> cached_compile(const Result<Nvrtc>& nvrtc, const Sources& sources, const CompileOptions& options,
                                   const std::filesystem::path& dir) {
  const std::string any_compiler = program_digest(sources, options, "any");
  if (!nvrtc.ok()) return cached_cubin(dir, any_compiler, [&]() -> Result<Cubin> { return nvrtc.error(); });
  TRY_ASSIGN(CachedCubin made, cached_cubin(dir, program_digest(sources, options, nvrtc->version()),
                                            [&] { return nvrtc->compile(sources, options); }));
  // Also for machines without a compiler.
  TRY(cached_cubin(dir, any_compiler, [&]() -> Result<Cubin> { return made.cubin; }));
  return made;
}

}  // namespace monostep::gpu
