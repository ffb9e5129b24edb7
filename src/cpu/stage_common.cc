// Shared pieces of the stage bodies (cpu/stage_common.h).
#include "cpu/stage_common.h"

namespace monostep::cpu {

RowValues normed_rows(const program::Layout& layout, const float* u, const std::vector<Row>& rows,
                      const std::vector<float>& norm) {
  const int hidden = layout.geometry().hidden_size;
  const int width = layout.slice_width();
  RowValues out(used_rows(rows), hidden);
  std::vector<float> x(static_cast<size_t>(hidden));
  for (const Row& row : rows) {
    for (int slice = 0; slice < layout.num_slices(); ++slice) {
      const float* from = u + (int64_t{slice} * layout.rows() + row.idx) * width;
      std::copy(from, from + width, x.begin() + int64_t{slice} * width);
    }
    rms_norm(x, norm, layout.geometry().rms_norm_eps, out.row(row.idx).data());
  }
  return out;
}

VerdictView verdict_of(const program::Layout& layout, const float* words, int request) {
  const float* at = words + int64_t{request} * (layout.geometry().dspark_block_size + 4);
  VerdictView out;
  out.num_accepted = int_of(at[0]);
  out.num_tokens = int_of(at[1]);
  out.last_position = int_of(at[2]);
  out.anchor = out.num_tokens > 0 ? int_of(at[3 + out.num_tokens - 1]) : 0;
  return out;
}

}  // namespace monostep::cpu
