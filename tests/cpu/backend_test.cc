// The CPU backend as the engine sees it: bits do not depend on chunks, company or CTAs, dead rows and foreign memory
// stay untouched, tensor-parallel sizes agree, and what cannot be served is refused by name.
#include "cpu/backend.h"

#include <cmath>
#include <functional>

#include "base/numeric.h"
#include "tiny_models.h"

namespace monostep::cpu {
namespace {

using program::Region;
using program::Stage;

TEST(CpuBackend, tensor_parallel_sizes_that_do_not_divide_are_refused_by_name) {
  const auto refusal = [](const weights::Checkpoint& checkpoint, int tp) {
    CpuOptions options = small_options();
    options.tp = tp;
    const auto made = CpuBackend::make(checkpoint, options);
    return made.ok() ? std::string("made") : made.error().message();
  };
  EXPECT_NE(refusal(micro(), 4).find("o_groups = 2"), std::string::npos) << refusal(micro(), 4);
  EXPECT_NE(refusal(micro(), 8).find("num_attention_heads = 4"), std::string::npos) << refusal(micro(), 8);
  for (const int tp : {0, 3, 16}) EXPECT_NE(refusal(micro(), tp).find(std::to_string(tp)), std::string::npos);
  for (const int tp : {1, 2}) EXPECT_EQ(refusal(micro(), tp), "made");
  EXPECT_EQ(refusal(eight_ranks(), 8), "made");
}

TEST(CpuBackend, steps_that_it_cannot_serve_are_refused_by_name) {
  const auto backend = made_backend(micro(), small_options());
  const auto refusal = [&](auto&& change) {
    program::StepInputs inputs = step_of({{0, prompt(4)}, {1, prompt(3)}});
    change(inputs);
    const auto ticket = backend->decode(inputs);
    EXPECT_FALSE(ticket.ok());
    return ticket.ok() ? std::string() : ticket.error().message();
  };
  using Inputs = program::StepInputs;
  const std::vector<std::pair<std::string, std::function<void(Inputs&)>>> cases = {
      {"between 1 and 8 requests", [](Inputs& in) { in.requests.clear(); }},
      {"between 1 and 8 requests", [](Inputs& in) { in.requests.resize(9); }},
      {"between 1 and 48 rows", [](Inputs& in) { in.rows.resize(49); }},
      {"follow each other", [](Inputs& in) { in.requests[1].first_row = 5; }},
      {"follow each other", [](Inputs& in) { in.requests[1].num_rows = 0; }},
      {"position 128", [](Inputs& in) { in.requests[0].first_position = 125; }},
      {"position", [](Inputs& in) { in.requests[0].first_position = -1; }},
      {"state slot", [](Inputs& in) { in.requests[0].state_slot = kSlots; }},
      {"state slot", [](Inputs& in) { in.requests[0].state_slot = -1; }},
      {"page table", [](Inputs& in) { in.requests[0].pages = {}; }},
      {"too many drafts", [](Inputs& in) { in.requests[0].num_drafts = 4; }},
      {"a draft needs", [](Inputs& in) { in.requests[0].context = false; }},
      {"belong to no request", [](Inputs& in) { in.rows.push_back({}); }},
      {"token 128", [](Inputs& in) { in.rows[2].token = 128; }},
      {"token -1", [](Inputs& in) { in.rows[2].token = -1; }},
  };
  for (const auto& [words, change] : cases) {
    const std::string text = refusal(change);
    EXPECT_NE(text.find(words), std::string::npos) << text;
  }
  const std::vector<int32_t> foreign = {1000, 1000};
  EXPECT_NE(refusal([&](Inputs& in) { in.requests[0].pages = foreign; }).find("no such page"), std::string::npos);
  decode(*backend, {{0, prompt(4)}, {1, prompt(3)}});  // still serves
}

TEST(CpuBackend, only_the_latest_step_can_be_waited_for) {
  const auto backend = made_backend(micro(), small_options());
  const auto first = backend->decode(step_of({{0, prompt(2)}})).value();
  const auto second = backend->decode(step_of({{0, prompt(1), 2}})).value();
  EXPECT_FALSE(backend->wait(first).ok());
  EXPECT_TRUE(backend->wait(second).ok());
}

// Lengths: odd and even, past the ring of 16, past 8 selected groups at both ratios, past the 16 candidate groups.
TEST(CpuBackend, chunks_of_a_prompt_do_not_change_any_bit) {
  const auto backend = made_backend(micro(), small_options());
  for (const int length : {40, 41}) {
    const State whole = prefill(*backend, 0, prompt(length), 48);
    for (const int chunk : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16}) {
      backend->clear_slot(1);
      EXPECT_EQ(first_difference(prefill(*backend, 1, prompt(length), chunk), whole), "") << length << " in " << chunk;
    }
  }
}

TEST(CpuBackend, chunks_of_a_long_prompt_do_not_change_any_bit) {
  const auto backend = made_backend(micro(), small_options());
  for (const int length : {96, 97}) {
    const State whole = prefill(*backend, 0, prompt(length), 48);
    for (const int chunk : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16}) {
      EXPECT_EQ(first_difference(prefill(*backend, 1, prompt(length), chunk), whole), "") << length << " in " << chunk;
    }
  }
}

