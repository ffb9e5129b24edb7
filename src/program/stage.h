// Stages and regions: the vocabulary of a decode step. A stage is a kind of work; a region is a hand-off area that
// crosses CTAs (and, where said, ranks). The two constexpr tables below are the contract: which stage may read and
// write which region. Stage contexts turn them into compile errors, the contract checker proves them over every
// flattened program.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace monostep::program {

enum class Stage : uint8_t {
  kEngramRows,  // looks up the table rows of a layer's Engram, each record once a rank; writes the class history
  kEngramKv,  // Engram rows -> wkv: keys and value of a layer's Engram; a rank computes its output rows, pushed to all
  kEngramFold,   // Engram layers: FFN exchange + streams -> streams before Engram, partial dots of the gates
  kFold,         // layer start: streams (after the FFN's expand, or after Engram), collapsed input, mHC partials, tap
  kAttnMix,      // finishes the mHC coefficients of the attention site (off the critical path)
  kAttnIn,       // wq_a | wkv | compressor wkv | compressor wgate | weights_proj
  kQNorm,        // query latents of a row: K slices summed, normed
  kQProj,        // wq_b | indexer wq_b
  kKvNew,        // window row, compressed row and index key of each row; writes rings, pages and pending rows
  kIndexScore,   // index scores of a request's rows over the visible groups
  kIndexSelect,  // top-k groups of a row, and the kept candidates at the candidate source
  kAttend,       // attention of an output group's heads over a part of a row's list of window and selected groups
  kAttnMerge,    // a head's parts and its sink added up, inverse RoPE
  kWoA,          // grouped output projection
  kOSum,         // some of a row's columns of wo_a: K slices summed
  kWoB,          // its second half; partial sums pushed to all ranks (exchange)
  kFfnFold,      // attention exchange + streams -> streams between the sites, collapsed input, mHC partials
  kFfnMix,       // finishes the mHC coefficients of the FFN site (off the critical path)
  kFfnIn,        // router | shared w1 | shared w3
  kExpertUp,     // routed w1 and w3 of the selected experts
  kExpertAct,    // gated activations of a row and expert slot: K slices summed
  kExpertDown,   // routed w2 ascending, then shared w2; partial sums pushed to all ranks (exchange)
  kHeadFold,     // last FFN exchange + streams -> collapsed hidden of the head
  kHead,         // vocabulary rows of a rank; the target's logits are pushed to all
  kSample,       // token of each row; rank 0's ids are pushed to all
  kVerdict,      // accepted drafts, emitted ids and next anchor of each request
  kMainProj,     // DSpark main_proj over the taps
  kContextProj,  // wkv of every draft layer over the projected taps
  kContextNew,   // context row of each draft layer; writes the draft rings
  kMarkov,       // one draft position: logits with the Markov bias, best of each tile pushed to all
  kDraftOut,     // draft ids and confidences of each request
};
inline constexpr int kNumStages = static_cast<int>(Stage::kDraftOut) + 1;

enum class Region : uint8_t {
  kEngramRowsOut,  // looked-up rows, dequantised
  kEngramKvOut,    // partial sums of engram.wkv
  kEngramStreams,  // streams before Engram
  kEngramDots,     // partial dot, |X|^2, |K|^2 of each gate
  kStreams,        // streams at the attention site
  kAttnU,          // collapsed input of the attention site, before the norm
  kAttnMixPart,    // partial mHC products of the attention site
  kAttnMixOut,     // pre, post, comb of the attention site
  kTaps,           // DSpark inputs
  kAttnInPart,     // partial sums of kAttnIn's linears
  kQIn,            // normed query latents
  kQPart,          // partial sums of kQProj's linears
  kWindowNew,      // window KV rows of this step
  kCompressedNew,  // compressed KV rows closed in this step
  kIndexKeyNew,    // index keys closed in this step
  kScores,         // index scores
  kTopk,           // selected groups, ascending, -1 behind
  kCandidates,     // kept candidate groups of groups, ascending, -1 behind
  kAttnPart,       // running maximum, sum and values of each part of a list
  kAttnOut,        // attention output of each head
  kOaPart,         // partial sums of wo_a
  kOIn,            // outputs of wo_a
  kAttnExchange,   // wo_b partial sums of every rank
  kFfnStreams,     // streams between the sites
  kFfnU,           // collapsed input of the FFN site, before the norm
  kFfnMixPart,     // partial mHC products of the FFN site
  kFfnMixOut,      // pre, post, comb of the FFN site
  kFfnInPart,      // partial sums of kFfnIn's linears
  kExpertPart,     // partial sums of w1 and w3 of each row's selected experts
  kExpertIn,       // gated activations of each row's selected experts and of the shared one
  kFfnExchange,    // expert and shared partial sums of every rank
  kHeadU,          // collapsed hidden before the final norm
  kLogits,         // logits
  kSampled,        // sampled id of each row
  kVerdictOut,     // verdict of each request
  kMainPart,       // partial sums of main_proj
  kContextPart,    // partial sums of the draft layers' wkv over the context
  kContextNewOut,  // context rows of this step
  kDraftLogits,    // logits with Markov bias
  kMarkovTop,      // best value and id of each vocabulary tile
  kDraft,          // draft ids and confidences
};
inline constexpr int kNumRegions = static_cast<int>(Region::kDraft) + 1;

