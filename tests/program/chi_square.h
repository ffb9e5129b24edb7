// The chi-square test of counts against an exact distribution. Used by the tests of sampling and of the engine.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace monostep {

// Chi-square of counts against a distribution; infinity where something impossible came. `freedom` gets cells - 1.
inline double chi_square(const std::vector<int>& counts, const std::vector<double>& distribution, int* freedom) {
  const double num_draws = std::accumulate(counts.begin(), counts.end(), 0.0);
  double sum = 0;
  *freedom = -1;
  for (size_t token = 0; token < counts.size(); ++token) {
    const double wanted = num_draws * distribution[token];
    if (wanted == 0 && counts[token] > 0) return INFINITY;
    if (wanted == 0) continue;
    sum += (counts[token] - wanted) * (counts[token] - wanted) / wanted;
    ++*freedom;
  }
  return sum;
}

// The 1 - 1e-6 quantile of chi-square (Wilson and Hilferty).
inline double chi_square_limit(int freedom) {
  const double k = std::max(freedom, 1);
  return k * std::pow(1 - 2 / (9 * k) + 4.7534 * std::sqrt(2 / (9 * k)), 3);
}

}  // namespace monostep
