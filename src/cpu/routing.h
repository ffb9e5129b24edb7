// Expert routing of one row: selection by biased score, weights from the unbiased ones (model.md 3.7). Ties: lower id.
#pragma once

#include <span>
#include <vector>

namespace monostep::cpu {

struct RoutingRule {
  int experts_per_token = 1;
  float scale = 1;
};
struct Routing {
  std::vector<int> experts;    // ascending
  std::vector<float> weights;  // of each
};
Routing route(std::span<const float> logits, std::span<const float> bias, const RoutingRule& rule);

}  // namespace monostep::cpu
