// Folds: the expand against its formula, the first site, collapse, mHC coefficients and taps from what the stages left,
// and Engram: gates, the added value, dead history and gate 0 of image rows.
#include <algorithm>
#include <cmath>
#include <random>

#include "cpu/stage_common.h"
#include "dense.h"
#include "tiny_models.h"

namespace monostep::cpu {
namespace {

TEST(StageFold, expand_follows_the_formula) {
  std::mt19937 random(1);
  for (const int tp : {1, 2}) {
    const model::Geometry g = micro_geometry();
    const program::Layout layout(g, model::make_shard(g, tp).value(), {8, 8, kContext});
    const auto fill = [&](int64_t count) {
      std::vector<float> out(static_cast<size_t>(count));
      for (float& value : out) value = round_bf16(static_cast<float>(random() % 2001) / 1000.0f - 1.0f);
      return out;
    };
    const std::vector<float> exchange = fill(layout.region_words(Region::kFfnExchange));
    const std::vector<float> streams = fill(layout.region_words(Region::kFfnStreams));
    const std::vector<float> mix = fill(layout.region_words(Region::kFfnMixOut));
    const int hc = g.hc_mult;
    const int width = layout.slice_width();
    for (int slice = 0; slice < layout.num_slices(); ++slice) {
      const SliceStreams out = expand(layout, {exchange.data(), streams.data(), mix.data()}, slice, 3);
      for (int column = 0; column < width; ++column) {
        const int d = slice * width + column;
        float y = 0;
        for (int rank = 0; rank < tp; ++rank) {
          y += exchange[static_cast<size_t>(((rank * g.hidden_size + d) / kTile * layout.rows() + 3) * kTile +
                                            d % kTile)];
        }
        y = round_bf16(y);
        const float* row_mix = mix.data() + 3 * layout.mix_outputs();
        for (int stream = 0; stream < hc; ++stream) {
          double wanted = double{row_mix[hc + stream]} * y;
          for (int from = 0; from < hc; ++from) {
            wanted += double{row_mix[2 * hc + from * hc + stream]} *
                      streams[static_cast<size_t>(((slice * layout.rows() + 3) * hc + from) * width + column)];
          }
          EXPECT_NEAR(out[static_cast<size_t>(stream * width + column)], wanted, std::fabs(wanted) * 0x1p-8 + 1e-6);
        }
      }
    }
  }
}

std::vector<float> rows_of_slices(const program::Layout& layout, const float* words, int row) {
  std::vector<float> out;
  for (int slice = 0; slice < layout.num_slices(); ++slice) {
    const float* from = words + (int64_t{slice} * layout.rows() + row) * layout.slice_width();
    out.insert(out.end(), from, from + layout.slice_width());
  }
  return out;
}

// Embedding rows, drawn as image rows too where wanted.
std::vector<float> embedding(int token) {
  const Dense embed = dense(micro(), "embed.weight");
  const auto row = embed.row(token);
  return {row.begin(), row.end()};
}

std::vector<float> image_values(int num_rows) {
  std::vector<float> out;
  const int count = num_rows * micro().geometry().hidden_size;
  for (int idx = 0; idx < count; ++idx) out.push_back(round_bf16(static_cast<float>((idx * 37) % 101) / 50.0f - 1.0f));
  return out;
}

// Classes of a position and those before it: pad before the start, dead inside an image.
std::vector<float> engram_input(const ModelTables& tables, const program::StepInputs& inputs, int table_idx, int row) {
  const model::Geometry& g = micro().geometry();
  std::vector<int> classes;
  for (int back = 0; back < g.engram_max_ngram_size; ++back) {
    const int at = row - back;
    const bool image = at >= 0 && inputs.rows[static_cast<size_t>(at)].image;
    classes.push_back(at < 0 ? tables.pad_class
                      : image
                          ? model::kDeadClass
                          : micro().token_classes()[static_cast<size_t>(inputs.rows[static_cast<size_t>(at)].token)]);
  }
  std::vector<int64_t> ids(static_cast<size_t>(g.num_engram_columns()));
  model::engram_rows(tables.engram[static_cast<size_t>(table_idx)], g.engram_n_heads, tables.pad_class, classes, ids);
  const std::string name = g.prefix(g.engram_layer_ids[static_cast<size_t>(table_idx)]) + "engram.embed";
  const auto* codes = reinterpret_cast<const uint8_t*>(micro().tensor(name + ".weight").data.data());
  const auto* scales = reinterpret_cast<const uint8_t*>(micro().tensor(name + ".scale").data.data());
  std::vector<float> out;
  for (const int64_t id : ids) {
    for (int d = 0; d < g.engram_head_dim; ++d) {
      out.push_back(e4m3_value(codes[id * g.engram_head_dim + d]) *
                    e8m0_value(scales[id * (g.engram_head_dim / 32) + d / 32]));
    }
  }
  return out;
}

struct EngramOutput {
  std::vector<double> gates;   // [hc]
  std::vector<float> streams;  // [hc][hidden]
};

EngramOutput engram(const std::string& prefix, const std::vector<float>& input, const std::vector<float>& streams,
                    bool image) {
  const model::Geometry& g = micro().geometry();
  const std::vector<float> kv = rounded(multiply(dense(micro(), prefix + "wkv.weight"), activations(input)));
  const Dense q_weight = dense(micro(), prefix + "q_weight");
  const Dense k_weight = dense(micro(), prefix + "k_weight");
  const auto hidden = static_cast<size_t>(g.hidden_size);
  EngramOutput out{{}, streams};
  for (size_t stream = 0; stream < static_cast<size_t>(g.hc_mult); ++stream) {
    double dot = 0;
    double x_squares = 0;
    double k_squares = 0;
    for (size_t d = 0; d < hidden; ++d) {
      const size_t at = stream * hidden + d;
      dot += double{streams[at]} * q_weight.values[at] * k_weight.values[at] * kv[at];
      x_squares += double{streams[at]} * streams[at];
      k_squares += double{kv[at]} * kv[at];
    }
    const auto n = static_cast<double>(hidden);
    dot /= std::sqrt(x_squares / n + 1e-20) * std::sqrt(k_squares / n + 1e-20) * std::sqrt(n);
    const double root = std::copysign(std::sqrt(std::max(std::fabs(dot), 1e-6)), dot);
    out.gates.push_back(image ? 0 : 1 / (1 + std::exp(-root)));
    for (size_t d = 0; d < hidden; ++d) {
      float& x = out.streams[stream * hidden + d];
      x = round_bf16(static_cast<float>(x + out.gates.back() * kv[static_cast<size_t>(g.hc_mult) * hidden + d]));
    }
  }
  return out;
}

std::vector<float> in_every_stream(const std::vector<float>& values) {
  std::vector<float> out;
  for (int stream = 0; stream < micro().geometry().hc_mult; ++stream)
    out.insert(out.end(), values.begin(), values.end());
  return out;
}

TEST(StageFold, engram_adds_a_gated_value_and_nothing_at_image_rows) {
  for (const int tp : {1, 2}) {
    CpuOptions options = small_options();
    options.tp = tp;
    const auto backend = made_backend(micro(), options);
    program::StepInputs inputs = step_of({{0, prompt(12)}});
    for (const size_t row : {3u, 4u, 9u}) inputs.rows[row].image = true;
    const std::vector<float> images = image_values(3);
    inputs.image_rows = images;
    Walk walk(*backend, inputs);
    Probe probe(*backend);
    walk.through(Stage::kFold, 0);
    size_t image_idx = 0;
    const auto hidden = static_cast<size_t>(micro().geometry().hidden_size);
    for (int row = 0; row < 12; ++row) {
      const program::StepRow& source = inputs.rows[static_cast<size_t>(row)];
      std::vector<float> x = embedding(source.token);
      if (source.image) {
        const auto first = images.begin() + static_cast<int64_t>(image_idx++ * hidden);
        x.assign(first, first + static_cast<int64_t>(hidden));
      }
      const EngramOutput wanted = engram("layers.0.engram.", engram_input(backend->machine().tables, inputs, 0, row),
                                         in_every_stream(x), source.image);
      EXPECT_LT(relative_error(probe.attn_streams(0, row), wanted.streams), 0.002) << "TP " << tp << " row " << row;
      if (source.image) {
        EXPECT_EQ(probe.attn_streams(0, row), in_every_stream(x)) << "gate 0 at row " << row;
      } else {
        EXPECT_LT(relative_error(probe.engram_gates(0, row), wanted.gates), 0.002) << "TP " << tp << " row " << row;
      }
      // The first site collapses stream 0 alone.
      const std::vector<float> streams = probe.attn_streams(0, row);
      EXPECT_EQ(rows_of_slices(backend->machine().layout(), walk.region(Region::kAttnU, Stage::kFold, 0), row),
                std::vector<float>(streams.begin(), streams.begin() + static_cast<int64_t>(hidden)));
    }
    // The second table, behind two layers.
    walk.through(Stage::kExpertDown, 1);
    std::vector<std::vector<float>> before;
    for (int row = 0; row < 12; ++row) before.push_back(probe.out_streams(1, row));
    walk.through(Stage::kFold, 2);
    for (int row = 0; row < 12; ++row) {
      const EngramOutput wanted = engram("layers.2.engram.", engram_input(backend->machine().tables, inputs, 1, row),
                                         before[static_cast<size_t>(row)], inputs.rows[static_cast<size_t>(row)].image);
      EXPECT_LT(relative_error(probe.attn_streams(2, row), wanted.streams), 0.002) << "TP " << tp << " row " << row;
    }
  }
}

// pre-weighted sum of the streams.
std::vector<float> collapse(const std::vector<float>& streams, std::span<const float> pre) {
  const auto hidden = static_cast<size_t>(micro().geometry().hidden_size);
  std::vector<double> out(hidden);
  for (size_t idx = 0; idx < streams.size(); ++idx) out[idx % hidden] += double{pre[idx / hidden]} * streams[idx];
  return rounded(out);
}

std::vector<float> coefficients(const std::string& prefix, const std::vector<float>& streams) {
  double squares = 0;
  for (const float value : streams) squares += double{value} * value;
  const double scale = 1 / std::sqrt(squares / static_cast<double>(streams.size()) + 1e-20);
  std::vector<float> products;
  for (const double product : multiply(dense(micro(), prefix + "fn"), streams))
    products.push_back(static_cast<float>(product * scale));
  const Dense scales = dense(micro(), prefix + "scale");
  const Dense base = dense(micro(), prefix + "base");
  std::vector<float> out(products.size());
  const model::Geometry& g = micro().geometry();
  finish_mix(products, std::vector<float>(scales.values.begin(), scales.values.end()),
             std::vector<float>(base.values.begin(), base.values.end()),
             {g.hc_mult, g.hc_sinkhorn_iters, static_cast<float>(g.hc_eps)}, out.data());
  return out;
}

TEST(StageFold, each_site_collapses_with_the_coefficients_of_the_site_before) {
  const auto backend = made_backend(micro(), small_options());
  Walk walk(*backend, step_of({{0, prompt(6)}}));
  Probe probe(*backend);
  const program::Layout& layout = backend->machine().layout();
  const auto hc = static_cast<size_t>(layout.geometry().hc_mult);
  std::vector<std::vector<float>> pre(6);  // of the FFN site of the layer before
  for (const int layer_idx : {0, 1, 2, 3}) {
    walk.through(Stage::kFfnMix, layer_idx);
    const std::string prefix = layout.geometry().prefix(layer_idx);
    for (int row = 0; row < 6; ++row) {
      std::vector<float>& before = pre[static_cast<size_t>(row)];
      const std::vector<float> attn = probe.attn_streams(layer_idx, row);
      const std::vector<float> ffn = probe.ffn_streams(layer_idx, row);
      if (layer_idx > 0) {
        EXPECT_LT(relative_error(rows_of_slices(layout, walk.region(Region::kAttnU, Stage::kFold, layer_idx), row),
                                 collapse(attn, before)),
                  1e-3);
      }
      EXPECT_LT(relative_error(rows_of_slices(layout, walk.region(Region::kFfnU, Stage::kFfnFold, layer_idx), row),
                               collapse(ffn, probe.mix(layer_idx, 0, row).first(hc))),
                1e-3);
      EXPECT_LT(relative_error(probe.mix(layer_idx, 0, row), coefficients(prefix + "hc_attn_", attn)), 1e-4)
          << layer_idx;
      EXPECT_LT(relative_error(probe.mix(layer_idx, 1, row), coefficients(prefix + "hc_ffn_", ffn)), 1e-4) << layer_idx;
      const auto mix = probe.mix(layer_idx, 1, row).first(hc);
      before.assign(mix.begin(), mix.end());
    }
  }
}

TEST(StageFold, taps_are_the_means_of_the_streams_at_the_attention_site) {
  const auto backend = made_backend(micro(), small_options());
  Walk walk(*backend, step_of({{0, prompt(6)}}));
  Probe probe(*backend);
  const model::Geometry& g = micro().geometry();
  const auto hidden = static_cast<size_t>(g.hidden_size);
  const std::vector<float> quarter(static_cast<size_t>(g.hc_mult), 0.25f);
  std::vector<std::vector<float>> wanted(6);
  for (const int layer_idx : g.dspark_target_layer_ids) {
    walk.through(Stage::kFold, layer_idx);
    for (size_t row = 0; row < 6; ++row) {
      const std::vector<float> mean = collapse(probe.attn_streams(layer_idx, static_cast<int>(row)), quarter);
      wanted[row].insert(wanted[row].end(), mean.begin(), mean.end());
    }
  }
  for (size_t row = 0; row < 6; ++row) {
    const std::vector<float> taps = probe.taps(static_cast<int>(row));
    ASSERT_EQ(taps.size(), 3 * hidden);
    EXPECT_LT(relative_error(taps, wanted[row]), 1e-3);
  }
}

}  // namespace
}  // namespace monostep::cpu