TEST(CpuBackend, the_chunk_comparison_sees_one_other_token) {  // positive control
  const auto backend = made_backend(micro(), small_options());
  std::vector<int32_t> other = prompt(20);
  const State whole = prefill(*backend, 0, other, 48);
  other[3] ^= 1;
  EXPECT_NE(first_difference(prefill(*backend, 1, other, 48), whole), "");
}

// Prompts of other lengths, decoding requests with drafts, and the request itself, in one step.
std::vector<Part> company_of(const Part& part) {
  std::vector<Part> parts;
  for (const int slot : {1, 2, 3}) {
    Part other{slot, prompt(2 + slot * 2, slot)};
    other.draft = slot != 2;
    other.sampling.temperature = slot == 3 ? 1.0f : 0.0f;
    parts.push_back(other);
  }
  parts.push_back(part);
  for (const int slot : {4, 5, 6, 7}) {
    Part other{slot, prompt(slot == 5 ? 1 : 4, slot), 10 + slot};
    other.num_drafts = slot == 5 ? 0 : 2;
    other.draft = slot != 6;
    parts.push_back(other);
  }
  return parts;
}

void fill_company(CpuBackend& backend) {
  for (const int slot : {4, 5, 6, 7}) prefill(backend, slot, prompt(10 + slot, slot), 48);
}

TEST(CpuBackend, seven_others_of_other_lengths_do_not_change_a_request) {
  for (const int length : {1, 6, 11}) {
    const auto alone = made_backend(micro(), small_options());
    const auto busy = made_backend(micro(), small_options());
    prefill(*alone, 0, prompt(33), 48);
    prefill(*busy, 0, prompt(33), 48);
    fill_company(*busy);
    Part part{0, prompt(length, 9), 33};
    part.num_drafts = length == 6 ? 5 : 0;
    const State wanted = step_states(*alone, {part}).front();
    EXPECT_EQ(first_difference(step_states(*busy, company_of(part))[3], wanted), "") << length;
  }
}

TEST(CpuBackend, a_full_step_of_48_rows_gives_each_request_its_own_bits) {
  const auto busy = made_backend(micro(), small_options());
  std::vector<Part> parts;
  for (int slot = 0; slot < kSlots; ++slot) {
    prefill(*busy, slot, prompt(20 + slot, slot), 48);
    parts.push_back({slot, prompt(6, slot + 20), 20 + slot, 5});
  }
  const std::vector<State> together = step_states(*busy, parts);
  for (const int slot : {0, 3, 7}) {
    const auto alone = made_backend(micro(), small_options());
    prefill(*alone, slot, prompt(20 + slot, slot), 48);
    const Part& part = parts[static_cast<size_t>(slot)];
    EXPECT_EQ(first_difference(step_states(*alone, {part}).front(), together[static_cast<size_t>(slot)]), "") << slot;
  }
}

