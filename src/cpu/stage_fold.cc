// Stages of the residual streams: folds (Engram's too), mHC mixing. Tasks: slices of the hidden dimension for all rows
// (folds), rows (mixes). Exact but for fp32 sums, which are bounded. Formulas: model.md 3.2 and 3.8.
#include <cmath>

#include "base/math.h"
#include "cpu/stage_common.h"
#include "cpu/stages.h"

namespace monostep::cpu {
namespace {

// bf16 of the ranks' partial sums 0..TP-1, for the slice's columns.
std::vector<float> sublayer_output(const program::Layout& layout, const float* exchange, int slice, int row) {
  const int tiles = ceil_div(layout.geometry().hidden_size, kTile);
  std::vector<float> out(static_cast<size_t>(layout.slice_width()));
  for (int column = 0; column < layout.slice_width(); ++column) {
    const int d = slice * layout.slice_width() + column;
    float sum = 0;
    for (int rank = 0; rank < layout.shard().tp; ++rank) {
      sum += exchange[((int64_t{rank} * tiles + d / kTile) * layout.rows() + row) * kTile + d % kTile];
    }
    out[static_cast<size_t>(column)] = round_bf16(sum);
  }
  return out;
}

const float* slice_row(const program::Layout& layout, const float* streams, int slice, int row) {
  return streams + (int64_t{slice} * layout.rows() + row) * layout.geometry().hc_mult * layout.slice_width();
}

}  // namespace

SliceStreams expand(const program::Layout& layout, const SiteOutput& site, int slice, int row) {
  const int hc = layout.geometry().hc_mult;
  const int width = layout.slice_width();
  const std::vector<float> y = sublayer_output(layout, site.exchange, slice, row);
  const float* x = slice_row(layout, site.streams, slice, row);
  const float* mix = site.mix + int64_t{row} * layout.mix_outputs();
  SliceStreams out(static_cast<size_t>(hc * width));
  for (int stream = 0; stream < hc; ++stream) {
    for (int column = 0; column < width; ++column) {
      float sum = 0;
      for (int from = 0; from < hc; ++from) sum += mix[2 * hc + from * hc + stream] * x[from * width + column];
      out[static_cast<size_t>(stream * width + column)] =
          round_bf16(mix[hc + stream] * y[static_cast<size_t>(column)] + sum);
    }
  }
  return out;
}

namespace {

// The embedding of a row in every stream.
SliceStreams embed(const ContextBase& ctx, const Row& row, int token, int slice) {
  const model::Geometry& g = ctx.geometry();
  const int width = ctx.layout().slice_width();
  SliceStreams out(static_cast<size_t>(g.hc_mult * width));
  const int image_row = ctx.draft() ? -1 : ctx.image_row_of()[static_cast<size_t>(row.idx)];
  for (int column = 0; column < width; ++column) {
    const int d = slice * width + column;
    float value = 0;
    if (image_row >= 0) {
      value = ctx.inputs().image_rows[static_cast<size_t>(int64_t{image_row} * g.hidden_size + d)];
    } else {
      uint16_t bits;
      std::memcpy(&bits, ctx.weights().embed + (int64_t{token} * g.hidden_size + d) * 2, sizeof(bits));
      value = bf16_value(bits);
    }
    for (int stream = 0; stream < g.hc_mult; ++stream) out[static_cast<size_t>(stream * width + column)] = value;
  }
  return out;
}

// u = bf16(sum_j pre[j] X[j]); pre null: one-hot stream 0.
void collapse(const program::Layout& layout, const SliceStreams& x, const float* pre, float* out) {
  const int width = layout.slice_width();
  for (int column = 0; column < width; ++column) {
    float sum = x[static_cast<size_t>(column)] * (pre == nullptr ? 1.0f : pre[0]);
    for (int stream = 1; pre != nullptr && stream < layout.geometry().hc_mult; ++stream) {
      sum += pre[stream] * x[static_cast<size_t>(stream * width + column)];
    }
    out[column] = round_bf16(sum);
  }
}

// Partial mHC products of a slice for all rows: [row][outputs, then the sum of squares].
void mix_products(const program::Layout& layout, const HyperWeights& hyper, int slice, const std::vector<Row>& rows,
                  const Activations& streams, float* out) {
  const int outputs = layout.mix_outputs();
  const std::vector<int> indices = row_indices(rows);
  std::vector<float> products(static_cast<size_t>(used_rows(rows)) * kTile);
  const PackedLinear& fn = hyper.fn[static_cast<size_t>(slice)];
  for (int tile = 0; tile < fn.tiles(); ++tile) {
    multiply_tile(fn, {tile, 0, fn.k}, streams, indices, products.data());
    for (const Row& row : rows) {
      for (int lane = 0; lane < kTile && tile * kTile + lane < outputs; ++lane) {
        out[row.idx * (outputs + 1) + tile * kTile + lane] = products[static_cast<size_t>(row.idx * kTile + lane)];
      }
    }
  }
  for (const Row& row : rows) {
    const float* x = streams.row(row.idx);
    out[row.idx * (outputs + 1) + outputs] = dot(x, x, streams.k);
  }
}

// pre, post, comb of every row from the partial products of all slices.
void finish_row_mix(const ContextBase& ctx, const HyperWeights& hyper, const float* parts, int row, float* out) {
  const model::Geometry& g = ctx.geometry();
  const int outputs = ctx.layout().mix_outputs();
  std::vector<float> sums(static_cast<size_t>(outputs + 1));
  for (int slice = 0; slice < ctx.layout().num_slices(); ++slice) {
    const float* part = parts + (int64_t{slice} * ctx.layout().rows() + row) * (outputs + 1);
    for (int idx = 0; idx <= outputs; ++idx) sums[static_cast<size_t>(idx)] += part[idx];
  }
  const float mean = sums.back() / static_cast<float>(g.hc_mult * g.hidden_size);
  const float r = 1.0f / std::sqrt(mean + static_cast<float>(g.rms_norm_eps));
  for (float& sum : sums) sum *= r;
  finish_mix(std::span(sums).first(static_cast<size_t>(outputs)), hyper.scale, hyper.base,
             {g.hc_mult, g.hc_sinkhorn_iters, static_cast<float>(g.hc_eps)}, out);
}

// Key (part = stream) or value (part = hc) of a row's Engram, output columns of the slice: bf16.
std::vector<float> engram_slice(const program::Layout& layout, const float* words, int row, int part, int slice) {
  const int per_rank = layout.shard().engram_rows;
  const int tiles = ceil_div(per_rank, kTile);
  const int splits = layout.stage_splits(Stage::kEngramKv, -1);
  std::vector<float> out(static_cast<size_t>(layout.slice_width()));
  for (int column = 0; column < layout.slice_width(); ++column) {  // a slice may lie in the rows of two ranks
    const int n = part * layout.geometry().hidden_size + slice * layout.slice_width() + column;
    const PartialSums sums{words, layout.rows(), n / per_rank * tiles, splits};
    sum_splits(sums, row, n % per_rank, std::span(out).subspan(static_cast<size_t>(column), 1));
  }
  round_all(out);
  return out;
}

// Polls every tile of the Engram output that a slice touches.
template <Stage S>
bool poll_engram(StageContext<S>& ctx, int slice, int first_part, int last_part) {
  const program::Layout& layout = ctx.layout();
  const int per_rank = layout.shard().engram_rows;
  const int tiles = ceil_div(per_rank, kTile);
  const int splits = layout.stage_splits(Stage::kEngramKv, -1);
  for (int part = first_part; part <= last_part; ++part) {
    const int begin = part * layout.geometry().hidden_size + slice * layout.slice_width();
    for (int n = begin; n < begin + layout.slice_width(); n = (n / kTile + 1) * kTile) {
      const int tile = n / per_rank * tiles + n % per_rank / kTile;
      const int last = std::min(begin + layout.slice_width(), n + kTile) - 1;
      const int last_tile = last / per_rank * tiles + last % per_rank / kTile;
      if (!ctx.template poll_range<Region::kEngramKvOut>(tile * splits, splits)) return false;
      if (!ctx.template poll_range<Region::kEngramKvOut>(last_tile * splits, splits)) return false;
    }
  }
  return true;
}

template <Region Exchange, Region Streams, Stage S>
bool poll_site(StageContext<S>& ctx, int slice) {
  const program::Layout& layout = ctx.layout();
  const int tiles = ceil_div(layout.geometry().hidden_size, kTile);
  const int begin = slice * layout.slice_width();
  const int last = begin + layout.slice_width() - 1;
  for (int rank = 0; rank < layout.shard().tp; ++rank) {
    const int first_tile = rank * tiles + begin / kTile;
    if (!ctx.template poll_range<Exchange>(first_tile, last / kTile - begin / kTile + 1)) return false;
  }
  return ctx.template poll<Streams>(slice);
}

void copy_streams(const program::Layout& layout, const SliceStreams& x, int slice, int row, float* out) {
  std::memcpy(out + (int64_t{slice} * layout.rows() + row) * static_cast<int64_t>(x.size()), x.data(),
              x.size() * sizeof(float));
}

// Streams of a layer's start before Engram: the embedding at the first backbone and draft layer, else the FFN's expand.
template <Stage S>
class LayerStart {
 public:
  explicit LayerStart(StageContext<S>& ctx) : ctx_(ctx) {}

