// Shard: one rank's share of every width under tensor parallelism, and the bytes of the packed cache records.
// Split over ranks: query heads (wq_b, attn_sink, wo_a groups, wo_b columns), expert widths (routed and shared),
// vocabulary rows (head, Markov head), engram.wkv output rows. Replicated: everything else (model.md 2.4;
// architecture.md section 1).
#pragma once

#include <cstdint>

#include "base/result.h"
#include "model/geometry.h"

namespace monostep::model {

struct Shard {
  int tp = 1;
  int num_heads = 0;     // query heads of a rank
  int num_o_groups = 0;  // output groups of a rank
  int expert_width = 0;  // columns of w1/w3, rows of w2 (routed and shared)
  int vocab_rows = 0;    // rows of head.weight and markov head
  int engram_rows = 0;   // output rows of engram.wkv: 0 where the geometry has no Engram
};

// Refuses by name a TP size that does not divide heads, o_groups, vocabulary or the expert width in whole groups of 32
// (kInvalidArgument), or is not 1, 2, 4 or 8.
Result<Shard> make_shard(const Geometry& geometry, int tp);

// Bytes of one packed row (model.md 4.1).
int window_record_bytes(const Geometry& geometry);      // head_dim e4m3 codes + head_dim/32 E8M0 scales
int compressed_record_bytes(const Geometry& geometry);  // head_dim/2 e2m1 codes + head_dim/16 E4M3 scales
int index_record_bytes(const Geometry& geometry);       // index_head_dim/2 e2m1 codes + index_head_dim/32 E8M0 scales

}  // namespace monostep::model
