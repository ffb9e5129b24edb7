// Rank on the emulated device: what a kernel is launched with, and the way of regions, pools and tables to the device
// and back. Most cases run a stand-in for the step kernel.
#include "gpu/rank.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>

#include "../cpu/tiny_models.h"
#include "base/numeric.h"
#include "emulated_program.h"
#include "emulator/emulated_ptx.h"
#include "model/engram.h"

namespace monostep::gpu {
namespace {

using program::Region;

// The stand-in keeps what it was launched with and can leave a report.
struct Seen {
  KernelParams params = {};
  StepRecord step = {};
  std::vector<int32_t> page_table;
  int launches = 0;
};
Seen seen;

void stand_in(const void* raw) {
  if (cta_idx() != 0 || thread_idx() != 0) return;
  const auto& params = *static_cast<const KernelParams*>(raw);
  seen.params = params;
  std::memcpy(&seen.step, reinterpret_cast<const void*>(params.step), sizeof(StepRecord));
  const auto* table = reinterpret_cast<const int32_t*>(params.page_table);
  seen.page_table.assign(table, table + program::kMaxRequests * params.max_pages);
  ++seen.launches;
}

KernelMaker stand_in_maker() {
  return [](Device& device, const program::Layout&, const program::Plan&, const ProgramSizes&) {
    static_cast<EmulatedDevice&>(device).add_kernel("stand_in", stand_in);
    return device.load({}, "stand_in");
  };
}

class RankTest : public testing::Test {
 protected:
  RankTest() : device_(device_options()) { seen = {}; }
  static EmulatedDeviceOptions device_options() {
    EmulatedDeviceOptions options;
    options.num_sms = 3;
    return options;
  }
  static RankOptions options() {
    RankOptions out;
    out.num_pages = cpu::small_options().num_pages;
    out.max_context = cpu::kContext;
    out.poll_limit = 12345;
    return out;
  }
  std::unique_ptr<Rank> made(const RankOptions& options, const KernelMaker& maker = stand_in_maker()) {
    return Rank::make(device_, cpu::micro(), options, maker).value();
  }
  static program::StepInputs two_requests() {
    return cpu::step_of({cpu::Part{4, cpu::prompt(3), 7}, cpu::Part{1, cpu::prompt(2), 70}});
  }
  EmulatedDevice device_;
};

TEST_F(RankTest, a_kernel_sees_the_calls_the_step_and_the_pages) {
  const std::unique_ptr<Rank> rank = made(options());
  ASSERT_TRUE(rank->begin_step(two_requests(), 41).ok());
  ASSERT_TRUE(rank->launch(5, 9).ok());
  ASSERT_TRUE(rank->finish().ok());
  EXPECT_EQ(seen.launches, 1);
  EXPECT_EQ(seen.params.first_call, 5);
  EXPECT_EQ(seen.params.last_call, 9);
  EXPECT_EQ(seen.params.rank, 0);
  EXPECT_EQ(seen.params.poll_limit, 12345);
  EXPECT_EQ(seen.params.push, static_cast<int>(Push::kNone));
  EXPECT_EQ(seen.params.max_pages, cpu::kPagesOfSlot);
  EXPECT_EQ(seen.step.epoch, 41u);
  EXPECT_EQ(seen.step.num_rows, 5);
  EXPECT_EQ(seen.step.num_requests, 2);
  EXPECT_EQ(seen.step.rows[3].position, 70);
  const auto first = [](int slot) { return cpu::pages_of(slot)[0]; };
  EXPECT_EQ(seen.page_table[0], first(4));
  EXPECT_EQ(seen.page_table[1], first(4) + 1);
  EXPECT_EQ(seen.page_table[static_cast<size_t>(cpu::kPagesOfSlot)], first(1));
  EXPECT_EQ(seen.page_table[static_cast<size_t>(cpu::kPagesOfSlot) + 1], first(1) + 1);
}

// Counts bytes that begin_step sends.
class CountingDevice : public EmulatedDevice {
 public:
  using EmulatedDevice::EmulatedDevice;
  Status upload_later(DevicePtr to, const std::byte* from, int64_t num_bytes) override {
    sent.push_back(num_bytes);
    return EmulatedDevice::upload_later(to, from, num_bytes);
  }
  Status upload(DevicePtr to, const void* from, int64_t num_bytes) override {
    ++num_waits;
    return EmulatedDevice::upload(to, from, num_bytes);
  }
  std::vector<int64_t> sent;
  int num_waits = 0;
};

TEST_F(RankTest, a_step_sends_its_record_and_the_pages_that_changed_and_waits_for_neither) {
  CountingDevice device(device_options());
  const auto rank = Rank::make(device, cpu::micro(), options(), stand_in_maker()).value();
  program::StepInputs inputs = two_requests();
  const auto sent_pages = [&](uint32_t epoch) {
    device.sent.clear();
    EXPECT_TRUE(rank->begin_step(inputs, epoch).ok());
    EXPECT_EQ(device.sent.at(0), static_cast<int64_t>(sizeof(StepRecord)));
    EXPECT_TRUE(rank->launch(0, 1).ok());
    EXPECT_TRUE(rank->finish().ok());
    for (size_t idx = 0; idx < inputs.requests.size(); ++idx) {
      const std::span<const int32_t> pages = inputs.requests[idx].pages;
      const auto row = seen.page_table.begin() + static_cast<std::ptrdiff_t>(idx) * cpu::kPagesOfSlot;
      EXPECT_TRUE(std::equal(pages.begin(), pages.end(), row)) << "request " << idx;
    }
    EXPECT_EQ(seen.step.epoch, epoch);
    return std::vector<int64_t>(device.sent.begin() + 1, device.sent.end());
  };
  EXPECT_EQ(sent_pages(1).size(), 2u);
  const int num_waits = device.num_waits;
  EXPECT_TRUE(sent_pages(2).empty());
  std::vector<int32_t> other(inputs.requests[1].pages.begin(), inputs.requests[1].pages.end());
  ++other.back();
  inputs.requests[1].pages = other;
  EXPECT_EQ(sent_pages(3), std::vector<int64_t>{4});
  inputs.requests[1].pages = std::span(other).first(1);
  EXPECT_TRUE(sent_pages(4).empty());
  EXPECT_EQ(device.num_waits, num_waits);
}

TEST_F(RankTest, a_step_that_nobody_waited_for_keeps_what_it_was_sent) {
  const std::unique_ptr<Rank> rank = made(options());
  ASSERT_TRUE(rank->begin_step(two_requests(), 1).ok());
  ASSERT_TRUE(rank->begin_step(cpu::step_of({cpu::Part{2, cpu::prompt(4)}}), 2).ok());
  ASSERT_TRUE(rank->launch(0, 1).ok());
  ASSERT_TRUE(rank->finish().ok());
  EXPECT_EQ(seen.step.epoch, 2u);
  EXPECT_EQ(seen.step.num_rows, 4);
  EXPECT_EQ(seen.page_table[0], cpu::pages_of(2)[0]);
}

TEST_F(RankTest, image_rows_lie_on_the_device) {
  const std::unique_ptr<Rank> rank = made(options());
  program::StepInputs inputs = two_requests();
  inputs.rows[1].image = true;
  std::vector<float> values(static_cast<size_t>(cpu::micro_geometry().hidden_size), 0.5f);
  values.back() = -2;
  inputs.image_rows = values;
  ASSERT_TRUE(rank->begin_step(inputs, 1).ok());
  ASSERT_TRUE(rank->launch(0, 1).ok());
  const auto* got = reinterpret_cast<const float*>(seen.params.image_rows);
  EXPECT_EQ(std::vector<float>(got, got + values.size()), values);
  EXPECT_EQ(seen.step.rows[1].image_row, 0);
}

TEST_F(RankTest, regions_go_up_and_come_down_as_they_are_and_no_copy_reaches_another) {
  const std::unique_ptr<Rank> rank = made(options());
  ASSERT_TRUE(rank->begin_step(two_requests(), 1).ok());
  const program::Layout& layout = rank->band().layout;
  const auto pairs_for = [&](Region region, int copy) {
    std::vector<uint64_t> pairs(static_cast<size_t>(rank->band().plan.region_bytes(region) / 8));
    for (size_t idx = 0; idx < pairs.size(); ++idx)
      pairs[idx] = idx * 0x100000001ull + static_cast<uint64_t>(copy * 1000 + static_cast<int>(region)) * 77;
    return pairs;
  };
  for (int idx = 0; idx < program::kNumRegions; ++idx) {
    const auto region = static_cast<Region>(idx);
    for (int copy = 0; copy < layout.num_copies(region); ++copy)
      ASSERT_TRUE(rank->write_region(region, copy, pairs_for(region, copy)).ok());
  }
  for (int idx = 0; idx < program::kNumRegions; ++idx) {
    const auto region = static_cast<Region>(idx);
    for (int copy = 0; copy < layout.num_copies(region); ++copy) {
      std::vector<uint64_t> pairs;
      ASSERT_TRUE(rank->read_region(region, copy, pairs).ok());
      EXPECT_EQ(pairs, pairs_for(region, copy)) << program::decl(region).name;
    }
  }
}

TEST_F(RankTest, a_bf16_region_holds_two_values_a_pair) {
  const std::unique_ptr<Rank> rank = made(options());
  ASSERT_TRUE(rank->begin_step(two_requests(), 1).ok());
  const program::Layout& layout = rank->band().layout;
  std::vector<uint64_t> pairs;
  ASSERT_TRUE(rank->read_region(Region::kStreams, 0, pairs).ok());
  EXPECT_EQ(static_cast<int64_t>(pairs.size()), layout.region_words(Region::kStreams) / 2);
  ASSERT_TRUE(rank->read_region(Region::kLogits, 0, pairs).ok());
  EXPECT_EQ(static_cast<int64_t>(pairs.size()), layout.region_words(Region::kLogits));
}

TEST_F(RankTest, pools_go_up_and_come_down_and_clear_slot_clears_one_slot) {
  const std::unique_ptr<Rank> rank = made(options());
  kv::Pools pools(cpu::micro_geometry(), options().num_pages, options().num_slots);
  for (size_t idx = 0; idx < pools.pages.size(); ++idx) pools.pages[idx] = static_cast<std::byte>(idx * 7 + 1);
  for (size_t idx = 0; idx < pools.slots.size(); ++idx) pools.slots[idx] = static_cast<std::byte>(idx % 251 + 1);
  ASSERT_TRUE(rank->write_pools(pools).ok());
  ASSERT_TRUE(rank->clear_slot(3).ok());
  kv::Pools got(cpu::micro_geometry(), options().num_pages, options().num_slots);
  ASSERT_TRUE(rank->read_pools(got).ok());
  EXPECT_TRUE(got.pages == pools.pages);
  std::fill(pools.slot(3), pools.slot(4), std::byte{0});
  EXPECT_TRUE(got.slots == pools.slots);
}

TEST_F(RankTest, bands_are_chosen_by_rows_and_requests) {
  const std::unique_ptr<Rank> rank = made(options());
  ASSERT_TRUE(rank->begin_step(cpu::step_of({cpu::Part{0, cpu::prompt(2)}}), 1).ok());
  EXPECT_EQ(rank->band().layout.shape().band, 8);
  ASSERT_TRUE(rank->begin_step(two_requests(), 2).ok());
  EXPECT_EQ(rank->band().layout.shape().band, 16);
  ASSERT_TRUE(rank->begin_step(cpu::step_of({cpu::Part{0, cpu::prompt(48)}}), 3).ok());
  EXPECT_EQ(rank->band().layout.shape().band, 48);
}

TEST_F(RankTest, a_tp_size_that_does_not_divide_the_geometry_is_refused_by_name) {
  RankOptions wrong = options();
  wrong.tp = 3;
  const auto rank = Rank::make(device_, cpu::micro(), wrong, stand_in_maker());
  ASSERT_FALSE(rank.ok());
  EXPECT_EQ(rank.error().code, Code::kInvalidArgument);
  EXPECT_EQ(rank.error().place, "tp");
}

TEST_F(RankTest, a_failing_kernel_maker_is_passed_on) {
  const std::unique_ptr<Rank> rank =
      made(options(), [](Device&, const program::Layout&, const program::Plan&, const ProgramSizes&) -> Result<Kernel> {
        return Error{Code::kUnavailable, "no compiler", "maker"};
      });
  const Status begun = rank->begin_step(two_requests(), 1);
  ASSERT_FALSE(begun.ok());
  EXPECT_EQ(begun.error().text, "no compiler");
}

// Row numbers of Engram are taken modulo the rows that the pinned table holds.
class EngramRows : public RankTest {
 protected:
  // bf16 bits of a record of a layer's table.
  static std::vector<uint16_t> record(int engram_idx, int64_t row) {
    const model::Geometry g = cpu::micro_geometry();
    const std::string prefix = g.prefix(g.engram_layer_ids[static_cast<size_t>(engram_idx)]) + "engram.embed.";
    const auto* codes = reinterpret_cast<const uint8_t*>(cpu::micro().tensor(prefix + "weight").data.data());
    const auto* scales = reinterpret_cast<const uint8_t*>(cpu::micro().tensor(prefix + "scale").data.data());
    std::vector<uint16_t> out;
    for (int d = 0; d < g.engram_head_dim; ++d) {
      const auto at = row * g.engram_head_dim + d;
      out.push_back(bf16_bits(e4m3_value(codes[at]) * e8m0_value(scales[at / 32])));
    }
    return out;
  }
  // Table rows of the first position.
  static std::vector<int64_t> rows_of(int engram_idx, int token) {
    const model::Geometry g = cpu::micro_geometry();
    const std::vector<int32_t>& classes = cpu::micro().token_classes();
    const int pad = classes[static_cast<size_t>(g.engram_pad_token_id)];
    std::vector<int> seen_classes(static_cast<size_t>(g.engram_max_ngram_size), pad);
    seen_classes[0] = classes[static_cast<size_t>(token)];
    std::vector<int64_t> rows(static_cast<size_t>(g.num_engram_columns()));
    model::engram_rows(model::engram_tables(g)[static_cast<size_t>(engram_idx)], g.engram_n_heads, pad, seen_classes,
                       rows);
    return rows;
  }
  void expect_rows(Rank& rank, int engram_idx, int token, int64_t table_rows) {
    const model::Geometry g = cpu::micro_geometry();
    const int call = rank.band().layout.program().find(program::Stage::kEngramRows,
                                                       g.engram_layer_ids[static_cast<size_t>(engram_idx)]);
    ASSERT_TRUE(rank.launch(call, call + 1).ok());
    const Status finished = rank.finish();
    ASSERT_TRUE(finished.ok()) << finished.error().message();
    std::vector<uint64_t> pairs;
    ASSERT_TRUE(rank.read_region(Region::kEngramRowsOut, engram_idx, pairs).ok());
    const std::vector<int64_t> rows = rows_of(engram_idx, token);
    for (size_t column = 0; column < rows.size(); ++column) {
      const std::vector<uint16_t> wanted = record(engram_idx, rows[column] % table_rows);
      for (size_t d = 0; d < wanted.size(); ++d) {
        const uint64_t pair = pairs[(column * wanted.size() + d) / 2];
        EXPECT_EQ(static_cast<uint16_t>(pair >> (d % 2 * 16)), wanted[d]) << "column " << column << " value " << d;
        EXPECT_EQ(static_cast<uint32_t>(pair >> 32), rank.band().plan.tag(9, call));
      }
    }
  }
};

TEST_F(EngramRows, of_a_smaller_table_are_taken_modulo_its_rows) {
  const model::Geometry g = cpu::micro_geometry();
  const int64_t row_bytes = g.engram_head_dim + g.engram_head_dim / 32;
  RankOptions small = options();
  small.engram_bytes = 2 * 50 * row_bytes + 1;  // 50 rows a layer
  const std::unique_ptr<Rank> rank = made(small, emulated_maker());
  ASSERT_TRUE(rank->begin_step(cpu::step_of({cpu::Part{0, {17}}}), 9).ok());
  for (int engram_idx = 0; engram_idx < 2; ++engram_idx) {
    expect_rows(*rank, engram_idx, 17, 50);
    const std::vector<int64_t> rows = rows_of(engram_idx, 17);
    EXPECT_TRUE(std::any_of(rows.begin(), rows.end(), [](int64_t row) { return row >= 50; }));
  }
}

TEST_F(EngramRows, of_the_whole_table_are_taken_as_they_are) {
  const std::unique_ptr<Rank> rank = made(options(), emulated_maker());
  ASSERT_TRUE(rank->begin_step(cpu::step_of({cpu::Part{0, {17}}}), 9).ok());
  for (int engram_idx = 0; engram_idx < 2; ++engram_idx)
    expect_rows(*rank, engram_idx, 17, cpu::micro_geometry().engram_num_embeddings[static_cast<size_t>(engram_idx)]);
}

}  // namespace
}  // namespace monostep::gpu
