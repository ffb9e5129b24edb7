// A hash table from 64-bit keys to 32-bit values, filled once and then only read: merge pairs, spellings by their hash,
// edges of the added tokens' tree. Open addressing with a bounded search, so that a hostile file is refused and never
// slows a look-up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace monostep::text {

class KeyTable {
 public:
  static constexpr uint32_t kNone = ~0u;  // not a value

  KeyTable() : KeyTable(0) {}
  // Holds up to `max_keys` keys.
  explicit KeyTable(size_t max_keys);

  enum class Inserted { kNew, kPresent, kCrowded };

  // Adds a key; kPresent leaves the value it has. kCrowded: too many keys fall together, which no honest file brings
  // about.
  Inserted insert(uint64_t key, uint32_t value);

  // The value of `key`, or kNone.
  uint32_t find(uint64_t key) const {
    for (size_t slot_idx = mix(key) & mask_;; slot_idx = (slot_idx + 1) & mask_) {
      const Slot& slot = slots_[slot_idx];
      if (slot.value == kNone || slot.key == key) return slot.value;
    }
  }

 private:
  struct Slot {
    uint64_t key = 0;
    uint32_t value = kNone;
  };

  // The last step of MurmurHash3: every bit of the key reaches the low bits.
  static uint64_t mix(uint64_t key) {
    key = (key ^ (key >> 33)) * 0xff51afd7ed558ccdull;
    key = (key ^ (key >> 33)) * 0xc4ceb9fe1a85ec53ull;
    return key ^ (key >> 33);
  }

  std::vector<Slot> slots_;  // a power of two, at most half of them used
  size_t mask_;
};

// A key for a spelling (FNV-1a). Two spellings may share one: compare the spellings too.
uint64_t spelling_key(std::string_view spelling);

}  // namespace monostep::text
