// Loading of packed weights (gpu/load_weights.h).
#include "gpu/load_weights.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "weights/pack.h"
#include "weights/packed_cache.h"
#include "weights/parallel.h"

namespace monostep::gpu {
namespace {

using program::ChunkRun;
using weights::PackedCache;
using weights::PackedKey;

constexpr int64_t kPieceBytes = int64_t{512} << 20;  // of each pinned buffer, more only where one run's expert has more

// What several threads fill together: a part of a packed file, or the chunks of one expert of a run.
struct Item {
  int64_t begin = 0;  // in the packed bytes
  int64_t num_bytes = 0;
  std::function<Status(std::span<std::byte> out)> fill;
};

// Neighbouring items that go to the device in one copy.
struct Piece {
  std::span<const Item> items;
  int64_t begin() const { return items.front().begin; }
  int64_t num_bytes() const { return items.back().begin + items.back().num_bytes - begin(); }
};

std::vector<Piece> pieces_of(std::span<const Item> items) {
  std::vector<Piece> pieces;
  while (!items.empty()) {
    size_t count = 1;
    while (count < items.size() && Piece{items.first(count + 1)}.num_bytes() <= kPieceBytes) ++count;
    pieces.push_back({items.first(count)});
    items = items.subspan(count);
  }
  return pieces;
}

Status fill_piece(const Piece& piece, std::byte* out) {
  std::mutex mutex;
  Status first_failure;
  weights::parallel_for(piece.items.size(), [&](size_t idx) {
    const Item& item = piece.items[idx];
    const Status filled = item.fill({out + (item.begin - piece.begin()), static_cast<size_t>(item.num_bytes)});
    if (filled.ok()) return;
    const std::lock_guard lock(mutex);
    if (first_failure.ok()) first_failure = filled;
  });
  return first_failure;
}

// Fills piece after piece and copies each to the device while the next one is filled.
Status upload_items(Device& device, DevicePtr to, std::span<const Item> items) {
  const std::vector<Piece> pieces = pieces_of(items);
  int64_t most = 1;
  for (const Piece& piece : pieces) most = std::max(most, piece.num_bytes());
  std::array<MappedBuffer, 2> buffers;
  for (size_t idx = 0; idx < std::min(buffers.size(), pieces.size()); ++idx) {
    TRY_ASSIGN(buffers[idx], MappedBuffer::create(device, most));
  }
  Status filled = pieces.empty() ? Status() : fill_piece(pieces[0], buffers[0].host());
  Status copied;
  for (size_t idx = 0; idx < pieces.size() && filled.ok() && copied.ok(); ++idx) {
    std::thread filler;
    if (idx + 1 < pieces.size())
      filler = std::thread([&, idx] { filled = fill_piece(pieces[idx + 1], buffers[(idx + 1) % 2].host()); });
    copied = device.upload(to + static_cast<uint64_t>(pieces[idx].begin()), buffers[idx % 2].host(),
                           pieces[idx].num_bytes());
    if (filler.joinable()) filler.join();
  }
  return copied.ok() ? filled : copied;
}

class Loader {
 public:
  Loader(Device& device, const weights::Checkpoint& checkpoint, const program::Layout& layout, int rank)
      : device_(device),
        checkpoint_(checkpoint),
        layout_(layout),
        rank_(rank),
        runs_(weights::packed_runs(layout)),
        num_bytes_(weights::packed_bytes(runs_)) {}

  Result<Buffer> run(const std::filesystem::path& cache_dir, WeightsLoad& load) {
    for (const ChunkRun& run : runs_) TRY(weights::check_tiles(layout_, run, rank_));
    TRY_ASSIGN(Buffer buffer, Buffer::create(device_, std::max<int64_t>(num_bytes_, 256)));
    to_ = buffer.ptr();
    if (!cache_dir.empty()) {
      TRY_ASSIGN(const bool loaded, load_by_file(cache_dir, load));
      if (loaded) return buffer;
    }
    load.from = WeightsFrom::kCheckpoint;
    TRY(upload_packed({}));
    return buffer;
  }

