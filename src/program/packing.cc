// The tensors of each call and their places in a rank's packed file (program/packing.h).
#include "program/packing.h"

#include <algorithm>
#include <map>

#include "base/check.h"

namespace monostep::program {
namespace {

using model::Geometry;

// Lists the tensors of one call, in the order that its tasks take them.
class Lister {
 public:
  Lister(const Layout& layout, const Call& call) : layout_(layout), call_(call), geometry_(layout.geometry()) {}

  std::vector<Weight> list() {
    switch (call_.stage) {
      case Stage::kEngramRows: engram_rows(); break;
      case Stage::kEngramKv: engram_kv(); break;
      case Stage::kEngramFold: engram_gates(); break;
      case Stage::kFold: fold(); break;
      case Stage::kAttnMix: mix("hc_attn"); break;
      case Stage::kAttnIn: attn_in(); break;
      case Stage::kQNorm: vector("attn.q_norm.weight", Storage::kBf16, geometry_.q_lora_rank); break;
      case Stage::kQProj: q_proj(); break;
      case Stage::kKvNew: kv_new(); break;
      case Stage::kAttnMerge:
        vector("attn.attn_sink", Storage::kF32, geometry_.num_attention_heads, Split::kColumns);
        break;
      case Stage::kWoA: wo_a(); break;
      case Stage::kWoB: linear("attn.wo_b", Storage::kFp8, geometry_.hidden_size, o_width(), Split::kColumns); break;
      case Stage::kFfnFold: hyper("hc_ffn"); break;
      case Stage::kFfnMix: mix("hc_ffn"); break;
      case Stage::kFfnIn: ffn_in(); break;
      case Stage::kExpertUp: expert_up(); break;
      case Stage::kExpertDown: expert_down(); break;
      case Stage::kHead: head(); break;
      case Stage::kMainProj: main_proj(); break;
      case Stage::kContextProj: context_proj(); break;
      case Stage::kContextNew: context_new(); break;
      case Stage::kMarkov: markov(); break;
      case Stage::kDraftOut: draft_out(); break;
      default: break;
    }
    return std::move(list_);
  }

 private:
  std::string prefixed(const std::string& name) const {
    return (call_.layer < 0 || call_.stage == Stage::kMarkov ? std::string() : geometry_.prefix(call_.layer)) + name;
  }
  std::string first_draft(const std::string& name) const {
    return geometry_.prefix(geometry_.num_hidden_layers) + name;
  }
  std::string last_draft(const std::string& name) const { return geometry_.prefix(geometry_.num_layers() - 1) + name; }
  int64_t q_width() const { return int64_t{geometry_.num_attention_heads} * geometry_.head_dim; }
  int64_t o_width() const { return int64_t{geometry_.o_groups} * geometry_.o_lora_rank; }
  const model::Role& role() const { return layout_.program().roles[static_cast<size_t>(call_.layer)]; }

  void vector(const std::string& name, Storage storage, int64_t columns, Split split = Split::kNone) {
    list_.push_back({prefixed(name), storage, Order::kPlain, split, 1, columns});
  }
  void add(Weight weight) { list_.push_back(std::move(weight)); }
  // A linear whose tiles follow those of the linears before it.
  void linear(const std::string& name, Storage storage, int64_t rows, int64_t columns, Split split = Split::kNone) {
    Weight weight{prefixed(name) + ".weight", storage, Order::kFragments, split, rows, columns, 0, next_tile_};
    next_tile_ += static_cast<int>(ceil_div<int64_t>(rank_rows(weight, layout_.shard()), kTile));
    list_.push_back(std::move(weight));
  }
  void table(std::string name, Storage storage, int64_t rows, int64_t columns) {
    list_.push_back({std::move(name), storage, Order::kTable, Split::kNone, rows, columns});
  }

