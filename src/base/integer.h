// Small integer helpers that sizes and offsets are computed with.
#pragma once

#include <cstdint>

namespace monostep {

template <typename T>
constexpr T ceil_div(T value, T by) {
  return (value + by - 1) / by;
}

template <typename T>
constexpr T round_up(T value, T to) {
  return ceil_div(value, to) * to;
}

}  // namespace monostep
