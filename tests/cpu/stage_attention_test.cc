// The attention site's stages but for attention itself against a plain reimplementation in double from what the stages
// read: new cache rows, and the output projections.
#include <algorithm>

#include "cpu/stage_common.h"
#include "dense.h"
#include "tiny_models.h"

namespace monostep::cpu {
namespace {

using Rows = std::vector<std::vector<float>>;

std::vector<float> row_at(const float* words, int64_t row, int width) {
  return {words + row * width, words + (row + 1) * width};
}

// A row's collapsed input, normed.
std::vector<float> normed_input(Walk& walk, const program::Layout& layout, int layer_idx, int row) {
  const model::Geometry& g = layout.geometry();
  const float* u = walk.region(Region::kAttnU, Stage::kFold, layer_idx);
  std::vector<float> x;
  for (int slice = 0; slice < layout.num_slices(); ++slice) {
    const float* from = u + (int64_t{slice} * layout.rows() + row) * layout.slice_width();
    x.insert(x.end(), from, from + layout.slice_width());
  }
  return normed(x, dense(micro(), g.prefix(layer_idx) + "attn_norm.weight"));
}

TEST(StageAttention, new_cache_rows_follow_the_formulas) {
  const auto backend = made_backend(micro(), small_options());
  Walk walk(*backend, step_of({{0, prompt(8)}}));
  const program::Layout& layout = backend->machine().layout();
  const model::Geometry& g = layout.geometry();
  const model::RopeTables tables = model::rope_tables(g);
  for (const int layer_idx : {1, 3}) {  // ratio 2 and ratio 1
    walk.through(Stage::kKvNew, layer_idx);
    const std::string prefix = g.prefix(layer_idx) + "attn.";
    const int ratio = layout.program().roles[static_cast<size_t>(layer_idx)].ratio;
    Rows kv;
    Rows latents;
    for (int row = 0; row < 8; ++row) {
      const std::vector<float> v = normed_input(walk, layout, layer_idx, row);
      kv.push_back(normed(rounded(multiply(dense(micro(), prefix + "wkv.weight"), activations(v))),
                          dense(micro(), prefix + "kv_norm.weight")));
      rotate(kv.back(), angles_at(tables.yarn, row), false);
      std::vector<uint8_t> record(static_cast<size_t>(model::window_record_bytes(g)));
      pack_window(kv.back(), record.data());
      EXPECT_LT(
          relative_error(row_at(walk.region(Region::kWindowNew, Stage::kKvNew, layer_idx), row, g.head_dim), kv.back()),
          0.01);

      std::vector<double> latent = multiply(dense(micro(), prefix + "compressor.wkv.weight"), v);
      if (ratio == 2 && row % 2 == 0) continue;
      if (ratio == 2) {
        const std::vector<float> before = normed_input(walk, layout, layer_idx, row - 1);
        const Dense gate = dense(micro(), prefix + "compressor.wgate.weight");
        const std::vector<double> other = multiply(dense(micro(), prefix + "compressor.wkv.weight"), before);
        const std::vector<double> own_gate = multiply(gate, v);
        const std::vector<double> other_gate = multiply(gate, before);
        for (size_t idx = 0; idx < latent.size(); ++idx) {
          const double share = 1 / (1 + std::exp(other_gate[idx] - own_gate[idx]));
          latent[idx] = latent[idx] * share + other[idx] * (1 - share);
        }
      }
      std::vector<float> rotated = normed(rounded(latent), dense(micro(), prefix + "compressor.norm.weight"));
      const auto angles = angles_at(tables.yarn, row / ratio * ratio);  // the group's first token
      std::vector<float> key = normed(rounded(multiply(dense(micro(), prefix + "indexer.wk.weight"), rotated)),
                                      dense(micro(), prefix + "indexer.k_norm.weight"));
      rotate(rotated, angles, false);
      pack_compressed(rotated, record.data());
      EXPECT_LT(relative_error(row_at(walk.region(Region::kCompressedNew, Stage::kKvNew, layer_idx), row, g.head_dim),
                               rotated),
                0.03);
      rotate(key, angles, false);
      pack_index(key, record.data());
      EXPECT_LT(relative_error(
                    row_at(walk.region(Region::kIndexKeyNew, Stage::kKvNew, layer_idx), row, g.index_head_dim), key),
                0.03);
    }
  }
}

// Tags of a region behind its call: only granules of live rows carry that of the step.
std::vector<int> put_granules(CpuBackend& backend, Region region, Stage writer, int layer_idx) {
  Machine& machine = backend.machine();
  const int call_idx = machine.program().find(writer, layer_idx);
  const int copy = machine.band->copies[static_cast<size_t>(call_idx)][static_cast<size_t>(region)];
  const uint32_t tag = machine.plan().tag(machine.inputs->epoch, call_idx);
  std::vector<int> put;
  for (int granule = 0; granule < machine.layout().num_granules(region); ++granule) {
    if (machine.ranks[0].regions->tag(region, copy, granule) == tag) put.push_back(granule);
  }
  return put;
}

TEST(StageAttention, query_latents_are_summed_rounded_and_normed_once) {
  const auto backend = made_backend(wide(), small_options());
  Walk walk(*backend, step_of({{0, prompt(5)}}));
  walk.through(Stage::kQNorm, 0);
  const program::Layout& layout = backend->machine().layout();
  const model::Geometry& g = layout.geometry();
  const int splits = layout.stage_splits(Stage::kAttnIn, 0);
  ASSERT_GT(splits, 1);
  const float* parts = walk.region(Region::kAttnInPart, Stage::kAttnIn, 0);
  const Dense weight = dense(wide(), "layers.0.attn.q_norm.weight");
  const std::vector<float> norm(weight.values.begin(), weight.values.end());
  for (int row = 0; row < 5; ++row) {
    std::vector<float> raw(norm.size()), wanted(norm.size());
    for (size_t n = 0; n < raw.size(); ++n) {
      for (int split = 0; split < splits; ++split) {
        const int granule = static_cast<int>(n) / kTile * splits + split;
        const float part = parts[(int64_t{granule} * layout.rows() + row) * kTile + static_cast<int>(n) % kTile];
        raw[n] = split == 0 ? part : raw[n] + part;
      }
      raw[n] = round_bf16(raw[n]);
    }
    rms_norm(raw, norm, g.rms_norm_eps, wanted.data());
    EXPECT_EQ(row_at(walk.region(Region::kQIn, Stage::kQNorm, 0), row, g.q_lora_rank), wanted) << row;
  }
}

TEST(StageAttention, finished_rows_are_put_for_live_rows_alone) {
  const auto backend = made_backend(micro(), small_options());
  Walk walk(*backend, step_of({{0, prompt(3)}}));
  walk.through(Stage::kOSum, 0);
  EXPECT_EQ(put_granules(*backend, Region::kQIn, Stage::kQNorm, 0), (std::vector<int>{0, 1, 2}));
  const int chunks = backend->machine().layout().o_chunks();
  ASSERT_GT(chunks, 1);
  std::vector<int> wanted(static_cast<size_t>(3 * chunks));
  std::iota(wanted.begin(), wanted.end(), 0);
  EXPECT_EQ(put_granules(*backend, Region::kOIn, Stage::kOSum, 0), wanted);
}

TEST(StageAttention, output_projections_add_up_over_groups_and_ranks) {
  for (const int tp : {1, 2}) {
    CpuOptions options = small_options();
    options.tp = tp;
    const auto backend = made_backend(micro(), options);
    Walk walk(*backend, step_of({{0, prompt(5)}}));
    walk.through(Stage::kWoB, 0);
    const program::Layout& layout = backend->machine().layout();
    const model::Geometry& g = layout.geometry();
    const Dense wo_a = dense(micro(), "layers.0.attn.wo_a.weight");
    const Dense wo_b = dense(micro(), "layers.0.attn.wo_b.weight");
    const int width = layout.heads_per_group() * g.head_dim;
    const int groups = layout.shard().num_o_groups;
    for (int row = 0; row < 5; ++row) {
      std::vector<double> middle;
      for (int group = 0; group < g.o_groups; ++group) {
        const float* out = walk.region(Region::kAttnOut, Stage::kAttnMerge, 0, group / groups);
        const std::vector<float> x = row_at(out, int64_t{group % groups} * layout.rows() + row, width);
        for (int n = group * g.o_lora_rank; n < (group + 1) * g.o_lora_rank; ++n) {
          double sum = 0;
          for (int k = 0; k < width; ++k) sum += wo_a.row(n)[static_cast<size_t>(k)] * x[static_cast<size_t>(k)];
          middle.push_back(sum);
        }
      }
      for (int rank = 0; rank < tp; ++rank) {
        const int share = groups * g.o_lora_rank;
        const auto from = middle.begin() + int64_t{rank} * share;
        const std::vector<float> finished = row_at(walk.region(Region::kOIn, Stage::kOSum, 0, rank), row, share);
        EXPECT_LT(relative_error(finished, rounded(std::vector<double>(from, from + share))), 0.003) << row;
      }
      const std::vector<double> wanted = multiply(wo_b, activations(rounded(middle)));
      std::vector<double> got(wanted.size());
      const float* exchange = walk.region(Region::kAttnExchange, Stage::kWoB, 0, tp - 1);
      for (int rank = 0; rank < tp; ++rank) {
        for (int d = 0; d < g.hidden_size; ++d) {
          got[static_cast<size_t>(d)] +=
              exchange[((int64_t{rank} * g.hidden_size + d) / kTile * layout.rows() + row) * kTile + d % kTile];
        }
      }
      EXPECT_LT(relative_error(got, wanted), 0.01) << "TP " << tp << " row " << row;
    }
  }
}

}  // namespace
}  // namespace monostep::cpu