  void engram_rows() {
    const Geometry& g = geometry_;
    const int64_t rows = g.engram_num_embeddings[static_cast<size_t>(role().engram_idx)];
    table(prefixed("engram.embed.weight"), Storage::kFp8, rows, g.engram_head_dim);
  }
  void engram_kv() {
    const Geometry& g = geometry_;
    linear("engram.wkv", Storage::kFp8, int64_t{g.hc_mult + 1} * g.hidden_size,
           int64_t{g.num_engram_columns()} * g.engram_head_dim, Split::kRows);
  }
  void engram_gates() {
    for (const char* name : {"engram.q_weight", "engram.k_weight"}) {
      add({prefixed(name), Storage::kBf16, Order::kPlain, Split::kNone, geometry_.hc_mult, geometry_.hidden_size});
    }
  }
  void hyper(const std::string& site) {
    add({prefixed(site + "_fn"), Storage::kF32, Order::kSlices, Split::kNone, layout_.mix_outputs(),
         int64_t{geometry_.hc_mult} * geometry_.hidden_size});
  }
  void mix(const std::string& site) {
    vector(site + "_base", Storage::kF32, layout_.mix_outputs());
    vector(site + "_scale", Storage::kF32, 3);
  }
  void fold() {
    if (call_.layer == 0 || call_.layer == geometry_.num_hidden_layers) {
      table("embed.weight", Storage::kBf16, geometry_.vocab_size, geometry_.hidden_size);
    }
    hyper("hc_attn");
  }
  void attn_in() {
    const Geometry& g = geometry_;
    const bool full = role().mode == model::Mode::kFull;
    vector("attn_norm.weight", Storage::kBf16, g.hidden_size);
    linear("attn.wq_a", Storage::kFp8, g.q_lora_rank, g.hidden_size);
    linear("attn.wkv", Storage::kFp8, g.head_dim, g.hidden_size);
    if (full) linear("attn.compressor.wkv", Storage::kBf16, g.head_dim, g.hidden_size);
    if (full && role().ratio == 2) linear("attn.compressor.wgate", Storage::kBf16, g.head_dim, g.hidden_size);
    if (full || role().mode == model::Mode::kReindex) {
      linear("attn.indexer.weights_proj", Storage::kBf16, g.index_n_heads, g.hidden_size);
    }
  }
  void q_proj() {
    const Geometry& g = geometry_;
    linear("attn.wq_b", Storage::kFp8, q_width(), g.q_lora_rank, Split::kRows);
    if (role().mode == model::Mode::kFull || role().mode == model::Mode::kReindex) {
      linear("attn.indexer.wq_b", Storage::kFp8, int64_t{g.index_n_heads} * g.index_head_dim, g.q_lora_rank);
    }
  }
  void kv_new() {
    const Geometry& g = geometry_;
    vector("attn.kv_norm.weight", Storage::kBf16, g.head_dim);
    if (role().mode != model::Mode::kFull) return;
    vector("attn.compressor.norm.weight", Storage::kBf16, g.head_dim);
    linear("attn.indexer.wk", Storage::kBf16, g.index_head_dim, g.head_dim);
    vector("attn.indexer.k_norm.weight", Storage::kBf16, g.index_head_dim);
  }
  void wo_a() { linear("attn.wo_a", Storage::kFp8, o_width(), q_width() / geometry_.o_groups, Split::kRows); }
  void ffn_in() {
    const Geometry& g = geometry_;
    vector("ffn_norm.weight", Storage::kBf16, g.hidden_size);
    linear("ffn.gate", Storage::kBf16, g.num_experts(call_.layer), g.hidden_size);
    linear("ffn.shared_experts.w1", Storage::kFp8, g.moe_intermediate_size, g.hidden_size, Split::kRows);
    linear("ffn.shared_experts.w3", Storage::kFp8, g.moe_intermediate_size, g.hidden_size, Split::kRows);
  }
  void expert(const std::string& name, int64_t rows, int64_t columns, Split split) {
    add({prefixed("ffn.experts.{}." + name + ".weight"), Storage::kFp4, Order::kFragments, split, rows, columns,
         geometry_.num_experts(call_.layer), 0});
  }
  void expert_up() {
    const Geometry& g = geometry_;
    vector("ffn.gate.bias", Storage::kF32, g.num_experts(call_.layer));
    vector("ffn.gate.bias_vl", Storage::kF32, g.num_experts(call_.layer));
    expert("w1", g.moe_intermediate_size, g.hidden_size, Split::kRows);
    expert("w3", g.moe_intermediate_size, g.hidden_size, Split::kRows);
  }
  void expert_down() {
    const Geometry& g = geometry_;
    expert("w2", g.hidden_size, g.moe_intermediate_size, Split::kColumns);
    linear("ffn.shared_experts.w2", Storage::kFp8, g.hidden_size, g.moe_intermediate_size, Split::kColumns);
  }
  void head() {
    const Geometry& g = geometry_;
    const std::string norm = call_.section == Section::kDraft ? last_draft("norm.weight") : "norm.weight";
    add({norm, Storage::kBf16, Order::kPlain, Split::kNone, 1, g.hidden_size});
    linear("head", Storage::kBf16, g.vocab_size, g.hidden_size, Split::kRows);
  }
  void main_proj() {
    linear(first_draft("main_proj"), Storage::kFp8, geometry_.hidden_size,
           int64_t{geometry_.num_taps()} * geometry_.hidden_size);
  }
  void context_proj() {
    const Geometry& g = geometry_;
    vector(first_draft("main_norm.weight"), Storage::kBf16, g.hidden_size);
    for (int layer_idx = g.num_hidden_layers; layer_idx < g.num_layers(); ++layer_idx) {
      linear(g.prefix(layer_idx) + "attn.wkv", Storage::kFp8, g.head_dim, g.hidden_size);
    }
  }
  void context_new() {
    for (int layer_idx = geometry_.num_hidden_layers; layer_idx < geometry_.num_layers(); ++layer_idx) {
      vector(geometry_.prefix(layer_idx) + "attn.kv_norm.weight", Storage::kBf16, geometry_.head_dim);
    }
  }
  void markov() {
    const Geometry& g = geometry_;
    table(last_draft("markov_head.embed.weight"), Storage::kBf16, g.vocab_size, g.dspark_markov_rank);
    linear(last_draft("markov_head.head"), Storage::kBf16, g.vocab_size, g.dspark_markov_rank, Split::kRows);
  }
  void draft_out() {
    vector(last_draft("confidence_head.proj.weight"), Storage::kBf16,
           int64_t{geometry_.hidden_size} + geometry_.dspark_markov_rank);
  }

