// StageContext: the only way from a stage body to regions. A read or write that the stage's declaration does not list
// does not compile; a poll waits for the tag of the call that serves this one; a put makes a granule readable, on every
// rank where the region's scope says so. One context is made for each (CTA, call).
#pragma once

#include <bit>
#include <cstring>
#include <span>
#include <vector>

#include "cpu/machine.h"

namespace monostep::cpu {

struct CtaCall {  // which CTA runs which call
  int rank = 0;
  int cta = 0;
  int call_idx = 0;
};

class ContextBase {
 public:
  ContextBase(Machine& machine, const CtaCall& where, std::span<const int> tasks)
      : machine_(machine), where_(where), tasks_(tasks) {}

  std::span<const int> tasks() const { return tasks_; }  // this CTA's tasks of the call
  int rank() const { return where_.rank; }
  const program::Call& call() const { return machine_.program().calls[static_cast<size_t>(where_.call_idx)]; }
  int layer_idx() const { return call().layer; }
  bool draft() const { return call().section == program::Section::kDraft; }
  const program::Layout& layout() const { return machine_.layout(); }
  const model::Geometry& geometry() const { return machine_.layout().geometry(); }
  const model::Role& role() const { return machine_.program().roles[static_cast<size_t>(call().layer)]; }
  const program::StepInputs& inputs() const { return *machine_.inputs; }
  const ModelTables& tables() const { return machine_.tables; }
  const RankWeights& weights() const { return *machine_.ranks[static_cast<size_t>(where_.rank)].weights; }
  const LayerWeights& layer() const { return weights().layers[static_cast<size_t>(call().layer)]; }
  kv::Pools& pools() { return *machine_.ranks[static_cast<size_t>(where_.rank)].pools; }
  // Live rows of the call's section, in row order.
  const std::vector<Row>& rows() const { return draft() ? machine_.draft_rows : machine_.target_rows; }
  const std::vector<Row>& target_rows() const { return machine_.target_rows; }
  const program::Program& program() const { return machine_.program(); }
  const std::vector<int>& image_row_of() const { return machine_.image_row_of; }
  // The frequencies of the call's layer (model.md 3.4).
  const std::vector<float>& frequencies() const {
    return role().ratio == 0 ? machine_.tables.rope.base : machine_.tables.rope.yarn;
  }

 protected:
  bool poll_granule(program::Region region, int granule, int writer);
  int serving_call(program::Region region) const;
  void put_granule(program::Region region, int granule);
  const float* read_copy(program::Region region, int writer) const;
  float* write_copy(program::Region region);

 private:
  void check_overwrite(program::Region region);
  void check_content(program::Region region, int granule);

  Machine& machine_;
  CtaCall where_;
  std::span<const int> tasks_;
  program::RegionSet checked_ = 0;  // regions whose overwrite rule was checked in this call
};

template <program::Stage S>
class StageContext : public ContextBase {
 public:
  using ContextBase::ContextBase;

  // Waits until `granule` holds this step's content; false when the step was given up: leave at once.
  template <program::Region R>
  bool poll(int granule) {
    static_assert(program::may_read(S, R), "the stage does not declare that it reads this region");
    return poll_granule(R, granule, serving_call(R));
  }
  // The same for regions that several calls of a step fill: names the call.
  template <program::Region R>
  bool poll_from(int writer, int granule) {
    static_assert(program::may_read(S, R), "the stage does not declare that it reads this region");
    return poll_granule(R, granule, writer);
  }
  template <program::Region R>
  const float* read_from(int writer) const {
    static_assert(program::may_read(S, R), "the stage does not declare that it reads this region");
    return read_copy(R, writer);
  }
  template <program::Region R>
  bool poll_range(int begin, int count) {
    for (int granule = begin; granule < begin + count; ++granule) {
      if (!poll<R>(granule)) return false;
    }
    return true;
  }
  // One granule a live row of the section.
  template <program::Region R>
  bool poll_rows(const std::vector<Row>& live) {
    for (const Row& row : live) {
      if (!poll<R>(row.idx)) return false;
    }
    return true;
  }
  template <program::Region R>
  const float* read() const {
    static_assert(program::may_read(S, R), "the stage does not declare that it reads this region");
    return read_copy(R, serving_call(R));
  }
  template <program::Region R>
  float* write() {
    static_assert(program::may_write(S, R), "the stage does not declare that it writes this region");
    return write_copy(R);
  }
  template <program::Region R>
  void put(int granule) {
    static_assert(program::may_write(S, R), "the stage does not declare that it writes this region");
    put_granule(R, granule);
  }
};

inline float word_of(int32_t value) { return std::bit_cast<float>(value); }
inline int32_t int_of(float word) { return std::bit_cast<int32_t>(word); }

}  // namespace monostep::cpu
