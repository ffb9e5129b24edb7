// The golden recipe (recipe.h): one table of kinds and exponents, one function a kind that makes a row. All values are
// exact in their format, so no rounding takes place.
#include "weights/recipe.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"

namespace monostep::weights {
namespace {

using Kind = ValueKind;

struct Rule {
  std::string_view name;  // without the layer's prefix, the expert's number and, for a quantised pair, the last part
  Kind kind;
  int exponent;                   // c of the recipe
  bool falls_with_depth = false;  // 3 less in the backbone layers of a model with 16 or more layers
  int zero_rows = 0;              // about one row in so many is zero; 0: none
  bool plain_exponent = false;    // the exponent does not fall with the number of columns
};

constexpr Rule kRules[] = {
    {"embed.weight", Kind::kBf16, -2, false, 32, true},
    {"head.weight", Kind::kBf16, 1},
    {"norm.weight", Kind::kBf16Positive, 0},
    {"hc_attn_fn", Kind::kF32, 0},
    {"hc_attn_base", Kind::kF32, 1},
    {"hc_attn_scale", Kind::kF32Positive, 0},
    {"hc_ffn_fn", Kind::kF32, 0},
    {"hc_ffn_base", Kind::kF32, 1},
    {"hc_ffn_scale", Kind::kF32Positive, 0},
    {"attn_norm.weight", Kind::kBf16Positive, 0},
    {"ffn_norm.weight", Kind::kBf16Positive, 0},
    {"attn.attn_sink", Kind::kF32, 1},
    {"attn.wq_a", Kind::kFp8, 0},
    {"attn.q_norm.weight", Kind::kBf16Positive, 0},
    {"attn.wq_b", Kind::kFp8, 0, false, 64},
    {"attn.wkv", Kind::kFp8, 0},
    {"attn.kv_norm.weight", Kind::kBf16Positive, -1},
    {"attn.wo_a", Kind::kFp8, 1},
    {"attn.wo_b", Kind::kFp8, -3, true},
    {"attn.compressor.wkv.weight", Kind::kBf16, 0},
    {"attn.compressor.wgate.weight", Kind::kBf16, 0},
    {"attn.compressor.norm.weight", Kind::kBf16Positive, -1},
    {"attn.indexer.wk.weight", Kind::kBf16, 0},
    {"attn.indexer.k_norm.weight", Kind::kBf16Positive, 0},
    {"attn.indexer.wq_b", Kind::kFp8, 0},
    {"attn.indexer.weights_proj.weight", Kind::kBf16, 0},
    {"ffn.gate.weight", Kind::kBf16, 0},
    {"ffn.gate.bias", Kind::kF32, -3},
    {"ffn.gate.bias_vl", Kind::kF32, -3},
    {"ffn.experts.w1", Kind::kFp4, 2, false, 64},
    {"ffn.experts.w2", Kind::kFp4, -7, true},
    {"ffn.experts.w3", Kind::kFp4, 2},
    {"ffn.shared_experts.w1", Kind::kFp8, 1},
    {"ffn.shared_experts.w2", Kind::kFp8, -6, true},
    {"ffn.shared_experts.w3", Kind::kFp8, 1},
    {"engram.wkv", Kind::kFp8, 0},
    {"engram.q_weight", Kind::kBf16Positive, 0},
    {"engram.k_weight", Kind::kBf16Positive, 1},
    {"engram.embed", Kind::kFp8, 0, false, 32, true},
    {"main_proj", Kind::kFp8, 0},
    {"main_norm.weight", Kind::kBf16Positive, 0},
    {"confidence_head.proj.weight", Kind::kBf16, -1},
};
constexpr Rule kVisionRule = {"vision", Kind::kBf16, 0};

bool is_pair(const model::TensorSpec& spec) {
  return spec.dtype == model::Dtype::kF8E4M3 || spec.dtype == model::Dtype::kF8E8M0 || spec.dtype == model::Dtype::kI8;
}

// The name whose streams a tensor draws from: a quantised pair shares one, without .weight and .scale.
std::string stream_name(const model::TensorSpec& spec) {
  return is_pair(spec) ? spec.name.substr(0, spec.name.rfind('.')) : spec.name;
}

const Rule& find_rule(const model::Geometry& geometry, const model::TensorSpec& spec) {
  if (spec.tensor_class == model::Class::kVision) return kVisionRule;
  std::string name = stream_name(spec);
  if (spec.layer_idx >= 0) name.erase(0, geometry.prefix(spec.layer_idx).size());
  constexpr std::string_view kExperts = "ffn.experts.";
  if (name.starts_with(kExperts)) name.erase(kExperts.size(), name.find('.', kExperts.size()) + 1 - kExperts.size());
  const auto* found = std::find_if(std::begin(kRules), std::end(kRules), [&](const Rule& r) { return r.name == name; });
  CHECK(found != std::end(kRules), "the recipe knows every tensor of the inventory");
  return *found;
}

// Half the number of bits of the row length: keeps sums over a row near one size.
int half_bits(int64_t num_columns) { return static_cast<int>(std::bit_width(static_cast<uint64_t>(num_columns))) / 2; }

// The tensors at the end of the draft are parts of top-level ones.
struct Source {
  std::string name;         // whose streams are read
  int64_t num_columns = 0;  // of that tensor
  float factor = 1;
};

// What one row needs to be made.
struct RowMaker {
  RowMaker(const model::Geometry& geometry, uint64_t seed, const model::TensorSpec& spec);
  void fill(int64_t row, std::byte* out) const;
  void fill_codes(int64_t row, std::byte* out) const;
  void fill_scales(int64_t row, std::byte* out) const;
  void fill_bf16(int64_t row, std::byte* out) const;
  void fill_f32(int64_t row, std::byte* out) const;
  void use_source(const model::Geometry& geometry, const model::TensorSpec& spec);

