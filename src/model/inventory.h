// The complete list of tensors that a checkpoint of a geometry holds, with shape, storage and class: what the loader
// demands, what make-model writes and what `inspect` counts. Source: model.md 2.2 and 1.4.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/geometry.h"

namespace monostep::model {

enum class Dtype { kF8E4M3, kF8E8M0, kI8, kBF16, kF32 };  // header tags F8_E4M3, F8_E8M0, I8 (packed FP4), BF16, F32
std::string_view dtype_tag(Dtype dtype);
int dtype_bytes(Dtype dtype);

enum class Class {  // the rows of model.md 1.4
  kEmbed,
  kHead,
  kAttention,
  kRoutedExperts,
  kSharedExperts,
  kRouter,
  kHyper,
  kCompressors,
  kIndexers,
  kNorms,
  kEngramTables,
  kEngramLinear,
  kDraft,
  kVision,
};
std::string_view class_name(Class tensor_class);

struct TensorSpec {
  std::string name;
  Dtype dtype = Dtype::kBF16;
  std::vector<int64_t> shape;
  Class tensor_class = Class::kEmbed;
  int layer_idx = -1;            // backbone then draft numbering; -1 outside a layer
  bool scale = false;            // a scale plane: bytes, but no parameters
  bool draft_expert = false;     // routed expert of a draft layer
  int64_t num_elements() const;  // at most 2^60, which stands for all larger products
  int64_t num_bytes() const { return num_elements() * dtype_bytes(dtype); }
  int64_t num_parameters() const;  // FP4 counts two a byte, scales count none
};

// In the file order of golden/README.md: top level, layers, draft layers, then the Engram tables; vision last.
std::vector<TensorSpec> tensor_inventory(const Geometry& geometry);

}  // namespace monostep::model
