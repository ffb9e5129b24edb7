// Draft stages: context rows, Markov logits, the chain of picks and the confidences, against plain recomputation.
#include "cpu/stage_common.h"
#include "dense.h"
#include "tiny_models.h"

namespace monostep::cpu {
namespace {

constexpr int kDraftCopy = 1;  // of regions with one copy a section

std::vector<float> draft_hidden(CpuBackend& backend, int row) {
  const program::Layout& layout = backend.machine().layout();
  const float* u = backend.machine().ranks[0].regions->data(Region::kHeadU, kDraftCopy);
  std::vector<float> x;
  for (int slice = 0; slice < layout.num_slices(); ++slice) {
    const float* from = u + (int64_t{slice} * layout.rows() + row) * layout.slice_width();
    x.insert(x.end(), from, from + layout.slice_width());
  }
  return x;
}

struct DraftNames {
  std::string first, last;
};
DraftNames names() {
  const model::Geometry& g = micro().geometry();
  return {g.prefix(g.num_hidden_layers), g.prefix(g.num_layers() - 1)};
}

void expect_chain(CpuBackend& backend, const program::StepOutputs& outputs, int request_idx) {
  const program::RequestOutput& output = outputs.requests[static_cast<size_t>(request_idx)];
  const std::string last = names().last;
  const Dense head = dense(micro(), "head.weight");
  const Dense markov_head = dense(micro(), last + "markov_head.head.weight");
  const Dense markov_embed = dense(micro(), last + "markov_head.embed.weight");
  const Dense norm = dense(micro(), last + "norm.weight");
  const Dense proj = dense(micro(), last + "confidence_head.proj.weight");
  Probe probe(backend);
  int previous = output.tokens.back();
  ASSERT_EQ(output.drafts.size(), 5u);
  for (int position = 0; position < 5; ++position) {
    const std::vector<float> hidden = draft_hidden(backend, request_idx * 5 + position);
    std::vector<double> wanted = multiply(head, normed(hidden, norm));
    const auto embedding = markov_embed.row(previous);
    const std::vector<double> bias = multiply(markov_head, embedding);
    for (size_t id = 0; id < wanted.size(); ++id) wanted[id] += bias[id];
    const std::vector<float> logits = probe.draft_logits(request_idx, position);
    EXPECT_LT(relative_error(logits, wanted), 1e-4) << "position " << position;
    double confidence = 0;
    for (size_t d = 0; d < hidden.size(); ++d) confidence += proj.values[d] * hidden[d];
    for (size_t d = 0; d < embedding.size(); ++d) confidence += proj.values[hidden.size() + d] * embedding[d];
    EXPECT_NEAR(output.confidence[static_cast<size_t>(position)], confidence, 1e-3 * (1 + std::fabs(confidence)));
    // The first of the largest.
    previous = static_cast<int>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    EXPECT_EQ(output.drafts[static_cast<size_t>(position)], previous) << "position " << position;
  }
}

TEST(StageDraft, drafts_are_the_chain_of_the_largest_markov_logits) {
  for (const int tp : {1, 2}) {
    CpuOptions options = small_options();
    options.tp = tp;
    options.ctas = 3;
    const auto backend = made_backend(micro(), options);
    Part quiet{1, prompt(3, 1)};
    quiet.draft = false;
    const program::StepOutputs outputs = decode(*backend, {{0, prompt(7)}, quiet, {2, prompt(4, 2)}});
    expect_chain(*backend, outputs, 0);
    expect_chain(*backend, outputs, 2);
    EXPECT_TRUE(outputs.requests[1].drafts.empty());
  }
}

TEST(StageDraft, ties_of_the_picks_go_to_the_lower_token) {
  const auto backend = made_backend(micro(), small_options());
  Walk walk(*backend, step_of({{0, prompt(7)}}));
  walk.through(Stage::kMarkov, 4);
  const program::Layout& layout = backend->machine().layout();
  const int granules = layout.num_granules(Region::kMarkovTop);
  for (int position = 0; position < 5; ++position) {
    float* tops = walk.region(Region::kMarkovTop, Stage::kMarkov, position);
    for (int granule = 0; granule < granules; ++granule)
      tops[int64_t{granule} * layout.shape().max_requests * 2] = granule == position ? -1.0f : 2.0f;
  }
  walk.to_end();
  const float* draft = backend->machine().ranks[0].regions->data(Region::kDraft, 0);
  EXPECT_EQ(int_of(draft[0]) / kTile, 1);  // tile 0 is lower there
  for (int position = 1; position < 5; ++position) EXPECT_EQ(int_of(draft[position]) / kTile, 0) << position;
}

TEST(StageDraft, context_rows_are_made_from_the_taps) {
  const auto backend = made_backend(micro(), small_options());
  Walk walk(*backend, step_of({{0, prompt(9)}}));
  walk.to(backend->machine().program().section_begin(program::Section::kDraft));
  Probe probe(*backend);
  const program::Layout& layout = backend->machine().layout();
  const model::Geometry& g = layout.geometry();
  const model::RopeTables tables = model::rope_tables(g);
  const std::string first = names().first;
  for (int row = 0; row < 9; ++row) {
    const std::vector<float> main =
        normed(rounded(multiply(dense(micro(), first + "main_proj.weight"), activations(probe.taps(row)))),
               dense(micro(), first + "main_norm.weight"));
    for (int draft_idx = 0; draft_idx < g.num_nextn_predict_layers; ++draft_idx) {
      const std::string prefix = g.prefix(g.num_hidden_layers + draft_idx) + "attn.";
      std::vector<float> wanted = normed(rounded(multiply(dense(micro(), prefix + "wkv.weight"), activations(main))),
                                         dense(micro(), prefix + "kv_norm.weight"));
      rotate(wanted, angles_at(tables.base, row), false);
      std::vector<uint8_t> record(static_cast<size_t>(model::window_record_bytes(g)));
      pack_window(wanted, record.data());
      const float* got = walk.region(Region::kContextNewOut, Stage::kContextNew, -1) +
                         (int64_t{draft_idx} * layout.rows() + row) * g.head_dim;
      EXPECT_LT(relative_error(std::vector<float>(got, got + g.head_dim), wanted), 0.01)
          << "row " << row << " layer " << draft_idx;
      kv::Pools& pools = *backend->machine().ranks[0].pools;
      std::vector<float> stored(wanted.size());
      unpack_window(reinterpret_cast<const uint8_t*>(
                        pools.slot(0) + pools.slot_layout.ring_offset(g.num_hidden_layers + draft_idx, row)),
                    stored);
      EXPECT_EQ(stored, std::vector<float>(got, got + g.head_dim)) << "the ring holds what the step saw";
    }
  }
}

TEST(StageDraft, drafting_writes_no_cache) {
  std::vector<std::string> slots;
  std::vector<std::string> pages;
  for (const bool draft : {true, false}) {
    const auto backend = made_backend(micro(), small_options());
    Part part{0, prompt(9)};
    part.draft = draft;
    decode(*backend, {part});
    kv::Pools& pools = *backend->machine().ranks[0].pools;
    slots.push_back(bytes_at(pools.slots.data(), static_cast<int64_t>(pools.slots.size())));
    pages.push_back(bytes_at(pools.pages.data(), static_cast<int64_t>(pools.pages.size())));
  }
  EXPECT_EQ(slots[0], slots[1]);
  EXPECT_EQ(pages[0], pages[1]);
}

}  // namespace
}  // namespace monostep::cpu
