// Engram's work at step begin. kEngramRows: tasks (row, column), column fastest; reads the slot's class history, writes
// kEngramRowsOut (exact) and the history. kEngramKv: tasks output tiles x K slices; reads of kEngramRowsOut the columns
// of its slices, writes kEngramKvOut (fp32 sums, bounded). Formulas: model.md 3.8. Run by the executor.
#include <cstring>

#include "cpu/stage_common.h"
#include "cpu/stages.h"

namespace monostep::cpu {
namespace {

// Token classes of a row's position and those before it: from the step's rows, else from the slot's history. The
// history is read before the request's first position only, where no task of this step writes.
std::vector<int> row_classes(StageContext<Stage::kEngramRows>& ctx, const Row& row) {
  const program::StepRequest& request = ctx.inputs().requests[static_cast<size_t>(row.request)];
  const ModelTables& tables = ctx.tables();
  std::vector<int> classes(static_cast<size_t>(ctx.geometry().engram_max_ngram_size));
  for (size_t back = 0; back < classes.size(); ++back) {
    const int position = row.position - static_cast<int>(back);
    if (position < 0) {
      classes[back] = tables.pad_class;
    } else if (position >= request.first_position) {
      const program::StepRow& source = ctx.inputs().rows[static_cast<size_t>(row.idx) - back];
      classes[back] = source.image ? model::kDeadClass : tables.token_classes[static_cast<size_t>(source.token)];
    } else {
      const kv::Pools& pools = ctx.pools();
      int32_t stored;
      std::memcpy(&stored, ctx.pools().slot(request.state_slot) + pools.slot_layout.class_offset(position),
                  sizeof(stored));
      classes[back] = stored;
    }
  }
  return classes;
}

// The table row of one column of a row's n-grams.
int64_t table_row(StageContext<Stage::kEngramRows>& ctx, const Row& row, int column) {
  const model::Geometry& g = ctx.geometry();
  const model::EngramTable& table = ctx.tables().engram[static_cast<size_t>(ctx.role().engram_idx)];
  std::vector<int64_t> table_rows(static_cast<size_t>(g.num_engram_columns()));
  model::engram_rows(table, g.engram_n_heads, ctx.tables().pad_class, row_classes(ctx, row), table_rows);
  return table_rows[static_cast<size_t>(column)];
}

// A record's e4m3 x e8m0 values, which bf16 holds exactly.
void load_record(const EngramWeights& weights, int64_t record_idx, int head_dim, float* out) {
  const uint8_t* codes = weights.codes + record_idx * head_dim;
  const uint8_t* scales = weights.scales + record_idx * (head_dim / kActivationGroup);
  for (int d = 0; d < head_dim; ++d) out[d] = e4m3_value(codes[d]) * e8m0_value(scales[d / kActivationGroup]);
}

// Adds the step's rows to the history of their slots.
void store_classes(StageContext<Stage::kEngramRows>& ctx) {
  for (const Row& row : ctx.rows()) {
    const program::StepRequest& request = ctx.inputs().requests[static_cast<size_t>(row.request)];
    const int32_t value = row.image ? model::kDeadClass : ctx.tables().token_classes[static_cast<size_t>(row.token)];
    kv::Pools& pools = ctx.pools();
    std::memcpy(pools.slot(request.state_slot) + pools.slot_layout.class_offset(row.position), &value, sizeof(value));
  }
}

}  // namespace

template <>
void run_stage(StageContext<Stage::kEngramRows>& ctx) {
  const int head_dim = ctx.geometry().engram_head_dim;
  float* out = ctx.write<Region::kEngramRowsOut>();
  for (const int task : ctx.tasks()) {
    const program::ItemTask place = program::item_task(ctx.layout(), ctx.call(), task);
    const Row* row = live_row(ctx.rows(), place.outer);
    if (row == nullptr) continue;
    load_record(ctx.layer().engram, table_row(ctx, *row, place.inner), head_dim, out + int64_t{task} * head_dim);
    ctx.put<Region::kEngramRowsOut>(task);
    if (task == 0 && ctx.role().engram_idx == 0) store_classes(ctx);  // row 0 lives in every step
  }
}

namespace {

// Takes the columns that overlap a K slice, of every live row; false when the step was given up.
bool take_slice(StageContext<Stage::kEngramKv>& ctx, int split, int splits, RowValues& taken) {
  const int head_dim = ctx.geometry().engram_head_dim;
  const int num_columns = ctx.geometry().num_engram_columns();
  const int width = taken.width / splits;
  const int first = split * width / head_dim;
  const int count = ceil_div((split + 1) * width, head_dim) - first;
  for (const Row& row : ctx.rows()) {
    const int granule = row.idx * num_columns + first;
    if (!ctx.poll_range<Region::kEngramRowsOut>(granule, count)) return false;
    std::copy_n(ctx.read<Region::kEngramRowsOut>() + int64_t{granule} * head_dim, count * head_dim,
                taken.row(row.idx).begin() + first * head_dim);
  }
  return true;
}

}  // namespace

template <>
void run_stage(StageContext<Stage::kEngramKv>& ctx) {
  const program::Layout& layout = ctx.layout();
  const PackedLinear& wkv = ctx.layer().engram.wkv;
  const int splits = layout.stage_splits(Stage::kEngramKv, -1);
  RowValues values(used_rows(ctx.rows()), wkv.k);  // columns of no slice of ours stay zero and are not multiplied
  std::vector<bool> taken(static_cast<size_t>(splits));
  for (const int task : ctx.tasks()) {
    const auto split = static_cast<size_t>(linear_task(task, splits).split);
    if (!taken[split] && !take_slice(ctx, static_cast<int>(split), splits, values)) return;
    taken[split] = true;
  }
  const std::vector<int> indices = row_indices(ctx.rows());
  const Activations inputs = quantize(values.values, values.width, indices);
  const int tasks_of_rank = layout.stage_tiles(Stage::kEngramKv, -1) * splits;
  float* out = ctx.write<Region::kEngramKvOut>();
  for (const int task : ctx.tasks()) {
    const program::TileTask part = linear_task(task, splits);
    const int granule = ctx.rank() * tasks_of_rank + task;
    multiply_tile(wkv, slice_of(wkv, part.tile, part.split, splits), inputs, indices,
                  out + int64_t{granule} * layout.rows() * kTile);
    ctx.put<Region::kEngramKvOut>(granule);
  }
}

}  // namespace monostep::cpu