// Offsets of a pool's bytes that a step may write: records of the step's positions.
std::vector<bool> writable_slot_bytes(const kv::SlotLayout& layout, const model::Geometry& g, int first, int count) {
  std::vector<bool> out(static_cast<size_t>(layout.slot_bytes()));
  const auto mark = [&](int64_t offset, int64_t bytes) { std::fill_n(out.begin() + offset, bytes, true); };
  for (int position = first; position < first + count; ++position) {
    for (int layer_idx = 0; layer_idx < g.num_layers(); ++layer_idx) {
      mark(layout.ring_offset(layer_idx, position), model::window_record_bytes(g));
    }
    mark(layout.class_offset(position), 4);
    // Of micro's KV sources the first alone has ratio 2.
    if (position % 2 == 0) mark(layout.pending_offset(0, position), int64_t{8} * g.head_dim);
  }
  return out;
}

std::vector<bool> writable_page_bytes(const kv::PageLayout& layout, const model::Geometry& g, int first, int count) {
  std::vector<bool> out(static_cast<size_t>(layout.page_bytes()));  // of the first page of a slot
  for (int owner_idx = 0; owner_idx < static_cast<int>(g.kv_source_layer_ids.size()); ++owner_idx) {
    const int ratio = g.compress_ratios[static_cast<size_t>(g.kv_source_layer_ids[static_cast<size_t>(owner_idx)])];
    for (int group = first / ratio; group < (first + count) / ratio; ++group) {
      std::fill_n(out.begin() + layout.compressed_offset(owner_idx, group), model::compressed_record_bytes(g), true);
      std::fill_n(out.begin() + layout.index_key_offset(owner_idx, group), model::index_record_bytes(g), true);
    }
  }
  return out;
}

int64_t num_foreign_writes(std::span<const std::byte> bytes, const std::vector<bool>& writable) {
  int64_t count = 0;
  for (size_t idx = 0; idx < bytes.size(); ++idx) count += bytes[idx] != std::byte{0xa5} && !writable[idx];
  return count;
}

TEST(CpuBackend, dead_rows_and_padding_write_nothing) {
  CpuOptions options = small_options();
  options.ctas = 3;
  const auto backend = made_backend(micro(), options);
  kv::Pools& pools = *backend->machine().ranks[0].pools;
  std::fill(pools.pages.begin(), pools.pages.end(), std::byte{0xa5});
  std::fill(pools.slots.begin(), pools.slots.end(), std::byte{0xa5});
  const int count = 11;  // of a band of 16; five other requests are padding
  decode(*backend, {{2, prompt(count)}, {5, prompt(2)}});
  const model::Geometry& g = micro().geometry();
  const std::vector<bool> nothing(
      static_cast<size_t>(std::max(pools.page_layout.page_bytes(), pools.slot_layout.slot_bytes())));
  for (int slot = 0; slot < kSlots; ++slot) {
    const int rows = slot == 2 ? count : slot == 5 ? 2 : 0;
    const auto bytes = std::span(pools.slot(slot), static_cast<size_t>(pools.slot_layout.slot_bytes()));
    EXPECT_EQ(num_foreign_writes(bytes, writable_slot_bytes(pools.slot_layout, g, 0, rows)), 0) << "slot " << slot;
    EXPECT_EQ(num_foreign_writes(bytes, nothing) > 0, rows > 0) << "slot " << slot;  // the comparison sees the writes
  }
  for (int page = 0; page < options.num_pages; ++page) {
    const int rows = page == pages_of(2)[0] ? count : page == pages_of(5)[0] ? 2 : 0;
    const auto bytes = std::span(pools.page(page), static_cast<size_t>(pools.page_layout.page_bytes()));
    EXPECT_EQ(num_foreign_writes(bytes, writable_page_bytes(pools.page_layout, g, 0, rows)), 0) << "page " << page;
    EXPECT_EQ(num_foreign_writes(bytes, nothing) > 0, rows > 0) << "page " << page;
  }
}

TEST(CpuBackend, a_request_without_context_leaves_its_draft_rings_alone) {
  const auto backend = made_backend(micro(), small_options());
  kv::Pools& pools = *backend->machine().ranks[0].pools;
  std::fill(pools.slots.begin(), pools.slots.end(), std::byte{0xa5});
  Part plain{0, prompt(5)};
  plain.context = plain.draft = false;
  decode(*backend, {plain, {1, prompt(5)}});
  const int draft_layer = micro().geometry().num_hidden_layers;
  const auto first_byte = [&](int slot, int layer_idx) {
    return bytes_at(pools.slot(slot) + pools.slot_layout.ring_offset(layer_idx, 4), 32);
  };
  const std::string poison(32, '\xa5');
  EXPECT_EQ(first_byte(0, draft_layer), poison);
  EXPECT_NE(first_byte(0, draft_layer - 1), poison);
  EXPECT_NE(first_byte(1, draft_layer), poison);
}

