// `monostep inspect DIR` checks a checkpoint completely and prints what it is: sizes, layer roles, parameters and bytes
// by class, bytes per rank for each number of ranks. `--geometry NAME` prints the same of a known geometry without
// files.
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "apps/commands.h"
#include "model/geometry.h"
#include "model/inventory.h"
#include "model/shard.h"
#include "weights/checkpoint.h"
#include "weights/totals.h"

namespace monostep::apps {
namespace {

struct InspectOptions {
  std::string dir;
  std::string geometry_name;
};

double gib(int64_t num_bytes) { return static_cast<double>(num_bytes) / (1 << 30); }

void print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

std::string layer_list(const std::vector<int>& layers) {
  std::string out;
  for (const int layer_idx : layers) out += (out.empty() ? "" : ", ") + std::to_string(layer_idx);
  return out.empty() ? "none" : out;
}

void print_sizes(const model::Geometry& g) {
  print(fmt::format("layers     {} and {} of the draft\n", g.num_hidden_layers, g.num_nextn_predict_layers));
  print(fmt::format("hidden     {} in {} streams, vocabulary {}\n", g.hidden_size, g.hc_mult, g.vocab_size));
  print(fmt::format("attention  {} heads of {} ({} rotated), query rank {}, {} output groups of rank {}, window {}\n",
                    g.num_attention_heads, g.head_dim, g.qk_rope_head_dim, g.q_lora_rank, g.o_groups, g.o_lora_rank,
                    g.sliding_window));
  print(fmt::format("index      {} heads of {}, best {}\n", g.index_n_heads, g.index_head_dim, g.index_topk));
  print(fmt::format("experts    {} of width {}, {} a token", g.n_routed_experts, g.moe_intermediate_size,
                    g.num_experts_per_tok));
  if (g.num_nextn_predict_layers > 0) {
    print(fmt::format("; draft {}, {} a token", g.dspark_n_routed_experts, g.dspark_num_experts_per_tok));
  }
  print("\n");
  for (size_t idx = 0; idx < g.engram_layer_ids.size(); ++idx) {
    print(fmt::format("Engram     layer {}: {} rows of {}, {} columns\n", g.engram_layer_ids[idx],
                      g.engram_num_embeddings[idx], g.engram_head_dim, g.num_engram_columns()));
  }
  print(fmt::format("positions  at most {}\n", g.max_position_embeddings));
}

void print_roles(const model::Geometry& geometry) {
  const std::vector<model::Role> roles = model::layer_roles(geometry);
  for (const model::Mode mode :
       {model::Mode::kWindow, model::Mode::kFull, model::Mode::kReindex, model::Mode::kReuse}) {
    std::vector<int> layers;
    for (int layer_idx = 0; layer_idx < geometry.num_hidden_layers; ++layer_idx) {
      if (roles[static_cast<size_t>(layer_idx)].mode == mode) layers.push_back(layer_idx);
    }
    print(fmt::format("{:<10} {}\n", model::mode_name(mode), layer_list(layers)));
  }
}

void print_classes(const std::vector<model::TensorSpec>& specs) {
  print(fmt::format("\n{:<24} {:>9} {:>19} {:>19} {:>10}\n", "class", "tensors", "parameters", "bytes", "GiB"));
  for (const weights::ClassTotal& row : weights::class_totals(specs)) {
    print(fmt::format("{:<24} {:>9} {:>19} {:>19} {:>10.4f}\n", row.name, row.num_tensors, row.num_parameters,
                      row.num_bytes, gib(row.num_bytes)));
  }
}

void print_ranks(const std::vector<model::TensorSpec>& specs, const model::Geometry& geometry) {
  print("\nbytes of one rank, without vision and Engram tables\n");
  print(fmt::format("{:<24} {:>19} {:>19} {:>19} {:>10}\n", "ranks", "split", "replicated", "both", "GiB"));
  for (const int tp : {1, 2, 4, 8}) {
    const Result<model::Shard> shard = model::make_shard(geometry, tp);
    if (!shard.ok()) {
      print(fmt::format("{:<24} not possible: {}\n", tp, shard.error().text));
      continue;
    }
    const weights::RankBytes bytes = weights::rank_bytes(specs, geometry, *shard);
    const int64_t both = bytes.split + bytes.replicated;
    print(fmt::format("{:<24} {:>19} {:>19} {:>19} {:>10.4f}\n", tp, bytes.split, bytes.replicated, both, gib(both)));
  }
}

void print_geometry(const model::Geometry& geometry) {
  const std::vector<model::TensorSpec> specs = model::tensor_inventory(geometry);
  print_sizes(geometry);
  print_roles(geometry);
  print_classes(specs);
  print_ranks(specs, geometry);
}

Status inspect_checkpoint(const std::string& dir) {
  TRY_ASSIGN(const weights::Checkpoint checkpoint, weights::Checkpoint::open(dir));
  print_geometry(checkpoint.geometry());
  print(fmt::format("\ncheckpoint ok: {} tensors in {} files, {} token classes, tokenizer.json {}\n",
                    checkpoint.specs().size(), checkpoint.num_files(), checkpoint.token_classes().size(),
                    checkpoint.has_tokenizer() ? "present" : "absent"));
  return {};
}

Status inspect(const InspectOptions& options) {
  if (options.geometry_name.empty()) return inspect_checkpoint(options.dir);
  const Result<model::Geometry> geometry = model::named_geometry(options.geometry_name);
  if (!geometry.ok()) return Error{Code::kInvalidArgument, geometry.error().text, "--geometry"};
  print_geometry(*geometry);
  return {};
}

}  // namespace

void add_inspect(CLI::App& root, int* status) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* command = root.add_subcommand("inspect", "check a checkpoint and print its sizes");
  CLI::Option_group* source = command->add_option_group("source", "what is inspected");
  source->add_option("dir", options->dir, "the checkpoint's folder");
  source->add_option("--geometry", options->geometry_name, "a known geometry: flash, demo, micro, clone40, realdims");
  source->require_option(1);
  command->callback([options, status] {
    const Status done = inspect(*options);
    *status = done.ok() ? 0 : report(done.error());
  });
}

}  // namespace monostep::apps