// How a weight is stored; kFp8 and kFp4 come with E8M0 scales.
enum class Storage : uint8_t { kFp8, kFp4, kBf16, kF32 };

enum class Scope : uint8_t {
  kRank,
  kAllRanks
};  // who may read: the writer's rank, or every rank (pushed by the writer)
enum class Word : uint8_t { kF32, kBF16, kI32 };  // what a value is on the wire; the CPU reference holds all in 32 bits
// How two backends' contents are compared: equal bits, or within the golden bounds of the quantity the region feeds.
enum class Compare : uint8_t { kBits, kBound };
// Which copy of the region a call uses, so that a writer never overtakes a reader.
enum class Copies : uint8_t {
  kOne,          // written once a step (or once before its readers are done with the last content)
  kParity,       // two copies, by layer parity
  kOwner,        // one a KV source layer
  kIndexSource,  // one a index source layer
  kSection,      // two: target and draft
  kEngram,       // one an Engram layer
  kPosition,     // one a draft position
};

struct RegionDecl {
  Stage writer;
  Scope scope;
  Word word;
  Compare compare;
  Copies copies;
  std::string_view name;
};

using RegionSet = uint64_t;
constexpr RegionSet bit(Region region) { return RegionSet{1} << static_cast<int>(region); }
template <typename... Regions>
constexpr RegionSet set_of(Regions... regions) {
  return (RegionSet{0} | ... | bit(regions));
}

struct StageDecl {
  RegionSet reads;      // may poll, in some layer role
  RegionSet reads_all;  // of those: every task polls every granule (the others: only its own part)
  RegionSet writes;
  std::string_view name;
};