TEST(CpuBackend, what_a_slot_held_before_does_not_matter) {
  const auto backend = made_backend(micro(), small_options());
  kv::Pools& pools = *backend->machine().ranks[0].pools;
  const State clean = prefill(*backend, 0, prompt(21), 5);
  std::fill(pools.pages.begin(), pools.pages.end(), std::byte{0xa5});
  std::fill(pools.slots.begin(), pools.slots.end(), std::byte{0xa5});
  EXPECT_EQ(first_difference(prefill(*backend, 0, prompt(21), 5), clean), "");
}

TEST(CpuBackend, clearing_a_slot_touches_that_slot_alone_on_every_rank) {
  CpuOptions options = small_options();
  options.tp = 2;
  const auto backend = made_backend(micro(), options);
  for (RankState& rank : backend->machine().ranks)
    std::fill(rank.pools->slots.begin(), rank.pools->slots.end(), std::byte{0xa5});
  backend->clear_slot(3);
  for (RankState& rank : backend->machine().ranks) {
    const auto slot_bytes = static_cast<size_t>(rank.pools->slot_layout.slot_bytes());
    for (int slot = 0; slot < kSlots; ++slot) {
      EXPECT_EQ(bytes_at(rank.pools->slot(slot), static_cast<int64_t>(slot_bytes)),
                std::string(slot_bytes, slot == 3 ? '\0' : '\xa5'));
    }
  }
}

TEST(CpuBackend, every_rank_holds_the_same_caches) {
  CpuOptions options = small_options();
  options.tp = 2;
  const auto backend = made_backend(micro(), options);
  prefill(*backend, 0, prompt(41), 16);
  EXPECT_EQ(first_difference(state_of(*backend, 0, 41, 0), state_of(*backend, 0, 41, 1)), "");
}

struct RowTrace {
  std::vector<float> logits;
  std::vector<std::vector<float>> streams;  // behind each of the first two layers
  std::vector<int> experts;                 // of the first layer
};

std::vector<RowTrace> traced_rows(const weights::Checkpoint& checkpoint, int tp, int count) {
  CpuOptions options = small_options();
  options.tp = tp;
  const auto backend = made_backend(checkpoint, options);
  Part part{0, prompt(count)};
  EXPECT_TRUE(backend->begin_step(step_of({part})).ok());
  const program::Program& program = backend->machine().program();
  std::vector<RowTrace> rows(static_cast<size_t>(count));
  Probe probe(*backend);
  int done = 0;
  for (const int layer_idx : {0, 1}) {
    const int last = program.find(Stage::kExpertDown, layer_idx) + 1;
    EXPECT_TRUE(backend->run({done, last}).ok());
    done = last;
    for (int row = 0; row < count; ++row) {
      rows[static_cast<size_t>(row)].streams.push_back(probe.out_streams(layer_idx, row));
      if (layer_idx == 0) rows[static_cast<size_t>(row)].experts = probe.routing(0, row, false).experts;
    }
  }
  EXPECT_TRUE(backend->run({done, program.section_begin(program::Section::kContext)}).ok());
  for (int row = 0; row < count; ++row) rows[static_cast<size_t>(row)].logits = probe.logits(row);
  return rows;
}

double relative_error(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0;
  double norm = 0;
  for (size_t idx = 0; idx < a.size(); ++idx) {
    difference += std::pow(double{a[idx]} - double{b[idx]}, 2);
    norm += std::pow(double{b[idx]}, 2);
  }
  return std::sqrt(difference / norm);
}

