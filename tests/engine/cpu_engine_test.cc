// The engine on the CPU reference with a real (micro) checkpoint: the text does not depend on speculation, chunks or
// company, and after rejections and forced acceptance every state class has the bits that the committed tokens alone
// give.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "../base/temp_dir.h"
#include "cpu/backend.h"
#include "engine/engine.h"
#include "model/shard.h"
#include "weights/synthetic.h"

namespace monostep::engine {
namespace {

using Tokens = std::vector<int32_t>;
using State = std::map<std::string, std::string>;  // record's name -> bytes

constexpr int kContext = 128;

// The micro checkpoint of seed 3; its files are mapped, so the folder need not stay.
const weights::Checkpoint& micro() {
  static const weights::Checkpoint checkpoint = [] {
    const TempDir dir;
    CHECK(weights::write_checkpoint(model::named_geometry("micro").value(), 3, dir / "micro").ok(), "micro is written");
    return weights::Checkpoint::open(dir / "micro").value();
  }();
  return checkpoint;
}

std::string bytes_at(const std::byte* begin, int64_t num_bytes) {
  return std::string(reinterpret_cast<const char*>(begin), static_cast<size_t>(num_bytes));
}

void add_rings(kv::Pools& pools, const Sequence& sequence, State& state) {
  const model::Geometry& geometry = micro().geometry();
  const int end = sequence.num_committed;
  std::byte* slot = pools.slot(sequence.slot);
  for (int layer_idx = 0; layer_idx < geometry.num_layers(); ++layer_idx) {
    for (int position = std::max(0, end - geometry.sliding_window); position < end; ++position) {
      state["ring " + std::to_string(layer_idx) + " at " + std::to_string(position)] =
          bytes_at(slot + pools.slot_layout.ring_offset(layer_idx, position), model::window_record_bytes(geometry));
    }
  }
  for (int position = std::max(0, end - geometry.engram_max_ngram_size + 1); position < end; ++position) {
    state["class at " + std::to_string(position)] = bytes_at(slot + pools.slot_layout.class_offset(position), 4);
  }
}

void add_pages(kv::Pools& pools, const Sequence& sequence, State& state) {
  const model::Geometry& geometry = micro().geometry();
  for (int owner_idx = 0; owner_idx < static_cast<int>(geometry.kv_source_layer_ids.size()); ++owner_idx) {
    const int layer_idx = geometry.kv_source_layer_ids[static_cast<size_t>(owner_idx)];
    const int ratio = geometry.compress_ratios[static_cast<size_t>(layer_idx)];
    const int in_page = pools.page_layout.groups_per_page(owner_idx);
    const std::string owner = std::to_string(layer_idx) + " group ";
    for (int group = 0; group < sequence.num_committed / ratio; ++group) {
      const std::byte* page = pools.page(sequence.pages[static_cast<size_t>(group / in_page)]);
      state["compressed " + owner + std::to_string(group)] =
          bytes_at(page + pools.page_layout.compressed_offset(owner_idx, group % in_page),
                   model::compressed_record_bytes(geometry));
      state["index key " + owner + std::to_string(group)] = bytes_at(
          page + pools.page_layout.index_key_offset(owner_idx, group % in_page), model::index_record_bytes(geometry));
    }
    if (ratio == 2 && sequence.num_committed % 2 == 1) {
      state["pending " + std::to_string(layer_idx)] =
          bytes_at(pools.slot(sequence.slot) + pools.slot_layout.pending_offset(owner_idx, sequence.num_committed - 1),
                   int64_t{8} * geometry.head_dim);
    }
  }
}

// Everything that later steps may read, of a sequence on a backend.
State state_of(cpu::CpuBackend& backend, const Sequence& sequence) {
  State state;
  kv::Pools& pools = *backend.machine().ranks[0].pools;
  add_rings(pools, sequence, state);
  add_pages(pools, sequence, state);
  return state;
}

std::string first_difference(const State& a, const State& b) {
  if (a.size() != b.size()) return "other records";
  for (const auto& [name, bytes] : a) {
    const auto found = b.find(name);
    if (found == b.end() || found->second != bytes) return name;
  }
  return "";
}

struct Served {  // an engine with its own backend
  explicit Served(int chunk = program::kMaxBand) {
    const model::Geometry& geometry = micro().geometry();
    limits = {.vocab_size = geometry.vocab_size,
              .max_context = kContext,
              .max_spec = geometry.dspark_block_size,
              .num_slots = 4,
              .num_pages = 8,
              .chunk = chunk};
    cpu::CpuOptions options;
    options.ctas = 2;
    options.num_slots = limits.num_slots;
    options.num_pages = limits.num_pages;
    options.max_context = kContext;
    backend = cpu::CpuBackend::make(micro(), options).value();
    engine = std::make_unique<Engine>(limits, *backend);
  }

  void run() {
    while (engine->has_work()) {
      const Status status = engine->step();
      ASSERT_TRUE(status.ok()) << status.error().message();
    }
  }

  Tokens generate(Request request) {
    Tokens out;
    request.on_tokens = [&out](const Sequence&, std::span<const int32_t> tokens) {
      out.insert(out.end(), tokens.begin(), tokens.end());
    };
    EXPECT_TRUE(engine->submit(request).ok());
    run();
    return out;
  }

