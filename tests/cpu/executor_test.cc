// The executor: every legal order over simulated CTAs and ranks gives one result, and each fault - a lost put, a wrong
// tag, a push that stays on its rank, a wrong copy, a late CTA or rank - is reported by name or does no harm.
#include "cpu/executor.h"

#include "tiny_models.h"

namespace monostep::cpu {
namespace {

using program::Region;
using program::Section;
using program::Stage;

// Prompts of three lengths in one step, then a step that verifies drafts beside a prompt's next chunk.
std::vector<State> journey(CpuBackend& backend) {
  Part first{0, prompt(9, 1)};
  Part second{1, prompt(2, 2)};
  Part third{2, prompt(6, 3)};
  third.sample = third.draft = false;
  std::vector<State> states = step_states(backend, {first, second, third});
  Part verify{0, prompt(4, 4), 9};
  verify.num_drafts = 3;
  Part next{2, prompt(3, 5), 6};
  next.sampling = {.temperature = 1, .seed = 5};
  for (State& state : step_states(backend, {verify, next})) states.push_back(std::move(state));
  return states;
}

CpuOptions options_of(int tp, int ctas, bool checks, uint64_t seed = 0) {
  CpuOptions options = small_options();
  options.tp = tp;
  options.ctas = ctas;
  options.checks = checks;
  options.order_seed = seed;
  return options;
}

void expect_one_result(const weights::Checkpoint& checkpoint, int tp, const std::vector<int>& cta_counts,
                       int num_seeds) {
  const std::vector<State> wanted = journey(*made_backend(checkpoint, options_of(tp, 1, false)));
  for (const int ctas : cta_counts) {
    EXPECT_EQ(first_difference(journey(*made_backend(checkpoint, options_of(tp, ctas, false))), wanted), "")
        << "threads, TP " << tp << ", " << ctas << " CTAs";
    for (int seed = 1; seed <= num_seeds; ++seed) {
      const auto backend = made_backend(checkpoint, options_of(tp, ctas, true, static_cast<uint64_t>(seed * 100)));
      EXPECT_EQ(first_difference(journey(*backend), wanted), "")
          << "TP " << tp << ", " << ctas << " CTAs, seed " << seed;
    }
  }
}

TEST(Executor, every_order_and_cta_count_gives_the_same_bits_on_one_rank) {
  expect_one_result(micro(), 1, {1, 2, 3, 7}, 3);
}
TEST(Executor, every_order_and_cta_count_gives_the_same_bits_on_two_ranks) {
  expect_one_result(micro(), 2, {1, 2, 3}, 2);
}
TEST(Executor, every_order_gives_the_same_bits_on_four_ranks) { expect_one_result(eight_ranks(), 4, {1, 2}, 1); }
TEST(Executor, every_order_gives_the_same_bits_on_eight_ranks) { expect_one_result(eight_ranks(), 8, {1}, 1); }

// A short step on a machine with checks, with a change to the machine; gives the error's message, or "".
class Faulty {
 public:
  explicit Faulty(int tp = 1, int ctas = 2) : backend_(made_backend(micro(), options_of(tp, ctas, true, 7))) {}

  Machine& machine() { return backend_->machine(); }
  const program::Program& program() { return machine().program(); }
  int find(Stage stage, int layer) { return program().find(stage, layer); }

  template <typename Change>
  std::string run(const Change& change) {
    const program::StepInputs inputs = step_of({{0, prompt(3)}, {1, prompt(2, 1)}});
    EXPECT_TRUE(backend_->begin_step(inputs).ok());
    change(machine());
    const Status status = backend_->run({0, static_cast<int>(program().calls.size())});
    machine().fault = {};
    return status.ok() ? "" : status.error().message();
  }

