// Engram hashing (model.md 3.8): consecutive primes, their offsets, and the multipliers that numpy's default_rng draws.
// Pure integer arithmetic on the geometry; called by validate, the step builder, the CPU stage and the synthetic
// weights.
#include "model/engram.h"

#include <algorithm>

namespace monostep::model {
namespace {

__extension__ using Wide = unsigned __int128;  // __extension__: not ISO C++

constexpr Wide wide(uint64_t high, uint64_t low) { return static_cast<Wide>(high) << 64 | low; }

bool is_prime(int64_t value) {
  if (value < 4) return value >= 2;
  if (value % 2 == 0 || value % 3 == 0) return false;
  for (int64_t divisor = 5; divisor * divisor <= value; divisor += 6) {
    if (value % divisor == 0 || value % (divisor + 2) == 0) return false;
  }
  return true;
}

// numpy's SeedSequence for a seed of one 32-bit word.
class SeedSequence {
 public:
  explicit SeedSequence(uint32_t seed) : pool_{hash(seed), hash(0), hash(0), hash(0)} {
    for (int from = 0; from < 4; ++from) {
      for (int to = 0; to < 4; ++to) {
        if (from != to) pool_[to] = mix(pool_[to], hash(pool_[from]));
      }
    }
  }

  // Words 0..7 as four numbers, low word first.
  std::array<uint64_t, 4> numbers() const {
    std::array<uint64_t, 4> numbers{};
    uint32_t state = 0x8b51f9dd;
    for (int word_idx = 0; word_idx < 8; ++word_idx) {
      uint32_t word = pool_[word_idx % 4] ^ state;
      state *= 0x58f38ded;
      word *= state;
      word ^= word >> 16;
      numbers[word_idx / 2] |= static_cast<uint64_t>(word) << (word_idx % 2 * 32);
    }
    return numbers;
  }

 private:
  uint32_t hash(uint32_t word) {
    word ^= state_;
    state_ *= 0x931e8875;
    word *= state_;
    return word ^ word >> 16;
  }
  static uint32_t mix(uint32_t into, uint32_t word) {
    const uint32_t mixed = 0xca01f9dd * into - 0x4973f715 * word;
    return mixed ^ mixed >> 16;
  }

  uint32_t state_ = 0x43b0d7e5;
  std::array<uint32_t, 4> pool_;
};

// numpy's PCG64 (XSL-RR 128/64) with Lemire's bounded draw: default_rng(seed).integers(0, bound).
class Pcg64 {
 public:
  explicit Pcg64(uint32_t seed) {
    const std::array<uint64_t, 4> start = SeedSequence(seed).numbers();
    increment_ = wide(start[2], start[3]) << 1 | 1;
    step();
    state_ += wide(start[0], start[1]);
    step();
  }

  uint64_t draw_below(uint64_t bound) {
    Wide product = static_cast<Wide>(draw()) * bound;
    if (static_cast<uint64_t>(product) < bound) {
      const uint64_t threshold = (0 - bound) % bound;
      while (static_cast<uint64_t>(product) < threshold) product = static_cast<Wide>(draw()) * bound;
    }
    return static_cast<uint64_t>(product >> 64);
  }

 private:
  void step() { state_ = state_ * wide(0x2360ed051fc65da4, 0x4385df649fccf645) + increment_; }
  uint64_t draw() {
    step();
    const uint64_t folded = static_cast<uint64_t>(state_ >> 64) ^ static_cast<uint64_t>(state_);
    const int turn = static_cast<int>(state_ >> 122);
    return folded >> turn | folded << (-turn & 63);
  }

  Wide state_ = 0;
  Wide increment_ = 0;
};

std::vector<int64_t> draw_multipliers(const Geometry& geometry, int layer_id) {
  constexpr uint32_t kSeedFactor = 10007;
  const int64_t bound = std::max<int64_t>(1, INT64_MAX / geometry.engram_compressed_vocab_size / 2);
  Pcg64 generator(kSeedFactor * static_cast<uint32_t>(layer_id));
  std::vector<int64_t> multipliers(geometry.engram_max_ngram_size);
  for (int64_t& multiplier : multipliers) {
    multiplier = 2 * static_cast<int64_t>(generator.draw_below(static_cast<uint64_t>(bound))) + 1;
  }
  return multipliers;
}

}  // namespace

// No prime is used twice in a model and every search starts at engram_vocab_size, so the columns of all layers take
// consecutive primes.
std::vector<EngramTable> engram_tables(const Geometry& geometry) {
  std::vector<EngramTable> tables;
  int64_t candidate = geometry.engram_vocab_size;
  for (const int layer_id : geometry.engram_layer_ids) {
    EngramTable table;
    table.multipliers = draw_multipliers(geometry, layer_id);
    for (int column_idx = 0; column_idx < geometry.num_engram_columns(); ++column_idx) {
      while (!is_prime(candidate)) ++candidate;
      table.primes.push_back(candidate);
      table.offsets.push_back(table.num_rows);
      table.num_rows += candidate++;
    }
    tables.push_back(std::move(table));
  }
  return tables;
}

void engram_rows(const EngramTable& table, int num_heads, int pad_class, std::span<const int> classes,
                 std::span<int64_t> rows) {
  CHECK(classes.size() == table.multipliers.size(), "one class for every look-back");
  CHECK(rows.size() == table.primes.size(), "one row for every column");
  bool dead = false;
  int64_t hash = 0;
  for (size_t back = 0; back < classes.size(); ++back) {
    dead = dead || classes[back] == kDeadClass;
    const int64_t token_class = dead ? pad_class : classes[back];
    hash ^= token_class * table.multipliers[back];
    if (back == 0) continue;
    for (int head_idx = 0; head_idx < num_heads; ++head_idx) {
      const size_t column_idx = (back - 1) * static_cast<size_t>(num_heads) + static_cast<size_t>(head_idx);
      rows[column_idx] = hash % table.primes[column_idx] + table.offsets[column_idx];
    }
  }
}

}  // namespace monostep::model
