// Collector: the arrays that a trace writes. Reads the regions of the current step behind each call and keeps them
// under the names of golden/README.md ("Records"). Used by trace alone.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cpu/probe.h"
#include "cpu/record.h"

namespace monostep::cpu {

struct TracedPrompt {
  const std::vector<int>& tokens;  // [S]
  const std::vector<int>& image;   // [S] 1 inside an image span; empty: none
  int num_decoded = 0;             // steps behind the prompt
};

class Collector {
 public:
  Collector(CpuBackend& backend, Probe& probe, const TracedPrompt& prompt);

  // Rows for these positions of the prompt, in this order.
  void declare(const std::vector<int>& positions);
  // The same for mode ffn: resid and router_ids alone.
  void declare_ffn(const std::vector<int>& positions);
  // Values that an array holds before anything is computed.
  void preset(const std::string& name, const Array& values);
  // Rows for the steps behind the prompt; drafts start after `skipped` steps. `with_target`: logits, taps and
  // selections too.
  void declare_decode(const std::vector<int>& tokens, int skipped, bool with_target);

  // Takes what `call` computed for the positions first .. first + count - 1, the step's rows.
  void collect(const program::Call& call, int first, int count);
  void collect_decode(int dec_row, int row);
  void collect_draft(int dec_row, int anchor);

  Record take() { return std::move(out_); }

 private:
  void put_values(const std::string& name, int64_t row, std::span<const float> values);
  void put_ids(const std::string& name, int64_t row, std::span<const int> ids);
  void collect_layer_end(int layer_idx, int row, int out_row);
  void collect_group(int layer_idx, int row, int position);
  void collect_index(const program::Call& call, int row, int position);
  void collect_engram(int layer_idx, int row, int out_row);
  int out_row_of(int position) const { return out_row_[static_cast<size_t>(position)]; }
  bool image_at(int position) const {
    return !prompt_.image.empty() && prompt_.image[static_cast<size_t>(position)] != 0;
  }

  CpuBackend& backend_;
  Probe& probe_;
  TracedPrompt prompt_;
  model::Geometry g_;
  std::vector<model::Role> roles_;
  std::vector<int> out_row_;  // [positions] row of the outputs, -1: not wanted
  Record out_;
};

}  // namespace monostep::cpu
