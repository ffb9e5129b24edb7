// Flattens a geometry into the calls of a whole step (program/program.h).
#include "program/program.h"

#include <algorithm>

#include "base/check.h"

namespace monostep::program {
namespace {

using enum Region;

class Builder {
 public:
  explicit Builder(const model::Geometry& geometry) : geometry_(geometry) {
    program_.roles = model::layer_roles(geometry);
  }

  Program build() {
    // Every look-up is on its way before the first of them is waited for.
    for (const int layer_idx : geometry_.engram_layer_ids) add(Stage::kEngramRows, layer_idx, Section::kTarget, 0);
    for (const int layer_idx : geometry_.engram_layer_ids)
      add(Stage::kEngramKv, layer_idx, Section::kTarget, set_of(kEngramRowsOut));
    for (int layer_idx = 0; layer_idx < geometry_.num_hidden_layers; ++layer_idx)
      add_layer(layer_idx, Section::kTarget);
    add_head(Section::kHead);
    if (geometry_.num_nextn_predict_layers > 0) add_draft();
    return std::move(program_);
  }

 private:
  void add(Stage stage, int layer, Section section, RegionSet reads) {
    program_.calls.push_back({stage, layer, section, reads, decl(stage).writes});
  }
  void add(Stage stage, int layer, Section section, RegionSet reads, RegionSet writes) {
    program_.calls.push_back({stage, layer, section, reads, writes});
  }

  // What the layer before left: nothing at the first backbone layer (the embedding comes from the token ids) and at the
  // first draft layer (from the verdict's anchors).
  RegionSet fold_reads(int layer_idx) const {
    if (layer_idx == 0) return 0;
    if (layer_idx == geometry_.num_hidden_layers) return set_of(kVerdictOut);
    return set_of(kFfnExchange, kFfnStreams, kFfnMixOut);
  }

  void add_layer(int layer_idx, Section section) {
    const model::Role& role = program_.roles[static_cast<size_t>(layer_idx)];
    RegionSet reads = fold_reads(layer_idx);
    if (role.engram_idx >= 0) {
      add(Stage::kEngramFold, layer_idx, section, reads | set_of(kEngramKvOut));
      reads = (reads & set_of(kFfnMixOut)) | set_of(kEngramStreams, kEngramDots, kEngramKvOut);
    }
    const RegionSet tap = role.tap_idx >= 0 ? set_of(kTaps) : 0;
    add(Stage::kFold, layer_idx, section, reads, set_of(kStreams, kAttnU, kAttnMixPart) | tap);
    add_attention(layer_idx, role, section);
    add(Stage::kFfnFold, layer_idx, section, set_of(kAttnExchange, kStreams, kAttnMixOut));
    add(Stage::kFfnIn, layer_idx, section, set_of(kFfnU));
    add(Stage::kExpertUp, layer_idx, section, set_of(kFfnU, kFfnInPart));
    // Here the CTAs that finish no expert wait for those that do.
    add(Stage::kFfnMix, layer_idx, section, set_of(kFfnMixPart));
    add(Stage::kExpertAct, layer_idx, section, set_of(kFfnInPart, kExpertPart));
    add(Stage::kExpertDown, layer_idx, section, set_of(kFfnInPart, kExpertIn));
  }

  void add_attention(int layer_idx, const model::Role& role, Section section) {
    const bool full = role.mode == model::Mode::kFull;
    add(Stage::kAttnIn, layer_idx, section, set_of(kAttnU));
    add(Stage::kQNorm, layer_idx, section, set_of(kAttnInPart));
    add(Stage::kQProj, layer_idx, section, set_of(kQIn));
    // Here most CTAs wait for the few that attend.
    add(Stage::kAttnMix, layer_idx, section, set_of(kAttnMixPart));
    const RegionSet positions = role.draft ? set_of(kVerdictOut) : 0;
    add(Stage::kKvNew, layer_idx, section, set_of(kAttnInPart) | positions,
        full ? set_of(kWindowNew, kCompressedNew, kIndexKeyNew) : set_of(kWindowNew));
    if (full || role.mode == model::Mode::kReindex) {
      const RegionSet candidates = role.candidates_from >= 0 ? set_of(kCandidates) : 0;
      add(Stage::kIndexScore, layer_idx, section, set_of(kQPart, kAttnInPart, kIndexKeyNew) | candidates);
      add(Stage::kIndexSelect, layer_idx, section, set_of(kScores),
          role.candidate_source ? set_of(kTopk, kCandidates) : set_of(kTopk));
    }
    RegionSet reads = set_of(kQPart, kWindowNew);
    if (role.ratio > 0) reads |= set_of(kCompressedNew, kTopk);
    if (role.draft) reads |= set_of(kContextNewOut) | positions;
    add(Stage::kAttend, layer_idx, section, reads);
    add(Stage::kAttnMerge, layer_idx, section, set_of(kAttnPart) | positions);
    add(Stage::kWoA, layer_idx, section, set_of(kAttnOut));
    add(Stage::kOSum, layer_idx, section, set_of(kOaPart));
    add(Stage::kWoB, layer_idx, section, set_of(kOIn));
  }

