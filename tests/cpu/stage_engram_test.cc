// Engram at step begin: each live granule is the record of its hashed row, dead rows put nothing, the class history is
// written once, and the linear waits for the columns of its K slices alone.
#include <algorithm>
#include <set>

#include "cpu/stage_common.h"
#include "cpu/stages.h"
#include "dense.h"
#include "tiny_models.h"

namespace monostep::cpu {
namespace {

// The values of one column at the last of the positions: classes newest first, then hashing, then the file's record.
std::vector<float> record_values(const ModelTables& tables, int table_idx, std::span<const int> classes, int column) {
  const model::Geometry& g = micro().geometry();
  std::vector<int64_t> ids(static_cast<size_t>(g.num_engram_columns()));
  model::engram_rows(tables.engram[static_cast<size_t>(table_idx)], g.engram_n_heads, tables.pad_class, classes, ids);
  const std::string name = g.prefix(g.engram_layer_ids[static_cast<size_t>(table_idx)]) + "engram.embed";
  const weights::Tensor codes = micro().tensor(name + ".weight");
  const auto* scales = reinterpret_cast<const uint8_t*>(micro().tensor(name + ".scale").data.data());
  std::vector<float> out;
  for (int64_t d = 0; d < g.engram_head_dim; ++d) {
    const int64_t at = ids[static_cast<size_t>(column)] * g.engram_head_dim + d;
    out.push_back(static_cast<float>(element_of(codes, at) * std::ldexp(1.0, scales[at / 32] - 127)));
  }
  return out;
}

// Classes of a position and those before it, of a prompt whose images are listed.
std::vector<int> classes_at(const ModelTables& tables, const std::vector<int32_t>& tokens, const std::set<int>& images,
                            int position) {
  std::vector<int> out;
  for (int back = 0; back < micro().geometry().engram_max_ngram_size; ++back) {
    const int at = position - back;
    out.push_back(at < 0                ? tables.pad_class
                  : images.contains(at) ? model::kDeadClass
                                        : tables.token_classes[static_cast<size_t>(tokens[static_cast<size_t>(at)])]);
  }
  return out;
}

int32_t stored_class(CpuBackend& backend, int rank, int slot, int position) {
  kv::Pools& pools = *backend.machine().ranks[static_cast<size_t>(rank)].pools;
  int32_t value;
  std::memcpy(&value, pools.slot(slot) + pools.slot_layout.class_offset(position), sizeof(value));
  return value;
}

// Two steps of a prompt with an image over their border: n-grams reach into the slot's history.
TEST(StageEngram, each_live_granule_is_the_record_of_its_hashed_row) {
  const std::vector<int32_t> tokens = prompt(11);
  const std::set<int> images = {4, 5};
  const std::vector<float> image_row(static_cast<size_t>(micro().geometry().hidden_size), 0.5f);
  for (const int tp : {1, 2}) {
    CpuOptions options = small_options();
    options.tp = tp;
    options.ctas = 2;
    const auto backend = made_backend(micro(), options);
    const ModelTables& tables = backend->machine().tables;
    const model::Geometry& g = micro().geometry();
    for (const auto& [first, count] : {std::pair(0, 5), std::pair(5, 6)}) {
      program::StepInputs inputs =
          step_of({{3, {tokens.begin() + first, tokens.begin() + first + count}, first}, {0, prompt(2, 5)}});
      for (const int position : images) {
        if (position >= first && position < first + count)
          inputs.rows[static_cast<size_t>(position - first)].image = true;
      }
      inputs.image_rows = image_row;
      Walk walk(*backend, inputs);
      walk.through(Stage::kEngramRows, g.engram_layer_ids.back());
      for (int rank = 0; rank < tp; ++rank) {
        for (int table_idx = 0; table_idx < 2; ++table_idx) {
          const int layer = g.engram_layer_ids[static_cast<size_t>(table_idx)];
          const float* words = walk.region(Region::kEngramRowsOut, Stage::kEngramRows, layer, rank);
          for (int row = 0; row < count; ++row) {
            const std::vector<int> classes = classes_at(tables, tokens, images, first + row);
            for (int column = 0; column < g.num_engram_columns(); ++column) {
              const float* from = words + (int64_t{row} * g.num_engram_columns() + column) * g.engram_head_dim;
              EXPECT_EQ(std::vector<float>(from, from + g.engram_head_dim),
                        record_values(tables, table_idx, classes, column))
                  << "TP " << tp << " rank " << rank << " table " << table_idx << " position " << first + row;
            }
          }
        }
      }
      walk.to_end();
    }
  }
}

TEST(StageEngram, values_are_exact_in_bf16) {
  const auto backend = made_backend(micro(), small_options());
  Walk walk(*backend, step_of({{0, prompt(8)}}));
  walk.through(Stage::kEngramRows, 2);
  const int64_t words = backend->machine().layout().region_words(Region::kEngramRowsOut);
  const float* from = walk.region(Region::kEngramRowsOut, Stage::kEngramRows, 2);
  EXPECT_TRUE(std::all_of(from, from + words, [](float value) { return value == round_bf16(value); }));
  EXPECT_TRUE(std::any_of(from, from + words, [](float value) { return value != 0; }));
}

TEST(StageEngram, dead_rows_put_nothing) {
  const auto backend = made_backend(micro(), small_options());
  Walk walk(*backend, step_of({{0, prompt(3)}}));
  walk.through(Stage::kEngramRows, 0);
  const auto live = static_cast<size_t>(3 * micro().geometry().num_engram_columns());
  const auto tags = backend->machine().ranks[0].regions->tags(Region::kEngramRowsOut, 0);
  for (size_t granule = 0; granule < tags.size(); ++granule) EXPECT_EQ(tags[granule] != 0, granule < live) << granule;
}

TEST(StageEngram, the_first_tables_look_up_alone_writes_the_history_on_every_rank) {
  CpuOptions options = small_options();
  options.tp = 2;
  const auto backend = made_backend(micro(), options);
  const ModelTables& tables = backend->machine().tables;
  for (RankState& rank : backend->machine().ranks)
    std::fill(rank.pools->slots.begin(), rank.pools->slots.end(), std::byte{0xa5});
  const std::vector<int32_t> tokens = prompt(4);
  program::StepInputs inputs = step_of({{2, tokens}});
  inputs.rows[1].image = true;
  const std::vector<float> image_row(static_cast<size_t>(micro().geometry().hidden_size));
  inputs.image_rows = image_row;
  Walk walk(*backend, inputs);
  const int second = walk.find(Stage::kEngramRows, 2);
  EXPECT_TRUE(backend->run({second, second + 1}).ok());
  EXPECT_EQ(stored_class(*backend, 0, 2, 0), static_cast<int32_t>(0xa5a5a5a5));
  walk.through(Stage::kEngramRows, 0);
  for (int rank = 0; rank < 2; ++rank) {
    for (int position = 0; position < 4; ++position) {
      EXPECT_EQ(stored_class(*backend, rank, 2, position),
                position == 1 ? model::kDeadClass
                              : tables.token_classes[static_cast<size_t>(tokens[static_cast<size_t>(position)])]);
    }
  }
}

// Never waits: keeps which granules of the looked-up rows were asked for.
class Listener : public Waiter {
 public:
  bool wait(const std::atomic<uint32_t>&, const Wait& wait) override {
    if (wait.region == Region::kEngramRowsOut) granules.insert(wait.granule);
    return true;
  }
  std::set<int> granules;
};

// 6 columns of 704: four K slices of one and a half columns.
model::Geometry wide_geometry() {
  model::Geometry g = micro_geometry();
  g.engram_head_dim = 704;
  return g;
}

TEST(StageEngram, a_tile_waits_for_the_columns_of_its_slice_alone) {
  const weights::Checkpoint checkpoint = made_checkpoint(wide_geometry(), 3);
  const auto backend = made_backend(checkpoint, small_options());
  Machine& machine = backend->machine();
  EXPECT_TRUE(backend->begin_step(step_of({{0, prompt(2)}})).ok());
  ASSERT_EQ(machine.layout().stage_splits(Stage::kEngramKv, -1), 4);
  const auto polled = [&](std::vector<int> tasks) {
    Listener listener;
    machine.waiter = &listener;
    StageContext<Stage::kEngramKv> ctx(machine, {0, 0, machine.program().find(Stage::kEngramKv, 0)}, tasks);
    run_stage(ctx);
    machine.waiter = nullptr;
    return listener.granules;
  };
  EXPECT_EQ(polled({0}), (std::set<int>{0, 1, 6, 7}));
  EXPECT_EQ(polled({5}), (std::set<int>{1, 2, 7, 8}));
  EXPECT_EQ(polled({3, 0, 8}), (std::set<int>{0, 1, 4, 5, 6, 7, 10, 11}));
}

TEST(StageEngram, slices_of_several_columns_do_not_depend_on_order_or_ctas) {
  const weights::Checkpoint checkpoint = made_checkpoint(wide_geometry(), 3);
  const std::vector<State> wanted = step_states(*made_backend(checkpoint, small_options()), {{0, prompt(7)}});
  for (const int ctas : {1, 3}) {
    CpuOptions options = small_options();
    options.ctas = ctas;
    options.checks = true;
    options.order_seed = static_cast<uint64_t>(ctas);
    EXPECT_EQ(first_difference(step_states(*made_backend(checkpoint, options), {{0, prompt(7)}}), wanted), "") << ctas;
  }
}

}  // namespace
}  // namespace monostep::cpu
