// Rules of the contract and the ordering proof behind "nothing is overwritten before its readers are done"
// (program/contract.h).
#include "program/contract.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

namespace monostep::program {
namespace {

using enum Region;

// Regions that every rank needs whole, though a rank writes its share only.
constexpr RegionSet kNeededFromAllRanks =
    set_of(kEngramKvOut, kAttnExchange, kFfnExchange, kLogits, kSampled, kMarkovTop);
// Of those: regions of which each reading task polls parts of every rank, so that it follows every rank's writers. (The
// rows of engram.wkv that a fold needs may lie on one rank; sampled ids come from rank 0.)
constexpr RegionSet kPolledFromEveryRank = set_of(kAttnExchange, kFfnExchange);
constexpr RegionSet kWholePolledFromEveryRank = set_of(kAttnExchange, kFfnExchange, kLogits, kMarkovTop);
// What the step gives back or keeps for a later look: no call needs to read it.
constexpr RegionSet kOutputs = set_of(kDraftLogits, kDraft, kVerdictOut);
// What the layer before left behind for the fold that follows.
constexpr RegionSet kCarried = set_of(kFfnExchange, kFfnStreams, kFfnMixOut);
// Polled by some tasks only (rows that closed a group, tokens of an accepted prefix): some granules may have no reader.
constexpr RegionSet kPolledBySome = set_of(kCompressedNew, kIndexKeyNew, kContextNewOut, kCandidates);
// A reader's task need not wait for any granule of these (no group is visible yet, so no score is made; a part of a
// list holds only window rows, or only selected groups).
constexpr RegionSet kMayPollNone = kPolledBySome | set_of(kScores, kWindowNew, kTopk);

bool has(RegionSet set, Region region) { return (set & bit(region)) != 0; }

// The parts of a writer's granules that all tasks of a reader together poll; kAllParts where no granule is left out. In
// index layers kQPart's first part is the attention's queries, the second the index queries. No part: nothing is known.
constexpr unsigned kAllParts = 3;
unsigned parts_polled(const Call& reader, const model::Role* role, Region region) {
  if (has(kPolledBySome, region)) return 0;
  const bool selects = role != nullptr && (role->mode == model::Mode::kFull || role->mode == model::Mode::kReindex);
  switch (reader.stage) {
    case Stage::kIndexScore:
      return region == kQPart ? 2 : region == kAttnInPart ? 0 : kAllParts;  // of the latter: head weights
    case Stage::kAttend: return region == kQPart && selects ? 1 : kAllParts;
    case Stage::kQNorm: return 0;  // wq_a only
    case Stage::kExpertUp:
    case Stage::kExpertDown: return region == kFfnInPart ? 0 : kAllParts;  // the router only
    case Stage::kEngramFold:
    case Stage::kFold: return region == kEngramKvOut ? 0 : kAllParts;  // keys only, value only
    default: return kAllParts;
  }
}

template <typename Visit>
void for_each_region(RegionSet set, Visit&& visit) {
  for (int region_idx = 0; region_idx < kNumRegions; ++region_idx) {
    const auto region = static_cast<Region>(region_idx);
    if (has(set, region)) visit(region);
  }
}

// One poll of a call: the region, the call whose content it takes, and how much of it.
struct Read {
  Region region;
  size_t writer;
  bool whole;      // every task polls every granule
  unsigned parts;  // parts that all tasks together poll
};

// A set of calls.
class CallSet {
 public:
  explicit CallSet(size_t num_calls) : words_((num_calls + 63) / 64) {}
  bool contains(size_t idx) const { return (words_[idx / 64] >> (idx % 64) & 1) != 0; }
  void add(size_t idx) { words_[idx / 64] |= uint64_t{1} << (idx % 64); }
  void add_all(const CallSet& other) {
    for (size_t word = 0; word < words_.size(); ++word) words_[word] |= other.words_[word];
  }

 private:
  std::vector<uint64_t> words_;
};

class Order;

class Checker {
 public:
  explicit Checker(const Contract& contract) : contract_(contract), calls_(contract.program.calls) {}

  std::vector<std::string> run() {
    check_tables();
    for (size_t call_idx = 0; call_idx < calls_.size(); ++call_idx) check_declared(call_idx);
    for (size_t call_idx = 0; call_idx < calls_.size(); ++call_idx) check_reads(call_idx);
    check_all_read();
    if (found_.empty()) check_overwrites();  // the proof builds on the reads being right
    return std::move(found_);
  }