 private:
  // Whether the weights lie on the device. A file that cannot be had is a warning.
  Result<bool> load_by_file(const std::filesystem::path& cache_dir, WeightsLoad& load) {
    const Result<PackedKey> key = weights::packed_key(checkpoint_, layout_, rank_);
    if (!key.ok()) {
      load.warning = "packed weights are not kept: " + key.error().message();
      return false;
    }
    TRY_ASSIGN(const bool read, read_file(cache_dir / weights::packed_file_name(*key), *key, load));
    return read ? true : write_file(cache_dir, *key, load);
  }

  Result<bool> read_file(const std::filesystem::path& path, const PackedKey& key, WeightsLoad& load) {
    const Result<PackedCache> cache = PackedCache::open(path, key);
    Status read = cache.ok() ? upload_file(*cache) : Status(cache.error());
    if (read.ok()) {
      load.from = WeightsFrom::kCache;
      load.file_bytes = num_bytes_;
      return true;
    }
    if (cache.ok() && read.error().code != Code::kCorrupt) return read.error();  // the device's
    if (read.error().code != Code::kNotFound) load.warning = "packed anew: " + read.error().message();
    return false;
  }

  Status upload_file(const PackedCache& cache) {
    std::vector<Item> items;
    for (size_t part = 0; part < cache.num_parts(); ++part) {
      const int64_t begin = static_cast<int64_t>(part) * PackedCache::kPartBytes;
      items.push_back({begin, std::min(PackedCache::kPartBytes, num_bytes_ - begin),
                       [&cache, part](std::span<std::byte> out) { return cache.read_part(part, out); }});
    }
    return upload_items(device_, to_, items);
  }

  // Packs into a new file and onto the device at once.
  Result<bool> write_file(const std::filesystem::path& cache_dir, const PackedKey& key, WeightsLoad& load) {
    std::optional<Status> uploaded;
    const Status written = PackedCache::write(cache_dir, key, [&](std::span<std::byte> file) {
      uploaded = upload_packed(file);
      return *uploaded;
    });
    if (uploaded && !uploaded->ok()) return uploaded->error();
    load.from = WeightsFrom::kCheckpoint;
    if (written.ok()) {
      load.file_bytes = num_bytes_;
    } else {
      load.warning = "packed weights are not kept: " + written.error().message();
    }
    return uploaded.has_value();
  }

  // `file`: a place for all packed bytes, or empty.
  Status upload_packed(std::span<std::byte> file) {
    std::vector<Item> items;
    for (const ChunkRun& run : runs_) {
      for (int expert_idx = 0; expert_idx < run.num_experts; ++expert_idx) {
        const int64_t begin = run.offset(expert_idx, 0);
        items.push_back(
            {begin, run.expert_stride(), [this, &run, expert_idx, begin, file](std::span<std::byte> out) -> Status {
               TRY(weights::pack_run(checkpoint_, layout_, run, rank_, expert_idx, out));
               if (!file.empty()) std::memcpy(file.data() + begin, out.data(), out.size());
               return {};
             }});
      }
    }
    return upload_items(device_, to_, items);
  }

  Device& device_;
  const weights::Checkpoint& checkpoint_;
  const program::Layout& layout_;
  int rank_;
  std::vector<ChunkRun> runs_;
  int64_t num_bytes_;
  DevicePtr to_ = 0;
};

}  // namespace

const char* weights_from_name(WeightsFrom from) {
  switch (from) {
    case WeightsFrom::kSynthetic: return "synthetic";
    case WeightsFrom::kCheckpoint: return "packed";
    case WeightsFrom::kCache: break;
  }
  return "cache";
}

Result<Buffer> load_weights(Device& device, const weights::Checkpoint& checkpoint, const program::Layout& layout,
                            int rank, const std::filesystem::path& cache_dir, WeightsLoad& load) {
  return Loader(device, checkpoint, layout, rank).run(cache_dir, load);
}

}  // namespace monostep::gpu
