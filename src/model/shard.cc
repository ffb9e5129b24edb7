// Splits the widths of a geometry over TP ranks and gives the bytes of packed cache rows. Called by the loader, the
// plan and the backends.
#include "model/shard.h"

#include <fmt/format.h>

#include <string_view>

namespace monostep::model {
namespace {

constexpr int kGroup = 32;  // elements of one activation or weight scale

Status check_divides(std::string_view key, int value, int parts) {
  if (value % parts == 0) return {};
  return Error{Code::kInvalidArgument, fmt::format("{} = {} does not split into {} ranks", key, value, parts), "tp"};
}

Status check_divides_in_groups(std::string_view key, int value, int parts) {
  if (value % (parts * kGroup) == 0) return {};
  return Error{Code::kInvalidArgument,
               fmt::format("{} = {} does not split into {} ranks in whole groups of {}", key, value, parts, kGroup),
               "tp"};
}

}  // namespace

Result<Shard> make_shard(const Geometry& geometry, int tp) {
  if (tp != 1 && tp != 2 && tp != 4 && tp != 8) {
    return Error{Code::kInvalidArgument, fmt::format("expected 1, 2, 4 or 8 ranks, found {}", tp), "tp"};
  }
  const int engram_rows = geometry.engram_layer_ids.empty() ? 0 : (geometry.hc_mult + 1) * geometry.hidden_size;
  TRY(check_divides("num_attention_heads", geometry.num_attention_heads, tp));
  TRY(check_divides("o_groups", geometry.o_groups, tp));
  TRY(check_divides("vocab_size", geometry.vocab_size, tp));
  TRY(check_divides_in_groups("moe_intermediate_size", geometry.moe_intermediate_size, tp));
  TRY(check_divides("engram.wkv rows", engram_rows, tp));
  Shard shard;
  shard.tp = tp;
  shard.num_heads = geometry.num_attention_heads / tp;
  shard.num_o_groups = geometry.o_groups / tp;
  shard.expert_width = geometry.moe_intermediate_size / tp;
  shard.vocab_rows = geometry.vocab_size / tp;
  shard.engram_rows = engram_rows / tp;
  return shard;
}

int window_record_bytes(const Geometry& geometry) { return geometry.head_dim + geometry.head_dim / kGroup; }

int compressed_record_bytes(const Geometry& geometry) {
  constexpr int kCompressedGroup = 16;
  return geometry.head_dim / 2 + geometry.head_dim / kCompressedGroup;
}

int index_record_bytes(const Geometry& geometry) {
  return geometry.index_head_dim / 2 + geometry.index_head_dim / kGroup;
}

}  // namespace monostep::model
