// Reads and feeds regions between calls (cpu/probe.h).
#include "cpu/probe.h"

#include <algorithm>

#include "cpu/stage_common.h"

namespace monostep::cpu {

float* Probe::words(Region region, Stage stage, int layer_idx, int rank) {
  Machine& machine = backend_.machine();
  const int call_idx = machine.program().find(stage, layer_idx);
  const int copy = machine.band->copies[static_cast<size_t>(call_idx)][static_cast<size_t>(region)];
  return machine.ranks[static_cast<size_t>(rank)].regions->data(region, copy);
}

std::vector<float> Probe::streams_of(Region region, Stage stage, int layer_idx, int row) {
  const model::Geometry& g = layout().geometry();
  const int width = layout().slice_width();
  const float* from = words(region, stage, layer_idx, 0);
  std::vector<float> out(static_cast<size_t>(g.hc_mult * g.hidden_size));
  for (int slice = 0; slice < layout().num_slices(); ++slice) {
    for (int stream = 0; stream < g.hc_mult; ++stream) {
      const float* line = from + ((int64_t{slice} * layout().rows() + row) * g.hc_mult + stream) * width;
      std::copy(line, line + width, out.begin() + int64_t{stream} * g.hidden_size + int64_t{slice} * width);
    }
  }
  return out;
}

std::vector<float> Probe::attn_streams(int layer_idx, int row) {
  return streams_of(Region::kStreams, Stage::kFold, layer_idx, row);
}
std::vector<float> Probe::ffn_streams(int layer_idx, int row) {
  return streams_of(Region::kFfnStreams, Stage::kFfnFold, layer_idx, row);
}

std::vector<float> Probe::out_streams(int layer_idx, int row) {
  const SiteOutput site{words(Region::kFfnExchange, Stage::kExpertDown, layer_idx, 0),
                        words(Region::kFfnStreams, Stage::kFfnFold, layer_idx, 0),
                        words(Region::kFfnMixOut, Stage::kFfnMix, layer_idx, 0)};
  const model::Geometry& g = layout().geometry();
  const int width = layout().slice_width();
  std::vector<float> out(static_cast<size_t>(g.hc_mult * g.hidden_size));
  for (int slice = 0; slice < layout().num_slices(); ++slice) {
    const std::vector<float> x = expand(layout(), site, slice, row);
    for (int stream = 0; stream < g.hc_mult; ++stream) {
      std::copy_n(x.begin() + stream * width, width,
                  out.begin() + int64_t{stream} * g.hidden_size + int64_t{slice} * width);
    }
  }
  return out;
}

std::span<const float> Probe::mix(int layer_idx, int site, int row) {
  const float* from = site == 0 ? words(Region::kAttnMixOut, Stage::kAttnMix, layer_idx, 0)
                                : words(Region::kFfnMixOut, Stage::kFfnMix, layer_idx, 0);
  return {from + int64_t{row} * layout().mix_outputs(), static_cast<size_t>(layout().mix_outputs())};
}

std::vector<float> Probe::engram_gates(int layer_idx, int row) {
  return cpu::engram_gates(layout(), words(Region::kEngramDots, Stage::kEngramFold, layer_idx, 0), row);
}

std::vector<float> Probe::taps(int row) {
  const model::Geometry& g = layout().geometry();
  const int width = layout().slice_width();
  const float* from = words(Region::kTaps, Stage::kFold, g.dspark_target_layer_ids.front(), 0);
  std::vector<float> out;
  for (int granule = 0; granule < g.num_taps() * layout().num_slices(); ++granule) {
    const float* line = from + (int64_t{granule} * layout().rows() + row) * width;
    out.insert(out.end(), line, line + width);
  }
  return out;
}

Routing Probe::routing(int layer_idx, int row, bool image) {
  const model::Geometry& g = layout().geometry();
  std::vector<float> logits(static_cast<size_t>(g.num_experts(layer_idx)));
  const PartialSums router{words(Region::kFfnInPart, Stage::kFfnIn, layer_idx, 0), layout().rows(), 0,
                           layout().stage_splits(Stage::kFfnIn, layer_idx)};
  sum_splits(router, row, 0, logits);
  const FfnWeights& weights = backend_.machine().ranks[0].weights->layers[static_cast<size_t>(layer_idx)].ffn;
  return route(logits, image ? weights.bias_vl : weights.bias,
               {g.experts_per_token(layer_idx), static_cast<float>(g.routed_scaling_factor)});
}

std::vector<float> Probe::logits(int row) {
  return row_logits(layout(), words(Region::kLogits, Stage::kHead, -1, 0), row);
}

std::vector<float> Probe::draft_logits(int request, int position) {
  std::vector<float> out;
  const int per_rank = layout().shard().vocab_rows;
  const int requests = layout().shape().max_requests;
  for (int rank = 0; rank < layout().shard().tp; ++rank) {
    const float* from = words(Region::kDraftLogits, Stage::kMarkov, position, rank);
    for (int n = 0; n < per_rank; ++n)
      out.push_back(from[(int64_t{n / kTile} * requests + request) * kTile + n % kTile]);
  }
  return out;
}

std::span<float> Probe::row_words(Region region, Stage stage, int layer_idx, int row) {
  const int64_t width = layout().region_words(region) / layout().rows();
  return {words(region, stage, layer_idx, 0) + row * width, static_cast<size_t>(width)};
}

void Probe::feed_streams(Region region, Stage stage, int layer_idx, int row, std::span<const float> streams) {
  const model::Geometry& g = layout().geometry();
  const int width = layout().slice_width();
  for (int rank = 0; rank < layout().shard().tp; ++rank) {
    float* to = words(region, stage, layer_idx, rank);
    for (int slice = 0; slice < layout().num_slices(); ++slice) {
      for (int stream = 0; stream < g.hc_mult; ++stream) {
        const float* line = streams.data() + int64_t{stream} * g.hidden_size + int64_t{slice} * width;
        std::copy(line, line + width, to + ((int64_t{slice} * layout().rows() + row) * g.hc_mult + stream) * width);
      }
    }
  }
}

// The given pre, and an expand that passes the streams through: post 0, comb the identity.
void Probe::feed_mix(Region region, Stage stage, int layer_idx, int row, std::span<const float> pre) {
  const int hc = layout().geometry().hc_mult;
  for (int rank = 0; rank < layout().shard().tp; ++rank) {
    float* mix = words(region, stage, layer_idx, rank) + int64_t{row} * layout().mix_outputs();
    std::fill_n(mix, layout().mix_outputs(), 0.0f);
    std::copy(pre.begin(), pre.end(), mix);
    for (int stream = 0; stream < hc; ++stream) mix[2 * hc + stream * hc + stream] = 1.0f;
  }
}

void Probe::feed_layer(int layer_idx, int row, std::span<const float> streams, std::span<const float> pre) {
  feed_streams(Region::kFfnStreams, Stage::kFfnFold, layer_idx - 1, row, streams);
  feed_mix(Region::kFfnMixOut, Stage::kFfnMix, layer_idx - 1, row, pre);
}

void Probe::feed_ffn(int layer_idx, int row, std::span<const float> streams, std::span<const float> pre) {
  feed_streams(Region::kStreams, Stage::kFold, layer_idx, row, streams);
  feed_mix(Region::kAttnMixOut, Stage::kAttnMix, layer_idx, row, pre);
  for (int rank = 0; rank < layout().shard().tp; ++rank) {
    std::fill_n(words(Region::kAttnExchange, Stage::kWoB, layer_idx, rank),
                layout().region_words(Region::kAttnExchange), 0.0f);
  }
}

void Probe::feed_engram(int layer_idx, int row, std::span<const float> streams) {
  feed_streams(Region::kEngramStreams, Stage::kEngramFold, layer_idx, row, streams);
  for (int rank = 0; rank < layout().shard().tp; ++rank) {
    std::fill_n(words(Region::kEngramKvOut, Stage::kEngramKv, layer_idx, rank),
                layout().region_words(Region::kEngramKvOut), 0.0f);
  }
}

void Probe::feed_taps(int row, std::span<const float> taps) {
  const int width = layout().slice_width();
  const int first_tap = layout().geometry().dspark_target_layer_ids.front();
  for (int rank = 0; rank < layout().shard().tp; ++rank) {
    float* to = words(Region::kTaps, Stage::kFold, first_tap, rank);
    for (size_t granule = 0; granule < taps.size() / static_cast<size_t>(width); ++granule) {
      std::copy_n(taps.data() + granule * static_cast<size_t>(width), width,
                  to + (static_cast<int64_t>(granule) * layout().rows() + row) * width);
    }
  }
}

void Probe::feed_verdict(int request, int last_position, int anchor) {
  for (int rank = 0; rank < layout().shard().tp; ++rank) {
    float* verdict = words(Region::kVerdictOut, Stage::kVerdict, -1, rank) +
                     int64_t{request} * (layout().geometry().dspark_block_size + 4);
    verdict[0] = word_of(0);
    verdict[1] = word_of(1);
    verdict[2] = word_of(last_position);
    verdict[3] = word_of(anchor);
  }
}

void Probe::mark_put(Stage stage, int layer_idx) {
  Machine& machine = backend_.machine();
  const int call_idx = machine.program().find(stage, layer_idx);
  const uint32_t tag = machine.plan().tag(machine.inputs->epoch, call_idx);
  for (int idx = 0; idx < program::kNumRegions; ++idx) {
    const auto region = static_cast<Region>(idx);
    const int copy = machine.band->copies[static_cast<size_t>(call_idx)][static_cast<size_t>(idx)];
    if (copy < 0) continue;
    // The taps' layers share one region: each puts its own part.
    const bool taps = region == Region::kTaps;
    const auto slices = static_cast<size_t>(layout().num_slices());
    const size_t begin =
        taps ? static_cast<size_t>(machine.program().roles[static_cast<size_t>(layer_idx)].tap_idx) * slices : 0;
    for (RankState& rank : machine.ranks) {
      const auto tags = rank.regions->tags(region, copy);
      for (auto& each : taps ? tags.subspan(begin, slices) : tags) each.store(tag);
    }
  }
}

}  // namespace monostep::cpu