  void add_head(Section section) {
    add(Stage::kHeadFold, -1, section, set_of(kFfnExchange, kFfnStreams, kFfnMixOut));
    add(Stage::kHead, -1, section, set_of(kHeadU));
    if (section != Section::kHead) return;
    add(Stage::kSample, -1, section, set_of(kLogits));
    add(Stage::kVerdict, -1, section, set_of(kSampled));
  }

  void add_draft() {
    add(Stage::kMainProj, -1, Section::kContext, set_of(kTaps));
    add(Stage::kContextProj, -1, Section::kContext, set_of(kMainPart));
    add(Stage::kContextNew, -1, Section::kContext, set_of(kContextPart));
    for (int layer_idx = geometry_.num_hidden_layers; layer_idx < geometry_.num_layers(); ++layer_idx) {
      add_layer(layer_idx, Section::kDraft);
    }
    add_head(Section::kDraft);
    for (int position = 0; position < geometry_.dspark_block_size; ++position) {
      const RegionSet previous = position == 0 ? set_of(kVerdictOut) : set_of(kMarkovTop);
      add(Stage::kMarkov, position, Section::kDraft, set_of(kLogits) | previous);
    }
    add(Stage::kDraftOut, -1, Section::kDraft, set_of(kMarkovTop, kHeadU, kVerdictOut));
  }

  const model::Geometry& geometry_;
  Program program_;
};

// The layer whose call of the region's writer serves a reader at `reader`.
int serving_layer(const Program& program, Region region, const Call& reader) {
  if (reader.layer < 0 || reader.stage == Stage::kMarkov) return -1;
  const model::Role& role = program.roles[static_cast<size_t>(reader.layer)];
  switch (region) {
    case Region::kCompressedNew:
    case Region::kIndexKeyNew: return role.kv_owner;
    case Region::kTopk: return role.index_source;
    case Region::kCandidates: return role.candidates_from;
    case Region::kEngramRowsOut:
    case Region::kEngramKvOut: return reader.layer;
    default: return -1;
  }
}

}  // namespace

int band_of(int rows) {
  for (const int band : kBands) {
    if (rows <= band) return band;
  }
  CHECK(false, "a step of more rows than the widest band");
  return 0;
}

Shape shape_for(const model::Geometry& geometry, int num_rows, int num_requests, int max_context) {
  for (const int band : kBands) {
    const bool widest = band == kMaxBand;
    const int requests = widest ? kMaxRequests : std::clamp(band / (1 + geometry.dspark_block_size), 1, kMaxRequests);
    if (num_rows <= band && num_requests <= requests) return {band, requests, max_context};
  }
  CHECK(false, "a step of more rows or requests than the widest band");
  return {};
}

Program build_program(const model::Geometry& geometry) { return Builder(geometry).build(); }

int Program::section_begin(Section section) const {
  for (size_t call_idx = 0; call_idx < calls.size(); ++call_idx) {
    if (calls[call_idx].section == section) return static_cast<int>(call_idx);
  }
  return static_cast<int>(calls.size());
}

int Program::find(Stage stage, int layer) const {
  for (size_t call_idx = 0; call_idx < calls.size(); ++call_idx) {
    if (calls[call_idx].stage == stage && calls[call_idx].layer == layer) return static_cast<int>(call_idx);
  }
  CHECK(false, "a call that the program does not have");
  return -1;
}

int copy_of(Copies copies, const Program& program, const model::Geometry& geometry, const Call& writer) {
  const auto role = [&]() -> const model::Role& { return program.roles[static_cast<size_t>(writer.layer)]; };
  const auto position_in = [](const std::vector<int>& ids, int layer_idx) {
    for (size_t idx = 0; idx < ids.size(); ++idx) {
      if (ids[idx] == layer_idx) return static_cast<int>(idx);
    }
    CHECK(false, "a layer that is not in its list");
    return -1;
  };
  switch (copies) {
    case Copies::kOne: return 0;
    case Copies::kParity: return writer.layer & 1;
    case Copies::kOwner: return role().owner_idx;
    case Copies::kIndexSource: return position_in(geometry.index_source_layer_ids, writer.layer);
    case Copies::kSection: return writer.section == Section::kDraft ? 1 : 0;
    case Copies::kEngram: return role().engram_idx;
    case Copies::kPosition: return writer.layer;
  }
  return 0;
}

int copy_of(const Program& program, const model::Geometry& geometry, Region region, const Call& writer) {
  return copy_of(decl(region).copies, program, geometry, writer);
}

int writer_of(const Program& program, const model::Geometry& /*geometry*/, Region region, int reader_idx) {
  const Call& reader = program.calls[static_cast<size_t>(reader_idx)];
  const int wanted_layer = serving_layer(program, region, reader);
  for (int call_idx = reader_idx - 1; call_idx >= 0; --call_idx) {
    const Call& call = program.calls[static_cast<size_t>(call_idx)];
    if ((call.writes & bit(region)) == 0) continue;
    if (wanted_layer < 0 || call.layer == wanted_layer) return call_idx;
  }
  return -1;
}

}  // namespace monostep::program
