// One rank on one device (gpu/rank.h).
#include "gpu/rank.h"

#include <fmt/format.h>

#include <cstring>

#include "base/check.h"
#include "gpu/call_records.h"
#include "gpu/compile_program.h"
#include "gpu/device/scratch_sizes.h"
#include "model/engram.h"
#include "model/rope.h"
#include "weights/pack.h"

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

}  // namespace

Rank::Rank(Device& device, const weights::Checkpoint& checkpoint, const RankOptions& options, KernelMaker maker)
    : device_(device),
      checkpoint_(checkpoint),
      geometry_(checkpoint.geometry()),
      options_(options),
      maker_(std::move(maker)),
      page_layout_(geometry_),
      slot_layout_(geometry_) {}

Result<std::unique_ptr<Rank>> Rank::make(Device& device, const weights::Checkpoint& checkpoint,
                                         const RankOptions& options, KernelMaker maker) {
  std::unique_ptr<Rank> out(new Rank(device, checkpoint, options, std::move(maker)));
  TRY_ASSIGN(out->shard_, model::make_shard(checkpoint.geometry(), options.tp));
  TRY_ASSIGN(const DeviceInfo info, device.info());
  if (out->options_.num_ctas == 0) out->options_.num_ctas = info.num_sms;
  TRY(out->load());
  return out;
}

Status Rank::load() {
  // Every band has the same chunks.
  const program::Layout layout(geometry_, shard_, {program::kBands[0], 1, options_.max_context});
  {
    std::vector<std::byte> packed(static_cast<size_t>(weights::packed_bytes(weights::packed_runs(layout))));
    TRY(weights::pack_rank(checkpoint_, layout, options_.rank, packed));
    TRY(upload_new(device_, packed, weights_));
  }
  TRY(load_tables());
  TRY(load_engram());
  TRY_ASSIGN(pages_, Buffer::create(device_, options_.num_pages * page_layout_.page_bytes() + 256));
  TRY_ASSIGN(slots_, Buffer::create(device_, options_.num_slots * slot_layout_.slot_bytes()));
  TRY(device_.fill(pages_.ptr(), 0, pages_.num_bytes()));
  TRY(device_.fill(slots_.ptr(), 0, slots_.num_bytes()));
  TRY_ASSIGN(page_table_, Buffer::create(device_, int64_t{program::kMaxRequests} * max_pages() * 4));
  TRY_ASSIGN(step_, Buffer::create(device_, sizeof(StepRecord)));
  TRY_ASSIGN(report_, MappedBuffer::create(device_, 4096));
  std::memset(report_.host(), 0, 4096);
  params_.pages = pages_.ptr();
  params_.slots = slots_.ptr();
  params_.page_table = page_table_.ptr();
  params_.step = step_.ptr();
  params_.report = report_.ptr();
  params_.max_pages = max_pages();
  params_.rank = options_.rank;
  params_.push = static_cast<int32_t>(options_.push);
  params_.poll_limit = options_.poll_limit;
  params_.ring_window = options_.ring_window;
  return {};
}

Status Rank::load_tables() {
  TRY(upload_new(device_, checkpoint_.tensor("embed.weight").data, embed_));
  params_.embed = embed_.ptr();
  if (geometry_.num_nextn_predict_layers > 0) {
    const std::string name = geometry_.prefix(geometry_.num_layers() - 1) + "markov_head.embed.weight";
    TRY(upload_new(device_, checkpoint_.tensor(name).data, markov_embed_));
    params_.markov_embed = markov_embed_.ptr();
  }
  model::RopeTables tables = model::rope_tables(geometry_);
  tables.base.insert(tables.base.end(), tables.yarn.begin(), tables.yarn.end());
  TRY(upload_new(device_, bytes_of(tables.base), rope_));
  params_.rope = rope_.ptr();
  return {};
}

