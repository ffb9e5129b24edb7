// A packed rank comes back from disk as it was written; what is stale, damaged or cut is refused with what differs.
#include "weights/packed_cache.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>

#include "../base/temp_dir.h"
#include "model/shard.h"
#include "weights/checkpoint_index.h"
#include "weights/pack.h"
#include "weights/synthetic.h"

namespace monostep::weights {
namespace {

constexpr size_t kPartBytes = 64 << 20;  // under one digest

model::Geometry micro() { return model::named_geometry("micro").value(); }

program::Layout layout_of(const model::Geometry& geometry, int tp) {
  program::Shape shape;
  shape.max_context = 1024;
  return {geometry, model::make_shard(geometry, tp).value(), shape};
}

PackedKey small_key(int64_t num_bytes = 10'000) {
  PackedKey key;
  key.checkpoint_digest = std::string(64, 'a');
  key.runs_digest = std::string(64, 'b');
  key.tp = 4;
  key.rank = 2;
  key.packed_bytes = num_bytes;
  return key;
}

Status fill_with_pattern(std::span<std::byte> out) {
  for (size_t idx = 0; idx < out.size(); ++idx) out[idx] = static_cast<std::byte>(idx * 7 + idx / 4096);
  return {};
}

class PackedCacheTest : public testing::Test {
 protected:
  std::filesystem::path dir() const { return dir_ / "cache"; }
  std::filesystem::path path(const PackedKey& key) const { return dir() / packed_file_name(key); }
  void write(const PackedKey& key) {
    const Status status = PackedCache::write(dir(), key, fill_with_pattern);
    ASSERT_TRUE(status.ok()) << status.error().message();
  }
  void flip(const PackedKey& key, int64_t offset) {
    std::string text = read_text_file(path(key), 1 << 30).value();
    text.at(static_cast<size_t>(offset)) ^= 0x01;
    ASSERT_TRUE(write_text_file(path(key), text).ok());
  }
  // Opens the file of `key` as that of `expected`; gives the error's text.
  std::string refusal(const PackedKey& key, const PackedKey& expected) {
    const auto cache = PackedCache::open(path(key), expected);
    EXPECT_FALSE(cache.ok());
    if (cache.ok()) return "";
    EXPECT_EQ(cache.error().code, Code::kCorrupt);
    EXPECT_EQ(cache.error().place, path(key).string());
    return cache.error().text;
  }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(dir())) names.push_back(entry.path().filename());
    return names;
  }

  TempDir dir_;
};

TEST_F(PackedCacheTest, a_packed_rank_comes_back_and_is_the_only_file) {
  ASSERT_TRUE(write_checkpoint(micro(), 3, dir_ / "model").ok());
  const Checkpoint checkpoint = Checkpoint::open(dir_ / "model").value();
  const program::Layout layout = layout_of(micro(), 2);
  const PackedKey key = packed_key(checkpoint, layout, 1).value();
  const Status status =
      PackedCache::write(dir(), key, [&](std::span<std::byte> out) { return pack_rank(checkpoint, layout, 1, out); });
  ASSERT_TRUE(status.ok()) << status.error().message();
  EXPECT_EQ(files(), std::vector<std::string>{packed_file_name(key)});

  const auto cache = PackedCache::open(path(key), key);
  ASSERT_TRUE(cache.ok()) << cache.error().message();
  std::vector<std::byte> wanted(static_cast<size_t>(packed_bytes(packed_runs(layout))));
  ASSERT_TRUE(pack_rank(checkpoint, layout, 1, wanted).ok());
  EXPECT_TRUE(std::ranges::equal(cache->data(), wanted));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(cache->data().data()) % 4096, 0u);
  EXPECT_TRUE(cache->verify().ok());
}