  const Layout& layout_;
  const Call& call_;
  const Geometry& geometry_;
  std::vector<Weight> list_;
  int next_tile_ = 0;
};

bool has_scales(Storage storage) { return storage == Storage::kFp8 || storage == Storage::kFp4; }

int code_bits(Storage storage) {
  switch (storage) {
    case Storage::kFp4: return 4;
    case Storage::kFp8: return 8;
    case Storage::kBf16: return 16;
    case Storage::kF32: return 32;
  }
  return 0;
}

// K elements whose codes a lane keeps side by side.
int unit_width(Storage storage) { return storage == Storage::kBf16 ? 16 : 32; }

int64_t elements(const Weight& weight, const model::Shard& shard) {
  return rank_rows(weight, shard) * rank_columns(weight, shard);
}

}  // namespace

std::vector<Weight> weights_of(const Layout& layout, const Call& call) { return Lister(layout, call).list(); }

int64_t rank_rows(const Weight& weight, const model::Shard& shard) {
  return weight.split == Split::kRows ? weight.rows / shard.tp : weight.rows;
}

int64_t rank_columns(const Weight& weight, const model::Shard& shard) {
  return weight.split == Split::kColumns ? weight.columns / shard.tp : weight.columns;
}

int64_t code_bytes(const Weight& weight, const model::Shard& shard) {
  return elements(weight, shard) * code_bits(weight.storage) / 8;
}

int64_t scale_bytes(const Weight& weight, const model::Shard& shard) {
  if (!has_scales(weight.storage)) return 0;
  const int64_t groups = ceil_div<int64_t>(rank_columns(weight, shard), kScaleGroup);
  const bool by_row = weight.storage == Storage::kFp4 || weight.order == Order::kTable;
  return groups * (by_row ? rank_rows(weight, shard) : ceil_div<int64_t>(rank_rows(weight, shard), kScaleGroup));
}

int64_t table_row_bytes(const Weight& weight) {
  const int64_t codes = weight.columns * code_bits(weight.storage) / 8;
  return codes + (has_scales(weight.storage) ? ceil_div<int64_t>(weight.columns, kScaleGroup) : 0);
}

int FragmentFormat::tile_code_bytes() const { return kTile * width * code_bits(storage) / 8; }

int FragmentFormat::tile_scale_bytes() const {
  if (!has_scales(storage)) return 0;
  return (storage == Storage::kFp4 ? kTile : 1) * (width / kScaleGroup);
}

int FragmentFormat::chunk_bytes() const {
  return round_up(tiles * parts * (tile_code_bytes() + tile_scale_bytes()), kChunkAlign);
}

int code_offset(const FragmentFormat& format, const Element& element) {
  const int unit = unit_width(format.storage);
  const int k16 = element.k % 16;
  const int lane = element.row % 8 * 4 + k16 % 8 / 2;
  const int in_fragment = k16 / 8 * 4 + element.row / 8 * 2 + k16 % 2;
  const int position = element.k / unit * unit * kTile + lane * (unit / 2) + element.k % unit / 16 * 8 + in_fragment;
  const int tile_idx = element.tile * format.parts + element.part;
  return tile_idx * format.tile_code_bytes() + position * code_bits(format.storage) / 8;
}

Element element_at(const FragmentFormat& format, int byte_offset) {
  const int unit = unit_width(format.storage);
  const int tile_idx = byte_offset / format.tile_code_bytes();
  const int position = byte_offset % format.tile_code_bytes() * 8 / code_bits(format.storage);
  const int lane = position % (unit * kTile) / (unit / 2);
  const int in_lane = position % (unit / 2);
  const int in_fragment = in_lane % 8;
  Element element;
  element.part = tile_idx % format.parts;
  element.tile = tile_idx / format.parts;
  element.row = in_fragment / 2 % 2 * 8 + lane / 4;
  element.k =
      position / (unit * kTile) * unit + in_lane / 8 * 16 + in_fragment / 4 * 8 + lane % 4 * 2 + in_fragment % 2;
  return element;
}

int scale_offset(const FragmentFormat& format, const Element& element) {
  CHECK(has_scales(format.storage), "a scale of a tensor that has none");
  const int group = element.k / kScaleGroup;
  const int in_tile = format.storage == Storage::kFp4 ? group * kTile + element.row : group;
  const int codes = format.tiles * format.parts * format.tile_code_bytes();
  return codes + (element.tile * format.parts + element.part) * format.tile_scale_bytes() + in_tile;
}

int tiles_per_chunk(const Layout& layout, Stage stage) {
  if (stage != Stage::kExpertDown) return 1;
  const LinearSize down = layout.size(Linear::kW2, 0);
  FragmentFormat format{Storage::kFp4, down.k / k_splits(down.k), 1, 1};
  for (const int tiles : {2, 4}) {
    if (format.chunk_bytes() >= kMinChunkBytes || down.tiles() % tiles != 0) break;
    format.tiles = tiles;
  }
  return format.tiles;
}

namespace {

ChunkRun fragment_run(const Layout& layout, Stage stage, std::vector<Weight> weights) {
  const Weight& weight = weights.front();
  const int k = static_cast<int>(rank_columns(weight, layout.shard()));
  ChunkRun run;
  run.num_pieces = k_splits(k);
  run.format = {weight.storage, k / run.num_pieces, tiles_per_chunk(layout, stage), static_cast<int>(weights.size())};
  run.num_tiles = static_cast<int>(ceil_div<int64_t>(rank_rows(weight, layout.shard()), kTile));
  run.num_chunks = run.num_tiles / run.format.tiles * run.num_pieces;
  run.num_experts = std::max(weight.num_experts, 1);
  run.chunk_bytes = run.format.chunk_bytes();
  run.weights = std::move(weights);
  return run;
}

ChunkRun plain_run(const Layout& layout, Weight weight) {
  ChunkRun run;
  run.num_chunks = weight.order == Order::kSlices ? layout.num_slices() : 1;
  run.chunk_bytes =
      static_cast<int>(round_up<int64_t>(code_bytes(weight, layout.shard()) / run.num_chunks, kChunkAlign));
  run.weights = {std::move(weight)};
  return run;
}

void append_call(const Layout& layout, const Call& call, std::vector<ChunkRun>& runs) {
  for (Weight& weight : weights_of(layout, call)) {
    if (weight.order == Order::kTable) continue;
    const bool second_part =
        call.stage == Stage::kExpertUp && weight.order == Order::kFragments && runs.back().order() == Order::kFragments;
    if (second_part) {
      std::vector<Weight> both = {runs.back().weights.front(), std::move(weight)};
      runs.back() = fragment_run(layout, call.stage, std::move(both));
    } else if (weight.order == Order::kFragments) {
      runs.push_back(fragment_run(layout, call.stage, {std::move(weight)}));
    } else {
      runs.push_back(plain_run(layout, std::move(weight)));
    }
  }
}

}  // namespace

std::vector<ChunkRun> chunk_runs(const Layout& layout) {
  std::vector<ChunkRun> runs;
  std::map<std::string, int64_t> offsets;  // of the first part's tensor
  int64_t end = 0;
  const std::vector<Call>& calls = layout.program().calls;
  for (size_t call_idx = 0; call_idx < calls.size(); ++call_idx) {
    const size_t first_run = runs.size();
    append_call(layout, calls[call_idx], runs);
    for (size_t run_idx = first_run; run_idx < runs.size(); ++run_idx) {
      ChunkRun& run = runs[run_idx];
      run.call_idx = static_cast<int>(call_idx);
      const auto [place, is_new] = offsets.try_emplace(run.weights.front().name, end);
      run.first_offset = place->second;
      if (is_new) end += run.packed_bytes();
    }
  }
  return runs;
}

PackedSize packed_size(const Layout& layout, const std::vector<ChunkRun>& runs) {
  PackedSize size;
  for (const ChunkRun& run : runs) {
    if (run.first_offset != size.packed_bytes) continue;  // a tensor that an earlier call reads too
    const bool fragments = run.order() == Order::kFragments;
    int64_t source = 0, scales = 0;
    for (const Weight& weight : run.weights) {
      source += run.num_experts * rank_bytes(weight, layout.shard());
      scales += run.num_experts * scale_bytes(weight, layout.shard());
    }
    if (fragments && run.format.storage == Storage::kFp8) {
      const int64_t carried = int64_t{run.num_tiles} * run.num_pieces * run.format.tile_scale_bytes();
      size.repeated_bytes += carried - scales;
      source += carried - scales;
    }
    size.packed_bytes += run.packed_bytes();
    size.padding_bytes += run.packed_bytes() - source;
    if (!fragments || run.format.storage == Storage::kBf16) continue;
    if (size.smallest_quantized == 0 || run.chunk_bytes < size.smallest_quantized)
      size.smallest_quantized = run.chunk_bytes;
    if (run.chunk_bytes < kMinChunkBytes) ++size.num_small;
  }
  size.source_bytes = size.packed_bytes - size.padding_bytes - size.repeated_bytes;
  return size;
}

}  // namespace monostep::program
