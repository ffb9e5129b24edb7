// The engine on the CPU reference with geometries at the edges: no draft, no Engram, long draft blocks with full
// company, shards that cut a tile. Each serves, and its text does not depend on speculation, company or ranks.
#include <gtest/gtest.h>

#include "../base/temp_dir.h"
#include "cpu/backend.h"
#include "engine/engine.h"
#include "weights/synthetic.h"

namespace monostep::engine {
namespace {

using Tokens = std::vector<int32_t>;

weights::Checkpoint make_checkpoint(const model::Geometry& geometry) {
  const TempDir dir;  // the files are mapped, so the folder need not stay
  EXPECT_TRUE(weights::write_checkpoint(geometry, 5, dir / "model").ok());
  return weights::Checkpoint::open(dir / "model").value();
}

model::Geometry micro() { return model::named_geometry("micro").value(); }

// Serves prompts of 1, 2, ... tokens together and returns their texts.
std::vector<Tokens> serve(const weights::Checkpoint& checkpoint, int num_requests, int spec, int tp = 1) {
  const model::Geometry& geometry = checkpoint.geometry();
  const Limits limits{.vocab_size = geometry.vocab_size,
                      .max_context = 128,
                      .max_spec = geometry.num_nextn_predict_layers > 0 ? geometry.dspark_block_size : 0,
                      .num_slots = 8,
                      .num_pages = 16};
  cpu::CpuOptions options;
  options.tp = tp;
  options.ctas = 1;
  options.num_pages = limits.num_pages;
  options.max_context = limits.max_context;
  const std::unique_ptr<cpu::CpuBackend> backend = cpu::CpuBackend::make(checkpoint, options).value();
  Engine engine(limits, *backend);
  std::vector<Tokens> texts(static_cast<size_t>(num_requests));
  for (int request_idx = 0; request_idx < num_requests; ++request_idx) {
    Request request;
    for (int token = 0; token <= request_idx; ++token) request.prompt.push_back((token * 29 + 7 + request_idx) % 128);
    request.max_tokens = 12;
    request.spec = spec;
    request.on_tokens = [&texts, request_idx](const Sequence&, std::span<const int32_t> tokens) {
      texts[static_cast<size_t>(request_idx)].insert(texts[static_cast<size_t>(request_idx)].end(), tokens.begin(),
                                                     tokens.end());
    };
    EXPECT_TRUE(engine.submit(request).ok());
  }
  while (engine.has_work()) EXPECT_TRUE(engine.step().ok());
  return texts;
}

TEST(CpuGeometries, a_model_without_draft_layers_serves) {
  model::Geometry geometry = micro();
  geometry.num_nextn_predict_layers = 0;
  geometry.compress_ratios.resize(6);
  geometry.dspark_block_size = 0;
  geometry.dspark_target_layer_ids.clear();
  geometry.dspark_markov_rank = 0;
  EXPECT_EQ(serve(make_checkpoint(geometry), 2, 0)[1].size(), 12u);
}

TEST(CpuGeometries, a_model_without_engram_tables_serves) {
  model::Geometry geometry = micro();
  geometry.engram_layer_ids.clear();
  geometry.engram_num_embeddings.clear();
  const weights::Checkpoint checkpoint = make_checkpoint(geometry);
  EXPECT_EQ(serve(checkpoint, 3, 5), serve(checkpoint, 3, 0));
}

TEST(CpuGeometries, eight_requests_draft_blocks_of_seven_in_one_step) {
  model::Geometry geometry = micro();
  geometry.dspark_block_size = 7;  // 56 draft rows: more than the widest band
  const weights::Checkpoint checkpoint = make_checkpoint(geometry);
  EXPECT_EQ(serve(checkpoint, 8, 7), serve(checkpoint, 8, 0));
}

TEST(CpuGeometries, a_draft_block_longer_than_the_widest_band_serves) {
  model::Geometry geometry = micro();
  geometry.dspark_block_size = 60;
  const weights::Checkpoint checkpoint = make_checkpoint(geometry);
  EXPECT_EQ(serve(checkpoint, 1, 60), serve(checkpoint, 1, 0));
}

TEST(CpuGeometries, ranks_whose_engram_rows_cut_a_tile_serve) {
  model::Geometry geometry = micro();
  geometry.hidden_size = 96;
  geometry.num_attention_heads = 8;
  geometry.o_groups = 8;
  geometry.moe_intermediate_size = 256;
  const weights::Checkpoint checkpoint = make_checkpoint(geometry);
  for (const int tp : {2, 4, 8}) EXPECT_EQ(serve(checkpoint, 2, 5, tp), serve(checkpoint, 2, 0, tp)) << tp;
}

}  // namespace
}  // namespace monostep::engine