TEST_F(PackedCacheTest, every_change_of_checkpoint_shard_or_rank_gives_another_key) {
  ASSERT_TRUE(write_checkpoint(micro(), 3, dir_ / "a").ok());
  ASSERT_TRUE(write_checkpoint(micro(), 4, dir_ / "b").ok());  // equal config and index, other values
  const Checkpoint a = Checkpoint::open(dir_ / "a").value();
  const Checkpoint b = Checkpoint::open(dir_ / "b").value();
  const program::Layout one = layout_of(micro(), 1), two = layout_of(micro(), 2);
  std::vector<std::string> names;
  for (const PackedKey& key :
       {packed_key(a, one, 0).value(), packed_key(b, one, 0).value(), packed_key(a, two, 0).value(),
        packed_key(a, two, 1).value(), packed_key(a, two, 0).value()}) {
    names.push_back(packed_file_name(key));
  }
  EXPECT_EQ(names[2], names[4]);
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::unique(names.begin(), names.end()) - names.begin(), 4);
}

TEST_F(PackedCacheTest, a_checkpoint_whose_index_has_gone_has_no_key) {
  ASSERT_TRUE(write_checkpoint(micro(), 3, dir_ / "model").ok());
  const Checkpoint checkpoint = Checkpoint::open(dir_ / "model").value();
  std::filesystem::remove(dir_ / "model" / kIndexName);
  const auto key = packed_key(checkpoint, layout_of(micro(), 1), 0);
  ASSERT_FALSE(key.ok());
  EXPECT_EQ(key.error().code, Code::kNotFound);
}

TEST_F(PackedCacheTest, a_stale_file_is_refused_by_the_part_that_differs) {
  const PackedKey key = small_key();
  write(key);
  ASSERT_TRUE(PackedCache::open(path(key), key).ok());
  PackedKey other = key;
  other.checkpoint_digest = std::string(64, 'c');
  EXPECT_EQ(refusal(key, other),
            "checkpoint digest differs: expected " + other.checkpoint_digest + ", found " + key.checkpoint_digest);
  other = key;
  other.runs_digest = std::string(64, 'd');
  EXPECT_NE(refusal(key, other).find("digest of the runs differs: expected ddd"), std::string::npos);
  other = key;
  other.tp = 8;
  EXPECT_EQ(refusal(key, other), "tp differs: expected 8, found 4");
  other = key;
  other.rank = 3;
  EXPECT_EQ(refusal(key, other), "rank differs: expected 3, found 2");
  other = key;
  other.packed_bytes = 10'064;
  EXPECT_EQ(refusal(key, other), "packed bytes differs: expected 10064, found 10000");
}

TEST_F(PackedCacheTest, a_damaged_byte_anywhere_before_the_data_is_refused) {
  const PackedKey key = small_key();
  write(key);
  const auto damaged = [&](int64_t offset) {
    flip(key, offset);
    const std::string text = refusal(key, key);
    flip(key, offset);
    return text;
  };
  EXPECT_EQ(damaged(0), "magic differs: expected MSTPPACK, found LSTPPACK");
  EXPECT_EQ(damaged(8), "layout version differs: expected " + std::to_string(kPackVersion) + ", found " +
                            std::to_string(kPackVersion ^ 1));
  for (int64_t offset = 1; offset < 4096; offset += 13) EXPECT_NE(damaged(offset), "") << offset;
  EXPECT_NE(damaged(4095).find("digest of the header differs"), std::string::npos);
  EXPECT_TRUE(PackedCache::open(path(key), key).ok());
}

TEST_F(PackedCacheTest, a_cut_or_longer_file_is_refused_by_its_size) {
  const PackedKey key = small_key();
  for (const int64_t num_bytes : {0, 8, 4096, 14'095, 14'097}) {
    write(key);
    std::filesystem::resize_file(path(key), static_cast<uintmax_t>(num_bytes));
    EXPECT_EQ(refusal(key, key), "size of the file differs: expected 14096, found " + std::to_string(num_bytes));
  }
}