  bool first() const { return ctx_.layer_idx() == 0 || ctx_.layer_idx() == ctx_.geometry().num_hidden_layers; }

  bool poll_rows() {
    if (!first()) return ctx_.template poll_rows<Region::kFfnMixOut>(ctx_.rows());
    if constexpr (program::may_read(S, Region::kVerdictOut)) {
      for (const Row& row : ctx_.rows()) {
        if (ctx_.draft() && !ctx_.template poll<Region::kVerdictOut>(row.request)) return false;
      }
    }
    return true;
  }
  bool poll_slice(int slice) { return first() || poll_site<Region::kFfnExchange, Region::kFfnStreams>(ctx_, slice); }

  SliceStreams streams(const Row& row, int slice) const {
    if (!first()) {
      const SiteOutput site{ctx_.template read<Region::kFfnExchange>(), ctx_.template read<Region::kFfnStreams>(),
                            ctx_.template read<Region::kFfnMixOut>()};
      return expand(ctx_.layout(), site, slice, row.idx);
    }
    int token = row.token;
    if constexpr (program::may_read(S, Region::kVerdictOut)) {
      if (ctx_.draft() && row.draft_pos == 0) {
        token = verdict_of(ctx_.layout(), ctx_.template read<Region::kVerdictOut>(), row.request).anchor;
      }
    }
    return embed(ctx_, row, token, slice);
  }
  // pre of the site before, null at the first layer.
  const float* pre(int row) const {
    if (first()) return nullptr;
    return ctx_.template read<Region::kFfnMixOut>() + int64_t{row} * ctx_.layout().mix_outputs();
  }