Status Rank::load_engram() {
  if (geometry_.engram_layer_ids.empty()) return {};
  const std::vector<int32_t>& classes = checkpoint_.token_classes();
  TRY(upload_new(device_, bytes_of(classes), classes_));
  params_.token_classes = classes_.ptr();
  params_.pad_class = classes[static_cast<size_t>(geometry_.engram_pad_token_id)];
  const std::vector<int64_t> hash = hash_tables(geometry_);
  TRY(upload_new(device_, bytes_of(hash), hash_));
  params_.engram_hash = hash_.ptr();
  const auto num_layers = static_cast<int64_t>(geometry_.engram_layer_ids.size());
  for (size_t idx = 0; idx < geometry_.engram_layer_ids.size(); ++idx) {
    const std::string prefix = geometry_.prefix(geometry_.engram_layer_ids[idx]) + "engram.embed.";
    const int64_t row_bytes = geometry_.engram_head_dim + geometry_.engram_head_dim / 32;
    int64_t rows = geometry_.engram_num_embeddings[idx];
    if (options_.engram_bytes > 0) rows = std::min(rows, std::max<int64_t>(options_.engram_bytes / num_layers / row_bytes, 1));
    params_.engram_rows[idx] = static_cast<uint64_t>(rows);
    uint64_t* places[] = {&params_.engram_codes[idx], &params_.engram_scales[idx]};
    const int64_t widths[] = {geometry_.engram_head_dim, geometry_.engram_head_dim / 32};
    const char* names[] = {"weight", "scale"};
    for (size_t part = 0; part < 2; ++part) {
      TRY_ASSIGN(MappedBuffer table, MappedBuffer::create(device_, rows * widths[part]));
      std::memcpy(table.host(), checkpoint_.tensor(prefix + names[part]).data.data(), static_cast<size_t>(rows * widths[part]));
      *places[part] = table.ptr();
      engram_.push_back(std::move(table));
    }
  }
  return {};
}

Result<Rank::Band*> Rank::band_for(const program::StepInputs& inputs) {
  const program::Shape shape = program::shape_for(geometry_, static_cast<int>(inputs.rows.size()),
                                         static_cast<int>(inputs.requests.size()), options_.max_context);
  size_t band_idx = 0;
  while (program::kBands[band_idx] != shape.band) ++band_idx;
  if (bands_[band_idx]) return bands_[band_idx].get();
  auto band = std::make_unique<Band>(geometry_, shard_, shape, options_.num_ctas);
  TRY_ASSIGN(const DeviceInfo info, device_.info());
  TRY_ASSIGN(band->sizes, program_sizes(band->layout, band->plan, std::min(kSharedLimit, info.max_shared_bytes_per_cta)));
  TRY_ASSIGN(band->kernel, maker_(device_, band->layout, band->plan, band->sizes));
  const std::vector<CallRecord> records = call_records(band->layout, band->plan, weights_.ptr());
  TRY(upload_new(device_, bytes_of(records), band->calls));
  TRY_ASSIGN(band->arena, Buffer::create(device_, band->plan.arena_bytes()));
  TRY(device_.fill(band->arena.ptr(), 0, band->arena.num_bytes()));
  bands_[band_idx] = std::move(band);
  return bands_[band_idx].get();
}

Status Rank::upload_pages(const program::StepInputs& inputs) {
  std::vector<int32_t> table(static_cast<size_t>(program::kMaxRequests * max_pages()));
  for (size_t idx = 0; idx < inputs.requests.size(); ++idx) {
    const std::span<const int32_t> pages = inputs.requests[idx].pages;
    const size_t count = std::min(pages.size(), static_cast<size_t>(max_pages()));
    std::copy_n(pages.begin(), count, table.begin() + static_cast<std::ptrdiff_t>(idx * static_cast<size_t>(max_pages())));
  }
  return device_.upload(page_table_.ptr(), table.data(), static_cast<int64_t>(table.size() * sizeof(int32_t)));
}