TEST_F(PackedCacheTest, damaged_data_open_and_fail_the_check_by_their_part) {
  const PackedKey key = small_key(kPartBytes + 5000);
  write(key);
  ASSERT_TRUE(PackedCache::open(path(key), key).value().verify().ok());
  flip(key, 4096 + static_cast<int64_t>(kPartBytes) + 17);
  const Status status = PackedCache::open(path(key), key).value().verify();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, Code::kCorrupt);
  EXPECT_EQ(status.error().text, "data bytes 67108864 to 67113863 differ from their digest");
}

TEST_F(PackedCacheTest, a_missing_file_is_not_found) {
  const auto cache = PackedCache::open(dir_ / "nothing", small_key());
  ASSERT_FALSE(cache.ok());
  EXPECT_EQ(cache.error().code, Code::kNotFound);
}

TEST_F(PackedCacheTest, a_failed_fill_keeps_the_file_that_was_there) {
  const PackedKey key = small_key();
  write(key);
  const Status status = PackedCache::write(
      dir(), key, [](std::span<std::byte>) { return Status(Error{Code::kUnsupported, "no", "here"}); });
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().message(), (Error{Code::kUnsupported, "no", "here"}).message());
  EXPECT_EQ(files(), std::vector<std::string>{packed_file_name(key)});
  EXPECT_TRUE(PackedCache::open(path(key), key).value().verify().ok());
}

TEST_F(PackedCacheTest, more_bytes_than_the_disk_has_are_refused_and_leave_no_file) {
  const PackedKey key = small_key(int64_t{1} << 52);
  const Status status = PackedCache::write(dir(), key, fill_with_pattern);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, Code::kExhausted);
  EXPECT_NE(status.error().text.find(" bytes to write, and "), std::string::npos) << status.error().text;
  EXPECT_TRUE(files().empty());
}

TEST_F(PackedCacheTest, a_file_that_takes_more_than_half_of_the_free_bytes_is_refused) {
  const auto free = static_cast<int64_t>(std::filesystem::space(dir_.path()).available);
  const Status status = PackedCache::write(dir(), small_key(free / 4 * 3), fill_with_pattern);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, Code::kExhausted);
  EXPECT_TRUE(files().empty());
}

TEST_F(PackedCacheTest, parts_are_read_with_their_digests) {
  const PackedKey key = small_key(kPartBytes + 5000);
  write(key);
  flip(key, 4096 + static_cast<int64_t>(kPartBytes) + 17);
  const PackedCache cache = PackedCache::open(path(key), key).value();
  ASSERT_EQ(cache.num_parts(), 2u);
  std::vector<std::byte> part(kPartBytes);
  ASSERT_TRUE(cache.read_part(0, part).ok());
  EXPECT_TRUE(std::ranges::equal(part, cache.data().first(kPartBytes)));
  part.resize(5000);
  const Status damaged = cache.read_part(1, part);
  ASSERT_FALSE(damaged.ok());
  EXPECT_EQ(damaged.error().code, Code::kCorrupt);
  EXPECT_EQ(damaged.error().text, "data bytes 67108864 to 67113863 differ from their digest");
}

TEST_F(PackedCacheTest, a_folder_that_cannot_be_made_is_refused) {
  ASSERT_TRUE(write_text_file(dir_ / "cache", "a file").ok());
  const Status status = PackedCache::write(dir(), small_key(), fill_with_pattern);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, Code::kExhausted);
}

TEST_F(PackedCacheTest, a_second_writer_is_refused_and_a_dead_ones_file_is_taken_over) {
  const PackedKey key = small_key();
  std::filesystem::create_directories(dir());
  const std::string temporary = path(key).string() + ".tmp";
  const int other = ::open(temporary.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  ASSERT_EQ(::flock(other, LOCK_EX), 0);
  const Status refused = PackedCache::write(dir(), key, fill_with_pattern);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::kUnavailable);
  EXPECT_TRUE(std::filesystem::exists(temporary));  // it is the other writer's
  ::close(other);
  write(key);
  EXPECT_EQ(files(), std::vector<std::string>{packed_file_name(key)});
  EXPECT_TRUE(PackedCache::open(path(key), key).value().verify().ok());
}

}  // namespace
}  // namespace monostep::weights
