// The contract holds for every known geometry, and each of its rules rejects a table or program that breaks it.
#include "program/contract.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "cases.h"

namespace monostep::program {
namespace {

Contract micro() { return Contract(geometry_named("micro")); }

RegionDecl& region(Contract& contract, Region which) { return contract.regions[static_cast<size_t>(which)]; }
StageDecl& stage(Contract& contract, Stage which) { return contract.stages[static_cast<size_t>(which)]; }
Call& call(Contract& contract, Stage which, int layer) {
  return contract.program.calls[static_cast<size_t>(contract.program.find(which, layer))];
}

// Some violation starts with `rule` and names everything in `words`.
testing::AssertionResult broken(const Contract& contract, const std::string& rule,
                                const std::vector<std::string>& words) {
  std::string all;
  for (const std::string& violation : check_contract(contract)) {
    const bool names_all = std::all_of(
        words.begin(), words.end(), [&](const std::string& word) { return violation.find(word) != std::string::npos; });
    if (violation.starts_with(rule + ":") && names_all) return testing::AssertionSuccess();
    all += violation + "\n";
  }
  return testing::AssertionFailure() << "no violation of \"" << rule << "\"; found:\n" << all;
}

TEST(Contract, holds_for_every_known_geometry) {
  for (const std::string& name : model::geometry_names()) {
    EXPECT_EQ(check_contract(Contract(geometry_named(name))), std::vector<std::string>()) << name;
  }
}

TEST(Contract, holds_without_draft_engram_and_candidates) {
  model::Geometry geometry = geometry_named("micro");
  geometry.compress_ratios.resize(static_cast<size_t>(geometry.num_hidden_layers));
  geometry.num_nextn_predict_layers = 0;
  geometry.dspark_target_layer_ids.clear();
  geometry.dspark_block_size = 0;
  geometry.engram_layer_ids.clear();
  geometry.candidate_source_layer_id = -1;
  EXPECT_EQ(check_contract(Contract(geometry)), std::vector<std::string>());
}

TEST(Contract, a_second_writer_stage_is_rejected) {
  Contract contract = micro();
  stage(contract, Stage::kAttnMix).writes |= bit(Region::kFfnMixOut);
  EXPECT_TRUE(broken(contract, "one writer", {"ffn_mix", "attn_mix"}));
}

TEST(Contract, a_region_given_to_another_writer_is_rejected) {
  Contract contract = micro();
  region(contract, Region::kAttnU).writer = Stage::kFfnFold;
  EXPECT_TRUE(broken(contract, "one writer", {"attn_u", "fold"}));
}

TEST(Contract, an_undeclared_read_is_rejected) {
  Contract contract = micro();
  call(contract, Stage::kWoB, 2).reads |= bit(Region::kStreams);
  EXPECT_TRUE(broken(contract, "declared reads", {"wo_b layer 2", "streams"}));
}

TEST(Contract, an_undeclared_write_is_rejected) {
  Contract contract = micro();
  call(contract, Stage::kWoB, 2).writes |= bit(Region::kStreams);
  EXPECT_TRUE(broken(contract, "declared writes", {"wo_b layer 2", "streams"}));
}

TEST(Contract, polling_all_of_a_region_that_is_not_read_is_rejected) {
  Contract contract = micro();
  stage(contract, Stage::kWoA).reads_all |= bit(Region::kLogits);
  EXPECT_TRUE(broken(contract, "declared reads", {"wo_a", "logits"}));
}

TEST(Contract, a_dropped_read_leaves_a_put_unread) {
  Contract contract = micro();
  call(contract, Stage::kFfnFold, 3).reads &= ~bit(Region::kAttnMixOut);
  EXPECT_TRUE(broken(contract, "every put is read", {"attn_mix layer 3"}));
}

TEST(Contract, a_dropped_write_leaves_its_reader_waiting) {
  Contract contract = micro();
  call(contract, Stage::kVerdict, -1).writes = 0;
  EXPECT_TRUE(broken(contract, "earlier writer", {"fold layer 6", "verdict"}));
}

TEST(Contract, a_wait_for_a_later_call_is_rejected) {
  Contract contract = micro();
  std::swap(call(contract, Stage::kAttnIn, 0), call(contract, Stage::kQNorm, 0));
  EXPECT_TRUE(broken(contract, "earlier writer", {"q_norm layer 0", "attn_in_part"}));
}

TEST(Contract, two_calls_in_the_wrong_order_read_another_layer) {
  Contract contract = micro();
  std::swap(call(contract, Stage::kAttnIn, 4), call(contract, Stage::kQNorm, 4));
  EXPECT_TRUE(broken(contract, "source", {"q_norm layer 4", "attn_in_part", "attn_in layer 3"}));
}

TEST(Contract, a_reading_two_layers_back_breaks_the_parity) {
  Contract contract = micro();
  call(contract, Stage::kExpertDown, 3).writes = 0;
  EXPECT_TRUE(broken(contract, "parity", {"fold layer 4", "ffn_exchange", "2 layers"}));
}

TEST(Contract, keys_must_come_from_their_owner) {
  Contract contract = micro();
  call(contract, Stage::kKvNew, 3).writes &= ~(bit(Region::kCompressedNew) | bit(Region::kIndexKeyNew));
  EXPECT_TRUE(broken(contract, "earlier writer", {"attend layer 4", "compressed_new"}));
  EXPECT_TRUE(broken(contract, "earlier writer", {"index_score layer 5", "index_key_new"}));
}

TEST(Contract, candidates_must_come_from_their_source) {
  Contract contract = micro();
  call(contract, Stage::kIndexSelect, 3).writes &= ~bit(Region::kCandidates);
  EXPECT_TRUE(broken(contract, "earlier writer", {"index_score layer 5", "candidates"}));
}

// The mHC mix and the FFN half both hold a layer's folds together. With their whole polls gone only the attention half
// does: two copies of the streams are still safe, one is not.
TEST(Contract, one_copy_is_overwritten_where_two_are_not) {
  Contract contract = micro();
  for (const Stage which : {Stage::kAttnMix, Stage::kFfnMix, Stage::kFold, Stage::kFfnFold, Stage::kEngramFold,
                            Stage::kHeadFold, Stage::kFfnIn, Stage::kExpertUp, Stage::kExpertDown}) {
    stage(contract, which).reads_all = 0;
  }
  EXPECT_EQ(check_contract(contract), std::vector<std::string>());
  region(contract, Region::kStreams).copies = Copies::kOne;
  EXPECT_TRUE(broken(contract, "overwrite before read", {"fold layer 1 writes region streams", "ffn_fold layer 0"}));
}

TEST(Contract, without_whole_polls_nothing_holds_an_overwrite_back) {
  Contract contract = micro();
  for (StageDecl& each : contract.stages) each.reads_all = 0;
  EXPECT_TRUE(broken(contract, "overwrite before read", {"fold layer 2 writes region streams", "ffn_fold layer 0"}));
  EXPECT_TRUE(broken(contract, "overwrite before read", {"attn_in layer 2 writes region attn_in_part", "layer 0"}));
}

// Polls of a part say nothing about the writer's other tasks: attention takes the head queries only, the score the
// index queries.
TEST(Contract, both_halves_of_the_queries_must_be_taken) {
  Contract contract = micro();
  region(contract, Region::kQPart).copies = Copies::kOne;
  region(contract, Region::kQIn).copies = Copies::kOne;
  EXPECT_EQ(check_contract(contract), std::vector<std::string>());
  call(contract, Stage::kIndexScore, 3).reads &= ~bit(Region::kQPart);
  EXPECT_TRUE(broken(contract, "overwrite before read", {"q_norm layer 4 writes region q_in", "q_proj layer 3"}));
}

TEST(Contract, copies_that_alternate_by_nothing_are_overwritten) {
  Contract contract = micro();
  region(contract, Region::kMarkovTop).copies = Copies::kOne;
  EXPECT_TRUE(broken(contract, "overwrite before read", {"markov position 1", "markov_top", "draft_out"}));
}

TEST(Contract, an_exchange_of_rank_scope_is_rejected) {
  for (const Region which : {Region::kAttnExchange, Region::kFfnExchange, Region::kEngramKvOut, Region::kLogits,
                             Region::kSampled, Region::kMarkovTop}) {
    Contract contract = micro();
    region(contract, which).scope = Scope::kRank;
    EXPECT_TRUE(broken(contract, "scope", {std::string(region(contract, which).name)}));
  }
}

TEST(Contract, two_pushes_without_an_exchange_between_them_are_rejected) {
  Contract contract = micro();
  region(contract, Region::kEngramKvOut).copies = Copies::kOne;  // both Engram layers push at the start of the step
  EXPECT_TRUE(broken(contract, "overwrite before read", {"engram_kv layer 2 writes region engram_kv", "layer 0"}));
}

TEST(Contract, looked_up_rows_must_come_before_their_linear_and_stay_until_it_is_done) {
  Contract contract = micro();
  call(contract, Stage::kEngramRows, 2).writes = 0;
  EXPECT_TRUE(broken(contract, "earlier writer", {"engram_kv layer 2", "engram_rows"}));
  contract = micro();
  region(contract, Region::kEngramRowsOut).copies = Copies::kOne;
  EXPECT_TRUE(broken(contract, "overwrite before read",
                     {"engram_rows layer 2 writes region engram_rows", "engram_kv layer 0"}));
}

// A step cut before its head ends with rank-local work: a fast rank's next step must not push where a slow one still
// reads.
TEST(Contract, a_push_of_the_next_step_must_follow_the_readers_on_all_ranks) {
  Contract contract = micro();
  region(contract, Region::kAttnExchange).copies = Copies::kOne;
  EXPECT_TRUE(broken(contract, "overwrite before read",
                     {"wo_b layer 0 writes region attn_exchange in the next step", "ffn_fold layer 5"}));
}

TEST(ContentsRead, main_proj_takes_all_taps_and_draft_out_all_positions) {
  const Contract contract = micro();
  const Program& program = contract.program;
  const std::vector<int> taps = contents_read(contract, Region::kTaps, program.find(Stage::kMainProj, -1));
  EXPECT_EQ(taps, (std::vector<int>{program.find(Stage::kFold, 3), program.find(Stage::kFold, 4),
                                    program.find(Stage::kFold, 5)}));
  EXPECT_EQ(contents_read(contract, Region::kMarkovTop, program.find(Stage::kDraftOut, -1)).size(), 5u);
  EXPECT_EQ(contents_read(contract, Region::kMarkovTop, program.find(Stage::kMarkov, 1)),
            std::vector<int>{program.find(Stage::kMarkov, 0)});
}

}  // namespace
}  // namespace monostep::program