// Sums of ranks are rounded once, so only fp32 order and activation codes near a tie differ. The first layers are
// compared closely; at the end a router choice near a tie may differ, so most rows must agree.
void expect_close(const weights::Checkpoint& checkpoint, int tp) {
  const int count = 20;
  const std::vector<RowTrace> one = traced_rows(checkpoint, 1, count);
  const std::vector<RowTrace> many = traced_rows(checkpoint, tp, count);
  int num_close = 0;
  int num_same_experts = 0;
  for (size_t row = 0; row < one.size(); ++row) {
    EXPECT_LT(relative_error(many[row].streams[0], one[row].streams[0]), 0.02) << row << " at TP " << tp;
    num_same_experts += many[row].experts == one[row].experts;
    num_close += relative_error(many[row].logits, one[row].logits) < 0.1;
  }
  EXPECT_GE(num_same_experts, count - 1) << "TP " << tp;
  EXPECT_GE(num_close, count * 3 / 4) << "TP " << tp;
}

TEST(CpuBackend, tensor_parallel_sizes_agree_within_rounding) {
  expect_close(micro(), 2);
  for (const int tp : {2, 4, 8}) expect_close(eight_ranks(), tp);
}

TEST(CpuBackend, a_runner_takes_every_call_of_a_step_and_changes_no_bit) {
  for (const bool checks : {false, true}) {
    CpuOptions options = small_options();
    options.tp = 2;
    options.checks = checks;
    const auto backend = made_backend(micro(), options);
    std::vector<int> num_runs(backend->machine().program().calls.size());
    backend->set_runner([&](Machine& machine, const CallRange& range) {
      for (int call_idx = range.first; call_idx < range.last; ++call_idx) ++num_runs[static_cast<size_t>(call_idx)];
      return checks ? run_calls_in_random_order(machine, range, 5) : run_calls(machine, range);
    });
    options.checks = false;
    const std::vector<State> wanted = step_states(*made_backend(micro(), options), {{0, prompt(9)}, {3, prompt(4, 2)}});
    EXPECT_EQ(first_difference(step_states(*backend, {{0, prompt(9)}, {3, prompt(4, 2)}}), wanted), "");
    EXPECT_EQ(num_runs, std::vector<int>(num_runs.size(), 1));
  }
}

// A device holds two of these values in a word.
TEST(CpuBackend, regions_of_bf16_values_hold_nothing_finer) {
  const auto backend = made_backend(micro(), small_options());
  prefill(*backend, 0, prompt(41), 16);
  Machine& machine = backend->machine();
  const auto all_rounded = [&](Region region, int copy) {
    return std::ranges::all_of(machine.ranks[0].regions->words(region, copy),
                               [](float word) { return word == round_bf16(word); });
  };
  for (int idx = 0; idx < program::kNumRegions; ++idx) {
    const auto region = static_cast<Region>(idx);
    for (int copy = 0; copy < machine.layout().num_copies(region); ++copy) {
      const bool bf16 = program::decl(region).word == program::Word::kBF16;
      EXPECT_TRUE(!bf16 || all_rounded(region, copy)) << program::decl(region).name;
    }
  }
  EXPECT_FALSE(all_rounded(Region::kLogits, 0));  // the comparison sees fp32 sums
}

TEST(CpuBackend, a_runners_error_is_the_steps_error) {
  const auto backend = made_backend(micro(), small_options());
  backend->set_runner([](Machine&, const CallRange&) -> Status { return Error{Code::kDeviceFailed, "no", "runner"}; });
  const auto ticket = backend->decode(step_of({{0, prompt(4)}}));
  ASSERT_FALSE(ticket.ok());
  EXPECT_EQ(ticket.error().code, Code::kDeviceFailed);
}

TEST(CpuBackend, sections_that_nobody_needs_are_left_out) {
  const auto backend = made_backend(micro(), small_options());
  Part part{0, prompt(4)};
  part.sample = part.draft = false;
  const program::StepOutputs quiet = decode(*backend, {part});
  EXPECT_TRUE(quiet.requests[0].tokens.empty());
  EXPECT_TRUE(quiet.requests[0].drafts.empty());
  part.first = 4;
  part.sample = true;
  const program::StepOutputs plain = decode(*backend, {part});
  EXPECT_EQ(plain.requests[0].tokens.size(), 1u);
  EXPECT_TRUE(plain.requests[0].drafts.empty());
}

}  // namespace
}  // namespace monostep::cpu