constexpr std::array<RegionDecl, kNumRegions> region_table() {
  std::array<RegionDecl, kNumRegions> t{};
  const auto set = [&t](Region region, RegionDecl decl) { t[static_cast<int>(region)] = decl; };
  using enum Region;
  using S = Stage;
  set(kEngramRowsOut, {S::kEngramRows, Scope::kRank, Word::kBF16, Compare::kBits, Copies::kEngram, "engram_rows"});
  set(kEngramKvOut, {S::kEngramKv, Scope::kAllRanks, Word::kF32, Compare::kBound, Copies::kEngram, "engram_kv"});
  set(kEngramStreams, {S::kEngramFold, Scope::kRank, Word::kBF16, Compare::kBound, Copies::kParity, "engram_streams"});
  set(kEngramDots, {S::kEngramFold, Scope::kRank, Word::kF32, Compare::kBound, Copies::kParity, "engram_dots"});
  set(kStreams, {S::kFold, Scope::kRank, Word::kBF16, Compare::kBound, Copies::kParity, "streams"});
  set(kAttnU, {S::kFold, Scope::kRank, Word::kBF16, Compare::kBound, Copies::kParity, "attn_u"});
  set(kAttnMixPart, {S::kFold, Scope::kRank, Word::kF32, Compare::kBound, Copies::kParity, "attn_mix_part"});
  set(kAttnMixOut, {S::kAttnMix, Scope::kRank, Word::kF32, Compare::kBound, Copies::kParity, "attn_mix"});
  set(kTaps, {S::kFold, Scope::kRank, Word::kBF16, Compare::kBound, Copies::kOne, "taps"});
  set(kAttnInPart, {S::kAttnIn, Scope::kRank, Word::kF32, Compare::kBound, Copies::kParity, "attn_in_part"});
  set(kQIn, {S::kQNorm, Scope::kRank, Word::kBF16, Compare::kBound, Copies::kParity, "q_in"});
  set(kQPart, {S::kQProj, Scope::kRank, Word::kF32, Compare::kBound, Copies::kParity, "q_part"});
  set(kWindowNew, {S::kKvNew, Scope::kRank, Word::kBF16, Compare::kBound, Copies::kParity, "window_new"});
  set(kCompressedNew, {S::kKvNew, Scope::kRank, Word::kBF16, Compare::kBound, Copies::kOwner, "compressed_new"});
  set(kIndexKeyNew, {S::kKvNew, Scope::kRank, Word::kBF16, Compare::kBound, Copies::kOwner, "index_key_new"});
  set(kScores, {S::kIndexScore, Scope::kRank, Word::kBF16, Compare::kBound, Copies::kOne, "scores"});
  set(kTopk, {S::kIndexSelect, Scope::kRank, Word::kI32, Compare::kBits, Copies::kIndexSource, "topk"});
  set(kCandidates, {S::kIndexSelect, Scope::kRank, Word::kI32, Compare::kBits, Copies::kOne, "candidates"});
  set(kAttnPart, {S::kAttend, Scope::kRank, Word::kF32, Compare::kBound, Copies::kOne, "attn_part"});
  set(kAttnOut, {S::kAttnMerge, Scope::kRank, Word::kBF16, Compare::kBound, Copies::kParity, "attn_out"});
  set(kOaPart, {S::kWoA, Scope::kRank, Word::kF32, Compare::kBound, Copies::kParity, "o_a_part"});
  set(kOIn, {S::kOSum, Scope::kRank, Word::kBF16, Compare::kBound, Copies::kParity, "o_in"});
  set(kAttnExchange, {S::kWoB, Scope::kAllRanks, Word::kF32, Compare::kBound, Copies::kParity, "attn_exchange"});
  set(kFfnStreams, {S::kFfnFold, Scope::kRank, Word::kBF16, Compare::kBound, Copies::kParity, "ffn_streams"});
  set(kFfnU, {S::kFfnFold, Scope::kRank, Word::kBF16, Compare::kBound, Copies::kParity, "ffn_u"});
  set(kFfnMixPart, {S::kFfnFold, Scope::kRank, Word::kF32, Compare::kBound, Copies::kParity, "ffn_mix_part"});
  set(kFfnMixOut, {S::kFfnMix, Scope::kRank, Word::kF32, Compare::kBound, Copies::kParity, "ffn_mix"});
  set(kFfnInPart, {S::kFfnIn, Scope::kRank, Word::kF32, Compare::kBound, Copies::kParity, "ffn_in_part"});
  set(kExpertPart, {S::kExpertUp, Scope::kRank, Word::kF32, Compare::kBound, Copies::kParity, "expert_part"});
  set(kExpertIn, {S::kExpertAct, Scope::kRank, Word::kBF16, Compare::kBound, Copies::kParity, "expert_in"});
  set(kFfnExchange, {S::kExpertDown, Scope::kAllRanks, Word::kF32, Compare::kBound, Copies::kParity, "ffn_exchange"});
  set(kHeadU, {S::kHeadFold, Scope::kRank, Word::kBF16, Compare::kBound, Copies::kSection, "head_u"});
  set(kLogits, {S::kHead, Scope::kAllRanks, Word::kF32, Compare::kBound, Copies::kSection, "logits"});
  set(kSampled, {S::kSample, Scope::kAllRanks, Word::kI32, Compare::kBits, Copies::kOne, "sampled"});
  set(kVerdictOut, {S::kVerdict, Scope::kRank, Word::kI32, Compare::kBits, Copies::kOne, "verdict"});
  set(kMainPart, {S::kMainProj, Scope::kRank, Word::kF32, Compare::kBound, Copies::kOne, "main_part"});
  set(kContextPart, {S::kContextProj, Scope::kRank, Word::kF32, Compare::kBound, Copies::kOne, "context_part"});
  set(kContextNewOut, {S::kContextNew, Scope::kRank, Word::kBF16, Compare::kBound, Copies::kOne, "context_new"});
  set(kDraftLogits, {S::kMarkov, Scope::kRank, Word::kF32, Compare::kBound, Copies::kPosition, "draft_logits"});
  set(kMarkovTop, {S::kMarkov, Scope::kAllRanks, Word::kF32, Compare::kBound, Copies::kPosition, "markov_top"});
  set(kDraft, {S::kDraftOut, Scope::kRank, Word::kI32, Compare::kBits, Copies::kOne, "draft"});
  return t;
}