  Limits limits;
  std::unique_ptr<cpu::CpuBackend> backend;
  std::unique_ptr<Engine> engine;
};

Request make_request(int num_prompt, int max_tokens, float temperature, int spec) {
  Request request;
  for (int token_idx = 0; token_idx < num_prompt; ++token_idx) request.prompt.push_back((token_idx * 29 + 7) % 128);
  request.max_tokens = max_tokens;
  request.sampling = {.temperature = temperature, .seed = 11};
  request.spec = spec;
  return request;
}

DraftSource drafts_right_for(int num_right, Tokens whole) {
  return [num_right, whole = std::move(whole)](std::span<const int32_t> tokens) {
    Tokens drafts;
    for (int draft_idx = 0; draft_idx < 5; ++draft_idx) {
      const size_t position = tokens.size() + static_cast<size_t>(draft_idx);
      const int32_t right = position < whole.size() ? whole[position] : 0;
      drafts.push_back(draft_idx < num_right ? right : (right + 1) % 128);
    }
    return drafts;
  };
}

TEST(CpuEngine, speculation_gives_the_plain_text_greedy_and_sampled) {
  Served served;
  for (const float temperature : {0.0f, 1.0f}) {
    const Request plain = make_request(9, 20, temperature, 0);
    const Tokens text = served.generate(plain);
    EXPECT_EQ(text.size(), 20u);
    EXPECT_EQ(served.generate(make_request(9, 20, temperature, 5)), text) << "the model's drafts at " << temperature;
    Tokens whole = plain.prompt;
    whole.insert(whole.end(), text.begin(), text.end());
    for (int num_right = 0; num_right <= 5; ++num_right) {
      Request request = make_request(9, 20, temperature, 5);
      request.draft_source = drafts_right_for(num_right, whole);
      EXPECT_EQ(served.generate(request), text) << num_right << " at " << temperature;
    }
  }
}

TEST(CpuEngine, chunks_and_company_do_not_change_the_text) {
  const Tokens alone = Served().generate(make_request(37, 10, 1, 5));
  for (const int chunk : {1, 5, 16}) EXPECT_EQ(Served(chunk).generate(make_request(37, 10, 1, 5)), alone) << chunk;
  Served served(16);
  for (const int num_prompt : {3, 50, 17})
    ASSERT_TRUE(served.engine->submit(make_request(num_prompt, 12, 0.7f, 3)).ok());
  EXPECT_EQ(served.generate(make_request(37, 10, 1, 5)), alone);
}

// Each step's last token and all state against a fresh engine that is given the committed tokens as its prompt.
void expect_plain_states(Request request) {
  Served served;
  int num_compared = 0;
  request.on_tokens = [&](const Sequence& sequence, std::span<const int32_t> tokens) {
    if (sequence.finish) return;
    const State state = state_of(*served.backend, sequence);
    Request reference;
    reference.prompt.assign(sequence.tokens.begin(), sequence.tokens.end() - 1);
    ASSERT_EQ(static_cast<int>(reference.prompt.size()), sequence.num_committed);
    reference.max_tokens = 1;
    reference.sampling = request.sampling;
    State wanted;
    Served fresh;
    reference.on_tokens = [&](const Sequence& plain, std::span<const int32_t> first) {
      EXPECT_EQ(first[0], tokens.back()) << "behind " << plain.num_committed << " committed tokens";
      wanted = state_of(*fresh.backend, plain);
    };
    ASSERT_TRUE(fresh.engine->submit(reference).ok());
    fresh.run();
    EXPECT_EQ(first_difference(state, wanted), "") << "behind " << sequence.num_committed << " committed tokens";
    ++num_compared;
  };
  ASSERT_TRUE(served.engine->submit(request).ok());
  served.run();
  EXPECT_GE(num_compared, 4);
}

TEST(CpuEngine, forced_acceptance_leaves_the_state_and_tokens_of_the_committed_tokens) {
  for (const float acceptance : {1.0f, 2.5f, 3.51f, 6.0f}) {
    Request request = make_request(11, 30, 0, 5);
    request.acceptance_length = acceptance;
    expect_plain_states(request);
  }
}

TEST(CpuEngine, rejected_drafts_leave_no_trace_in_any_state) {
  const Tokens text = Served().generate(make_request(8, 24, 0, 0));
  Tokens whole = make_request(8, 1, 0, 0).prompt;
  whole.insert(whole.end(), text.begin(), text.end());
  for (int num_right = 0; num_right <= 4; ++num_right) {
    Request request = make_request(8, 24, 0, 5);
    request.draft_source = drafts_right_for(num_right, whole);
    expect_plain_states(request);
  }
}

TEST(CpuEngine, the_state_comparison_sees_one_other_token) {  // positive control
  std::vector<State> states;
  for (const int32_t last : {5, 6}) {
    Served served;
    Request request = make_request(8, 1, 0, 0);
    request.prompt.push_back(last);
    request.on_tokens = [&](const Sequence& sequence, std::span<const int32_t>) {
      states.push_back(state_of(*served.backend, sequence));
    };
    ASSERT_TRUE(served.engine->submit(request).ok());
    served.run();
  }
  EXPECT_NE(first_difference(states[0], states[1]), "");
  int num_different = 0;
  for (const auto& [name, bytes] : states[0]) num_different += states[1][name] != bytes;
  const model::Geometry& geometry = micro().geometry();
  EXPECT_GE(num_different, geometry.num_layers());  // the last position's ring row of every layer
}

}  // namespace
}  // namespace monostep::engine