Status Rank::begin_step(const program::StepInputs& inputs, uint32_t epoch) {
  TRY_ASSIGN(band_, band_for(inputs));
  const StepRecord record = step_record(inputs, epoch);
  TRY(device_.upload(step_.ptr(), &record, sizeof(record)));
  TRY(upload_pages(inputs));
  if (!inputs.image_rows.empty()) {
    TRY(upload_new(device_, std::as_bytes(inputs.image_rows), image_rows_));
    params_.image_rows = image_rows_.ptr();
  }
  params_.calls = band_->calls.ptr();
  params_.arena = band_->arena.ptr();
  return {};
}

Status Rank::launch(int first, int last) {
  CHECK(band_ != nullptr, "a launch before a step");
  KernelParams params = params_;
  params.first_call = first;
  params.last_call = last;
  Launch launch;
  launch.num_ctas = options_.num_ctas;
  launch.threads = kThreads;
  launch.shared_bytes = band_->sizes.shared.total_bytes;
  launch.cooperative = true;
  launch.params = &params;
  launch.params_bytes = sizeof(params);
  return device_.launch(band_->kernel, launch);
}

std::string Rank::report_text() const {
  const auto* report = reinterpret_cast<const Report*>(report_.host());
  const auto call_idx = static_cast<size_t>(report->call);
  const program::Call& call = band_->layout.program().calls[call_idx];
  std::string what = "a weight chunk";
  if (report->pair < ~0u - 1) {
    for (int idx = 0; idx < program::kNumRegions; ++idx) {
      const auto region = static_cast<program::Region>(idx);
      for (int copy = 0; copy < band_->layout.num_copies(region); ++copy) {
        const int64_t first = band_->plan.region_offset(region, copy) / 8;
        const int64_t at = static_cast<int64_t>(report->pair) - first;
        if (at < 0 || at >= band_->plan.region_bytes(region) / 8) continue;
        what = fmt::format("region {} copy {} word {}", program::decl(region).name, copy, at);
      }
    }
  } else if (report->pair == ~0u - 1) {
    what = "a region";
  } else if (report->wanted == 2) {
    what = "free bytes of the weight ring";
  } else if (report->wanted == 3) {
    what = "the routing";
  }
  return fmt::format("step given up: rank {} CTA {} in {} layer {} (call {}) waits for {}: wanted tag {:#x}, seen {:#x}",
                     options_.rank, report->cta, program::decl(call.stage).name, call.layer, report->call, what,
                     report->wanted, report->seen);
}

Status Rank::finish() {
  TRY(device_.synchronize());
  auto* report = reinterpret_cast<Report*>(report_.host());
  if (report->abort == 0) return {};
  const std::string text = report->filled == 1 ? report_text() : "step given up by the host";
  std::memset(report_.host(), 0, sizeof(Report));
  return Error{Code::kInternal, text, "GPU step"};
}

void Rank::abort() { reinterpret_cast<volatile Report*>(report_.host())->abort = 1; }

Status Rank::read_region(program::Region region, int copy, std::vector<uint64_t>& pairs) {
  pairs.resize(static_cast<size_t>(band_->plan.region_bytes(region) / 8));
  return device_.download(pairs.data(), band_->arena.ptr() + static_cast<uint64_t>(band_->plan.region_offset(region, copy)),
                          band_->plan.region_bytes(region));
}

Status Rank::write_region(program::Region region, int copy, std::span<const uint64_t> pairs) {
  CHECK(static_cast<int64_t>(pairs.size()) * 8 == band_->plan.region_bytes(region), "a region of another size");
  return device_.upload(band_->arena.ptr() + static_cast<uint64_t>(band_->plan.region_offset(region, copy)), pairs.data(),
                        band_->plan.region_bytes(region));
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
  return device_.fill(slots_.ptr() + static_cast<uint64_t>(state_slot * slot_layout_.slot_bytes()), 0, slot_layout_.slot_bytes());
}

}  // namespace monostep::gpu