constexpr std::array<StageDecl, kNumStages> stage_table() {
  std::array<StageDecl, kNumStages> t{};
  const auto set = [&t](Stage stage, StageDecl decl) { t[static_cast<int>(stage)] = decl; };
  using enum Region;
  using S = Stage;
  set(S::kEngramRows, {0, 0, set_of(kEngramRowsOut), "engram_rows"});
  set(S::kEngramKv, {set_of(kEngramRowsOut), 0, set_of(kEngramKvOut), "engram_kv"});
  set(S::kEngramFold, {set_of(kFfnExchange, kFfnStreams, kFfnMixOut, kEngramKvOut), set_of(kFfnMixOut),
                       set_of(kEngramStreams, kEngramDots), "engram_fold"});
  set(S::kFold, {set_of(kFfnExchange, kFfnStreams, kFfnMixOut, kEngramStreams, kEngramDots, kEngramKvOut, kVerdictOut),
                 set_of(kFfnMixOut, kEngramDots, kVerdictOut), set_of(kStreams, kAttnU, kAttnMixPart, kTaps), "fold"});
  set(S::kAttnMix, {set_of(kAttnMixPart), set_of(kAttnMixPart), set_of(kAttnMixOut), "attn_mix"});
  set(S::kAttnIn, {set_of(kAttnU), set_of(kAttnU), set_of(kAttnInPart), "attn_in"});
  set(S::kQNorm, {set_of(kAttnInPart), 0, set_of(kQIn), "q_norm"});
  set(S::kQProj, {set_of(kQIn), set_of(kQIn), set_of(kQPart), "q_proj"});
  set(S::kKvNew, {set_of(kAttnInPart, kVerdictOut), set_of(kAttnInPart),
                  set_of(kWindowNew, kCompressedNew, kIndexKeyNew), "kv_new"});
  set(S::kIndexScore,
      {set_of(kQPart, kAttnInPart, kIndexKeyNew, kCandidates), set_of(kIndexKeyNew), set_of(kScores), "index_score"});
  set(S::kIndexSelect, {set_of(kScores), 0, set_of(kTopk, kCandidates), "index_select"});
  set(S::kAttend,
      {set_of(kQPart, kWindowNew, kCompressedNew, kTopk, kContextNewOut, kVerdictOut), 0, set_of(kAttnPart), "attend"});
  set(S::kAttnMerge, {set_of(kAttnPart, kVerdictOut), 0, set_of(kAttnOut), "attn_merge"});
  set(S::kWoA, {set_of(kAttnOut), 0, set_of(kOaPart), "wo_a"});
  set(S::kOSum, {set_of(kOaPart), 0, set_of(kOIn), "o_sum"});
  set(S::kWoB, {set_of(kOIn), set_of(kOIn), set_of(kAttnExchange), "wo_b"});
  set(S::kFfnFold, {set_of(kAttnExchange, kStreams, kAttnMixOut), set_of(kAttnMixOut),
                    set_of(kFfnStreams, kFfnU, kFfnMixPart), "ffn_fold"});
  set(S::kFfnMix, {set_of(kFfnMixPart), set_of(kFfnMixPart), set_of(kFfnMixOut), "ffn_mix"});
  set(S::kFfnIn, {set_of(kFfnU), set_of(kFfnU), set_of(kFfnInPart), "ffn_in"});
  set(S::kExpertUp, {set_of(kFfnU, kFfnInPart), set_of(kFfnU), set_of(kExpertPart), "expert_up"});
  set(S::kExpertAct, {set_of(kFfnInPart, kExpertPart), 0, set_of(kExpertIn), "expert_act"});
  set(S::kExpertDown, {set_of(kFfnInPart, kExpertIn), set_of(kExpertIn), set_of(kFfnExchange), "expert_down"});
  set(S::kHeadFold, {set_of(kFfnExchange, kFfnStreams, kFfnMixOut), set_of(kFfnMixOut), set_of(kHeadU), "head_fold"});
  set(S::kHead, {set_of(kHeadU), set_of(kHeadU), set_of(kLogits), "head"});
  set(S::kSample, {set_of(kLogits), set_of(kLogits), set_of(kSampled), "sample"});
  set(S::kVerdict, {set_of(kSampled), set_of(kSampled), set_of(kVerdictOut), "verdict"});
  set(S::kMainProj, {set_of(kTaps), set_of(kTaps), set_of(kMainPart), "main_proj"});
  set(S::kContextProj, {set_of(kMainPart), set_of(kMainPart), set_of(kContextPart), "context_proj"});
  set(S::kContextNew, {set_of(kContextPart), 0, set_of(kContextNewOut), "context_new"});
  set(S::kMarkov, {set_of(kLogits, kMarkovTop, kVerdictOut), set_of(kMarkovTop, kVerdictOut),
                   set_of(kDraftLogits, kMarkovTop), "markov"});
  set(S::kDraftOut,
      {set_of(kMarkovTop, kHeadU, kVerdictOut), set_of(kMarkovTop, kHeadU, kVerdictOut), set_of(kDraft), "draft_out"});
  return t;
}

inline constexpr std::array<RegionDecl, kNumRegions> kRegions = region_table();
inline constexpr std::array<StageDecl, kNumStages> kStages = stage_table();

constexpr const RegionDecl& decl(Region region) { return kRegions[static_cast<int>(region)]; }
constexpr const StageDecl& decl(Stage stage) { return kStages[static_cast<int>(stage)]; }
constexpr bool may_read(Stage stage, Region region) { return (decl(stage).reads & bit(region)) != 0; }
constexpr bool may_write(Stage stage, Region region) { return (decl(stage).writes & bit(region)) != 0; }

}  // namespace monostep::program
