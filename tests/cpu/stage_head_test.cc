// Head stages: logits against a plain product, whose ids count, which rows yield tokens, and verdicts of right and
// wrong drafts.
#include "cpu/stage_common.h"
#include "dense.h"
#include "tiny_models.h"

namespace monostep::cpu {
namespace {

int argmax(const std::vector<float>& logits) {
  return static_cast<int>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

std::vector<float> collapsed(Walk& walk, const program::Layout& layout, int row) {
  const float* u = walk.region(Region::kHeadU, Stage::kHeadFold, -1);
  std::vector<float> x;
  for (int slice = 0; slice < layout.num_slices(); ++slice) {
    const float* from = u + (int64_t{slice} * layout.rows() + row) * layout.slice_width();
    x.insert(x.end(), from, from + layout.slice_width());
  }
  return x;
}

TEST(StageHead, logits_are_the_normed_hidden_times_the_head_on_every_rank) {
  for (const int tp : {1, 2}) {
    CpuOptions options = small_options();
    options.tp = tp;
    const auto backend = made_backend(micro(), options);
    Walk walk(*backend, step_of({{0, prompt(4)}}));
    walk.through(Stage::kHead, -1);
    const program::Layout& layout = backend->machine().layout();
    for (int row = 0; row < 4; ++row) {
      const std::vector<double> wanted =
          multiply(dense(micro(), "head.weight"), normed(collapsed(walk, layout, row), dense(micro(), "norm.weight")));
      for (int rank = 0; rank < tp; ++rank) {
        const std::vector<float> got = row_logits(layout, walk.region(Region::kLogits, Stage::kHead, -1, rank), row);
        EXPECT_LT(relative_error(got, wanted), 1e-4) << "TP " << tp << " rank " << rank;
      }
    }
  }
}

TEST(StageHead, rank_zeros_ids_count_on_every_rank) {
  CpuOptions options = small_options();
  options.tp = 2;
  const auto backend = made_backend(micro(), options);
  Walk walk(*backend, step_of({{0, prompt(4)}}));
  walk.through(Stage::kHead, -1);
  const program::Layout& layout = backend->machine().layout();
  const int wanted = argmax(row_logits(layout, walk.region(Region::kLogits, Stage::kHead, -1, 0), 3));
  // Another best token in rank 1's memory alone, as a broken link would leave it.
  const int other = (wanted + 16) % 128;
  walk.region(Region::kLogits, Stage::kHead, -1,
              1)[(int64_t{other / kTile} * layout.rows() + 3) * kTile + other % kTile] = 1e9f;
  walk.through(Stage::kVerdict, -1);
  for (const int rank : {0, 1}) {
    EXPECT_EQ(verdict_of(layout, walk.region(Region::kVerdictOut, Stage::kVerdict, -1, rank), 0).anchor, wanted)
        << "rank " << rank;
  }
  walk.to_end();
}

TEST(StageHead, rows_that_need_no_logits_get_none) {
  const auto backend = made_backend(micro(), small_options());
  program::StepInputs inputs = step_of({{0, prompt(4)}});
  for (size_t row = 0; row < 3; ++row) inputs.rows[row].needs_logits = false;
  Walk walk(*backend, inputs);
  walk.through(Stage::kHeadFold, -1);
  const program::Layout& layout = backend->machine().layout();
  float* words = walk.region(Region::kLogits, Stage::kHead, -1);
  std::fill_n(words, layout.region_words(Region::kLogits), 77.0f);
  walk.through(Stage::kHead, -1);
  for (int row = 0; row < 3; ++row) EXPECT_EQ(row_logits(layout, words, row), std::vector<float>(128, 77.0f)) << row;
  EXPECT_NE(row_logits(layout, words, 3)[0], 77.0f);
}

// The tokens that follow a prompt, one step each.
std::vector<int32_t> plain_tokens(const std::vector<int32_t>& start, int count) {
  const auto backend = made_backend(micro(), small_options());
  std::vector<int32_t> out = decode(*backend, {{0, start}}).requests[0].tokens;
  while (static_cast<int>(out.size()) < count) {
    out.push_back(
        decode(*backend, {{0, {out.back()}, static_cast<int>(start.size() + out.size()) - 1}}).requests[0].tokens[0]);
  }
  return out;
}

TEST(StageHead, a_verdict_takes_the_right_drafts_and_the_token_behind_them) {
  const std::vector<int32_t> start = prompt(9);
  const std::vector<int32_t> text = plain_tokens(start, 7);
  for (int num_right = 0; num_right <= 5; ++num_right) {
    const auto backend = made_backend(micro(), small_options());
    decode(*backend, {{0, start}});
    Part verify{0, {text.begin(), text.begin() + 6}, 9};
    verify.num_drafts = 5;
    if (num_right < 5) verify.tokens[static_cast<size_t>(num_right + 1)] ^= 1;
    const program::RequestOutput output = decode(*backend, {verify}).requests[0];
    EXPECT_EQ(output.num_accepted, num_right);
    EXPECT_EQ(output.tokens, std::vector<int32_t>(text.begin() + 1, text.begin() + num_right + 2));
    const float* verdict = backend->machine().ranks[0].regions->data(Region::kVerdictOut, 0);
    EXPECT_EQ(verdict_of(backend->machine().layout(), verdict, 0).last_position, 9 + num_right);
  }
}

TEST(StageHead, noise_depends_on_seed_and_position_alone) {
  const auto backend = made_backend(micro(), small_options());
  const auto token = [&](int slot, uint64_t seed, int count) {
    Part part{slot, prompt(count)};
    part.sampling = {.temperature = 2, .seed = seed};
    return decode(*backend, {{7, prompt(2, 5)}, part}).requests[1].tokens[0];
  };
  const int32_t first = token(0, 1, 5);
  EXPECT_EQ(token(3, 1, 5), first);
  int num_other = 0;
  for (uint64_t seed = 2; seed < 10; ++seed) num_other += token(0, seed, 5) != first;
  EXPECT_GT(num_other, 0);
}

}  // namespace
}  // namespace monostep::cpu
