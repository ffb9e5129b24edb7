// `monostep make-model` writes a synthetic checkpoint of a known geometry or of a config file in the released format.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "apps/commands.h"
#include "base/mapped_file.h"
#include "model/geometry.h"
#include "weights/synthetic.h"

namespace monostep::apps {
namespace {

constexpr size_t kMaxConfigBytes = 16 << 20;

struct MakeModelOptions {
  std::string geometry = "demo";
  uint64_t seed = 1;
  std::string out_dir;
};

Result<model::Geometry> find_geometry(const std::string& name_or_path) {
  const auto& names = model::geometry_names();
  if (std::find(names.begin(), names.end(), name_or_path) != names.end()) return model::named_geometry(name_or_path);
  Result<std::string> text = read_text_file(name_or_path, kMaxConfigBytes);
  if (!text.ok() && text.error().code == Code::kNotFound) {
    return Error{Code::kInvalidArgument, "expected a known geometry or a config file, found neither", name_or_path};
  }
  if (!text.ok()) return text.error();
  return model::parse_geometry(*text, name_or_path);
}

Status make_model(const MakeModelOptions& options) {
  TRY_ASSIGN(const model::Geometry geometry, find_geometry(options.geometry));
  TRY(weights::write_checkpoint(geometry, options.seed, options.out_dir));
  std::printf("wrote %s\n", options.out_dir.c_str());
  return {};
}

}  // namespace

void add_make_model(CLI::App& root, int* status) {
  auto options = std::make_shared<MakeModelOptions>();
  CLI::App* command = root.add_subcommand("make-model", "write a synthetic checkpoint");
  command->add_option("--geometry", options->geometry, "a known geometry or the path of a config.json")
      ->capture_default_str();
  command->add_option("--seed", options->seed, "seed of the weights")->capture_default_str();
  command->add_option("--out", options->out_dir, "a new or empty folder")->required();
  command->callback([options, status] {
    const Status done = make_model(*options);
    *status = done.ok() ? 0 : report(done.error());
  });
}

}  // namespace monostep::apps
