// Filling of the table of key_table.h.
#include "text/key_table.h"

#include <bit>

namespace monostep::text {
namespace {

// Half-full tables of a million keys need fewer than a hundred steps.
constexpr size_t kMaxSteps = 512;

}  // namespace

KeyTable::KeyTable(size_t max_keys) : slots_(std::bit_ceil(2 * max_keys + 2)), mask_(slots_.size() - 1) {}

KeyTable::Inserted KeyTable::insert(uint64_t key, uint32_t value) {
  size_t slot_idx = mix(key) & mask_;
  for (size_t step = 0; step < kMaxSteps; ++step, slot_idx = (slot_idx + 1) & mask_) {
    Slot& slot = slots_[slot_idx];
    if (slot.value != kNone && slot.key == key) return Inserted::kPresent;
    if (slot.value != kNone) continue;
    slot = {key, value};
    return Inserted::kNew;
  }
  return Inserted::kCrowded;
}

uint64_t spelling_key(std::string_view spelling) {
  uint64_t key = 0xcbf29ce484222325ull;
  for (const char byte : spelling) key = (key ^ static_cast<uint8_t>(byte)) * 0x100000001b3ull;
  return key;
}

}  // namespace monostep::text
