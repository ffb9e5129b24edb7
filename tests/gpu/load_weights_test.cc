// Weights come onto the device with the bytes of pack_rank whatever way they take; a second start reads the packed file
// of the first; a file that is damaged, cut or another checkpoint's is packed anew; without a file it goes on.
#include "gpu/load_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "../base/temp_dir.h"
#include "base/mapped_file.h"
#include "emulator/device.h"
#include "gpu/rank.h"
#include "weights/pack.h"
#include "weights/packed_cache.h"
#include "weights/synthetic.h"

namespace monostep::gpu {
namespace {

model::Geometry micro() { return model::named_geometry("micro").value(); }

program::Layout layout_of(int tp) {
  return {micro(), model::make_shard(micro(), tp).value(), {program::kBands[0], 1, 1024}};
}

// Loses its memory when `uploads_left` copies were made.
class CountingDevice : public EmulatedDevice {
 public:
  Status upload(DevicePtr to, const void* from, int64_t num_bytes) override {
    if (uploads_left-- == 0) return Error{Code::kDeviceFailed, "gone", "emulated device"};
    return EmulatedDevice::upload(to, from, num_bytes);
  }
  int uploads_left = 1000;
};

class LoadWeights : public testing::Test {
 protected:
  LoadWeights() { write_model(3); }

  void write_model(uint64_t seed) {
    std::filesystem::remove_all(dir_ / "model");
    CHECK(weights::write_checkpoint(micro(), seed, dir_ / "model").ok(), "the checkpoint is written");
  }
  weights::Checkpoint checkpoint() const { return weights::Checkpoint::open(dir_ / "model").value(); }
  std::filesystem::path cache() const { return dir_ / "cache"; }
  // Of the files in the cache's folder.
  std::vector<std::filesystem::path> files() const {
    std::vector<std::filesystem::path> out;
    for (const auto& entry : std::filesystem::directory_iterator(cache())) out.push_back(entry.path());
    return out;
  }
  std::vector<std::byte> wanted(int rank = 0, int tp = 1) const {
    const program::Layout layout = layout_of(tp);
    std::vector<std::byte> out(static_cast<size_t>(weights::packed_bytes(weights::packed_runs(layout))));
    CHECK(weights::pack_rank(checkpoint(), layout, rank, out).ok(), "the rank is packed");
    return out;
  }
  // Loads and compares the device's bytes with those of pack_rank.
  WeightsLoad load(const std::filesystem::path& cache_dir, int rank = 0, int tp = 1) {
    WeightsLoad load;
    const Result<Buffer> buffer = load_weights(device_, checkpoint(), layout_of(tp), rank, cache_dir, load);
    EXPECT_TRUE(buffer.ok()) << buffer.error().message();
    if (!buffer.ok()) return load;
    std::vector<std::byte> got(static_cast<size_t>(buffer->num_bytes()));
    EXPECT_TRUE(device_.download(got.data(), buffer->ptr(), buffer->num_bytes()).ok());
    EXPECT_TRUE(got == wanted(rank, tp));
    return load;
  }