 private:
  std::unique_ptr<CpuBackend> backend_;
};

uint32_t tag_of(Machine& machine, int call_idx) { return machine.plan().tag(machine.inputs->epoch, call_idx); }

// A region that the call puts and another one polls: its name must appear in a report about the call.
bool names_a_region_of(const program::Call& call, const std::string& text) {
  for (int idx = 0; idx < program::kNumRegions; ++idx) {
    const auto region = static_cast<Region>(idx);
    if ((call.writes & program::bit(region)) != 0 &&
        text.find("waits for " + region_name(region) + " granule 0,") != std::string::npos)
      return true;
  }
  return false;
}

// Granule 0 of the call is read by somebody: all calls but the step's last outputs.
bool is_awaited(const program::Call& call) { return call.stage != Stage::kDraftOut; }

TEST(Executor, each_dropped_put_is_reported_with_region_and_tags) {
  Faulty faulty;
  int num_reported = 0;
  for (int call_idx = 0; call_idx < static_cast<int>(faulty.program().calls.size()); ++call_idx) {
    const program::Call& call = faulty.program().calls[static_cast<size_t>(call_idx)];
    uint32_t wanted = 0;
    const std::string text = faulty.run([&](Machine& machine) {
      machine.fault.drop_put_call = call_idx;
      wanted = tag_of(machine, call_idx);
    });
    const std::string name = call_name(faulty.program(), call_idx);
    if (!is_awaited(call)) {
      EXPECT_EQ(text, "") << name;
      continue;
    }
    EXPECT_TRUE(names_a_region_of(call, text)) << name << ": " << text;
    EXPECT_NE(text.find("no progress"), std::string::npos) << name << ": " << text;
    EXPECT_NE(text.find("wanted tag " + std::to_string(wanted) + ", seen tag "), std::string::npos)
        << name << ": " << text;
    ++num_reported;
  }
  EXPECT_GT(num_reported, 100);
  EXPECT_EQ(faulty.run([](Machine&) {}), "");  // the machine is usable again
}

TEST(Executor, a_tag_of_another_step_is_reported_with_both_tags) {
  Faulty faulty;
  faulty.run([](Machine&) {});
  for (const auto& [stage, layer] : std::vector<std::pair<Stage, int>>{{Stage::kFold, 0},
                                                                       {Stage::kAttnMix, 2},
                                                                       {Stage::kKvNew, 3},
                                                                       {Stage::kExpertDown, 5},
                                                                       {Stage::kHead, -1},
                                                                       {Stage::kMarkov, 1}}) {
    const int call_idx = faulty.find(stage, layer);
    uint32_t wanted = 0;
    uint32_t seen = 0;
    const std::string text = faulty.run([&](Machine& machine) {
      machine.fault.wrong_tag_call = call_idx;
      wanted = tag_of(machine, call_idx);
      seen = machine.plan().tag(machine.inputs->epoch - 1, call_idx);
    });
    EXPECT_TRUE(names_a_region_of(faulty.program().calls[static_cast<size_t>(call_idx)], text)) << text;
    EXPECT_NE(text.find("wanted tag " + std::to_string(wanted) + ", seen tag " + std::to_string(seen)),
              std::string::npos)
        << text;
  }
}

TEST(Executor, a_push_that_stays_on_its_rank_is_reported) {
  Faulty faulty(2, 1);
  for (const auto& [stage, layer] : std::vector<std::pair<Stage, int>>{{Stage::kEngramKv, 0},
                                                                       {Stage::kWoB, 1},
                                                                       {Stage::kExpertDown, 4},
                                                                       {Stage::kHead, -1},
                                                                       {Stage::kSample, -1},
                                                                       {Stage::kMarkov, 0}}) {
    const int call_idx = faulty.find(stage, layer);
    const std::string text = faulty.run([&](Machine& machine) { machine.fault.rank_scope_call = call_idx; });
    const program::RegionSet writes = faulty.program().calls[static_cast<size_t>(call_idx)].writes;
    bool named = false;
    for (int idx = 0; idx < program::kNumRegions; ++idx) {
      const auto region = static_cast<Region>(idx);
      named = named || ((writes & program::bit(region)) != 0 &&
                        text.find("waits for " + region_name(region)) != std::string::npos);
    }
    EXPECT_TRUE(named) << call_name(faulty.program(), call_idx) << ": " << text;
  }
  EXPECT_EQ(faulty.run([](Machine&) {}), "");
}

TEST(Executor, every_region_that_crosses_ranks_is_needed_by_another_rank) {
  Faulty faulty(2, 1);
  for (int call_idx = 0; call_idx < static_cast<int>(faulty.program().calls.size()); ++call_idx) {
    bool crosses = false;
    for (int idx = 0; idx < program::kNumRegions; ++idx) {
      const auto region = static_cast<Region>(idx);
      const bool written = (faulty.program().calls[static_cast<size_t>(call_idx)].writes & program::bit(region)) != 0;
      crosses = crosses || (written && program::decl(region).scope == program::Scope::kAllRanks);
    }
    if (!crosses) continue;
    const std::string text = faulty.run([&](Machine& machine) { machine.fault.rank_scope_call = call_idx; });
    // The draft's logits are read where they were made; only the target's are needed on every rank.
    const program::Call& call = faulty.program().calls[static_cast<size_t>(call_idx)];
    const bool local = call.stage == Stage::kHead && call.section == Section::kDraft;
    EXPECT_EQ(text.empty(), local) << call_name(faulty.program(), call_idx) << ": " << text;
  }
}

TEST(Executor, a_cta_or_rank_that_is_always_last_does_not_change_a_bit) {
  for (const auto& [tp, ctas] : std::vector<std::pair<int, int>>{{1, 3}, {2, 1}, {2, 2}}) {
    const std::vector<State> wanted = journey(*made_backend(micro(), options_of(tp, 1, false)));
    for (int late = 0; late < tp * ctas; ++late) {
      const auto backend = made_backend(micro(), options_of(tp, ctas, true, 3));
      backend->machine().fault.late_cta = late;
      EXPECT_EQ(first_difference(journey(*backend), wanted), "")
          << "TP " << tp << ", worker " << late << " of " << ctas << " CTAs";
    }
  }
}

// Moves what `call_idx` writes in `region` into the copy of an earlier call's content, whose last reader is
// `reader_idx`.
void share_copy(Machine& machine, Region region, int call_idx, int earlier_idx, int reader_idx) {
  const auto idx = static_cast<size_t>(region);
  machine.band->copies[static_cast<size_t>(call_idx)][idx] =
      machine.band->copies[static_cast<size_t>(earlier_idx)][idx];
  machine.band->last_readers[static_cast<size_t>(call_idx)][idx] = reader_idx;
}

TEST(Executor, a_single_copy_where_two_are_needed_is_reported_as_an_overwrite) {
  {
    Faulty faulty;
    const int second = faulty.find(Stage::kEngramKv, 2);
    const std::string text = faulty.run([&](Machine& machine) {
      share_copy(machine, Region::kEngramKvOut, second, faulty.find(Stage::kEngramKv, 0), faulty.find(Stage::kFold, 0));
    });
    EXPECT_NE(text.find("engram_kv: engram_kv layer 2 overwrites what fold layer 0 has not read on rank 0 CTA "),
              std::string::npos)
        << text;
  }
  Faulty faulty;
  const int second = faulty.find(Stage::kMarkov, 1);
  const std::string text = faulty.run([&](Machine& machine) {
    share_copy(machine, Region::kMarkovTop, second, faulty.find(Stage::kMarkov, 0), faulty.find(Stage::kDraftOut, -1));
  });
  EXPECT_NE(text.find("markov_top: markov layer 1 overwrites what draft_out has not read"), std::string::npos) << text;
}

TEST(Executor, a_reader_that_looks_at_the_wrong_parity_is_reported) {
  Faulty faulty;
  const int reader = faulty.find(Stage::kAttnIn, 2);
  const int other = faulty.find(Stage::kFold, 3);
  uint32_t wanted = 0;
  const std::string text = faulty.run([&](Machine& machine) {
    machine.band->writers[static_cast<size_t>(reader)][static_cast<size_t>(Region::kAttnU)] = other;
    wanted = tag_of(machine, other);
  });
  EXPECT_NE(text.find("attn_in layer 2"), std::string::npos) << text;
  EXPECT_NE(text.find("waits for attn_u granule 0, wanted tag " + std::to_string(wanted)), std::string::npos) << text;
}

// The content of two layers before lies in the same copy: whether it is still there when the reader looks depends on
// the order.
TEST(Executor, a_reader_of_an_older_layers_content_never_passes_unseen) {
  const std::vector<State> wanted = journey(*made_backend(micro(), options_of(1, 1, false)));
  int num_reported = 0;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    const auto backend = made_backend(micro(), options_of(1, 3, true, seed * 100));
    EXPECT_TRUE(backend->begin_step(step_of({{0, prompt(9, 1)}})).ok());
    const program::Program& program = backend->machine().program();
    Band& band = *backend->machine().band;
    band.writers[static_cast<size_t>(program.find(Stage::kQNorm, 3))][static_cast<size_t>(Region::kAttnInPart)] =
        program.find(Stage::kAttnIn, 1);
    const Status status = backend->run({0, program.section_begin(Section::kContext)});
    if (!status.ok()) {
      EXPECT_NE(status.error().message().find("q_norm layer 3"), std::string::npos) << status.error().message();
      EXPECT_NE(status.error().message().find("attn_in_part"), std::string::npos) << status.error().message();
      ++num_reported;
      continue;
    }
    EXPECT_NE(bytes_of(Probe(*backend).logits(0)), wanted[0].at("logits 0"));
  }
  EXPECT_GT(num_reported, 0);
}

TEST(Executor, a_writer_that_puts_into_the_wrong_parity_is_reported) {
  Faulty faulty;
  // Layer 2's streams put into layer 1's copy, as if somebody behind them still had to read what lies there.
  const int writer = faulty.find(Stage::kFold, 2);
  const std::string text = faulty.run([&](Machine& machine) {
    share_copy(machine, Region::kStreams, writer, faulty.find(Stage::kFold, 1), faulty.find(Stage::kFfnFold, 2));
  });
  EXPECT_NE(text.find("streams: fold layer 2 overwrites what ffn_fold layer 2 has not read"), std::string::npos)
      << text;
}

// Not of the mixes: the calls before them on every CTA have waited for what they read.
TEST(Executor, a_call_that_does_not_wait_is_reported_by_name) {
  Faulty faulty;
  for (const Stage stage :
       {Stage::kFold, Stage::kQNorm, Stage::kQProj, Stage::kOSum, Stage::kWoB, Stage::kFfnFold, Stage::kExpertAct}) {
    const int call_idx = faulty.find(stage, 2);
    std::string text;  // an order in which nothing was late has nothing to report; each run takes another order
    for (int attempt = 0; attempt < 40 && text.empty(); ++attempt) {
      text = faulty.run([&](Machine& machine) { machine.fault.skip_poll_call = call_idx; });
    }
    EXPECT_NE(text.find("read before its put: " + call_name(faulty.program(), call_idx)), std::string::npos)
        << call_name(faulty.program(), call_idx) << ": " << text;
  }
}

TEST(Executor, a_step_after_a_fault_is_served) {
  const auto backend = made_backend(micro(), options_of(1, 2, true));
  backend->machine().fault.drop_put_call = 20;
  EXPECT_FALSE(backend->decode(step_of({{0, prompt(4)}})).ok());
  backend->machine().fault = {};
  const auto wanted = step_states(*made_backend(micro(), options_of(1, 1, false)), {{0, prompt(4)}});
  EXPECT_EQ(first_difference(step_states(*backend, {{0, prompt(4)}}), wanted), "");
}

}  // namespace
}  // namespace monostep::cpu
