// Scans in pieces: one loop without branches says whether a piece holds a refused value (it vectorises), and only then
// a second one finds which.
#include "weights/value_scan.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/check.h"

namespace monostep::weights {
namespace {

constexpr size_t kPieceBytes = 4096;

// A value is refused where all bits of `mask` are set.
template <typename Word>
std::optional<size_t> find_all_set(std::span<const std::byte> bytes, Word mask) {
  Word piece[kPieceBytes / sizeof(Word)];
  const size_t num_words = bytes.size() / sizeof(Word);
  for (size_t start = 0; start < num_words; start += std::size(piece)) {
    const size_t count = std::min(std::size(piece), num_words - start);
    std::memcpy(piece, bytes.data() + start * sizeof(Word), count * sizeof(Word));
    Word refused = 0;
    for (size_t idx = 0; idx < count; ++idx) refused |= static_cast<Word>((piece[idx] & mask) == mask);
    if (refused == 0) continue;
    const auto is_refused = [mask](Word word) { return (word & mask) == mask; };
    return start + static_cast<size_t>(std::find_if(piece, piece + count, is_refused) - piece);
  }
  return std::nullopt;
}

}  // namespace

std::optional<size_t> find_refused_value(model::Dtype dtype, std::span<const std::byte> bytes) {
  switch (dtype) {
    case model::Dtype::kF8E4M3: return find_all_set<uint8_t>(bytes, 0x7f);
    case model::Dtype::kF8E8M0: return find_all_set<uint8_t>(bytes, 0xff);
    case model::Dtype::kBF16: return find_all_set<uint16_t>(bytes, 0x7f80);
    case model::Dtype::kF32: return find_all_set<uint32_t>(bytes, 0x7f800000);
    case model::Dtype::kI8: return std::nullopt;
  }
  CHECK(false, "a dtype outside the list");
  return std::nullopt;
}

std::string_view refused_value_name(model::Dtype dtype) {
  switch (dtype) {
    case model::Dtype::kF8E4M3: return "E4M3 NaN codes";
    case model::Dtype::kF8E8M0: return "E8M0 scale bytes of 255";
    case model::Dtype::kBF16: return "infinite or NaN BF16 values";
    case model::Dtype::kF32: return "infinite or NaN F32 values";
    case model::Dtype::kI8: return "refused FP4 codes";
  }
  CHECK(false, "a dtype outside the list");
  return {};
}

}  // namespace monostep::weights
