// RegionHarness: a CpuBackend and the device's ranks of one model, side by side. step() runs a step call by call on
// both from the CPU's inputs and compares every region that a call writes and the whole pools; on_gpu() makes the
// backend's own decode() run on the device's ranks. Pools begin as random bytes, so that a store outside live rows and
// a read of what nobody wrote show. The device is the emulator unless another is given. Used by the tests of the device
// program.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "../cpu/tiny_models.h"
#include "apps/gpu_mirror.h"
#include "base/numeric.h"
#include "emulated_program.h"
#include "region_compare.h"
#include "synthetic_records.h"

namespace monostep::gpu {

inline bool long_tests() { return std::getenv("MONOSTEP_LONG_TESTS") != nullptr; }

struct HarnessOptions {
  const weights::Checkpoint* checkpoint = &cpu::micro();
  int tp = 1;
  int num_ctas = 3;
  int max_context = cpu::kContext;
  apps::Cut cut = apps::Cut::kStep;
  uint64_t order_seed = 0;  // of the emulator
  int poll_limit = 1 << 22;
  Device* device = nullptr;  // null: an emulator of the harness
  KernelMaker maker;         // of `device`
  int cpu_ctas = 1;          // a rank of the reference
  int pages_of_slot = 0;     // 0: the whole context
  int paged_slots = cpu::kSlots;
  std::function<bool(program::Stage)> compared;  // null: all stages
  bool pools_at_every_call = true;               // false: only behind the calls that write them
};

// One request of a step.
struct Ask {
  int slot = 0;
  int rows = 1;
  int num_drafts = 0;
  bool sample = true;
  bool draft = true;
  bool context = true;
  program::Sampling sampling = {};
  float forced_acceptance = 0;
  bool stop_at_draft = false;   // the second draft is a stop token
  std::vector<int> image_rows;  // of the request's rows
};

class RegionHarness {
 public:
  explicit RegionHarness(const HarnessOptions& options = {}) : options_(options) {
    if (options_.device == nullptr) {
      emulator_ = std::make_unique<EmulatedDevice>(device_options(options_));
      options_.device = emulator_.get();
      options_.maker = emulated_maker();
    }
    pages_of_slot_ = options_.pages_of_slot > 0 ? options_.pages_of_slot : options_.max_context / program::kPageTokens;
    cpu::CpuOptions cpu_options = cpu::small_options();
    cpu_options.ctas = options_.cpu_ctas;
    cpu_options.tp = options_.tp;
    cpu_options.max_context = options_.max_context;
    cpu_options.num_pages = options_.paged_slots * pages_of_slot_ + 2;
    backend_ = cpu::made_backend(*options_.checkpoint, cpu_options);
    make_ranks(cpu_options);
    for (int page = 0; page < options_.paged_slots * pages_of_slot_; ++page) pages_.push_back(1 + page);
    // Slots of two pages have those of cpu::pages_of.
    if (pages_of_slot_ != cpu::kPagesOfSlot) std::shuffle(pages_.begin(), pages_.end(), std::mt19937(5));
    poison_pools();
  }

  cpu::CpuBackend& backend() { return *backend_; }
  cpu::Machine& machine() { return backend_->machine(); }
  apps::GpuMirror& mirror() { return *mirror_; }
  const model::Geometry& geometry() { return machine().layout().geometry(); }
  int end_of(int slot) const { return ends_[static_cast<size_t>(slot)]; }
  const program::StepOutputs& outputs() const { return outputs_; }

  // From now on decode() runs on the device's ranks.
  void on_gpu() {
    backend_->set_runner(
        [this](cpu::Machine& machine, const cpu::CallRange& range) { return mirror_->run(machine, range); });
  }

  // Prompt rows of a slot, on the CPU alone.
  void fill(int slot, int count) {
    while (count > 0) {
      Ask ask;
      ask.slot = slot;
      ask.rows = std::min(count, program::kMaxBand);
      ask.sample = ask.draft = false;
      ASSERT_TRUE(backend_->decode(inputs_of({ask})).ok());
      ends_[static_cast<size_t>(slot)] += ask.rows;
      count -= ask.rows;
    }
  }

