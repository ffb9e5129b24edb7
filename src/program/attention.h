// The list of keys that a row attends to, and its parts: what attend and attn_merge, plan, CPU and GPU agree on. A task
// of attend takes one part of a list for the heads of an output group; attn_merge adds up the parts of a head,
// ascending. Lists follow from positions alone, so both stages know how many parts a row has. Pure functions, compiled
// on host and device.
#pragma once

namespace monostep::program {

inline constexpr int kListPart = 128;  // entries of a part; the last part of a list may have fewer

// Backbone rows: the window, oldest to newest, with absent places first while it fills; then the selected groups.
// Ratios are 0 (none), 1 and 2.
constexpr int selected_groups(int index_topk, int ratio, int position) {
  const int visible = ratio == 0 ? 0 : ratio == 2 ? (position + 1) / 2 : position + 1;
  return visible < index_topk ? visible : index_topk;
}

// Draft rows: the context positions of the window; then the rows of the draft block.
constexpr int context_entries(int window, int last_position) {
  return last_position + 1 < window ? last_position + 1 : window;
}

constexpr int parts_of_list(int entries) { return (entries + kListPart - 1) / kListPart; }

}  // namespace monostep::program