 private:
  const RegionDecl& decl_of(Region region) const { return contract_.regions[static_cast<size_t>(region)]; }
  const StageDecl& decl_of(Stage stage) const { return contract_.stages[static_cast<size_t>(stage)]; }
  std::string name_of(size_t call_idx) const {
    const Call& call = calls_[call_idx];
    if (call.stage == Stage::kMarkov) return fmt::format("{} position {}", decl_of(call.stage).name, call.layer);
    if (call.layer < 0) return std::string(decl_of(call.stage).name);
    return fmt::format("{} layer {}", decl_of(call.stage).name, call.layer);
  }
  void violation(std::string text) {
    if (std::find(found_.begin(), found_.end(), text) == found_.end()) found_.push_back(std::move(text));
  }

  void check_tables();
  void check_declared(size_t call_idx);
  void check_reads(size_t call_idx);
  void check_source(size_t reader_idx, size_t writer_idx, Region region);
  void check_all_read();
  std::vector<std::vector<Read>> list_reads() const;
  void check_overwrites();
  void check_overwrites_behind(size_t cut, const Order& order,
                               const std::vector<std::vector<std::pair<size_t, Region>>>& readers);
  int wanted_layer(const Call& reader, const Call& writer, Region region) const;

  const Contract& contract_;
  const std::vector<Call>& calls_;
  std::vector<std::string> found_;
};

void Checker::check_tables() {
  for (int stage_idx = 0; stage_idx < kNumStages; ++stage_idx) {
    const auto stage = static_cast<Stage>(stage_idx);
    const StageDecl& stage_decl = decl_of(stage);
    for_each_region(stage_decl.writes, [&](Region region) {
      if (decl_of(region).writer == stage) return;
      violation(fmt::format("one writer: region {} belongs to stage {}, but stage {} declares a write",
                            decl_of(region).name, decl_of(decl_of(region).writer).name, stage_decl.name));
    });
    for_each_region(stage_decl.reads_all & ~stage_decl.reads, [&](Region region) {
      violation(fmt::format("declared reads: stage {} polls all of region {} without reading it", stage_decl.name,
                            decl_of(region).name));
    });
  }
  for_each_region(kNeededFromAllRanks, [&](Region region) {
    if (decl_of(region).scope == Scope::kAllRanks) return;
    violation(fmt::format("scope: region {} is read across ranks, but stage {} writes it for its own rank only",
                          decl_of(region).name, decl_of(decl_of(region).writer).name));
  });
}

void Checker::check_declared(size_t call_idx) {
  const Call& call = calls_[call_idx];
  for_each_region(call.reads & ~decl_of(call.stage).reads, [&](Region region) {
    violation(fmt::format("declared reads: {} reads region {}, which its stage does not declare", name_of(call_idx),
                          decl_of(region).name));
  });
  for_each_region(call.writes & ~decl_of(call.stage).writes, [&](Region region) {
    violation(fmt::format("declared writes: {} writes region {}, which its stage does not declare", name_of(call_idx),
                          decl_of(region).name));
  });
}

// The layer that must have written what a call reads; the role says so for what one layer makes for others. -2: any.
int Checker::wanted_layer(const Call& reader, const Call& writer, Region region) const {
  if (writer.layer < 0 || region == kTaps) return writer.layer < 0 ? -2 : writer.layer;
  if (reader.stage == Stage::kMarkov) return reader.layer - 1;
  if (reader.stage == Stage::kDraftOut && region == kMarkovTop) return writer.layer;
  if (reader.stage == Stage::kHeadFold) {
    const bool draft = reader.section == Section::kDraft;
    return (draft ? contract_.geometry.num_layers() : contract_.geometry.num_hidden_layers) - 1;
  }
  if (reader.layer < 0) return -2;
  const model::Role& role = contract_.program.roles[static_cast<size_t>(reader.layer)];
  switch (region) {
    case kCompressedNew:
    case kIndexKeyNew: return role.kv_owner;
    case kTopk: return role.index_source;
    case kCandidates: return role.candidates_from;
    default: return has(kCarried, region) ? reader.layer - 1 : reader.layer;
  }
}

void Checker::check_source(size_t reader_idx, size_t writer_idx, Region region) {
  const Call& writer = calls_[writer_idx];
  const int wanted = wanted_layer(calls_[reader_idx], writer, region);
  if (wanted == -2 || wanted == writer.layer) return;
  violation(fmt::format("source: {} reads region {} of layer {}, but the latest writer before it is {}",
                        name_of(reader_idx), decl_of(region).name, wanted, name_of(writer_idx)));
}

void Checker::check_reads(size_t call_idx) {
  for_each_region(calls_[call_idx].reads, [&](Region region) {
    const std::vector<int> writers = contents_read(contract_, region, static_cast<int>(call_idx));
    if (writers.empty()) {
      violation(fmt::format("earlier writer: {} waits for region {}, which no earlier call of its role writes",
                            name_of(call_idx), decl_of(region).name));
    }
    for (const int writer_idx : writers) {
      check_source(call_idx, static_cast<size_t>(writer_idx), region);
      const Call& writer = calls_[static_cast<size_t>(writer_idx)];
      const int distance = calls_[call_idx].layer - writer.layer;
      if (decl_of(region).copies == Copies::kParity && calls_[call_idx].layer >= 0 && (distance < 0 || distance > 1)) {
        violation(fmt::format("parity: {} reads region {} {} layers behind {}; two copies hold one layer's distance",
                              name_of(call_idx), decl_of(region).name, distance,
                              name_of(static_cast<size_t>(writer_idx))));
      }
    }
  });
}

void Checker::check_all_read() {
  std::vector<RegionSet> is_read(calls_.size());
  for (size_t call_idx = 0; call_idx < calls_.size(); ++call_idx) {
    for_each_region(calls_[call_idx].reads, [&](Region region) {
      for (const int writer_idx : contents_read(contract_, region, static_cast<int>(call_idx))) {
        is_read[static_cast<size_t>(writer_idx)] |= bit(region);
      }
    });
  }
  for (size_t call_idx = 0; call_idx < calls_.size(); ++call_idx) {
    for_each_region(calls_[call_idx].writes & ~is_read[call_idx] & ~kOutputs, [&](Region region) {
      violation(fmt::format("every put is read: {} writes region {}, which no later call reads", name_of(call_idx),
                            decl_of(region).name));
    });
  }
}

// Which tasks are known to be done when a call's tasks put: two steps in a row, the first cut at a launch boundary.
// same_rank_[B] holds the calls whose tasks on B's rank are all done before any task of B puts; every_rank_[B] those
// whose tasks are done on every rank. A task puts after its last poll, so
//   B polls a granule of C             -> B follows what C follows;
//   B polls every granule of C         -> B follows C;
//   B follows calls that together poll every granule of A -> B follows A;
//   B polls C's granules of every rank -> on every rank, B follows what C follows there.
class Order {
 public:
  Order(const Contract& contract, const std::vector<std::vector<Read>>& reads, size_t first_calls)
      : contract_(contract), reads_(reads), first_calls_(first_calls), num_calls_(first_calls + reads.size()) {
    same_rank_.assign(num_calls_, CallSet(num_calls_));
    every_rank_.assign(num_calls_, CallSet(num_calls_));
    for (size_t idx = 0; idx < num_calls_; ++idx) follow(idx);
  }

