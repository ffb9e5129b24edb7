// FFN stages: the routing rule alone, and the whole sublayer against a plain reimplementation in double, for text and
// image rows, at every split over ranks.
#include <cmath>

#include "cpu/routing.h"
#include "cpu/stage_common.h"
#include "dense.h"
#include "tiny_models.h"

namespace monostep::cpu {
namespace {

TEST(StageFfn, routing_ties_go_to_the_lower_expert) {
  const std::vector<float> logits(6, 0.5f);
  const std::vector<float> bias(6, 0.0f);
  EXPECT_EQ(route(logits, bias, {3, 1}).experts, (std::vector<int>{0, 1, 2}));
  const std::vector<float> two = {0, 1, 0, 1, 0, 1};
  EXPECT_EQ(route(two, bias, {2, 1}).experts, (std::vector<int>{1, 3}));
}

TEST(StageFfn, the_bias_selects_but_does_not_weigh) {
  const std::vector<float> logits = {1, 2, 3, 4};
  const std::vector<float> bias = {10, 0, 0, 5};
  const Routing routing = route(logits, bias, {2, 1.5f});
  EXPECT_EQ(routing.experts, (std::vector<int>{0, 3}));
  const double low = std::sqrt(std::log1p(std::exp(1.0)));
  const double high = std::sqrt(std::log1p(std::exp(4.0)));
  EXPECT_NEAR(routing.weights[0], 1.5 * low / (low + high), 1e-6);
  EXPECT_NEAR(routing.weights[1], 1.5 * high / (low + high), 1e-6);
}

TEST(StageFfn, large_and_small_logits_are_safe) {
  const std::vector<float> logits = {100, -200, 21, -300};
  const std::vector<float> bias(4, 0.0f);
  const Routing routing = route(logits, bias, {2, 1});
  EXPECT_EQ(routing.experts, (std::vector<int>{0, 2}));
  EXPECT_NEAR(routing.weights[0], 10 / (10 + std::sqrt(21.0)), 1e-6);  // softplus(x) = x above 20
  const std::vector<float> dead(4, -200.0f);                           // every score is zero
  for (const float weight : route(dead, bias, {2, 1}).weights) EXPECT_EQ(weight, 0.0f);
}

// w silu(min(g, limit)) clamp(u, limit).
std::vector<float> expert_hidden(const weights::Checkpoint& checkpoint, const std::string& name,
                                 const std::vector<float>& v, float weight) {
  const std::vector<float> x = activations(v);
  const std::vector<float> gate = rounded(multiply(dense(checkpoint, name + "w1.weight"), x));
  const std::vector<float> up = rounded(multiply(dense(checkpoint, name + "w3.weight"), x));
  const double limit = checkpoint.geometry().swiglu_limit;
  std::vector<double> hidden;
  for (size_t idx = 0; idx < gate.size(); ++idx) {
    const double g = std::min<double>(gate[idx], limit);
    hidden.push_back(weight * g / (1 + std::exp(-g)) * std::clamp<double>(up[idx], -limit, limit));
  }
  return rounded(hidden);
}

// w2 QA(hidden), the activations quantised a rank at a time as the ranks' shares are whole groups.
std::vector<double> expert_output(const weights::Checkpoint& checkpoint, const std::string& name,
                                  const std::vector<float>& v, float weight) {
  return multiply(dense(checkpoint, name + "w2.weight"), activations(expert_hidden(checkpoint, name, v, weight)));
}

Routing routing_of(const weights::Checkpoint& checkpoint, int layer_idx, const std::vector<float>& v, bool image) {
  const model::Geometry& g = checkpoint.geometry();
  const std::string prefix = g.prefix(layer_idx) + "ffn.";
  const std::vector<double> logits = multiply(dense(checkpoint, prefix + "gate.weight"), v);
  const Dense bias = dense(checkpoint, prefix + (image ? "gate.bias_vl" : "gate.bias"));
  return route(std::vector<float>(logits.begin(), logits.end()),
               std::vector<float>(bias.values.begin(), bias.values.end()),
               {g.experts_per_token(layer_idx), static_cast<float>(g.routed_scaling_factor)});
}

std::vector<double> sublayer(const weights::Checkpoint& checkpoint, int layer_idx, const std::vector<float>& u,
                             bool image) {
  const model::Geometry& g = checkpoint.geometry();
  const std::string prefix = g.prefix(layer_idx) + "ffn.";
  const std::vector<float> v = normed(u, dense(checkpoint, g.prefix(layer_idx) + "ffn_norm.weight"));
  const Routing routing = routing_of(checkpoint, layer_idx, v, image);
  std::vector<double> out = expert_output(checkpoint, prefix + "shared_experts.", v, 1);
  for (size_t idx = 0; idx < routing.experts.size(); ++idx) {
    const std::string name = prefix + "experts." + std::to_string(routing.experts[idx]) + ".";
    const std::vector<double> one = expert_output(checkpoint, name, v, routing.weights[idx]);
    for (size_t d = 0; d < out.size(); ++d) out[d] += one[d];
  }
  return out;
}

std::vector<float> collapsed(Walk& walk, const program::Layout& layout, int layer_idx, int row) {
  const float* u = walk.region(Region::kFfnU, Stage::kFfnFold, layer_idx);
  std::vector<float> x;
  for (int slice = 0; slice < layout.num_slices(); ++slice) {
    const float* from = u + (int64_t{slice} * layout.rows() + row) * layout.slice_width();
    x.insert(x.end(), from, from + layout.slice_width());
  }
  return x;
}

std::vector<double> exchanged(Walk& walk, const program::Layout& layout, int layer_idx, int row) {
  const int hidden = layout.geometry().hidden_size;
  const float* exchange = walk.region(Region::kFfnExchange, Stage::kExpertDown, layer_idx);
  std::vector<double> out(static_cast<size_t>(hidden));
  for (int rank = 0; rank < layout.shard().tp; ++rank) {
    for (int d = 0; d < hidden; ++d) {
      out[static_cast<size_t>(d)] +=
          exchange[((int64_t{rank} * hidden + d) / kTile * layout.rows() + row) * kTile + d % kTile];
    }
  }
  return out;
}

void expect_sublayers(const weights::Checkpoint& checkpoint, int tp) {
  CpuOptions options = small_options();
  options.tp = tp;
  const auto backend = made_backend(checkpoint, options);
  Walk walk(*backend, step_of({{0, prompt(6)}}));
  const program::Layout& layout = backend->machine().layout();
  const int draft = layout.geometry().num_hidden_layers;
  for (const int layer_idx : {0, 3, draft}) {
    walk.through(Stage::kExpertDown, layer_idx);
    for (int row = 0; row < 5; ++row) {
      const std::vector<double> wanted =
          sublayer(checkpoint, layer_idx, collapsed(walk, layout, layer_idx, row), false);
      EXPECT_LT(relative_error(exchanged(walk, layout, layer_idx, row), wanted), 0.02)
          << "TP " << tp << " layer " << layer_idx << " row " << row;
    }
  }
}

TEST(StageFfn, the_sublayer_is_the_sum_of_the_selected_experts_and_the_shared_one) {
  for (const int tp : {1, 2}) expect_sublayers(micro(), tp);
  expect_sublayers(eight_ranks(), 8);
}

// The draft of `wide` takes two of the three slots: what no expert uses is neither computed nor put.
TEST(StageFfn, activations_of_a_row_lie_by_slot_with_the_shared_expert_last) {
  const auto backend = made_backend(wide(), small_options());
  Walk walk(*backend, step_of({{0, prompt(3)}}));
  Machine& machine = backend->machine();
  const program::Layout& layout = machine.layout();
  const model::Geometry& g = layout.geometry();
  ASSERT_EQ(layout.expert_slots(), 3);
  ASSERT_GT(layout.stage_splits(Stage::kExpertUp, 0), 1);
  const int width = layout.shard().expert_width;
  for (const int layer_idx : {1, g.num_hidden_layers}) {
    walk.through(Stage::kExpertAct, layer_idx);
    const float* words = walk.region(Region::kExpertIn, Stage::kExpertAct, layer_idx);
    const int call_idx = walk.find(Stage::kExpertAct, layer_idx);
    const uint32_t tag = machine.plan().tag(machine.inputs->epoch, call_idx);
    const auto tags = machine.ranks[0].regions->tags(Region::kExpertIn, layer_idx & 1);
    const int used = g.experts_per_token(layer_idx);
    const std::vector<float> v =
        normed(collapsed(walk, layout, layer_idx, 2), dense(wide(), g.prefix(layer_idx) + "ffn_norm.weight"));
    const Routing routing = routing_of(wide(), layer_idx, v, false);
    for (int slot = 0; slot <= 3; ++slot) {
      const int granule = 2 * 4 + slot;
      EXPECT_EQ(tags[static_cast<size_t>(granule)] == tag, slot < used || slot == 3) << layer_idx << " " << slot;
      if (slot >= used && slot < 3) continue;
      const std::string name =
          slot == 3 ? "shared_experts." : "experts." + std::to_string(routing.experts[static_cast<size_t>(slot)]) + ".";
      const float weight = slot == 3 ? 1.0f : routing.weights[static_cast<size_t>(slot)];
      const std::vector<float> wanted = expert_hidden(wide(), g.prefix(layer_idx) + "ffn." + name, v, weight);
      const float* from = words + int64_t{granule} * width;
      EXPECT_LT(relative_error(std::vector<float>(from, from + width), wanted), 0.01) << layer_idx << " " << slot;
    }
    EXPECT_NE(tags[5 * 4].load(), tag) << "row 5 is dead";
  }
}

TEST(StageFfn, image_rows_are_routed_by_their_own_bias) {
  const auto backend = made_backend(micro(), small_options());
  program::StepInputs inputs = step_of({{0, prompt(24)}});
  const auto hidden = static_cast<size_t>(micro().geometry().hidden_size);
  std::vector<float> image_rows;
  for (size_t idx = 0; idx < 12 * hidden; ++idx)
    image_rows.push_back(round_bf16(static_cast<float>((idx * 37) % 101) / 50.0f - 1.0f));
  for (size_t row = 0; row < 12; ++row) inputs.rows[row].image = true;
  inputs.image_rows = image_rows;
  Walk walk(*backend, inputs);
  walk.through(Stage::kExpertDown, 0);
  const program::Layout& layout = backend->machine().layout();
  int num_decided = 0;  // rows whose two biases choose other experts
  for (int row = 0; row < 24; ++row) {
    const std::vector<float> u = collapsed(walk, layout, 0, row);
    const std::vector<double> got = exchanged(walk, layout, 0, row);
    EXPECT_LT(relative_error(got, sublayer(micro(), 0, u, row < 12)), 0.02) << row;
    num_decided += relative_error(got, sublayer(micro(), 0, u, row >= 12)) > 0.1;
  }
  EXPECT_GE(num_decided, 2);
}

}  // namespace
}  // namespace monostep::cpu
