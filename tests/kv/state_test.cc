// Byte offsets of the cache records: no two records of a page or slot overlap, all lie inside, sizes are those of
// model.md 4.1, and rings hold everything that a step and its rejected rows may touch.
#include "kv/state.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "model/shard.h"

namespace monostep::kv {
namespace {

using model::Geometry;

struct Part {
  int64_t begin = 0;
  int64_t bytes = 0;
};

// The first overlap or part outside [0, total), or -1.
int64_t first_conflict(std::vector<Part> parts, int64_t total) {
  std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.begin < b.begin; });
  int64_t end = 0;
  for (const Part& part : parts) {
    if (part.begin < end || part.begin + part.bytes > total) return part.begin;
    end = part.begin + part.bytes;
  }
  return -1;
}

std::vector<Part> page_parts(const Geometry& geometry, const PageLayout& layout) {
  std::vector<Part> parts;
  for (int owner_idx = 0; owner_idx < static_cast<int>(geometry.kv_source_layer_ids.size()); ++owner_idx) {
    for (int group = 0; group < layout.groups_per_page(owner_idx); ++group) {
      parts.push_back({layout.compressed_offset(owner_idx, group), model::compressed_record_bytes(geometry)});
      parts.push_back({layout.index_key_offset(owner_idx, group), model::index_record_bytes(geometry)});
    }
  }
  return parts;
}

class StateOf : public testing::TestWithParam<const char*> {
 protected:
  Geometry geometry_ = model::named_geometry(GetParam()).value();
};

TEST_P(StateOf, page_records_do_not_overlap) {
  const PageLayout layout(geometry_);
  EXPECT_EQ(first_conflict(page_parts(geometry_, layout), layout.page_bytes()), -1);
  for (size_t owner_idx = 0; owner_idx < geometry_.kv_source_layer_ids.size(); ++owner_idx) {
    const int ratio = geometry_.compress_ratios[static_cast<size_t>(geometry_.kv_source_layer_ids[owner_idx])];
    EXPECT_EQ(layout.groups_per_page(static_cast<int>(owner_idx)) * ratio, program::kPageTokens);
  }
}

TEST_P(StateOf, slot_records_do_not_overlap) {
  const SlotLayout layout(geometry_);
  std::map<int64_t, int64_t> parts;  // begin -> bytes; positions that share a record share its begin
  for (int position = 0; position < 2 * layout.ring_rows(); ++position) {
    for (int layer_idx = 0; layer_idx < geometry_.num_layers(); ++layer_idx) {
      parts[layout.ring_offset(layer_idx, position)] = model::window_record_bytes(geometry_);
    }
    for (int owner_idx = 0; owner_idx < static_cast<int>(geometry_.kv_source_layer_ids.size()); ++owner_idx) {
      parts[layout.pending_offset(owner_idx, position)] = int64_t{8} * geometry_.head_dim;
    }
    parts[layout.class_offset(position)] = 4;
  }
  std::vector<Part> list;
  for (const auto& [begin, bytes] : parts) list.push_back({begin, bytes});
  EXPECT_EQ(first_conflict(list, layout.slot_bytes()), -1);
}

TEST_P(StateOf, a_band_of_one_request_never_overwrites_what_its_rows_need) {
  const SlotLayout layout(geometry_);
  for (int start = 0; start < 400; start += 7) {
    const int end = start + program::kMaxBand;
    std::set<int64_t> rings, pending, classes;
    const int first_seen = std::max(0, start - geometry_.sliding_window + 1);
    for (int position = first_seen; position < end; ++position) rings.insert(layout.ring_offset(0, position));
    EXPECT_EQ(rings.size(), static_cast<size_t>(end - first_seen));
    const int first_pair = std::max(0, start - 1) / 2;
    for (int pair = first_pair; pair <= (end - 1) / 2; ++pair) pending.insert(layout.pending_offset(0, 2 * pair));
    EXPECT_EQ(pending.size(), static_cast<size_t>((end - 1) / 2 - first_pair + 1));
    const int first_class = std::max(0, start - geometry_.engram_max_ngram_size + 1);
    for (int position = first_class; position < end; ++position) classes.insert(layout.class_offset(position));
    EXPECT_EQ(classes.size(), static_cast<size_t>(end - first_class));
  }
}

TEST_P(StateOf, pools_hold_every_page_and_slot) {
  Pools pools(geometry_, 3, 2);
  EXPECT_EQ(pools.page(2) + pools.page_layout.page_bytes(), pools.pages.data() + pools.pages.size());
  EXPECT_EQ(pools.slot(1) + pools.slot_layout.slot_bytes(), pools.slots.data() + pools.slots.size());
}

INSTANTIATE_TEST_SUITE_P(Geometries, StateOf, testing::Values("micro", "clone40", "realdims", "flash"));

TEST(State, the_released_model_has_the_published_bytes) {
  const Geometry flash = model::named_geometry("flash").value();
  EXPECT_EQ(PageLayout(flash).page_bytes(), 890 * program::kPageTokens);  // 890 B a token
  EXPECT_EQ(SlotLayout(flash).ring_rows(), 175);
  EXPECT_EQ(SlotLayout(flash).ring_rows(), program::window_ring_rows(flash));
  const SlotLayout slots(flash);
  EXPECT_EQ(slots.ring_offset(1, 0) - slots.ring_offset(0, 0), int64_t{175} * 528);
}

TEST(State, the_overlap_check_rejects_a_shifted_record) {  // positive control
  const Geometry micro = model::named_geometry("micro").value();
  const PageLayout layout(micro);
  std::vector<Part> parts = page_parts(micro, layout);
  parts[1].begin -= 1;
  EXPECT_NE(first_conflict(parts, layout.page_bytes()), -1);
  parts[1].begin = layout.page_bytes();
  EXPECT_NE(first_conflict(parts, layout.page_bytes()), -1);
}

}  // namespace
}  // namespace monostep::kv