  size_t size() const { return num_calls_; }
  size_t call_of(size_t idx) const { return idx < first_calls_ ? idx : idx - first_calls_; }
  size_t step_begin(size_t idx) const { return idx < first_calls_ ? 0 : first_calls_; }
  bool follows(size_t later, size_t earlier, Scope scope) const {
    return (scope == Scope::kRank ? same_rank_ : every_rank_)[later].contains(earlier);
  }

 private:
  void follow(size_t idx);
  void follow_writer(size_t idx, const Read& read);
  void close(CallSet& done, size_t begin, size_t end) const;

  const Contract& contract_;
  const std::vector<std::vector<Read>>& reads_;
  size_t first_calls_;
  size_t num_calls_;
  std::vector<CallSet> same_rank_;
  std::vector<CallSet> every_rank_;
};

void Order::follow_writer(size_t idx, const Read& read) {
  if (!read.whole && has(kMayPollNone, read.region)) return;
  const size_t writer = step_begin(idx) + read.writer;
  CallSet done = same_rank_[writer];
  if (read.whole) done.add(writer);
  same_rank_[idx].add_all(done);
  every_rank_[idx].add_all(every_rank_[writer]);
  const bool pushed = contract_.regions[static_cast<size_t>(read.region)].scope == Scope::kAllRanks;
  const RegionSet from_every_rank = read.whole ? kWholePolledFromEveryRank : kPolledFromEveryRank;
  if (pushed && has(from_every_rank, read.region)) every_rank_[idx].add_all(done);
}

// Adds the calls whose every granule was polled by calls of the set; writers come before readers, so one pass backwards
// is enough.
void Order::close(CallSet& done, size_t begin, size_t end) const {
  std::vector<unsigned> polled(end - begin);
  for (size_t reader = end; reader-- > begin;) {
    if (polled[reader - begin] == kAllParts) done.add(reader);
    if (!done.contains(reader)) continue;
    for (const Read& read : reads_[call_of(reader)]) {
      polled[step_begin(reader) + read.writer - begin] |= read.whole ? kAllParts : read.parts;
    }
  }
}

void Order::follow(size_t idx) {
  const size_t begin = step_begin(idx);
  for (const Read& read : reads_[call_of(idx)]) follow_writer(idx, read);
  for (size_t earlier = 0; earlier < begin; ++earlier) {  // the launch boundary: the step before is over on this rank
    same_rank_[idx].add(earlier);
    every_rank_[idx].add_all(every_rank_[earlier]);
  }
  close(same_rank_[idx], begin, idx);
  for (size_t earlier = begin; earlier < idx; ++earlier) {
    if (same_rank_[idx].contains(earlier)) every_rank_[idx].add_all(every_rank_[earlier]);
  }
  close(every_rank_[idx], begin, idx);
  if (begin > 0) close(every_rank_[idx], 0, begin);
}

// Where a call's content lies: the copy, and for the taps the part of it.
int slot_of(const Contract& contract, Region region, const Call& call) {
  const Copies copies = contract.regions[static_cast<size_t>(region)].copies;
  const int copy = copy_of(copies, contract.program, contract.geometry, call);
  if (region != kTaps) return copy;
  return copy * contract.geometry.num_taps() + contract.program.roles[static_cast<size_t>(call.layer)].tap_idx;
}

std::vector<std::vector<Read>> Checker::list_reads() const {
  std::vector<std::vector<Read>> reads(calls_.size());
  for (size_t call_idx = 0; call_idx < calls_.size(); ++call_idx) {
    const Call& call = calls_[call_idx];
    const bool in_layer = call.layer >= 0 && call.stage != Stage::kMarkov;
    const model::Role* role = in_layer ? &contract_.program.roles[static_cast<size_t>(call.layer)] : nullptr;
    for_each_region(call.reads, [&](Region region) {
      const bool whole = has(decl_of(call.stage).reads_all, region);
      for (const int writer : contents_read(contract_, region, static_cast<int>(call_idx))) {
        reads[call_idx].push_back({region, static_cast<size_t>(writer), whole, parts_polled(call, role, region)});
      }
    });
  }
  return reads;
}

void Checker::check_overwrites() {
  const std::vector<std::vector<Read>> reads = list_reads();
  std::vector<std::vector<std::pair<size_t, Region>>> readers(calls_.size());  // [writer] who takes what of it
  for (size_t call_idx = 0; call_idx < calls_.size(); ++call_idx) {
    for (const Read& read : reads[call_idx]) readers[read.writer].emplace_back(call_idx, read.region);
  }
  std::set<size_t> cuts = {calls_.size()};
  for (const Section section : {Section::kHead, Section::kContext, Section::kDraft}) {
    cuts.insert(static_cast<size_t>(contract_.program.section_begin(section)));
  }
  for (const size_t cut : cuts) check_overwrites_behind(cut, Order(contract_, reads, cut), readers);
}

// A step that ends at `cut`, then a whole one: each put must come after the readers of what lay there.
void Checker::check_overwrites_behind(size_t cut, const Order& order,
                                      const std::vector<std::vector<std::pair<size_t, Region>>>& readers) {
  std::array<std::map<int, size_t>, kNumRegions> last;  // [slot] the call whose content lies there
  for (size_t idx = 0; idx < order.size(); ++idx) {
    const Call& call = calls_[order.call_of(idx)];
    for_each_region(call.writes, [&](Region region) {
      auto& slots = last[static_cast<size_t>(region)];
      const auto [place, is_new] = slots.try_emplace(slot_of(contract_, region, call), idx);
      const size_t before = std::exchange(place->second, idx);
      if (is_new) return;
      const size_t before_begin = order.step_begin(before);
      for (const auto& [reader_call, read_region] : readers[order.call_of(before)]) {
        if (read_region != region || (before_begin == 0 && reader_call >= cut)) continue;
        if (order.follows(idx, before_begin + reader_call, decl_of(region).scope)) continue;
        violation(fmt::format("overwrite before read: {} writes region {}{} while {} may still read what {} put there",
                              name_of(order.call_of(idx)), decl_of(region).name,
                              before_begin != order.step_begin(idx) ? " in the next step" : "", name_of(reader_call),
                              name_of(order.call_of(before))));
      }
    });
  }
}

}  // namespace

std::vector<int> contents_read(const Contract& contract, Region region, int reader_idx) {
  const std::vector<Call>& calls = contract.program.calls;
  const Stage reader = calls[static_cast<size_t>(reader_idx)].stage;
  std::vector<int> writers;
  if ((reader == Stage::kMainProj && region == kTaps) || (reader == Stage::kDraftOut && region == kMarkovTop)) {
    for (int call_idx = 0; call_idx < reader_idx; ++call_idx) {
      if (has(calls[static_cast<size_t>(call_idx)].writes, region)) writers.push_back(call_idx);
    }
    return writers;
  }
  const int writer = writer_of(contract.program, contract.geometry, region, reader_idx);
  if (writer >= 0) writers.push_back(writer);
  return writers;
}

std::vector<std::string> check_contract(const Contract& contract) { return Checker(contract).run(); }

}  // namespace monostep::program
