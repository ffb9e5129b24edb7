// Call records of the released geometry on four ranks: what they name lies where the plan and the packer put it, and
// the walk of the device program over them takes every chunk of the program once.
#include "gpu/call_records.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "emulated_program.h"
#include "gpu/compile_program.h"
#include "weights/pack.h"

namespace monostep::gpu {
namespace {

using program::ChunkRun;
using program::Order;
using program::Region;
using program::Stage;

constexpr uint64_t kWeights = 1 << 20;
constexpr int kCtas = 132;

// Compiled with the constants of the layout: calls `visit` for every chunk of a call that a CTA takes.
constexpr const char* kWalk = R"(
#include "gpu/device/ring.h"
namespace monostep::gpu {
extern "C" void walk_chunks(const CallRecord& record, const int* experts, int cta, int num_ctas,
                            void (*visit)(void*, uint64_t, int), void* user) {
  static Shared shared;
  shared.num_experts = experts[0];
  for (int i = 0; i < experts[0]; ++i) shared.experts[i] = static_cast<uint16_t>(experts[1 + i]);
  const auto take = [&](const Chunk& chunk) { visit(user, chunk.address, chunk.bytes); return true; };
  if (!streams_weights(record.stage)) return;
  switch (static_cast<Stage>(record.stage)) {
    case Stage::kWoB:
    case Stage::kHead:
    case Stage::kMarkov: for_each_whole(record, cta, num_ctas, take); break;
    case Stage::kExpertUp: for_each_up(record, shared, cta, num_ctas, take); break;
    case Stage::kExpertDown: for_each_down(record, shared, cta, num_ctas, take); break;
    default: for_each_split(record, cta, num_ctas, take);
  }
}
}  // namespace monostep::gpu
)";
using Visit = void (*)(void*, uint64_t, int);
using Walk = void (*)(const CallRecord&, const int*, int, int, Visit, void*);

using Chunks = std::map<std::pair<uint64_t, int>, int>;  // address and bytes -> how often

class FlashRecords : public testing::Test {
 protected:
  FlashRecords()
      : geometry_(model::named_geometry("flash").value()),
        layout_(geometry_, model::make_shard(geometry_, 4).value(), {8, 1, 4096}),
        plan_(layout_, kCtas),
        records_(call_records(layout_, plan_, kWeights)) {}

  const program::Call& call(size_t idx) const { return layout_.program().calls[idx]; }
  std::vector<const ChunkRun*> streamed_runs(size_t call_idx) const {
    std::vector<const ChunkRun*> out;
    for (const ChunkRun& run : plan_.chunk_runs()) {
      if (run.call_idx == static_cast<int>(call_idx) && run.order() != Order::kPlain) out.push_back(&run);
    }
    return out;
  }
  // Every chunk of the call: of these experts where it has experts.
  Chunks chunks_of(size_t call_idx, const std::vector<int>& experts) const {
    Chunks out;
    for (const ChunkRun* run : streamed_runs(call_idx)) {
      for (int chunk = 0; chunk < run->num_chunks; ++chunk) {
        if (run->num_experts == 1) ++out[{kWeights + static_cast<uint64_t>(run->offset(0, chunk)), run->chunk_bytes}];
        for (const int expert : experts) {
          if (run->num_experts > 1)
            ++out[{kWeights + static_cast<uint64_t>(run->offset(expert, chunk)), run->chunk_bytes}];
        }
      }
    }
    return out;
  }

