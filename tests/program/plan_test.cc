// Properties of task, granule, region and tag numbers (level L1), for every known geometry, TP size and band.
#include "program/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <tuple>

#include "cases.h"

namespace monostep::program {
namespace {

// One call of each kind: layers of the same role have the same tasks (and write the same taps: none).
std::vector<Call> kinds_of_calls(const Layout& layout) {
  std::set<std::tuple<Stage, Section, int, int, int, int>> seen;
  std::vector<Call> calls;
  for (const Call& call : layout.program().calls) {
    const bool in_layer = call.layer >= 0 && call.stage != Stage::kMarkov;
    const model::Role role = in_layer ? layout.program().roles[static_cast<size_t>(call.layer)] : model::Role();
    const bool fresh = seen.emplace(call.stage, call.section, layout.num_tasks(call), static_cast<int>(role.mode),
                                    role.ratio, role.tap_idx)
                           .second;
    if (fresh) calls.push_back(call);
  }
  return calls;
}

template <typename Visit>
void for_each_write(const Layout& layout, Visit&& visit) {
  for (const Call& call : kinds_of_calls(layout)) {
    for (int region_idx = 0; region_idx < kNumRegions; ++region_idx) {
      const auto region = static_cast<Region>(region_idx);
      if (call.writes & bit(region)) visit(call, region);
    }
  }
}

bool is_linear_stage(Stage stage) {
  constexpr std::array<Stage, 12> kLinearStages = {
      Stage::kEngramKv, Stage::kAttnIn,     Stage::kQProj, Stage::kWoA,      Stage::kWoB,         Stage::kFfnIn,
      Stage::kExpertUp, Stage::kExpertDown, Stage::kHead,  Stage::kMainProj, Stage::kContextProj, Stage::kMarkov};
  return std::find(kLinearStages.begin(), kLinearStages.end(), stage) != kLinearStages.end();
}

// How many ranks' puts land in a rank's copy of a region.
int num_pushers(const Layout& layout, Region region) {
  return decl(region).scope == Scope::kAllRanks && region != Region::kSampled ? layout.shard().tp : 1;
}

TEST(Tasks, each_writes_its_own_granule_of_every_region_it_writes) {
  for_each_layout(all_bands(), [](const std::string& name, const Layout& layout) {
    for_each_write(layout, [&](const Call& call, Region region) {
      const int num_granules = layout.num_granules(region);
      std::vector<bool> written(static_cast<size_t>(num_granules));
      int wrong = 0;
      for (int rank = 0; rank < num_pushers(layout, region); ++rank) {
        for (int task = 0; task < layout.num_tasks(call); ++task) {
          const int granule = granule_of(layout, call, region, rank, task);
          const bool fresh = granule >= 0 && granule < num_granules && !written[static_cast<size_t>(granule)];
          wrong += !fresh;
          if (fresh) written[static_cast<size_t>(granule)] = true;
        }
      }
      ASSERT_EQ(wrong, 0) << name << " " << decl(call.stage).name << " " << decl(region).name;
    });
  });
}

TEST(Tasks, all_calls_of_a_stage_together_use_every_granule) {
  for_each_layout(all_bands(), [](const std::string& name, const Layout& layout) {
    std::map<Region, std::vector<bool>> used;
    for_each_write(layout, [&](const Call& call, Region region) {
      std::vector<bool>& granules = used[region];
      granules.resize(static_cast<size_t>(layout.num_granules(region)));
      for (int rank = 0; rank < num_pushers(layout, region); ++rank) {
        for (int task = 0; task < layout.num_tasks(call); ++task) {
          granules.at(static_cast<size_t>(granule_of(layout, call, region, rank, task))) = true;
        }
      }
    });
    for (const auto& [region, granules] : used) {
      EXPECT_EQ(std::count(granules.begin(), granules.end(), false), 0) << name << " " << decl(region).name;
    }
  });
}

TEST(Tasks, of_linears_cover_each_tile_and_split_once_with_splits_fastest) {
  for_each_layout({8, 48}, [](const std::string& name, const Layout& layout) {
    for (const Call& call : kinds_of_calls(layout)) {
      if (!is_linear_stage(call.stage)) continue;
      const int splits = layout.stage_splits(call.stage, call.stage == Stage::kMarkov ? 0 : std::max(call.layer, 0));
      TileTask wanted;
      for (int task = 0; task < layout.num_tasks(call); ++task) {
        const TileTask place = tile_task(layout, call, task);
        ASSERT_TRUE(place.section == wanted.section && place.tile == wanted.tile && place.split == wanted.split)
            << name << " " << decl(call.stage).name << " task " << task;
        if (++wanted.split < splits) continue;
        wanted.split = 0;
        if (++wanted.tile < section_size(layout, call, wanted.section).tiles()) continue;
        wanted.tile = 0;
        ++wanted.section;
      }
      EXPECT_EQ(wanted.tile, 0) << name << " " << decl(call.stage).name;
      EXPECT_EQ(wanted.split, 0) << name << " " << decl(call.stage).name;
    }
  });
}

TEST(Tasks, sections_are_the_linears_groups_experts_and_draft_layers_of_a_stage) {
  const Layout layout = layout_of("flash", 4);
  const auto last_section = [&](Stage stage, int layer) {
    const Call& call = layout.program().calls[static_cast<size_t>(layout.program().find(stage, layer))];
    return tile_task(layout, call, layout.num_tasks(call) - 1).section;
  };
  EXPECT_EQ(last_section(Stage::kAttnIn, 0), 1);
  EXPECT_EQ(last_section(Stage::kAttnIn, 2), 4);
  EXPECT_EQ(last_section(Stage::kWoA, 0), 1);        // two of the eight groups
  EXPECT_EQ(last_section(Stage::kExpertUp, 0), 47);  // 8 rows x 6
  EXPECT_EQ(last_section(Stage::kContextProj, -1), 2);
  EXPECT_EQ(last_section(Stage::kHead, -1), 0);
}

TEST(Tasks, items_are_numbered_with_the_inner_one_fastest) {
  const Layout layout = layout_of("flash", 4, 16);
  const Program& program = layout.program();
  const auto item = [&](Stage stage, int layer, int task) {
    const ItemTask place = item_task(layout, program.calls[static_cast<size_t>(program.find(stage, layer))], task);
    return std::pair(place.outer, place.inner);
  };
  EXPECT_EQ(item(Stage::kEngramRows, 14, 49), std::pair(2, 1));  // 24 columns
  EXPECT_EQ(item(Stage::kQNorm, 0, 15), std::pair(0, 15));
  EXPECT_EQ(item(Stage::kOSum, 0, 17), std::pair(2, 1));        // two groups of four chunks of 256 columns
  EXPECT_EQ(item(Stage::kExpertAct, 0, 13), std::pair(1, 6));   // six slots, the shared expert behind them
  EXPECT_EQ(item(Stage::kExpertAct, 40, 13), std::pair(1, 6));  // the draft keeps the places of the backbone
  EXPECT_EQ(item(Stage::kAttend, 0, 17), std::pair(1, 1));      // two groups, one part
  EXPECT_EQ(item(Stage::kAttend, 2, 79), std::pair(4, 15));     // the first group's third part of five
  EXPECT_EQ(item(Stage::kAttend, 40, 30), std::pair(3, 0));     // the draft has 2 x 5 rows and two parts
  EXPECT_EQ(item(Stage::kAttnMerge, 0, 17), std::pair(1, 1));
  EXPECT_EQ(item(Stage::kContextNew, -1, 33), std::pair(2, 1));
  EXPECT_EQ(item(Stage::kIndexScore, 20, 17), std::pair(1, 1));  // 4096 groups in chunks of 256
  EXPECT_EQ(item(Stage::kVerdict, -1, 1), std::pair(1, 0));
  EXPECT_EQ(item(Stage::kFold, 3, 127), std::pair(0, 127));
  EXPECT_DEATH(item(Stage::kWoB, 0, 0), "stage of linears");
}

TEST(Plan, no_cta_has_more_tasks_of_a_call_than_its_share) {
  for_each_layout({8, 48}, [](const std::string& name, const Layout& layout) {
    for (const int num_ctas : {1, 7, 132}) {
      const Plan plan(layout, num_ctas);
      for (const CallPlan& call : plan.calls()) {
        std::vector<int> load(static_cast<size_t>(num_ctas));
        for (int task = 0; task < call.num_tasks; ++task)
          ++load.at(static_cast<size_t>(plan.cta_of(call.call_idx, task)));
        const int chunks = ceil_div(call.num_tasks, call.tasks_per_chunk);
        ASSERT_LE(*std::max_element(load.begin(), load.end()), ceil_div(chunks, num_ctas) * call.tasks_per_chunk)
            << name;
      }
    }
  });
}

TEST(Plan, a_call_starts_behind_the_last_cta_of_the_call_before) {
  const Plan plan(layout_of("flash", 4), 132);
  for (size_t idx = 1; idx < plan.calls().size(); ++idx) {
    const CallPlan& before = plan.calls()[idx - 1];
    EXPECT_EQ(plan.calls()[idx].first_cta, (plan.cta_of(before.call_idx, before.num_tasks - 1) + 1) % 132);
  }
}

TEST(Plan, tasks_that_share_a_chunk_share_a_cta) {
  const Layout layout = layout_of("flash", 8);
  const Plan plan(layout, 132);
  const int call_idx = layout.program().find(Stage::kExpertDown, 3);
  EXPECT_EQ(plan.calls()[static_cast<size_t>(call_idx)].tasks_per_chunk, 4);
  EXPECT_EQ(plan.cta_of(call_idx, 4), plan.cta_of(call_idx, 7));
  EXPECT_NE(plan.cta_of(call_idx, 3), plan.cta_of(call_idx, 4));
}

TEST(Plan, the_tasks_of_all_ctas_are_the_tasks_of_the_call) {
  const Layout layout = layout_of("demo", 4);
  for (const int num_ctas : {1, 7, 132}) {
    const Plan plan(layout, num_ctas);
    for (const CallPlan& call : plan.calls()) {
      std::vector<int> found;
      for (int cta = 0; cta < num_ctas; ++cta) {
        for (const int task : plan.tasks_of(call.call_idx, cta)) {
          EXPECT_EQ(plan.cta_of(call.call_idx, task), cta);
          found.push_back(task);
        }
      }
      std::sort(found.begin(), found.end());
      ASSERT_EQ(static_cast<int>(found.size()), call.num_tasks);
      for (int task = 0; task < call.num_tasks; ++task) ASSERT_EQ(found[static_cast<size_t>(task)], task);
    }
  }
}

TEST(Plan, regions_are_aligned_and_disjoint) {
  for_each_layout(all_bands(), [](const std::string& name, const Layout& layout) {
    const Plan plan(layout, 132);
    std::map<int64_t, int64_t> extents;
    for (int region_idx = 0; region_idx < kNumRegions; ++region_idx) {
      const auto region = static_cast<Region>(region_idx);
      for (int copy = 0; copy < layout.num_copies(region); ++copy) {
        const int64_t first = plan.region_offset(region, copy);
        EXPECT_EQ(first % 128, 0);
        EXPECT_TRUE(extents.emplace(first, first + plan.region_bytes(region)).second)
            << name << " " << decl(region).name;
      }
    }
    int64_t end = 0;
    for (const auto& [first, last] : extents) {
      ASSERT_GE(first, end) << name;
      end = last;
    }
    EXPECT_LE(end, plan.arena_bytes());
  });
}

TEST(Plan, writers_of_one_copy_never_share_a_tag) {
  for (const std::string& name : model::geometry_names()) {
    const Layout layout = layout_of(name, 1);
    const Plan plan(layout, 132);
    const auto last = static_cast<uint32_t>(plan.tag_period() - 1);
    std::map<std::pair<Region, int>, std::set<uint32_t>> tags;
    std::map<std::pair<Region, int>, size_t> puts;
    for (size_t call_idx = 0; call_idx < plan.calls().size(); ++call_idx) {
      const Call& call = layout.program().calls[call_idx];
      for (int region_idx = 0; region_idx < kNumRegions; ++region_idx) {
        const auto region = static_cast<Region>(region_idx);
        if ((call.writes & bit(region)) == 0) continue;
        const std::pair place(region, copy_of(layout.program(), layout.geometry(), region, call));
        for (const uint32_t epoch : {0u, 1u, 2u, last - 1, last}) {  // all inside one period
          tags[place].insert(plan.tag(epoch, static_cast<int>(call_idx)));
          ++puts[place];
        }
      }
    }
    for (const auto& [place, count] : puts)
      EXPECT_EQ(tags[place].size(), count) << name << " " << decl(place.first).name;
    for (const auto& [place, all] : tags) EXPECT_FALSE(all.contains(0)) << name;
  }
}

TEST(Plan, tags_depend_on_epoch_and_call_alone_and_wrap) {
  const Layout layout = layout_of("flash", 1);
  const Plan few(layout, 4), many(layout_of("flash", 4, 48), 132);
  for (const int call_idx : {0, 17, 593}) {
    EXPECT_EQ(few.tag(123456, call_idx), many.tag(123456, call_idx));
    EXPECT_EQ(few.tag(5, call_idx), few.tag(5 + static_cast<uint32_t>(few.tag_period()), call_idx));
    EXPECT_NE(few.tag(0xffffffffu, call_idx), 0u);
  }
  EXPECT_GE(few.tag_period(), int64_t{1} << 26);
}

// Results must not depend on band or CTA count: reduction orders and the packed file are functions of geometry and
// shard.
TEST(Plan, reductions_and_chunks_do_not_depend_on_band_or_ctas) {
  for (const std::string& name : model::geometry_names()) {
    const Plan narrow(layout_of(name, 1, 8), 4), wide(layout_of(name, 1, 48, 64), 132);
    EXPECT_EQ(narrow.reductions(), wide.reductions()) << name;
    ASSERT_EQ(narrow.chunk_runs().size(), wide.chunk_runs().size());
    for (size_t idx = 0; idx < narrow.chunk_runs().size(); ++idx) {
      EXPECT_EQ(narrow.chunk_runs()[idx].first_offset, wide.chunk_runs()[idx].first_offset);
      EXPECT_EQ(narrow.chunk_runs()[idx].format, wide.chunk_runs()[idx].format);
    }
  }
}

TEST(Plan, reductions_name_splits_and_ranks) {
  const Layout layout = layout_of("flash", 4);
  const Plan plan(layout, 132);
  const auto find = [&](Region region, int layer) {
    const auto found =
        std::find_if(plan.reductions().begin(), plan.reductions().end(),
                     [&](const ReductionOrder& order) { return order.region == region && order.layer == layer; });
    EXPECT_NE(found, plan.reductions().end());
    return *found;
  };
  EXPECT_EQ(find(Region::kAttnInPart, 3), (ReductionOrder{Region::kAttnInPart, 3, 4, 1280, 1}));
  EXPECT_EQ(find(Region::kAttnExchange, 3), (ReductionOrder{Region::kAttnExchange, 3, 1, 2048, 4}));
  EXPECT_EQ(find(Region::kFfnExchange, 41), (ReductionOrder{Region::kFfnExchange, 41, 1, 576, 4}));
  EXPECT_EQ(find(Region::kEngramKvOut, 14), (ReductionOrder{Region::kEngramKvOut, 14, 6, 1024, 1}));
  EXPECT_EQ(find(Region::kLogits, -1), (ReductionOrder{Region::kLogits, -1, 1, 5120, 1}));
}

}  // namespace
}  // namespace monostep::program
