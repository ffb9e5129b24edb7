// Finds values that no checkpoint may hold: E4M3 NaN codes, the E8M0 byte 255, BF16 and F32 infinities and NaNs (they
// count as NaN codes). Packed FP4 has no such code. Called by the loader for every tensor. Source: model.md 2.3.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

#include "model/inventory.h"

namespace monostep::weights {

// The index of the first refused element.
std::optional<size_t> find_refused_value(model::Dtype dtype, std::span<const std::byte> bytes);

// What is refused, for messages: "E4M3 NaN codes".
std::string_view refused_value_name(model::Dtype dtype);

}  // namespace monostep::weights
