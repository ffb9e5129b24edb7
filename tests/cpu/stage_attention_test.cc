// Attention stages against a plain reimplementation in double from what the stages read: the list of a row (window at
// the start and past the ring, selected groups, the draft's context), sink and inverse RoPE, new cache rows, and the
// output projections.
#include <algorithm>

#include "cpu/stage_common.h"
#include "dense.h"
#include "tiny_models.h"

namespace monostep::cpu {
namespace {

using Rows = std::vector<std::vector<float>>;

struct Caches {  // what the steps of a sequence put, by layer and position or group
  std::vector<Rows> window = std::vector<Rows>(8, Rows(kContext));
  std::vector<Rows> context = std::vector<Rows>(8, Rows(kContext));
  std::vector<Rows> compressed = std::vector<Rows>(8, Rows(kContext));
};

std::vector<float> row_at(const float* words, int64_t row, int width) {
  return {words + row * width, words + (row + 1) * width};
}

// Query of a head before RoPE, rotated here.
std::vector<float> query_of(Walk& walk, const program::Layout& layout, int layer_idx, int row, int head, int position) {
  const model::Geometry& g = layout.geometry();
  const model::RopeTables tables = model::rope_tables(g);
  std::vector<float> query(static_cast<size_t>(g.head_dim));
  sum_splits({walk.region(Region::kQPart, Stage::kQProj, layer_idx), layout.rows(), 0,
              layout.stage_splits(Stage::kQProj, layer_idx)},
             row, head * g.head_dim, query);
  round_all(query);
  const bool plain = layout.program().roles[static_cast<size_t>(layer_idx)].ratio == 0;
  rotate(query, angles_at(plain ? tables.base : tables.yarn, position), false);
  return query;
}

// Softmax over the list and the sink, in double; then the inverse rotation.
std::vector<float> attend(const std::vector<float>& query, const Rows& keys, double sink,
                          const std::vector<model::CosSin>& angles) {
  std::vector<double> scores;
  double most = sink;
  for (const std::vector<float>& key : keys) {
    double sum = 0;
    for (size_t idx = 0; idx < key.size(); ++idx) sum += double{query[idx]} * key[idx];
    scores.push_back(sum / std::sqrt(static_cast<double>(query.size())));
    most = std::max(most, scores.back());
  }
  double total = std::exp(sink - most);
  std::vector<double> out(query.size());
  for (size_t entry = 0; entry < keys.size(); ++entry) {
    const double weight = std::exp(scores[entry] - most);
    total += weight;
    for (size_t idx = 0; idx < out.size(); ++idx) out[idx] += weight * keys[entry][idx];
  }
  for (double& value : out) value /= total;
  std::vector<float> result = rounded(out);
  rotate(result, angles, true);
  return result;
}

struct AttentionCase {
  int layer_idx = 0;
  int row = 0;
  int position = 0;
};

void expect_attention(Walk& walk, const program::Layout& layout, const AttentionCase& at, const Rows& keys) {
  const model::Geometry& g = layout.geometry();
  const model::RopeTables tables = model::rope_tables(g);
  const bool plain = layout.program().roles[static_cast<size_t>(at.layer_idx)].ratio == 0;
  const auto angles = angles_at(plain ? tables.base : tables.yarn, at.position);
  const Dense sink = dense(micro(), g.prefix(at.layer_idx) + "attn.attn_sink");
  const float* out = walk.region(Region::kAttnOut, Stage::kAttend, at.layer_idx);
  const int heads = layout.heads_per_group();
  for (int head = 0; head < g.num_attention_heads; ++head) {
    const std::vector<float> query = query_of(walk, layout, at.layer_idx, at.row, head, at.position);
    const std::vector<float> wanted = attend(query, keys, sink.values[static_cast<size_t>(head)], angles);
    const int64_t line = (int64_t{head / heads} * layout.rows() + at.row) * heads + head % heads;
    EXPECT_LT(relative_error(row_at(out, line, g.head_dim), wanted), 0.01)
        << "layer " << at.layer_idx << " position " << at.position << " head " << head;
  }
}

void collect_rows(Walk& walk, const program::Layout& layout, int layer_idx, const Part& part, Caches& caches) {
  const model::Geometry& g = layout.geometry();
  const auto layer = static_cast<size_t>(layer_idx);
  const model::Role& role = layout.program().roles[layer];
  for (int row = 0; row < static_cast<int>(part.tokens.size()); ++row) {
    const int position = part.first + row;
    caches.window[layer][static_cast<size_t>(position)] =
        row_at(walk.region(Region::kWindowNew, Stage::kKvNew, layer_idx), row, g.head_dim);
    if (role.mode != model::Mode::kFull || (position + 1) % role.ratio != 0) continue;
    caches.compressed[layer][static_cast<size_t>(position / role.ratio)] =
        row_at(walk.region(Region::kCompressedNew, Stage::kKvNew, layer_idx), row, g.head_dim);
  }
}

// Window positions oldest to newest, then the selected groups.
Rows list_of(Walk& walk, const program::Layout& layout, const AttentionCase& at, const Caches& caches) {
  const model::Geometry& g = layout.geometry();
  const model::Role& role = layout.program().roles[static_cast<size_t>(at.layer_idx)];
  Rows keys;
  for (int position = std::max(0, at.position - g.sliding_window + 1); position <= at.position; ++position) {
    keys.push_back(caches.window[static_cast<size_t>(at.layer_idx)][static_cast<size_t>(position)]);
  }
  if (role.ratio == 0) return keys;
  const float* topk =
      walk.region(Region::kTopk, Stage::kIndexSelect, role.index_source) + int64_t{at.row} * g.index_topk;
  const int wanted = std::min(g.index_topk, (at.position + 1) / role.ratio);
  for (int idx = 0; idx < g.index_topk; ++idx) {
    EXPECT_EQ(int_of(topk[idx]) >= 0, idx < wanted) << "layer " << at.layer_idx << " position " << at.position;
    if (idx < wanted)
      keys.push_back(caches.compressed[static_cast<size_t>(role.kv_owner)][static_cast<size_t>(int_of(topk[idx]))]);
  }
  return keys;
}

void check_step(CpuBackend& backend, const Part& part, Caches& caches) {
  Walk walk(backend, step_of({part}));
  const program::Layout& layout = backend.machine().layout();
  const model::Geometry& g = layout.geometry();
  for (int layer_idx = 0; layer_idx < g.num_hidden_layers; ++layer_idx) {
    walk.through(Stage::kAttend, layer_idx);
    collect_rows(walk, layout, layer_idx, part, caches);
    for (int row = 0; row < static_cast<int>(part.tokens.size()); ++row) {
      const AttentionCase at{layer_idx, row, part.first + row};
      expect_attention(walk, layout, at, list_of(walk, layout, at, caches));
    }
  }
  walk.to(backend.machine().program().section_begin(program::Section::kDraft));
  for (int layer_idx = g.num_hidden_layers; layer_idx < g.num_layers(); ++layer_idx) {
    const int64_t first = int64_t{layer_idx - g.num_hidden_layers} * layout.rows();
    for (int row = 0; row < static_cast<int>(part.tokens.size()); ++row) {
      caches.context[static_cast<size_t>(layer_idx)][static_cast<size_t>(part.first + row)] =
          row_at(walk.region(Region::kContextNewOut, Stage::kContextNew, -1), first + row, g.head_dim);
    }
  }
  const int last = part.first + static_cast<int>(part.tokens.size()) - 1;
  for (int layer_idx = g.num_hidden_layers; layer_idx < g.num_layers(); ++layer_idx) {
    walk.through(Stage::kAttend, layer_idx);
    Rows keys;  // every row sees the window of the context and the whole draft block
    for (int position = std::max(0, last - g.sliding_window + 1); position <= last; ++position) {
      keys.push_back(caches.context[static_cast<size_t>(layer_idx)][static_cast<size_t>(position)]);
    }
    for (int row = 0; row < g.dspark_block_size; ++row) {
      keys.push_back(row_at(walk.region(Region::kWindowNew, Stage::kKvNew, layer_idx), row, g.head_dim));
    }
    for (int row = 0; row < g.dspark_block_size; ++row)
      expect_attention(walk, layout, {layer_idx, row, last + 1 + row}, keys);
  }
}

TEST(StageAttention, every_row_attends_to_its_window_its_groups_and_the_sink) {
  const auto backend = made_backend(micro(), small_options());
  Caches caches;
  const std::vector<int32_t> tokens = prompt(72);
  // The start, the first wrap of the window, odd and even chunk ends, then past the ring of 16 + 47 rows.
  int first = 0;
  for (const int count : {1, 2, 14, 3, 24, 21, 1, 6}) {
    Part part{0, {tokens.begin() + first, tokens.begin() + first + count}, first};
    check_step(*backend, part, caches);
    first += count;
  }
}

TEST(StageAttention, the_attention_comparison_sees_a_missing_entry) {  // positive control
  const auto backend = made_backend(micro(), small_options());
  Caches caches;
  const Part part{0, prompt(12)};
  Walk walk(*backend, step_of({part}));
  const program::Layout& layout = backend->machine().layout();
  walk.through(Stage::kAttend, 0);
  collect_rows(walk, layout, 0, part, caches);
  const auto angles = angles_at(model::rope_tables(layout.geometry()).base, 11);
  Rows keys = list_of(walk, layout, {0, 11, 11}, caches);
  const std::vector<float> query = query_of(walk, layout, 0, 11, 0, 11);
  const std::vector<float> whole = attend(query, keys, 0, angles);
  keys.erase(keys.begin());
  EXPECT_GT(relative_error(attend(query, keys, 0, angles), whole), 0.02);
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
        const float* out = walk.region(Region::kAttnOut, Stage::kAttend, 0, group / groups);
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