  // Lets a slot be at position `end` without running anything: all pages and the slot hold valid random records, the
  // same on every rank.
  void fill_synthetic(int slot, int end) {
    kv::Pools& first = *machine().ranks[0].pools;
    SyntheticRecords records(geometry());
    for (int page = 0; page < options_.paged_slots * pages_of_slot_ + 2; ++page) records.fill_page(first, page);
    records.fill_slot(first, slot);
    for (cpu::RankState& rank : machine().ranks) {
      rank.pools->pages = first.pages;
      rank.pools->slots = first.slots;
    }
    cleared_[static_cast<size_t>(slot)] = true;
    ends_[static_cast<size_t>(slot)] = end;
    next_[static_cast<size_t>(slot)].clear();
  }

  // One step, call by call on both sides.
  void step(const std::vector<Ask>& asks) {
    const Status begun = backend_->begin_step(inputs_of(asks));
    ASSERT_TRUE(begun.ok()) << begun.error().message();
    for (const program::CallRange& range : program::needed_calls(machine().program(), *machine().inputs)) {
      for (int call_idx = range.first; call_idx < range.last; ++call_idx) {
        if (options_.compared && !options_.compared(machine().program().calls[static_cast<size_t>(call_idx)].stage)) {
          ASSERT_TRUE(backend_->run({call_idx, call_idx + 1}).ok());
          continue;
        }
        compare_call(call_idx);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
    outputs_ = backend_->outputs();
    commit(asks);
  }

  // One step by decode().
  void decode(const std::vector<Ask>& asks) {
    const auto ticket = backend_->decode(inputs_of(asks));
    ASSERT_TRUE(ticket.ok()) << ticket.error().message();
    outputs_ = backend_->wait(ticket.value()).value();
    commit(asks);
  }

  program::StepInputs inputs_of(const std::vector<Ask>& asks) {
    program::StepInputs inputs;
    image_values_.clear();
    for (const Ask& ask : asks) add_request(ask, inputs);
    inputs.image_rows = image_values_;
    return inputs;
  }

  // Words and tags of every region and the pools of every rank, by name.
  cpu::State snapshot() {
    cpu::State state;
    for (size_t rank = 0; rank < machine().ranks.size(); ++rank) {
      cpu::RankState& from = machine().ranks[rank];
      const std::string place = " of rank " + std::to_string(rank);
      for (int idx = 0; idx < program::kNumRegions; ++idx) {
        const auto region = static_cast<Region>(idx);
        for (int copy = 0; copy < machine().layout().num_copies(region); ++copy) {
          const std::string name = cpu::region_name(region) + " " + std::to_string(copy) + place;
          state[name] = cpu::bytes_of(from.regions->words(region, copy));
          for (const std::atomic<uint32_t>& tag : from.regions->tags(region, copy))
            state["tags of " + name] += std::to_string(tag.load()) + " ";
        }
      }
      state["pages" + place] = cpu::bytes_at(from.pools->pages.data(), static_cast<int64_t>(from.pools->pages.size()));
      state["slots" + place] = cpu::bytes_at(from.pools->slots.data(), static_cast<int64_t>(from.pools->slots.size()));
    }
    return state;
  }

  // Worst error of each region over the bound, and how many words differed.
  struct Worst {
    double ratio = 0;
    int64_t differing = 0;
    int64_t live = 0;
  };
  const std::map<std::string, Worst>& worst() const { return worst_; }

 private:
  static EmulatedDeviceOptions device_options(const HarnessOptions& options) {
    EmulatedDeviceOptions out;
    out.num_sms = options.num_ctas;
    out.order_seed = options.order_seed;
    out.total_bytes = int64_t{8} << 30;
    out.max_turns = 4'000'000'000;
    return out;
  }

  void make_ranks(const cpu::CpuOptions& like) {
    std::vector<std::unique_ptr<Rank>> ranks;
    for (int rank = 0; rank < options_.tp; ++rank) {
      RankOptions rank_options;
      rank_options.tp = options_.tp;
      rank_options.rank = rank;
      rank_options.num_ctas = options_.num_ctas;
      rank_options.num_pages = like.num_pages;
      rank_options.num_slots = like.num_slots;
      rank_options.max_context = options_.max_context;
      rank_options.poll_limit = options_.poll_limit;
      ranks.push_back(Rank::make(*options_.device, *options_.checkpoint, rank_options, options_.maker).value());
    }
    mirror_ = std::make_unique<apps::GpuMirror>(std::move(ranks), options_.cut);
  }

  // Every page, and the slots that no test of one request takes, hold random bytes; a request's slot begins cleared.
  void poison_pools() {
    std::mt19937_64 random(11);
    for (std::byte& value : machine().ranks[0].pools->pages) value = static_cast<std::byte>(random());
    for (std::byte& value : machine().ranks[0].pools->slots) value = static_cast<std::byte>(random());
    for (cpu::RankState& rank : machine().ranks) {
      rank.pools->pages = machine().ranks[0].pools->pages;
      rank.pools->slots = machine().ranks[0].pools->slots;
    }
    cleared_.assign(cpu::kSlots, false);
    ends_.assign(cpu::kSlots, 0);
    next_.assign(cpu::kSlots, {});
  }

  void add_request(const Ask& ask, program::StepInputs& inputs) {
    const auto slot = static_cast<size_t>(ask.slot);
    if (!cleared_[slot]) backend_->clear_slot(ask.slot);
    cleared_[slot] = true;
    program::StepRequest& request = inputs.requests.emplace_back();
    request.state_slot = ask.slot;
    request.pages =
        std::span(pages_).subspan(slot * static_cast<size_t>(pages_of_slot_), static_cast<size_t>(pages_of_slot_));
    request.first_row = static_cast<int>(inputs.rows.size());
    request.num_rows = ask.rows;
    request.first_position = ends_[slot];
    request.num_drafts = ask.num_drafts;
    request.sample = ask.sample;
    request.draft = ask.draft;
    request.context = ask.context;
    request.sampling = ask.sampling;
    request.forced_acceptance = ask.forced_acceptance;
    request.step_counter = static_cast<uint32_t>(ends_[slot]);
    for (int offset = 0; offset < ask.rows; ++offset) {
      program::StepRow row;
      row.position = ends_[slot] + offset;
      row.token = token_of(slot, offset, row.position);
      row.request = static_cast<int32_t>(inputs.requests.size()) - 1;
      row.image = std::find(ask.image_rows.begin(), ask.image_rows.end(), offset) != ask.image_rows.end();
      row.needs_logits = ask.sample && offset >= ask.rows - 1 - ask.num_drafts;
      if (row.image) add_image_row(row.position);
      inputs.rows.push_back(row);
    }
    if (ask.stop_at_draft)
      request.stop_tokens[1] = inputs.rows[inputs.rows.size() - static_cast<size_t>(ask.num_drafts) + 1].token;
  }

  // What the step before proposed (its last id, then its drafts), else the test's own.
  int token_of(size_t slot, int offset, int position) {
    const std::vector<int32_t>& next = next_[slot];
    if (offset < static_cast<int>(next.size())) return next[static_cast<size_t>(offset)];
    return (position * 29 + position / 7 * 5 + static_cast<int>(slot) * 31 + 7) % geometry().vocab_size;
  }

  void add_image_row(int position) {
    for (int idx = 0; idx < geometry().hidden_size; ++idx)
      image_values_.push_back(round_bf16(0.05f * static_cast<float>((idx * 37 + position * 11) % 101 - 50)));
  }

  void commit(const std::vector<Ask>& asks) {
    for (size_t idx = 0; idx < asks.size(); ++idx) {
      const Ask& ask = asks[idx];
      const auto slot = static_cast<size_t>(ask.slot);
      const program::RequestOutput& output = outputs_.requests[idx];
      ends_[slot] += ask.rows - ask.num_drafts + (ask.sample ? output.num_accepted : 0);
      next_[slot].clear();
      if (!ask.sample || output.tokens.empty()) continue;
      next_[slot].push_back(output.tokens.back());
      next_[slot].insert(next_[slot].end(), output.drafts.begin(), output.drafts.end());
    }
  }

  using Contents = std::map<Region, std::vector<float>>;  // of the copies that a call writes
  std::vector<Region> written_by(int call_idx) {
    std::vector<Region> out;
    for (int idx = 0; idx < program::kNumRegions; ++idx) {
      const auto region = static_cast<Region>(idx);
      if ((machine().program().calls[static_cast<size_t>(call_idx)].writes & program::bit(region)) != 0)
        out.push_back(region);
    }
    return out;
  }
  std::span<float> words(int rank, Region region, int call_idx) {
    const int copy = machine().band->copies[static_cast<size_t>(call_idx)][static_cast<size_t>(region)];
    return machine().ranks[static_cast<size_t>(rank)].regions->words(region, copy);
  }
  // What the reference put, and kPoison where it put nothing. (Some regions are filled by several calls of a step and
  // keep what they have.)
  std::vector<Contents> run_reference(int call_idx) {
    std::vector<Contents> kept(machine().ranks.size());
    for (int rank = 0; rank < options_.tp; ++rank) {
      for (const Region region : written_by(call_idx)) {
        const std::span<float> all = words(rank, region, call_idx);
        kept[static_cast<size_t>(rank)][region].assign(all.begin(), all.end());
        std::fill(all.begin(), all.end(), kPoison);
      }
    }
    const Status ran = backend_->run({call_idx, call_idx + 1});
    EXPECT_TRUE(ran.ok()) << ran.error().message();
    std::vector<Contents> put(kept.size());
    for (int rank = 0; rank < options_.tp; ++rank) {
      for (const auto& [region, before] : kept[static_cast<size_t>(rank)]) {
        const std::span<float> all = words(rank, region, call_idx);
        put[static_cast<size_t>(rank)][region].assign(all.begin(), all.end());
        for (size_t idx = 0; idx < all.size(); ++idx) {
          if (same_bits(all[idx], kPoison)) all[idx] = before[idx];
        }
      }
    }
    return put;
  }

  // The same of the device's ranks: what carries the call's tag, in the own arena or pushed from another.
  std::vector<Contents> put_by_gpu(int call_idx) {
    std::vector<Contents> out(machine().ranks.size());
    const uint32_t tag = machine().plan().tag(machine().inputs->epoch, call_idx);
    for (int from = 0; from < options_.tp; ++from) {
      for (const Region region : written_by(call_idx)) {
        const int copy = machine().band->copies[static_cast<size_t>(call_idx)][static_cast<size_t>(region)];
        std::vector<uint64_t> pairs;
        EXPECT_TRUE(mirror_->rank(from).read_region(region, copy, pairs).ok());
        for (int rank = 0; rank < options_.tp; ++rank) {
          if (rank != from && program::decl(region).scope != program::Scope::kAllRanks) continue;
          std::vector<float>& to = out[static_cast<size_t>(rank)][region];
          to.resize(words(rank, region, call_idx).size(), kPoison);
          take_tagged(region, pairs, tag, to);
        }
      }
    }
    return out;
  }
  static void take_tagged(Region region, const std::vector<uint64_t>& pairs, uint32_t tag, std::vector<float>& to) {
    const bool halves = program::decl(region).word == program::Word::kBF16;
    for (size_t idx = 0; idx < pairs.size(); ++idx) {
      if (static_cast<uint32_t>(pairs[idx] >> 32) != tag) continue;
      const auto value = static_cast<uint32_t>(pairs[idx]);
      if (!halves) {
        to[idx] = std::bit_cast<float>(value);
        continue;
      }
      to[2 * idx] = bf16_value(static_cast<uint16_t>(value));
      if (2 * idx + 1 < to.size()) to[2 * idx + 1] = bf16_value(static_cast<uint16_t>(value >> 16));
    }
  }

  std::vector<kv::Pools> pools() {
    std::vector<kv::Pools> out;
    for (const cpu::RankState& rank : machine().ranks) out.push_back(*rank.pools);
    return out;
  }

  static bool writes_pools(program::Stage stage) {
    return stage == program::Stage::kEngramRows || stage == program::Stage::kKvNew ||
           stage == program::Stage::kContextNew;
  }

  void compare_call(int call_idx) {
    if (options_.pools_at_every_call || writes_pools(machine().program().calls[static_cast<size_t>(call_idx)].stage)) {
      compare_call_with_pools(call_idx);
      return;
    }
    const std::vector<Contents> found = run_gpu(call_idx);
    if (!testing::Test::HasFatalFailure()) compare_regions(call_idx, run_reference(call_idx), found);
  }

  std::vector<Contents> run_gpu(int call_idx) {
    const Status ran = mirror_->run(machine(), {call_idx, call_idx + 1});
    if (!ran.ok()) give_up(cpu::call_name(machine().program(), call_idx) + ": " + ran.error().message());
    return put_by_gpu(call_idx);
  }
  static void give_up(const std::string& text) { FAIL() << text; }

  void compare_call_with_pools(int call_idx) {
    const std::vector<kv::Pools> before = pools();
    for (int rank = 0; rank < options_.tp; ++rank)
      ASSERT_TRUE(mirror_->rank(rank).write_pools(before[static_cast<size_t>(rank)]).ok());
    const std::vector<Contents> found = run_gpu(call_idx);
    std::vector<kv::Pools> gpu_pools = before;
    for (size_t rank = 0; rank < before.size(); ++rank) {
      ASSERT_TRUE(mirror_->rank(static_cast<int>(rank)).read_pools(gpu_pools[rank]).ok());
      *machine().ranks[rank].pools = before[rank];
    }
    compare_regions(call_idx, run_reference(call_idx), found);
    for (size_t rank = 0; rank < before.size(); ++rank) {
      const std::string place = place_of(call_idx, rank);
      const kv::Pools& reference = *machine().ranks[rank].pools;
      EXPECT_EQ(first_difference_of(reference.pages, gpu_pools[rank].pages), -1) << place << ": pages";
      EXPECT_EQ(first_difference_of(reference.slots, gpu_pools[rank].slots), -1) << place << ": slots";
    }
  }

  std::string place_of(int call_idx, size_t rank) {
    return cpu::call_name(machine().program(), call_idx) + " on rank " + std::to_string(rank);
  }

  void compare_regions(int call_idx, const std::vector<Contents>& wanted, const std::vector<Contents>& found) {
    for (size_t rank = 0; rank < wanted.size(); ++rank) {
      for (const auto& [region, words_wanted] : wanted[rank])
        compare(region, words_wanted, found[rank].at(region), place_of(call_idx, rank));
    }
  }

  void compare(Region region, const std::vector<float>& wanted, const std::vector<float>& found,
               const std::string& place) {
    const Comparison comparison = compare_region(machine().layout(), region, wanted, found);
    EXPECT_EQ(comparison.text, "") << place;
    Worst& worst = worst_[cpu::region_name(region)];
    worst.ratio = std::max(worst.ratio, comparison.ratio);
    worst.differing += comparison.differing;
    worst.live += comparison.live;
  }

  static int64_t first_difference_of(const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
    const auto at = std::mismatch(a.begin(), a.end(), b.begin());
    return at.first == a.end() ? -1 : at.first - a.begin();
  }

  HarnessOptions options_;
  std::unique_ptr<EmulatedDevice> emulator_;  // where no device was given
  int pages_of_slot_ = 0;
  std::unique_ptr<cpu::CpuBackend> backend_;
  std::unique_ptr<apps::GpuMirror> mirror_;
  std::vector<int32_t> pages_;              // [slots][pages of a slot]
  std::vector<bool> cleared_;               // [slots]
  std::vector<int> ends_;                   // [slots] committed positions
  std::vector<std::vector<int32_t>> next_;  // [slots] ids that the next step begins with
  std::vector<float> image_values_;         // of the step
  program::StepOutputs outputs_;
  std::map<std::string, Worst> worst_;
};

}  // namespace monostep::gpu
