// What trace needs of the machine between two calls: reading a step's regions as rows of the model's quantities, and
// feeding recorded ones. All functions work on the current step of a backend; reads take rank 0, feeds go to every
// rank.
#pragma once

#include <span>
#include <vector>

#include "cpu/backend.h"
#include "cpu/routing.h"

namespace monostep::cpu {

class Probe {
 public:
  explicit Probe(CpuBackend& backend) : backend_(backend) {}

  // Streams [hc][hidden] of a row: at the attention site, between the sites, behind the FFN (before the next layer's
  // Engram).
  std::vector<float> attn_streams(int layer_idx, int row);
  std::vector<float> ffn_streams(int layer_idx, int row);
  std::vector<float> out_streams(int layer_idx, int row);
  // pre [hc], post [hc], comb [hc][hc] of a site (0 attention, 1 FFN).
  std::span<const float> mix(int layer_idx, int site, int row);
  std::vector<float> engram_gates(int layer_idx, int row);
  std::vector<float> taps(int row);  // [targets][hidden]
  Routing routing(int layer_idx, int row, bool image);
  std::vector<float> logits(int row);  // of the target
  std::vector<float> draft_logits(int request, int position);
  // A row region's words of the call that `stage` makes in a layer.
  std::span<float> row_words(program::Region region, program::Stage stage, int layer_idx, int row);

  // Makes the next fold of layer_idx (Engram layers: kEngramFold) see these streams and pre. layer_idx > 0.
  void feed_layer(int layer_idx, int row, std::span<const float> streams, std::span<const float> pre);
  // Makes kFfnFold of layer_idx see these streams and pre.
  void feed_ffn(int layer_idx, int row, std::span<const float> streams, std::span<const float> pre);
  // Makes kFold of an Engram layer see these streams, with nothing added to them.
  void feed_engram(int layer_idx, int row, std::span<const float> streams);
  void feed_taps(int row, std::span<const float> taps);
  void feed_verdict(int request, int last_position, int anchor);
  // Marks everything that a call writes as put in this step.
  void mark_put(program::Stage stage, int layer_idx);

 private:
  float* words(program::Region region, program::Stage stage, int layer_idx, int rank);
  std::vector<float> streams_of(program::Region region, program::Stage stage, int layer_idx, int row);
  void feed_streams(program::Region region, program::Stage stage, int layer_idx, int row,
                    std::span<const float> streams);
  void feed_mix(program::Region region, program::Stage stage, int layer_idx, int row, std::span<const float> pre);
  const program::Layout& layout() { return backend_.machine().layout(); }

  CpuBackend& backend_;
};

}  // namespace monostep::cpu
