// Sizes and constants of device programs: shared memory is used up and never exceeded, the limits of the program are
// refused by name, and the generated header says what layout and plan say.
#include "gpu/constants.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "gpu/compile_program.h"
#include "gpu/device/scratch_sizes.h"

namespace monostep::gpu {
namespace {

struct Program {
  Program(const model::Geometry& geometry, int tp, int rows, int context = 1024)
      : layout(geometry, model::make_shard(geometry, tp).value(), program::shape_for(geometry, rows, 1, context)),
        plan(layout, 132) {}
  program::Layout layout;
  program::Plan plan;
};

model::Geometry geometry(const char* name) { return model::named_geometry(name).value(); }

std::vector<Program> programs() {
  std::vector<Program> list;
  for (const int rows : program::kBands) {
    for (const char* name : {"micro", "clone40"}) list.emplace_back(geometry(name), 1, rows);
    list.emplace_back(geometry("realdims"), 2, rows);
    for (const int tp : {4, 8}) list.emplace_back(geometry("flash"), tp, rows, 8192);
  }
  return list;
}

// The values of the header by their names.
std::map<std::string, std::string> values_of(const std::string& header) {
  std::map<std::string, std::string> values;
  size_t at = 0;
  while ((at = header.find(" k", at)) != std::string::npos) {
    const size_t name_end = header.find(" = ", ++at);
    const size_t end = header.find(";\n", name_end);
    EXPECT_TRUE(
        values.emplace(header.substr(at, name_end - at), header.substr(name_end + 3, end - name_end - 3)).second)
        << "twice: " << header.substr(at, name_end - at);
    at = end;
  }
  return values;
}

std::string header_of(const Program& program) {
  return constants_header(program.layout, program.plan,
                          program_sizes(program.layout, program.plan, kSharedLimit).value());
}

TEST(Constants, shared_memory_holds_state_ring_and_scratch_and_no_more_than_there_is) {
  for (const Program& program : programs()) {
    const ProgramSizes sizes = program_sizes(program.layout, program.plan, kSharedLimit).value();
    const model::Geometry& g = program.layout.geometry();
    const int experts = round_up(std::max(g.n_routed_experts, g.dspark_n_routed_experts), 64);
    EXPECT_EQ(sizes.shared.total_bytes,
              state_bytes(experts, sizes.pair_capacity) + sizes.shared.ring_bytes + sizes.shared.scratch_bytes);
    EXPECT_LE(sizes.shared.total_bytes, kSharedLimit);
    EXPECT_GE(sizes.pair_capacity, kPassRows);
    EXPECT_GE(sizes.task_batch, 1);
    EXPECT_EQ(sizes.shared.scratch_bytes % 128, 0);
    EXPECT_EQ(sizes.shared.ring_bytes % 1024, 0);
  }
}

TEST(Constants, the_ring_holds_every_chunk) {
  for (const Program& program : programs()) {
    const ProgramSizes sizes = program_sizes(program.layout, program.plan, kSharedLimit).value();
    for (const program::ChunkRun& run : program.plan.chunk_runs()) {
      if (run.order() == program::Order::kPlain) continue;
      EXPECT_LE(run.chunk_bytes, sizes.shared.ring_bytes);
    }
  }
}

TEST(Constants, limits_of_the_program_are_refused_by_name) {
  const auto refusal = [](const model::Geometry& geometry, int shared_limit) {
    const Program program(geometry, 1, 8);
    const Result<ProgramSizes> sizes = program_sizes(program.layout, program.plan, shared_limit);
    return sizes.ok() ? std::string("none") : sizes.error().message();
  };
  EXPECT_EQ(refusal(geometry("micro"), kSharedLimit), "none");
  EXPECT_EQ(refusal(geometry("micro"), 65536),
            "device program: 8 rows of this geometry do not fit 65536 bytes of shared memory (unsupported)");
  model::Geometry wrong = geometry("micro");
  wrong.num_experts_per_tok = 9;
  EXPECT_EQ(refusal(wrong, kSharedLimit), "device program: 9 experts a row; at most 8 (unsupported)");
}

TEST(Constants, the_header_says_each_thing_once_and_as_layout_and_plan_say_it) {
  const Program program(geometry("flash"), 4, 24, 8192);
  const ProgramSizes sizes = program_sizes(program.layout, program.plan, kSharedLimit).value();
  const std::map<std::string, std::string> values = values_of(header_of(program));
  const auto number = [&](const std::string& name) { return std::stoll(values.at(name)); };
  EXPECT_EQ(number("kHidden"), program.layout.geometry().hidden_size);
  EXPECT_EQ(number("kTp"), 4);
  EXPECT_EQ(number("kBand"), 24);
  EXPECT_EQ(number("kRows"), program.layout.rows());
  EXPECT_EQ(number("kListParts"), program.layout.max_list_parts());
  EXPECT_EQ(number("kRankVocab"), program.layout.shard().vocab_rows);
  EXPECT_EQ(number("kMaxGroups"), 8192);
  EXPECT_EQ(number("kTagBits"), program.plan.tag_bits());
  EXPECT_EQ(number("kRingBytes"), sizes.shared.ring_bytes);
  EXPECT_EQ(number("kScratchBytes"), sizes.shared.scratch_bytes);
  // The first region's place, and the bits of a number that is not a short decimal.
  EXPECT_EQ(std::stoll(values.at("kRegionPair[]").substr(1)),
            program.plan.region_offset(static_cast<program::Region>(0), 0) / 8);
  EXPECT_EQ(std::strtof(values.at("kRmsNormEps").c_str(), nullptr),
            static_cast<float>(program.layout.geometry().rms_norm_eps));
}

TEST(Constants, what_a_program_depends_on_changes_its_header) {
  const Program program(geometry("clone40"), 2, 8);
  EXPECT_EQ(header_of(program), header_of(Program(geometry("clone40"), 2, 8)));
  std::set<std::string> headers = {header_of(program), header_of(Program(geometry("clone40"), 4, 8)),
                                   header_of(Program(geometry("clone40"), 2, 16)),
                                   header_of(Program(geometry("clone40"), 2, 8, 2048))};
  model::Geometry other = geometry("clone40");
  other.swiglu_limit *= 1.5;
  headers.insert(header_of(Program(other, 2, 8)));
  EXPECT_EQ(headers.size(), 5u);
}

}  // namespace
}  // namespace monostep::gpu