  model::Geometry geometry_;
  program::Layout layout_;
  program::Plan plan_;
  std::vector<CallRecord> records_;
};

TEST_F(FlashRecords, one_record_a_call_says_its_stage_layer_and_place) {
  ASSERT_EQ(records_.size(), layout_.program().calls.size());
  for (size_t idx = 0; idx < records_.size(); ++idx) {
    EXPECT_EQ(records_[idx].stage, static_cast<int>(call(idx).stage));
    EXPECT_EQ(records_[idx].layer, call(idx).layer);
    EXPECT_EQ(records_[idx].draft, call(idx).section == program::Section::kDraft ? 1 : 0);
    EXPECT_EQ(records_[idx].num_tasks, plan_.calls()[idx].num_tasks);
    EXPECT_EQ(records_[idx].first_cta, plan_.calls()[idx].first_cta);
    EXPECT_EQ(records_[idx].tasks_per_chunk, plan_.calls()[idx].tasks_per_chunk);
  }
}

TEST_F(FlashRecords, sections_lie_inside_the_packed_bytes_and_their_tiles_follow_each_other) {
  const auto packed = static_cast<uint64_t>(weights::packed_bytes(weights::packed_runs(layout_)));
  for (size_t idx = 0; idx < records_.size(); ++idx) {
    const CallRecord& record = records_[idx];
    const std::vector<const ChunkRun*> runs = streamed_runs(idx);
    ASSERT_EQ(record.num_sections, static_cast<int>(runs.size())) << program::decl(call(idx).stage).name;
    for (size_t section_idx = 0; section_idx < runs.size(); ++section_idx) {
      const SectionRecord& section = record.sections[section_idx];
      const ChunkRun& run = *runs[section_idx];
      EXPECT_GE(section.chunks, kWeights);
      EXPECT_EQ(section.chunks % program::kChunkAlign, 0u);
      EXPECT_LE(section.chunks - kWeights + static_cast<uint64_t>(run.packed_bytes()), packed);
      EXPECT_EQ(section.expert_stride, run.expert_stride());
      EXPECT_EQ(section.chunk_bytes, run.chunk_bytes);
      EXPECT_LE(section.rows, section.num_tiles * program::kTile);
    }
  }
}

TEST_F(FlashRecords, tiles_and_slices_of_the_linears_are_the_tasks) {
  int checked = 0;
  for (size_t idx = 0; idx < records_.size(); ++idx) {
    const CallRecord& record = records_[idx];
    switch (call(idx).stage) {
      case Stage::kEngramKv:
      case Stage::kAttnIn:
      case Stage::kQProj:
      case Stage::kWoA:
      case Stage::kFfnIn:
      case Stage::kMainProj: break;
      default: continue;
    }
    ++checked;
    const int groups = call(idx).stage == Stage::kWoA ? layout_.shard().num_o_groups : 1;  // tiles are of one group
    EXPECT_EQ(groups * record.tiles * record.splits, record.num_tasks) << program::decl(call(idx).stage).name;
    int next_tile = 0;
    for (int section_idx = 0; section_idx < record.num_sections; ++section_idx) {
      EXPECT_EQ(record.sections[section_idx].first_tile, next_tile);
      next_tile += record.sections[section_idx].num_tiles;
    }
    EXPECT_EQ(next_tile, groups * record.tiles) << program::decl(call(idx).stage).name;
  }
  EXPECT_GT(checked, 4 * geometry_.num_hidden_layers);
}

TEST_F(FlashRecords, region_places_lie_inside_the_arena_and_carry_their_writers_tags) {
  const program::Program& program = layout_.program();
  for (size_t idx = 0; idx < records_.size(); ++idx) {
    int read = 0;
    int written = 0;
    for (int region_idx = 0; region_idx < program::kNumRegions; ++region_idx) {
      const auto region = static_cast<Region>(region_idx);
      const auto expect_place = [&](const RegionRef& ref, int writer) {
        const int copy = program::copy_of(program, geometry_, region, program.calls[static_cast<size_t>(writer)]);
        EXPECT_EQ(int64_t{ref.first_pair} * 8, plan_.region_offset(region, copy));
        EXPECT_LE(int64_t{ref.first_pair} * 8 + plan_.region_bytes(region), plan_.arena_bytes());
        EXPECT_EQ(ref.ordinal, plan_.tag(0, writer));
        EXPECT_NE(ref.ordinal, 0u);
      };
      if (program::may_read(call(idx).stage, region)) {
        const RegionRef& ref = records_[idx].reads[read++];
        if ((call(idx).reads & program::bit(region)) != 0) {
          expect_place(ref, program::writer_of(program, geometry_, region, static_cast<int>(idx)));
        } else {
          EXPECT_EQ(ref.ordinal, 0u) << "what the call does not touch";
        }
      }
      if (program::may_write(call(idx).stage, region)) {
        const RegionRef& ref = records_[idx].writes[written++];
        if ((call(idx).writes & program::bit(region)) != 0) expect_place(ref, static_cast<int>(idx));
      }
    }
  }
}

TEST_F(FlashRecords, the_ctas_of_a_call_take_every_chunk_once) {
  const Result<ProgramSizes> sizes = program_sizes(layout_, plan_, kSharedLimit);
  ASSERT_TRUE(sizes.ok()) << sizes.error().message();
  const Result<void*> function =
      emulated_function(program_sources(layout_, plan_, sizes.value()), kWalk, "walk_chunks");
  ASSERT_TRUE(function.ok()) << function.error().message();
  const auto walk = reinterpret_cast<Walk>(function.value());
  const std::vector<int> experts = {0, 3, 17, 100, 255};
  std::vector<int> listed = {static_cast<int>(experts.size())};
  listed.insert(listed.end(), experts.begin(), experts.end());
  size_t total = 0;
  for (size_t idx = 0; idx < records_.size(); ++idx) {
    std::vector<int> there = listed;
    std::vector<int> expert_ids = experts;
    if (records_[idx].num_experts > 0 && records_[idx].num_experts <= experts.back()) {  // a draft layer
      expert_ids.assign({0, records_[idx].num_experts - 1});
      there = {2, 0, records_[idx].num_experts - 1};
    }
    Chunks taken;
    for (int cta = 0; cta < kCtas; ++cta) {
      const Visit visit = [](void* user, uint64_t address, int bytes) {
        ++(*static_cast<Chunks*>(user))[{address, bytes}];
      };
      walk(records_[idx], there.data(), cta, kCtas, visit, &taken);
    }
    total += taken.size();
    if (call(idx).stage == Stage::kKvNew) {
      EXPECT_TRUE(taken.empty()) << "the index key's weights are read where they lie";
      continue;
    }
    EXPECT_EQ(taken, chunks_of(idx, expert_ids)) << program::decl(call(idx).stage).name << " layer " << call(idx).layer;
  }
  EXPECT_GT(total, 50'000u);
}

TEST(StepRecord, holds_everything_of_a_step) {
  program::StepInputs inputs;
  const std::vector<int32_t> pages = {4, 5};
  for (int idx = 0; idx < 2; ++idx) {
    program::StepRequest& request = inputs.requests.emplace_back();
    request.state_slot = 6 - idx;
    request.pages = pages;
    request.first_row = 3 * idx;
    request.num_rows = 3;
    request.first_position = 20 + idx;
    request.num_drafts = idx;
    request.sample = idx == 0;
    request.draft = idx == 0;
    request.context = idx == 1;
    request.sampling = {.temperature = 0.5f, .top_k = 7, .top_p = 0.75f, .min_p = 0.125f, .seed = 0x123456789abcdefull};
    request.forced_acceptance = 2.5f;
    request.step_counter = 99;
    request.stop_tokens = {1, 2, 3, -1};
    for (int row = 0; row < 3; ++row) inputs.rows.push_back({10 + row, 20 + idx + row, idx, row == 1, row == 2});
  }
  const StepRecord record = step_record(inputs, 77);
  EXPECT_EQ(record.epoch, 77u);
  EXPECT_EQ(record.num_rows, 6);
  EXPECT_EQ(record.num_requests, 2);
  for (int row = 0; row < 6; ++row) {
    const RowRecord& got = record.rows[row];
    EXPECT_EQ(got.token, 10 + row % 3);
    EXPECT_EQ(got.position, 20 + row / 3 + row % 3);
    EXPECT_EQ(got.request, row / 3);
    EXPECT_EQ(got.flags, row % 3 == 1 ? kRowImage : row % 3 == 2 ? kRowNeedsLogits : 0);
    EXPECT_EQ(got.image_row, row % 3 == 1 ? row / 3 : -1) << "image rows count in row order";
  }
  for (int idx = 0; idx < 2; ++idx) {
    const RequestRecord& got = record.requests[idx];
    EXPECT_EQ(got.state_slot, 6 - idx);
    EXPECT_EQ(got.first_row, 3 * idx);
    EXPECT_EQ(got.num_rows, 3);
    EXPECT_EQ(got.first_position, 20 + idx);
    EXPECT_EQ(got.num_drafts, idx);
    EXPECT_EQ(got.flags, idx == 0 ? kRequestSample | kRequestDraft : static_cast<int>(kRequestContext));
    EXPECT_EQ(got.temperature, 0.5f);
    EXPECT_EQ(got.top_k, 7);
    EXPECT_EQ(got.top_p, 0.75f);
    EXPECT_EQ(got.min_p, 0.125f);
    EXPECT_EQ(got.seed_low, 0x89abcdefu);
    EXPECT_EQ(got.seed_high, 0x1234567u);
    EXPECT_EQ(got.forced_acceptance, 2.5f);
    EXPECT_EQ(got.step_counter, 99u);
    EXPECT_EQ(std::vector<int>(got.stop_tokens, got.stop_tokens + 4), (std::vector<int>{1, 2, 3, -1}));
  }
}

}  // namespace
}  // namespace monostep::gpu
