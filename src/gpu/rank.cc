// One rank on one device (gpu/rank.h).
#include "gpu/rank.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/check.h"
#include "gpu/call_records.h"
#include "gpu/compile_program.h"
#include "gpu/device/scratch_sizes.h"
#include "model/engram.h"
#include "model/inventory.h"
#include "model/rope.h"
#include "weights/pack.h"
#include "weights/parallel.h"
#include "weights/recipe.h"
#include "weights/synthetic_pack.h"

namespace monostep::gpu {
namespace {

Status upload_new(Device& device, std::span<const std::byte> bytes, Buffer& buffer) {
  TRY_ASSIGN(buffer, Buffer::create(device, std::max<int64_t>(static_cast<int64_t>(bytes.size()), 256)));
  return device.upload(buffer.ptr(), bytes.data(), static_cast<int64_t>(bytes.size()));
}

template <typename T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

// int64 [Engram layers][primes | offsets | multipliers].
std::vector<int64_t> hash_tables(const model::Geometry& geometry) {
  std::vector<int64_t> out;
  for (const model::EngramTable& table : model::engram_tables(geometry)) {
    for (const std::vector<int64_t>* part : {&table.primes, &table.offsets, &table.multipliers})
      out.insert(out.end(), part->begin(), part->end());
  }
  return out;
}

std::string markov_table(const model::Geometry& geometry) {
  return geometry.prefix(geometry.num_layers() - 1) + "markov_head.embed.weight";
}

// As many bytes as the table has, on several threads: most of them come from the disk.
void copy_table(std::span<const std::byte> from, const MappedBuffer& table) {
  constexpr size_t kPartBytes = 64 << 20;
  const auto num_bytes = static_cast<size_t>(table.num_bytes());
  weights::parallel_for(ceil_div(num_bytes, kPartBytes), [&](size_t part) {
    const size_t begin = part * kPartBytes;
    std::memcpy(table.host() + begin, from.data() + begin, std::min(kPartBytes, num_bytes - begin));
  });
}

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

}  // namespace

Rank::Rank(Device& device, const model::Geometry& geometry, const RankOptions& options, KernelMaker maker)
    : device_(device),
      geometry_(geometry),
      options_(options),
      maker_(std::move(maker)),
      page_layout_(geometry_),
      slot_layout_(geometry_) {}

Result<std::unique_ptr<Rank>> Rank::make(Device& device, const weights::Checkpoint& checkpoint,
                                         const RankOptions& options, KernelMaker maker) {
  std::unique_ptr<Rank> out(new Rank(device, checkpoint.geometry(), options, std::move(maker)));
  TRY(out->settle());
  const Clock::time_point start = Clock::now();
  TRY(out->load_packed(checkpoint));
  TRY(out->load_tables(checkpoint));
  out->load_.weights_s = seconds_since(start);
  const Clock::time_point engram_start = Clock::now();
  TRY(out->load_engram(checkpoint));
  out->load_.engram_s = seconds_since(engram_start);
  TRY(out->place_state());
  return out;
}

Result<std::unique_ptr<Rank>> Rank::make_synthetic(Device& device, const model::Geometry& geometry, uint64_t seed,
                                                   const RankOptions& options, KernelMaker maker,
                                                   const FillMaker& fill_maker) {
  std::unique_ptr<Rank> out(new Rank(device, geometry, options, std::move(maker)));
  TRY(out->settle());
  TRY_ASSIGN(const Kernel fill, fill_maker(device));
  const Clock::time_point start = Clock::now();
  TRY(out->fill_weights(seed, fill));
  TRY(out->fill_tables(seed, fill));
  out->load_.weights_s = seconds_since(start);
  const Clock::time_point engram_start = Clock::now();
  TRY(out->fill_engram(seed, fill));
  out->load_.engram_s = seconds_since(engram_start);
  TRY(out->place_state());
  TRY(device.synchronize());
  return out;
}

Status Rank::settle() {
  TRY_ASSIGN(shard_, model::make_shard(geometry_, options_.tp));
  TRY_ASSIGN(const DeviceInfo info, device_.info());
  if (options_.num_ctas == 0) options_.num_ctas = info.num_sms;
  if (options_.tp == 1 && options_.push == Push::kPlayed) options_.push = Push::kNone;  // there are none to play
  return {};
}

Status Rank::place_state() {
  TRY_ASSIGN(pages_, Buffer::create(device_, options_.num_pages * page_layout_.page_bytes() + 256));
  TRY_ASSIGN(slots_, Buffer::create(device_, options_.num_slots * slot_layout_.slot_bytes()));
  TRY(device_.fill(pages_.ptr(), 0, pages_.num_bytes()));
  TRY(device_.fill(slots_.ptr(), 0, slots_.num_bytes()));
  const int64_t page_table_bytes = int64_t{program::kMaxRequests} * max_pages() * 4;
  TRY_ASSIGN(page_table_, Buffer::create(device_, page_table_bytes));
  TRY(device_.fill(page_table_.ptr(), 0, page_table_bytes));
  TRY_ASSIGN(step_data_, MappedBuffer::create(device_, sizeof(StepRecord) + page_table_bytes));
  std::memset(step_data_.host(), 0, static_cast<size_t>(step_data_.num_bytes()));
  TRY_ASSIGN(step_, Buffer::create(device_, 2 * sizeof(StepRecord)));
  TRY_ASSIGN(outputs_, MappedBuffer::create(device_, 2 * sizeof(StepOutputRecord)));
  std::memset(outputs_.host(), 0, 2 * sizeof(StepOutputRecord));
  params_.outputs = outputs_.ptr();
  const int64_t report_bytes = (1 + options_.num_ctas) * static_cast<int64_t>(sizeof(Report));
  TRY_ASSIGN(report_, MappedBuffer::create(device_, report_bytes));
  std::memset(report_.host(), 0, static_cast<size_t>(report_bytes));
  model::RopeTables tables = model::rope_tables(geometry_);
  tables.base.insert(tables.base.end(), tables.yarn.begin(), tables.yarn.end());
  TRY(upload_new(device_, bytes_of(tables.base), rope_));
  params_.rope = rope_.ptr();
  params_.pages = pages_.ptr();
  params_.slots = slots_.ptr();
  params_.page_table = page_table_.ptr();
  params_.step = step_.ptr();
  params_.report = report_.ptr();
  params_.max_pages = max_pages();
  params_.rank = options_.rank;
  params_.push = static_cast<int32_t>(options_.push);
  params_.push_delay_ns = options_.push_delay_ns;
  params_.poll_limit = options_.poll_limit;
  params_.ring_window = options_.ring_window;
  params_.delay_seed = options_.delay_seed;
  return {};
}

Status Rank::load_packed(const weights::Checkpoint& checkpoint) {
  // Every band has the same chunks.
  const program::Layout layout(geometry_, shard_, {program::kBands[0], 1, options_.max_context});
  TRY_ASSIGN(weights_, load_weights(device_, checkpoint, layout, options_.rank, options_.packed_cache, load_.weights));
  return {};
}

Status Rank::load_tables(const weights::Checkpoint& checkpoint) {
  TRY(upload_new(device_, checkpoint.tensor("embed.weight").data, embed_));
  params_.embed = embed_.ptr();
  if (geometry_.num_nextn_predict_layers > 0) {
    TRY(upload_new(device_, checkpoint.tensor(markov_table(geometry_)).data, markov_embed_));
    params_.markov_embed = markov_embed_.ptr();
  }
  return {};
}

// Rows of an Engram layer's pinned table.
int64_t Rank::engram_rows(size_t engram_idx) const {
  const int64_t rows = geometry_.engram_num_embeddings[engram_idx];
  if (options_.engram_bytes == 0) return rows;
  const int64_t row_bytes = geometry_.engram_head_dim + geometry_.engram_head_dim / 32;
  const auto num_layers = static_cast<int64_t>(geometry_.engram_layer_ids.size());
  return std::clamp<int64_t>(options_.engram_bytes / num_layers / row_bytes, 1, rows);
}

Status Rank::place_hash(std::span<const int32_t> classes) {
  TRY(upload_new(device_, std::as_bytes(classes), classes_));
  params_.token_classes = classes_.ptr();
  params_.pad_class = classes[static_cast<size_t>(geometry_.engram_pad_token_id)];
  const std::vector<int64_t> hash = hash_tables(geometry_);
  TRY(upload_new(device_, bytes_of(hash), hash_));
  params_.engram_hash = hash_.ptr();
  return {};
}

Status Rank::load_engram(const weights::Checkpoint& checkpoint) {
  if (geometry_.engram_layer_ids.empty()) return {};
  TRY(place_hash(checkpoint.token_classes()));
  for (size_t idx = 0; idx < geometry_.engram_layer_ids.size(); ++idx) {
    const std::string prefix = geometry_.prefix(geometry_.engram_layer_ids[idx]) + "engram.embed.";
    const int64_t rows = engram_rows(idx);
    params_.engram_rows[idx] = static_cast<uint64_t>(rows);
    uint64_t* places[] = {&params_.engram_codes[idx], &params_.engram_scales[idx]};
    const int64_t widths[] = {geometry_.engram_head_dim, geometry_.engram_head_dim / 32};
    const char* names[] = {"weight", "scale"};
    for (size_t part = 0; part < 2; ++part) {
      TRY_ASSIGN(MappedBuffer table, MappedBuffer::create(device_, rows * widths[part]));
      copy_table(checkpoint.tensor(prefix + names[part]).data, table);
      *places[part] = table.ptr();
      engram_.push_back(std::move(table));
    }
  }
  return {};
}

Status Rank::fill(Kernel kernel, std::span<const weights::FillRecord> records, DevicePtr to, bool table) {
  struct {
    uint64_t records;
    uint64_t to;
    int32_t num_records;
    int32_t table;
  } params = {0, to, static_cast<int32_t>(records.size()), table ? 1 : 0};
  Buffer buffer;
  TRY(upload_new(device_, std::as_bytes(records), buffer));
  params.records = buffer.ptr();
  Launch launch;
  launch.num_ctas = options_.num_ctas * 8;
  launch.threads = 256;
  launch.params = &params;
  launch.params_bytes = sizeof(params);
  TRY(device_.launch(kernel, launch));
  return device_.synchronize();  // before the records go
}

Status Rank::fill_weights(uint64_t seed, Kernel kernel) {
  const program::Layout layout(geometry_, shard_, {program::kBands[0], 1, options_.max_context});
  TRY_ASSIGN(const std::vector<weights::FillRecord> records, weights::fill_records(layout, seed, options_.rank));
  TRY_ASSIGN(weights_, Buffer::create(device_, weights::packed_bytes(weights::packed_runs(layout))));
  return fill(kernel, records, weights_.ptr(), false);
}

namespace {

// The record of a whole tensor of the checkpoint, as rows of so many elements.
weights::FillRecord table_record(const model::Geometry& geometry, uint64_t seed, const std::string& name, int64_t rows,
                                 int64_t columns, int element_bytes) {
  weights::FillRecord record;
  for (const model::TensorSpec& spec : model::tensor_inventory(geometry)) {
    if (spec.name == name) record.rules[0] = weights::value_rule(geometry, seed, spec);
  }
  record.num_words = rows * columns * element_bytes / 4;
  record.chunk_bytes = 4;
  record.num_rows = rows;
  record.num_columns = columns;
  return record;
}

}  // namespace

Status Rank::fill_tables(uint64_t seed, Kernel kernel) {
  const auto make = [&](const std::string& name, int64_t columns, Buffer& buffer, uint64_t& place) -> Status {
    const weights::FillRecord record = table_record(geometry_, seed, name, geometry_.vocab_size, columns, 2);
    TRY_ASSIGN(buffer, Buffer::create(device_, record.num_words * 4));
    place = buffer.ptr();
    return fill(kernel, {&record, 1}, buffer.ptr(), false);
  };
  TRY(make("embed.weight", geometry_.hidden_size, embed_, params_.embed));
  if (geometry_.num_nextn_predict_layers == 0) return {};
  return make(markov_table(geometry_), geometry_.dspark_markov_rank, markov_embed_, params_.markov_embed);
}

Status Rank::fill_engram(uint64_t seed, Kernel kernel) {
  if (geometry_.engram_layer_ids.empty()) return {};
  std::vector<int32_t> classes(static_cast<size_t>(geometry_.vocab_size));
  for (size_t token = 0; token < classes.size(); ++token)
    classes[token] = static_cast<int32_t>(token) % geometry_.engram_compressed_vocab_size;
  TRY(place_hash(classes));
  for (size_t idx = 0; idx < geometry_.engram_layer_ids.size(); ++idx) {
    const std::string prefix = geometry_.prefix(geometry_.engram_layer_ids[idx]) + "engram.embed.weight";
    const int64_t rows = engram_rows(idx);
    params_.engram_rows[idx] = static_cast<uint64_t>(rows);
    uint64_t* places[] = {&params_.engram_codes[idx], &params_.engram_scales[idx]};
    for (int part = 0; part < 2; ++part) {
      const int64_t width = part == 0 ? geometry_.engram_head_dim : geometry_.engram_head_dim / 32;
      weights::FillRecord record = table_record(geometry_, seed, prefix, rows, width, 1);
      record.parts = part + 1;
      TRY_ASSIGN(MappedBuffer table, MappedBuffer::create(device_, rows * width + 64));
      *places[part] = table.ptr();
      TRY(fill(kernel, {&record, 1}, table.ptr(), true));
      engram_.push_back(std::move(table));
    }
  }
  return {};
}

Status Rank::prepare(int num_rows, int num_requests) {
  prepared_ = false;
  TRY(band_for(num_rows, num_requests));
  prepared_ = true;
  return {};
}

Result<Rank::Band*> Rank::band_for(int num_rows, int num_requests) {
  const program::Shape shape = program::shape_for(geometry_, num_rows, num_requests, options_.max_context);
  size_t band_idx = 0;
  while (program::kBands[band_idx] != shape.band) ++band_idx;
  for (size_t idx = band_idx; idx < bands_.size() && (prepared_ || idx == band_idx); ++idx) {
    if (bands_[idx]) return bands_[idx].get();
  }
  auto band = std::make_unique<Band>(geometry_, shard_, shape, options_.num_ctas);
  TRY_ASSIGN(const DeviceInfo info, device_.info());
  TRY_ASSIGN(band->sizes,
             program_sizes(band->layout, band->plan, std::min(kSharedLimit, info.max_shared_bytes_per_cta)));
  TRY_ASSIGN(band->kernel, maker_(device_, band->layout, band->plan, band->sizes));
  const std::vector<CallRecord> records = call_records(band->layout, band->plan, weights_.ptr());
  TRY(upload_new(device_, bytes_of(records), band->calls));
  TRY_ASSIGN(band->arena, Buffer::create(device_, band->plan.arena_bytes()));
  TRY(device_.fill(band->arena.ptr(), 0, band->arena.num_bytes()));
  bands_[band_idx] = std::move(band);
  return bands_[band_idx].get();
}

// Sends what differs from the table on the device; behind a request's pages old ones stay, which nobody reads.
Status Rank::upload_pages(const program::StepInputs& inputs) {
  for (size_t idx = 0; idx < inputs.requests.size(); ++idx) {
    std::span<const int32_t> pages = inputs.requests[idx].pages;
    pages = pages.first(std::min(pages.size(), static_cast<size_t>(max_pages())));
    const size_t row = idx * static_cast<size_t>(max_pages());
    const std::span<int32_t> known(host_pages() + row, pages.size());
    const auto begin = static_cast<size_t>(std::ranges::mismatch(pages, known).in1 - pages.begin());
    size_t end = pages.size();
    while (end > begin && pages[end - 1] == known[end - 1]) --end;
    if (begin == end) continue;
    std::ranges::copy(pages.subspan(begin, end - begin), known.begin() + static_cast<std::ptrdiff_t>(begin));
    TRY(device_.upload_later(page_table_.ptr() + (row + begin) * sizeof(int32_t),
                             reinterpret_cast<const std::byte*>(&known[begin]),
                             static_cast<int64_t>((end - begin) * sizeof(int32_t))));
  }
  return {};
}

Status Rank::begin_step(const program::StepInputs& inputs, uint32_t epoch) {
  TRY_ASSIGN(band_, band_for(static_cast<int>(inputs.rows.size()), static_cast<int>(inputs.requests.size())));
  if (sending_) TRY(device_.synchronize());  // a step that nobody waited for
  sending_ = true;
  *host_step() = step_record(inputs, epoch);
  step_parity_ = 0;
  epoch_ = epoch;
  params_.step = step_.ptr();
  params_.previous_step = 0;
  TRY(device_.upload_later(step_.ptr(), step_data_.host(), sizeof(StepRecord)));
  going_.clear();
  for (const program::StepRequest& request : inputs.requests) {
    const int held = static_cast<int>(request.pages.size()) * program::kPageTokens;
    going_.push_back(
        {request.state_slot, request.draft, std::min(held, options_.max_context) - request.first_position});
  }
  TRY(upload_pages(inputs));
  if (!inputs.image_rows.empty()) {
    if (params_.image_rows == 0) {  // for the widest step: captured launches keep the address
      TRY_ASSIGN(image_rows_, Buffer::create(device_, int64_t{program::kMaxBand} * geometry_.hidden_size * 4));
      params_.image_rows = image_rows_.ptr();
    }
    TRY(device_.upload(image_rows_.ptr(), inputs.image_rows.data(),
                       static_cast<int64_t>(inputs.image_rows.size_bytes())));
  }
  params_.calls = band_->calls.ptr();
  params_.arena = band_->arena.ptr();
  return {};
}

Status Rank::continue_step(std::span<const int> slots) {
  const auto refuse = [](const std::string& text) { return Error{Code::kInvalidArgument, text, "device round"}; };
  if (band_ == nullptr || going_.empty()) return refuse("no step to continue");
  if (slots.size() != going_.size())
    return refuse(fmt::format("{} requests go on, the last step had {}", slots.size(), going_.size()));
  const int rows = geometry_.dspark_block_size + 1;
  for (size_t idx = 0; idx < slots.size(); ++idx) {
    const Going& going = going_[idx];
    if (slots[idx] != going.state_slot)
      return refuse(fmt::format("request {} is on state slot {}, the last step had slot {} there", idx, slots[idx],
                                going.state_slot));
    if (!going.drafts) return refuse(fmt::format("request {} made no drafts", idx));
    // The last step may have moved it by `rows` positions, and this one takes as many again.
    if (going.most_rows < 2 * rows) return refuse(fmt::format("request {} may run past its pages", idx));
  }
  if (static_cast<int>(slots.size()) * rows > band_->layout.shape().band)
    return refuse(fmt::format("{} rows do not fit the band of {}", slots.size() * static_cast<size_t>(rows),
                              band_->layout.shape().band));
  for (Going& going : going_) going.most_rows -= rows;
  params_.previous_step = params_.step;
  step_parity_ ^= 1;
  params_.step = step_.ptr() + static_cast<uint64_t>(step_parity_) * sizeof(StepRecord);
  ++epoch_;
  return {};
}

Result<program::StepOutputs> Rank::previous_outputs(double seconds) {
  const uint32_t wanted = epoch_ - 1;
  const auto& record = reinterpret_cast<const StepOutputRecord*>(outputs_.host())[wanted & 1];
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (*const_cast<const volatile uint32_t*>(&record.epoch) != wanted) {
    if (std::chrono::steady_clock::now() > deadline)
      return Error{Code::kInternal, "the device did not begin the step in time", "GPU step"};
  }
  program::StepOutputs out;
  for (size_t idx = 0; idx < going_.size(); ++idx) {
    const RequestOutputRecord& from = record.requests[idx];
    program::RequestOutput& to = out.requests.emplace_back();
    to.num_accepted = from.num_accepted;
    to.tokens.assign(from.tokens, from.tokens + from.num_tokens);
    to.drafts.assign(from.drafts, from.drafts + geometry_.dspark_block_size);
    to.confidence.assign(from.confidence, from.confidence + geometry_.dspark_block_size);
  }
  return out;
}

Status Rank::launch(int first, int last) {
  CHECK(band_ != nullptr, "a launch before a step");
  KernelParams params = params_;
  params.first_call = first;
  params.last_call = last;
  Launch launch;
  launch.num_ctas = options_.num_ctas;
  launch.threads = options_.push == Push::kPlayed ? kPlayedThreads : kThreads;
  launch.shared_bytes = band_->sizes.shared.total_bytes;
  launch.cooperative = true;
  launch.params = &params;
  launch.params_bytes = sizeof(params);
  return device_.launch(band_->kernel, launch);
}

std::string Rank::report_text() const {
  // The CTA that waits in the earliest call names what is missing: all have passed the call that should have put it.
  const auto* reports = reinterpret_cast<const Report*>(report_.host());
  const Report* report = nullptr;
  for (const Report* each = reports + 1; each <= reports + options_.num_ctas; ++each) {
    if (each->filled == 1 && (report == nullptr || each->call < report->call)) report = each;
  }
  if (report == nullptr) return "step given up by the host";
  const auto call_idx = static_cast<size_t>(report->call);
  const program::Call& call = band_->layout.program().calls[call_idx];
  std::string what = "a weight chunk";
  if (report->pair != ~0u) {
    for (int idx = 0; idx < program::kNumRegions; ++idx) {
      const auto region = static_cast<program::Region>(idx);
      for (int copy = 0; copy < band_->layout.num_copies(region); ++copy) {
        const int64_t first = band_->plan.region_offset(region, copy) / 8;
        const int64_t at = static_cast<int64_t>(report->pair) - first;
        if (at < 0 || at >= band_->plan.region_bytes(region) / 8) continue;
        what = fmt::format("region {} copy {}", program::decl(region).name, copy);
        if (at > 0) what += fmt::format(" word {}", at);  // waits for many words name the copy's first
      }
    }
  } else if (report->wanted == 2) {
    what = "free bytes of the weight ring";
  } else if (report->wanted == 3) {
    what = "the routing";
  } else if (report->wanted == 4) {
    what = "the verdicts and drafts of the step before";
  }
  return fmt::format(
      "step given up: rank {} CTA {} in {} layer {} (call {}) waits for {}: wanted tag {:#x}, seen {:#x}",
      options_.rank, report->cta, program::decl(call.stage).name, call.layer, report->call, what, report->wanted,
      report->seen);
}

Status Rank::finish() {
  TRY(device_.synchronize());
  sending_ = false;
  if (reinterpret_cast<const Report*>(report_.host())->abort == 0) return {};
  const std::string text = report_text();
  std::memset(report_.host(), 0, static_cast<size_t>(report_.num_bytes()));
  return Error{Code::kInternal, text, "GPU step"};
}

void Rank::abort() { reinterpret_cast<volatile Report*>(report_.host())->abort = 1; }

Status Rank::read_region(program::Region region, int copy, std::vector<uint64_t>& pairs) {
  pairs.resize(static_cast<size_t>(band_->plan.region_bytes(region) / 8));
  return device_.download(pairs.data(),
                          band_->arena.ptr() + static_cast<uint64_t>(band_->plan.region_offset(region, copy)),
                          band_->plan.region_bytes(region));
}

Status Rank::write_region(program::Region region, int copy, std::span<const uint64_t> pairs) {
  CHECK(static_cast<int64_t>(pairs.size()) * 8 == band_->plan.region_bytes(region), "a region of another size");
  return device_.upload(band_->arena.ptr() + static_cast<uint64_t>(band_->plan.region_offset(region, copy)),
                        pairs.data(), band_->plan.region_bytes(region));
}

Status Rank::read_pools(kv::Pools& pools) {
  TRY(device_.download(pools.pages.data(), pages_.ptr(), static_cast<int64_t>(pools.pages.size())));
  return device_.download(pools.slots.data(), slots_.ptr(), static_cast<int64_t>(pools.slots.size()));
}

Status Rank::write_pools(const kv::Pools& pools) {
  TRY(device_.upload(pages_.ptr(), pools.pages.data(), static_cast<int64_t>(pools.pages.size())));
  return device_.upload(slots_.ptr(), pools.slots.data(), static_cast<int64_t>(pools.slots.size()));
}

Status Rank::clear_slot(int state_slot) {
  return device_.fill(slots_.ptr() + static_cast<uint64_t>(state_slot * slot_layout_.slot_bytes()), 0,
                      slot_layout_.slot_bytes());
}

Status Rank::write_page(int32_t page_idx, std::span<const std::byte> bytes) {
  CHECK(static_cast<int64_t>(bytes.size()) == page_layout_.page_bytes(), "a page of another size");
  return device_.upload(pages_.ptr() + static_cast<uint64_t>(page_idx * page_layout_.page_bytes()), bytes.data(),
                        page_layout_.page_bytes());
}

Status Rank::read_weights(int64_t offset, std::span<std::byte> bytes) {
  return device_.download(bytes.data(), weights_.ptr() + static_cast<uint64_t>(offset),
                          static_cast<int64_t>(bytes.size()));
}

int64_t Rank::pinned_engram_rows() const {
  int64_t rows = 0;
  for (size_t idx = 0; idx < geometry_.engram_layer_ids.size(); ++idx) rows += engram_rows(idx);
  return rows;
}

MemoryUse Rank::memory() const {
  MemoryUse use;
  use.weights = weights_.num_bytes();
  for (const Buffer* table : {&embed_, &markov_embed_, &classes_, &rope_, &hash_}) use.tables += table->num_bytes();
  for (const Buffer* pool : {&pages_, &slots_, &page_table_}) use.pools += pool->num_bytes();
  use.arena = step_.num_bytes() + image_rows_.num_bytes();
  for (const std::unique_ptr<Band>& band : bands_) {
    if (band) use.arena += band->calls.num_bytes() + band->arena.num_bytes();
  }
  use.pinned = report_.num_bytes() + outputs_.num_bytes() + step_data_.num_bytes();
  for (const MappedBuffer& table : engram_) use.pinned += table.num_bytes();
  return use;
}

}  // namespace monostep::gpu
