// Requests of a benchmark (apps/bench_sequences.h).
#include "apps/bench_sequences.h"

#include <algorithm>
#include <numeric>

#include "weights/fill_record.h"

namespace monostep::apps {
namespace {

// Random e2m1 codes, then scales: those of compressed records are E4M3 bytes from 0.25 to 0.47, those of index keys
// E8M0 bytes of 0.25 and 0.5.
void fill_record(uint64_t start, int64_t code_bytes, bool index_key, std::span<std::byte> record) {
  for (size_t at = 0; at < record.size(); ++at) {
    const uint32_t random = weights::stream_byte(start, at);
    const bool code = static_cast<int64_t>(at) < code_bytes;
    record[at] = static_cast<std::byte>(code ? random : index_key ? 125 + (random & 1) : 0x28 + (random & 7));
  }
}

void fill_page(const model::Geometry& geometry, const kv::PageLayout& layout, uint64_t seed,
               std::vector<std::byte>& page) {
  const auto compressed = static_cast<size_t>(model::compressed_record_bytes(geometry));
  const auto index_key = static_cast<size_t>(model::index_record_bytes(geometry));
  const std::span bytes(page);
  for (int owner = 0; owner < static_cast<int>(geometry.kv_source_layer_ids.size()); ++owner) {
    for (int group = 0; group < layout.groups_per_page(owner); ++group) {
      fill_record(seed++, geometry.head_dim / 2, false,
                  bytes.subspan(static_cast<size_t>(layout.compressed_offset(owner, group)), compressed));
      fill_record(seed++, geometry.index_head_dim / 2, true,
                  bytes.subspan(static_cast<size_t>(layout.index_key_offset(owner, group)), index_key));
    }
  }
}

}  // namespace

Status fill_pages(gpu::Rank& rank, const BenchShape& shape) {
  std::vector<std::byte> page(static_cast<size_t>(rank.page_layout().page_bytes()));
  for (int page_idx = 0; page_idx < shape.requests * request_pages(shape); ++page_idx) {
    fill_page(rank.geometry(), rank.page_layout(), weights::stream_word(shape.seed, static_cast<uint64_t>(page_idx)),
              page);
    TRY(rank.write_page(page_idx, page));
  }
  return {};
}

BenchSequences::BenchSequences(const model::Geometry& geometry, const BenchShape& shape)
    : geometry_(geometry), shape_(shape), sequences_(static_cast<size_t>(shape.requests)) {
  const int pages = request_pages(shape);
  for (int idx = 0; idx < shape.requests; ++idx) {
    Sequence& sequence = sequences_[static_cast<size_t>(idx)];
    sequence.pages.resize(static_cast<size_t>(pages));
    std::iota(sequence.pages.begin(), sequence.pages.end(), idx * pages);
    for (int row = 0; row < rows_a_request(); ++row) {
      const uint64_t random = weights::stream_word(shape.seed, static_cast<uint64_t>(idx * rows_a_request() + row));
      sequence.tokens.push_back(static_cast<int32_t>(random % static_cast<uint64_t>(geometry.vocab_size)));
    }
    slots_.push_back(idx);
  }
  rewind();
}

void BenchSequences::rewind() {
  for (Sequence& sequence : sequences_) sequence.position = shape_.context;
}

const program::StepInputs& BenchSequences::next_inputs() {
  for (Sequence& sequence : sequences_) {
    if (sequence.position + rows_a_request() > shape_.context + shape_.span) sequence.position = shape_.context;
  }
  inputs_.requests.clear();
  inputs_.rows.clear();
  for (int idx = 0; idx < shape_.requests; ++idx) add_request(idx);
  return inputs_;
}

void BenchSequences::add_request(int idx) {
  Sequence& sequence = sequences_[static_cast<size_t>(idx)];
  program::StepRequest& request = inputs_.requests.emplace_back();
  request.state_slot = idx;
  request.pages = sequence.pages;
  request.first_row = static_cast<int>(inputs_.rows.size());
  request.num_rows = rows_a_request();
  request.first_position = sequence.position;
  request.num_drafts = geometry_.dspark_block_size;
  request.sample = request.draft = true;
  request.sampling.seed = shape_.seed + static_cast<uint64_t>(idx);
  request.forced_acceptance = shape_.acceptance;
  request.step_counter = sequence.step_counter;
  for (int row = 0; row < request.num_rows; ++row)
    inputs_.rows.push_back({sequence.tokens[static_cast<size_t>(row)], sequence.position + row, idx, false, true});
}

void BenchSequences::take(const program::StepOutputs& outputs) {
  for (size_t idx = 0; idx < sequences_.size(); ++idx) {
    Sequence& sequence = sequences_[idx];
    const program::RequestOutput& output = outputs.requests[idx];
    sequence.position += output.num_accepted + 1;
    sequence.tokens.assign(1, output.tokens.back());
    sequence.tokens.insert(sequence.tokens.end(), output.drafts.begin(), output.drafts.end());
    ++sequence.step_counter;
    num_tokens_ += output.num_accepted + 1;
    ++num_outputs_;
  }
}

}  // namespace monostep::apps