 private:
  StageContext<S>& ctx_;
};

}  // namespace

template <>
void run_stage(StageContext<Stage::kEngramFold>& ctx) {
  const program::Layout& layout = ctx.layout();
  const int hc = ctx.geometry().hc_mult;
  const int width = layout.slice_width();
  LayerStart start(ctx);
  if (!start.poll_rows()) return;
  float* streams_out = ctx.write<Region::kEngramStreams>();
  float* dots_out = ctx.write<Region::kEngramDots>();
  const std::vector<float>& gate_weight = ctx.layer().engram.gate_weight;
  for (const int slice : ctx.tasks()) {
    if (!start.poll_slice(slice) || !poll_engram(ctx, slice, 0, hc - 1)) return;
    for (const Row& row : ctx.rows()) {
      const SliceStreams x = start.streams(row, slice);
      copy_streams(layout, x, slice, row.idx, streams_out);
      float* dots = dots_out + (int64_t{slice} * layout.rows() + row.idx) * hc * 3;
      for (int stream = 0; stream < hc; ++stream) {
        const std::vector<float> key = engram_slice(layout, ctx.read<Region::kEngramKvOut>(), row.idx, stream, slice);
        const float* w = gate_weight.data() + int64_t{stream} * ctx.geometry().hidden_size + slice * width;
        const float* xs = x.data() + stream * width;
        float product = 0;
        for (int column = 0; column < width; ++column)
          product += xs[column] * w[column] * key[static_cast<size_t>(column)];
        dots[stream * 3] = product;
        dots[stream * 3 + 1] = dot(xs, xs, width);
        dots[stream * 3 + 2] = dot(key.data(), key.data(), width);
      }
    }
    ctx.put<Region::kEngramStreams>(slice);
    ctx.put<Region::kEngramDots>(slice);
  }
}

namespace {

// Gates of a row from the partial dots of all slices (0 for image rows).
std::vector<float> gates_of_row(const StageContext<Stage::kFold>& ctx, const Row& row) {
  const int hc = ctx.geometry().hc_mult;
  if (row.image) return std::vector<float>(static_cast<size_t>(hc), 0.0f);
  return engram_gates(ctx.layout(), ctx.read<Region::kEngramDots>(), row.idx);
}

void add_engram(const StageContext<Stage::kFold>& ctx, const Row& row, int slice, const std::vector<float>& gates,
                SliceStreams& x) {
  const int hc = ctx.geometry().hc_mult;
  const int width = ctx.layout().slice_width();
  const std::vector<float> value = engram_slice(ctx.layout(), ctx.read<Region::kEngramKvOut>(), row.idx, hc, slice);
  for (int stream = 0; stream < hc; ++stream) {
    for (int column = 0; column < width; ++column) {
      float& each = x[static_cast<size_t>(stream * width + column)];
      each = round_bf16(each + gates[static_cast<size_t>(stream)] * value[static_cast<size_t>(column)]);
    }
  }
}

void write_tap(StageContext<Stage::kFold>& ctx, const SliceStreams& x, int slice, const Row& row) {
  const program::Layout& layout = ctx.layout();
  const int hc = ctx.geometry().hc_mult;
  const int width = layout.slice_width();
  const int granule = ctx.role().tap_idx * layout.num_slices() + slice;
  float* out = ctx.write<Region::kTaps>() + (int64_t{granule} * layout.rows() + row.idx) * width;
  for (int column = 0; column < width; ++column) {
    float sum = 0;
    for (int stream = 0; stream < hc; ++stream) sum += x[static_cast<size_t>(stream * width + column)];
    out[column] = round_bf16(sum / static_cast<float>(hc));
  }
}

}  // namespace

std::vector<float> engram_gates(const program::Layout& layout, const float* dots, int row) {
  const model::Geometry& g = layout.geometry();
  const auto hidden = static_cast<float>(g.hidden_size);
  const auto eps = static_cast<float>(g.rms_norm_eps);
  std::vector<float> gates;
  for (int stream = 0; stream < g.hc_mult; ++stream) {
    float sums[3] = {};
    for (int slice = 0; slice < layout.num_slices(); ++slice) {
      const float* part = dots + ((int64_t{slice} * layout.rows() + row) * g.hc_mult + stream) * 3;
      for (int idx = 0; idx < 3; ++idx) sums[idx] += part[idx];
    }
    const float norm_x = 1.0f / std::sqrt(sums[1] / hidden + eps);
    const float norm_key = 1.0f / std::sqrt(sums[2] / hidden + eps);
    const float product = sums[0] * norm_x * norm_key / std::sqrt(hidden);
    gates.push_back(sigmoid_f32(std::copysign(std::sqrt(std::max(std::fabs(product), 1e-6f)), product)));
  }
  return gates;
}

template <>
void run_stage(StageContext<Stage::kFold>& ctx) {
  const program::Layout& layout = ctx.layout();
  const bool engram = ctx.role().engram_idx >= 0;
  LayerStart start(ctx);
  if (!start.poll_rows()) return;
  std::vector<std::vector<float>> gates(static_cast<size_t>(layout.rows()));
  if (engram) {
    if (!ctx.poll_range<Region::kEngramDots>(0, layout.num_slices())) return;
    for (const Row& row : ctx.rows()) gates[static_cast<size_t>(row.idx)] = gates_of_row(ctx, row);
  }
  float* streams_out = ctx.write<Region::kStreams>();
  float* u_out = ctx.write<Region::kAttnU>();
  float* mix_out = ctx.write<Region::kAttnMixPart>();
  Activations inputs;
  inputs.k = ctx.geometry().hc_mult * layout.slice_width();
  inputs.values.resize(static_cast<size_t>(used_rows(ctx.rows()) * inputs.k));
  for (const int slice : ctx.tasks()) {
    const bool ready = engram ? ctx.poll<Region::kEngramStreams>(slice) &&
                                    poll_engram(ctx, slice, ctx.geometry().hc_mult, ctx.geometry().hc_mult)
                              : start.poll_slice(slice);
    if (!ready) return;
    for (const Row& row : ctx.rows()) {
      SliceStreams x;
      if (engram) {
        const float* from = slice_row(layout, ctx.read<Region::kEngramStreams>(), slice, row.idx);
        x.assign(from, from + inputs.k);
        add_engram(ctx, row, slice, gates[static_cast<size_t>(row.idx)], x);
      } else {
        x = start.streams(row, slice);
      }
      copy_streams(layout, x, slice, row.idx, streams_out);
      std::copy(x.begin(), x.end(), inputs.values.begin() + int64_t{row.idx} * inputs.k);
      collapse(layout, x, start.pre(row.idx),
               u_out + (int64_t{slice} * layout.rows() + row.idx) * layout.slice_width());
      if (ctx.role().tap_idx >= 0) write_tap(ctx, x, slice, row);
    }
    mix_products(layout, ctx.layer().hyper_attn, slice, ctx.rows(), inputs,
                 mix_out + int64_t{slice} * layout.rows() * (layout.mix_outputs() + 1));
    ctx.put<Region::kStreams>(slice);
    ctx.put<Region::kAttnU>(slice);
    ctx.put<Region::kAttnMixPart>(slice);
    if (ctx.role().tap_idx >= 0) ctx.put<Region::kTaps>(ctx.role().tap_idx * layout.num_slices() + slice);
  }
}

namespace {

// The coefficients of this CTA's live rows, from the partial products of all slices.
template <Region Parts, Region Out, Stage S>
void finish_rows(StageContext<S>& ctx, const HyperWeights& hyper) {
  if (!ctx.template poll_range<Parts>(0, ctx.layout().num_slices())) return;
  float* out = ctx.template write<Out>();
  for (const int row : ctx.tasks()) {
    if (live_row(ctx.rows(), row) == nullptr) continue;
    finish_row_mix(ctx, hyper, ctx.template read<Parts>(), row, out + int64_t{row} * ctx.layout().mix_outputs());
    ctx.template put<Out>(row);
  }
}

}  // namespace

template <>
void run_stage(StageContext<Stage::kAttnMix>& ctx) {
  finish_rows<Region::kAttnMixPart, Region::kAttnMixOut>(ctx, ctx.layer().hyper_attn);
}

template <>
void run_stage(StageContext<Stage::kFfnMix>& ctx) {
  finish_rows<Region::kFfnMixPart, Region::kFfnMixOut>(ctx, ctx.layer().hyper_ffn);
}

template <>
void run_stage(StageContext<Stage::kFfnFold>& ctx) {
  const program::Layout& layout = ctx.layout();
  if (!ctx.poll_rows<Region::kAttnMixOut>(ctx.rows())) return;
  const SiteOutput site{ctx.read<Region::kAttnExchange>(), ctx.read<Region::kStreams>(),
                        ctx.read<Region::kAttnMixOut>()};
  float* streams_out = ctx.write<Region::kFfnStreams>();
  float* u_out = ctx.write<Region::kFfnU>();
  float* mix_out = ctx.write<Region::kFfnMixPart>();
  Activations inputs;
  inputs.k = ctx.geometry().hc_mult * layout.slice_width();
  inputs.values.resize(static_cast<size_t>(used_rows(ctx.rows()) * inputs.k));
  for (const int slice : ctx.tasks()) {
    if (!poll_site<Region::kAttnExchange, Region::kStreams>(ctx, slice)) return;
    for (const Row& row : ctx.rows()) {
      const SliceStreams x = expand(layout, site, slice, row.idx);
      copy_streams(layout, x, slice, row.idx, streams_out);
      std::copy(x.begin(), x.end(), inputs.values.begin() + int64_t{row.idx} * inputs.k);
      collapse(layout, x, site.mix + int64_t{row.idx} * layout.mix_outputs(),
               u_out + (int64_t{slice} * layout.rows() + row.idx) * layout.slice_width());
    }
    mix_products(layout, ctx.layer().hyper_ffn, slice, ctx.rows(), inputs,
                 mix_out + int64_t{slice} * layout.rows() * (layout.mix_outputs() + 1));
    ctx.put<Region::kFfnStreams>(slice);
    ctx.put<Region::kFfnU>(slice);
    ctx.put<Region::kFfnMixPart>(slice);
  }
}

template <>
void run_stage(StageContext<Stage::kHeadFold>& ctx) {
  const program::Layout& layout = ctx.layout();
  if (!ctx.poll_rows<Region::kFfnMixOut>(ctx.rows())) return;
  const SiteOutput site{ctx.read<Region::kFfnExchange>(), ctx.read<Region::kFfnStreams>(),
                        ctx.read<Region::kFfnMixOut>()};
  float* u_out = ctx.write<Region::kHeadU>();
  for (const int slice : ctx.tasks()) {
    if (!poll_site<Region::kFfnExchange, Region::kFfnStreams>(ctx, slice)) return;
    for (const Row& row : ctx.rows()) {
      const SliceStreams x = expand(layout, site, slice, row.idx);
      collapse(layout, x, site.mix + int64_t{row.idx} * layout.mix_outputs(),
               u_out + (int64_t{slice} * layout.rows() + row.idx) * layout.slice_width());
    }
    ctx.put<Region::kHeadU>(slice);
  }
}

}  // namespace monostep::cpu