  RowExtent extent;
  bool scale = false;
  Rule rule = {};
  Source source;
  ValueRule value;
};

RowMaker::RowMaker(const model::Geometry& geometry, uint64_t seed, const model::TensorSpec& spec)
    : extent(row_extent(spec)), scale(spec.scale) {
  source = {stream_name(spec), extent.num_columns, 1};
  use_source(geometry, spec);
  const bool deep =
      rule.falls_with_depth && spec.layer_idx < geometry.num_hidden_layers && geometry.num_hidden_layers >= 16;
  int exponent = rule.exponent - (deep ? 3 : 0);
  int64_t columns = source.num_columns;  // in elements of the weight
  if (spec.scale) columns *= 32;
  if (spec.dtype == model::Dtype::kI8) columns *= 2;
  if (!rule.plain_exponent && spec.shape.size() > 1) exponent -= half_bits(columns);
  switch (rule.kind) {
    case Kind::kFp8: value.scale_base = 119 + exponent; break;
    case Kind::kFp4: value.scale_base = 124 + exponent; break;
    case Kind::kBf16: value.step = std::ldexp(1.0f, exponent - 6); break;
    case Kind::kBf16Positive: value.step = std::ldexp(1.0f, rule.exponent - 7); break;
    case Kind::kF32: value.step = std::ldexp(1.0f, exponent - 15); break;
    case Kind::kF32Positive: value.step = std::ldexp(1.0f, rule.exponent - 16); break;
  }
  value.kind = rule.kind;
  value.zero_rows = rule.zero_rows;
  value.factor = source.factor;
  value.hc_mult = geometry.hc_mult;
  value.adds_ring = rule.name == "hc_attn_base";
  value.doubles_comb = rule.name == "hc_ffn_base";
  value.source_columns = source.num_columns;
  const std::string text = std::to_string(seed) + ":" + source.name;
  value.codes = Stream(is_pair(spec) ? text + ".weight" : text).start();
  value.scales = Stream(text + ".scale").start();
  value.zeros = Stream(text + "#zero").start();
}

// Finds the rule; for a part of a top-level tensor that tensor's.
void RowMaker::use_source(const model::Geometry& geometry, const model::TensorSpec& spec) {
  model::TensorSpec from = spec;
  const std::string local = spec.layer_idx < 0 ? "" : spec.name.substr(geometry.prefix(spec.layer_idx).size());
  if (local == "markov_head.embed.weight") from.name = "embed.weight";
  if (local == "markov_head.head.weight") from.name = "head.weight";
  if (local == "norm.weight") from.name = "norm.weight";
  if (from.name != spec.name) {
    from.layer_idx = -1;
    source = {from.name, geometry.hidden_size, from.name == "head.weight" ? 8.0f : 1.0f};
  }
  rule = find_rule(geometry, from);
  if (from.name == "embed.weight") value.first_factor = 4;
  if (from.name == "norm.weight") value.first_value = 1.5f;
  if (from.name == "embed.weight" || from.name == "norm.weight") value.first_columns = geometry.dspark_markov_rank;
}

void RowMaker::fill(int64_t row, std::byte* out) const {
  if (scale) return fill_scales(row, out);
  if (is_zero_row(value, row)) {
    std::memset(out, 0, static_cast<size_t>(extent.row_bytes));
    return;
  }
  switch (rule.kind) {
    case Kind::kFp8:
    case Kind::kFp4: return fill_codes(row, out);
    case Kind::kBf16:
    case Kind::kBf16Positive: return fill_bf16(row, out);
    case Kind::kF32:
    case Kind::kF32Positive: return fill_f32(row, out);
  }
}

constexpr std::array<uint8_t, 256> kFp8Codes = [] {
  std::array<uint8_t, 256> codes = {};
  for (uint32_t byte = 0; byte < 256; ++byte) codes[byte] = static_cast<uint8_t>(fp8_code(byte));
  return codes;
}();

// Packed FP4 bytes are the random bytes themselves.
void RowMaker::fill_codes(int64_t row, std::byte* out) const {
  const bool fp8 = rule.kind == Kind::kFp8;
  const auto code = [fp8](uint64_t byte) { return static_cast<std::byte>(fp8 ? kFp8Codes[byte & 0xff] : byte); };
  uint64_t idx = static_cast<uint64_t>(row * extent.num_columns);
  const std::byte* end = out + extent.num_columns;
  while (out != end && idx % 8 != 0) *out++ = code(stream_byte(value.codes, idx++));
  for (; end - out >= 8; idx += 8, out += 8) {
    const uint64_t word = stream_word(value.codes, idx / 8);
    for (int byte_idx = 0; byte_idx < 8; ++byte_idx) out[byte_idx] = code(word >> (8 * byte_idx));
  }
  while (out != end) *out++ = code(stream_byte(value.codes, idx++));
}

void RowMaker::fill_scales(int64_t row, std::byte* out) const {
  for (int64_t column = 0; column < extent.num_columns; ++column) {
    out[column] = static_cast<std::byte>(scale_byte(value, row * extent.num_columns + column));
  }
}

void RowMaker::fill_bf16(int64_t row, std::byte* out) const {
  for (int64_t column = 0; column < extent.num_columns; ++column) {
    const auto bits = static_cast<uint16_t>(bf16_element(value, row, column));
    std::memcpy(out + column * 2, &bits, sizeof bits);
  }
}

void RowMaker::fill_f32(int64_t row, std::byte* out) const {
  for (int64_t column = 0; column < extent.num_columns; ++column) {
    const uint32_t bits = f32_element(value, row, column);
    std::memcpy(out + column * 4, &bits, sizeof bits);
  }
}

}  // namespace

Stream::Stream(std::string_view text) : start_(0xcbf29ce484222325) {
  for (const char letter : text) start_ = (start_ ^ static_cast<uint8_t>(letter)) * 0x100000001b3;
}

RowExtent row_extent(const model::TensorSpec& spec) {
  RowExtent extent;
  extent.num_columns = spec.shape.back();
  extent.num_rows = spec.shape.size() > 1 ? spec.shape.front() : 1;
  extent.row_bytes = extent.num_columns * model::dtype_bytes(spec.dtype);
  return extent;
}

ValueRule value_rule(const model::Geometry& geometry, uint64_t seed, const model::TensorSpec& spec) {
  CHECK(!spec.scale, "the rule of a quantised tensor is asked by its codes");
  return RowMaker(geometry, seed, spec).value;
}

void recipe_rows(const model::Geometry& geometry, uint64_t seed, const model::TensorSpec& spec, int64_t row_begin,
                 std::span<std::byte> out) {
  const RowMaker maker(geometry, seed, spec);
  const auto row_bytes = static_cast<size_t>(maker.extent.row_bytes);
  CHECK(out.size() % row_bytes == 0, "whole rows");
  for (size_t row_idx = 0; row_idx < out.size() / row_bytes; ++row_idx) {
    maker.fill(row_begin + static_cast<int64_t>(row_idx), out.data() + row_idx * row_bytes);
  }
}

std::vector<std::byte> recipe_tensor(const model::Geometry& geometry, uint64_t seed, const model::TensorSpec& spec) {
  std::vector<std::byte> bytes(static_cast<size_t>(spec.num_bytes()));
  recipe_rows(geometry, seed, spec, 0, bytes);
  return bytes;
}

}  // namespace monostep::weights