  TempDir dir_;
  CountingDevice device_;
};

TEST_F(LoadWeights, without_a_folder_they_are_packed_and_nothing_is_kept) {
  const WeightsLoad seen = load({});
  EXPECT_EQ(seen.from, WeightsFrom::kCheckpoint);
  EXPECT_EQ(seen.file_bytes, 0);
  EXPECT_EQ(seen.warning, "");
  EXPECT_FALSE(std::filesystem::exists(cache()));
}

TEST_F(LoadWeights, a_second_start_reads_the_file_of_the_first) {
  const WeightsLoad first = load(cache());
  EXPECT_EQ(first.from, WeightsFrom::kCheckpoint);
  EXPECT_EQ(first.file_bytes, static_cast<int64_t>(wanted().size()));
  EXPECT_EQ(first.warning, "");
  ASSERT_EQ(files().size(), 1u);
  const auto written = std::filesystem::last_write_time(files()[0]);
  const WeightsLoad second = load(cache());
  EXPECT_EQ(second.from, WeightsFrom::kCache);
  EXPECT_EQ(second.file_bytes, first.file_bytes);
  EXPECT_EQ(second.warning, "");
  ASSERT_EQ(files().size(), 1u);
  EXPECT_EQ(std::filesystem::last_write_time(files()[0]), written);
}

TEST_F(LoadWeights, each_rank_has_a_file_of_its_own) {
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(load(cache(), rank, 2).from, WeightsFrom::kCheckpoint);
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(load(cache(), rank, 2).from, WeightsFrom::kCache);
  EXPECT_EQ(files().size(), 2u);
}

TEST_F(LoadWeights, a_changed_checkpoint_is_not_served_by_the_old_file) {
  load(cache());
  write_model(4);  // equal config and index, other values
  EXPECT_EQ(load(cache()).from, WeightsFrom::kCheckpoint);
  EXPECT_EQ(load(cache()).from, WeightsFrom::kCache);
}

TEST_F(LoadWeights, a_damaged_file_is_packed_anew_and_said) {
  load(cache());
  const std::filesystem::path file = files().at(0);
  const auto num_bytes = static_cast<int64_t>(std::filesystem::file_size(file));
  const auto expect_packed_anew = [&](const char* words) {
    const WeightsLoad seen = load(cache());
    EXPECT_EQ(seen.from, WeightsFrom::kCheckpoint);
    EXPECT_NE(seen.warning.find(words), std::string::npos) << seen.warning;
    EXPECT_EQ(load(cache()).from, WeightsFrom::kCache);
  };
  for (const int64_t offset : {int64_t{9}, num_bytes - 100}) {  // in the header, in the data
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(offset);
    const int byte = stream.get();
    stream.seekp(offset);
    stream.put(static_cast<char>(byte ^ 1));
    stream.close();
    expect_packed_anew("packed anew: ");
  }
  std::filesystem::resize_file(file, static_cast<uintmax_t>(num_bytes / 2));
  expect_packed_anew("size of the file differs");
}

TEST_F(LoadWeights, a_file_of_another_checkpoint_under_the_name_is_not_taken) {
  load(cache());
  const std::filesystem::path first = files().at(0);
  std::filesystem::rename(first, dir_ / "old");
  write_model(4);
  load(cache());
  const std::filesystem::path second = files().at(0);
  std::filesystem::rename(dir_ / "old", second);
  const WeightsLoad seen = load(cache());
  EXPECT_EQ(seen.from, WeightsFrom::kCheckpoint);
  EXPECT_NE(seen.warning.find("checkpoint digest differs"), std::string::npos) << seen.warning;
}

TEST_F(LoadWeights, a_folder_that_cannot_be_written_is_a_warning) {
  ASSERT_TRUE(write_text_file(cache(), "no folder").ok());
  const WeightsLoad seen = load(cache());
  EXPECT_EQ(seen.from, WeightsFrom::kCheckpoint);
  EXPECT_EQ(seen.file_bytes, 0);
  EXPECT_NE(seen.warning.find("packed weights are not kept: "), std::string::npos) << seen.warning;
}

TEST_F(LoadWeights, a_device_that_fails_is_an_error_and_leaves_no_file) {
  device_.uploads_left = 0;
  WeightsLoad seen;
  const Result<Buffer> failed = load_weights(device_, checkpoint(), layout_of(1), 0, cache(), seen);
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code, Code::kDeviceFailed);
  EXPECT_TRUE(files().empty());
  device_.uploads_left = 1000;
  load(cache());
  device_.uploads_left = 0;
  EXPECT_EQ(load_weights(device_, checkpoint(), layout_of(1), 0, cache(), seen).error().code, Code::kDeviceFailed);
  EXPECT_EQ(files().size(), 1u);  // nothing is wrong with it
}

TEST_F(LoadWeights, a_rank_says_where_its_weights_came_from) {
  const KernelMaker no_kernels = [](Device&, const program::Layout&, const program::Plan&, const ProgramSizes&) {
    return Result<Kernel>(Kernel{});
  };
  RankOptions options;
  options.packed_cache = cache();
  options.max_context = 1024;
  for (const WeightsFrom from : {WeightsFrom::kCheckpoint, WeightsFrom::kCache}) {
    const auto rank = Rank::make(device_, checkpoint(), options, no_kernels);
    ASSERT_TRUE(rank.ok()) << rank.error().message();
    EXPECT_EQ((*rank)->load_report().weights.from, from);
    std::vector<std::byte> got(wanted().size());
    ASSERT_TRUE((*rank)->read_weights(0, got).ok());
    EXPECT_TRUE(got == wanted());
  }
}

}  // namespace
}  // namespace monostep::gpu
