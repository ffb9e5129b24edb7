// Engram primes, multipliers and rows against the recorded numbers of the released program (model.md 3.8 and 10).
#include "model/engram.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <set>

namespace monostep::model {
namespace {

using List = std::vector<int64_t>;
constexpr int kDead = kDeadClass;

std::vector<EngramTable> named_tables(std::string_view name) { return engram_tables(named_geometry(name).value()); }

List plus(int64_t start, List values) {
  for (int64_t& value : values) value += start;
  return values;
}

// Rows of position p of a sequence of classes.
List rows_at(std::string_view name, size_t table_idx, const std::vector<int>& sequence, int position) {
  const Geometry geometry = named_geometry(name).value();
  const EngramTable table = engram_tables(geometry)[table_idx];
  constexpr int kPad = 2;
  std::vector<int> classes;
  for (int back = 0; back < geometry.engram_max_ngram_size; ++back) {
    classes.push_back(position >= back ? sequence[static_cast<size_t>(position - back)] : kPad);
  }
  List rows(table.primes.size());
  engram_rows(table, geometry.engram_n_heads, kPad, classes, rows);
  return rows;
}

List first_three(const List& rows) { return {rows.begin(), rows.begin() + 3}; }

TEST(EngramPrimes, of_flash_layer_1) {
  EXPECT_EQ(named_tables("flash")[0].primes,
            plus(16000000, {57,  79,  81,  97,  121, 129, 133, 183, 189, 207, 211, 253,
                            277, 289, 307, 321, 339, 381, 393, 399, 403, 409, 447, 463}));
}

TEST(EngramPrimes, of_flash_layer_14) {
  EXPECT_EQ(named_tables("flash")[1].primes,
            plus(16000000, {477, 487, 499, 507, 511, 573, 609, 627, 667, 669, 693, 697,
                            711, 729, 759, 769, 781, 799, 813, 819, 841, 877, 879, 889}));
}

TEST(EngramPrimes, of_micro) {
  EXPECT_EQ(named_tables("micro")[0].primes, (List{67, 71, 73, 79, 83, 89}));
  EXPECT_EQ(named_tables("micro")[1].primes, (List{97, 101, 103, 107, 109, 113}));
}

TEST(EngramPrimes, of_clone40) {
  EXPECT_EQ(named_tables("clone40")[0].primes, (List{257, 263, 269, 271, 277, 281, 283, 293, 307, 311, 313, 317,
                                                     331, 337, 347, 349, 353, 359, 367, 373, 379, 383, 389, 397}));
  EXPECT_EQ(named_tables("clone40")[1].primes, (List{401, 409, 419, 421, 431, 433, 439, 443, 449, 457, 461, 463,
                                                     467, 479, 487, 491, 499, 503, 509, 521, 523, 541, 547, 557}));
}

TEST(EngramPrimes, start_with_2_where_the_search_does) {
  Geometry geometry = named_geometry("micro").value();
  geometry.engram_vocab_size = 1;
  EXPECT_EQ(engram_tables(geometry)[0].primes, (List{2, 3, 5, 7, 11, 13}));
}

TEST(EngramRows, of_all_tables_are_the_recorded_counts) {
  EXPECT_EQ(named_tables("flash")[0].num_rows, 384006168);
  EXPECT_EQ(named_tables("flash")[1].num_rows, 384016682);
  EXPECT_EQ(named_tables("micro")[0].num_rows, 462);
  EXPECT_EQ(named_tables("micro")[1].num_rows, 630);
  EXPECT_EQ(named_tables("clone40")[0].num_rows, 7806);
  EXPECT_EQ(named_tables("clone40")[1].num_rows, 11350);
  EXPECT_EQ(named_tables("realdims")[0].num_rows, 100776);
  EXPECT_EQ(named_tables("realdims")[1].num_rows, 105808);
}

TEST(EngramRows, offsets_are_the_sums_of_the_primes_before) {
  for (const EngramTable& table : named_tables("clone40")) {
    int64_t sum = 0;
    for (size_t column_idx = 0; column_idx < table.primes.size(); ++column_idx) {
      EXPECT_EQ(table.offsets[column_idx], sum);
      sum += table.primes[column_idx];
    }
    EXPECT_EQ(table.num_rows, sum);
  }
}

TEST(EngramMultipliers, of_flash) {
  EXPECT_EQ(named_tables("flash")[0].multipliers,
            (List{76632096046245, 4839876093313, 35959672319349, 73987337458391}));
  EXPECT_EQ(named_tables("flash")[1].multipliers,
            (List{67716810739261, 51510806800915, 30921347202721, 82619226485591}));
}

TEST(EngramMultipliers, of_micro) {
  EXPECT_EQ(named_tables("micro")[0].multipliers,
            (List{60566336241118939, 25653023006645627, 3896021184788639, 1571551869785183}));
  EXPECT_EQ(named_tables("micro")[1].multipliers,
            (List{78157507118894713, 37897894013166135, 23135821948272153, 72964965988684859}));
}

TEST(EngramMultipliers, of_clone40) {
  EXPECT_EQ(named_tables("clone40")[0].multipliers,
            (List{22941473297325175, 1448921455705811, 10765304681175117, 22149707684069563}));
  EXPECT_EQ(named_tables("clone40")[1].multipliers,
            (List{20272490059742861, 15420872711529813, 9256973223601435, 24733850123596235}));
}

TEST(EngramMultipliers, of_realdims) {
  EXPECT_EQ(named_tables("realdims")[0].multipliers,
            (List{5892612452746777, 2495830723816073, 379051208550149, 152899229056331}));
  EXPECT_EQ(named_tables("realdims")[1].multipliers,
            (List{7604090461918541, 3687157190849663, 2250927511516949, 7098898396090703}));
}

TEST(EngramMultipliers, are_odd_and_keep_products_below_2_63) {
  for (const int num_classes : {1, 2, 97, 99092, INT32_MAX}) {
    Geometry geometry = named_geometry("micro").value();
    geometry.engram_compressed_vocab_size = num_classes;
    const std::vector<EngramTable> tables = engram_tables(geometry);
    for (const int64_t multiplier : tables[0].multipliers) {
      EXPECT_EQ(multiplier % 2, 1) << num_classes;
      EXPECT_GT(multiplier, 0) << num_classes;
      EXPECT_LE(multiplier, INT64_MAX / num_classes) << num_classes;
    }
  }
}

const std::vector<int> kFlashClasses = {0, 100, 200, kDead, 300, 400};

TEST(EngramHash, of_flash_layer_1_is_as_recorded) {
  const List rows = rows_at("flash", 0, kFlashClasses, 2);
  EXPECT_EQ(first_three(rows), (List{11457621, 17609295, 38535221}));
  EXPECT_EQ(rows[23], 374258567);
  EXPECT_EQ(first_three(rows_at("flash", 0, kFlashClasses, 5)), (List{205356, 27040645, 32394908}));
}

TEST(EngramHash, of_flash_layer_14_is_as_recorded) {
  const List rows = rows_at("flash", 1, kFlashClasses, 5);
  EXPECT_EQ(first_three(rows), (List{1398635, 16742307, 47980339}));
  EXPECT_EQ(rows[23], 368170301);
}

TEST(EngramHash, of_micro_is_as_recorded_with_a_dead_position) {
  const std::vector<List> expected = {{48, 124, 141, 253, 331, 419}, {28, 68, 167, 229, 303, 425},
                                      {2, 99, 195, 240, 307, 461},   {4, 136, 163, 225, 318, 400},
                                      {26, 136, 156, 246, 292, 424}, {15, 80, 141, 217, 339, 380}};
  for (int position = 0; position < 6; ++position) {
    EXPECT_EQ(rows_at("micro", 0, {5, 6, 7, kDead, 8, 9}, position), expected[static_cast<size_t>(position)])
        << position;
  }
}

TEST(EngramHash, what_lies_behind_a_dead_position_does_not_count) {
  EXPECT_EQ(rows_at("micro", 0, {5, 6, 7, kDead, 8, 9}, 5), rows_at("micro", 0, {50, 60, 70, kDead, 8, 9}, 5));
  EXPECT_NE(rows_at("micro", 0, {5, 6, 7, kDead, 8, 9}, 5), rows_at("micro", 0, {5, 6, 7, kDead, 9, 9}, 5));
}

TEST(EngramHash, rows_stay_inside_their_columns) {
  const bool held = rc::check("rows of random classes", [] {
    const Geometry geometry = named_geometry("clone40").value();
    static const std::vector<EngramTable> tables = engram_tables(geometry);
    const auto classes = *rc::gen::container<std::vector<int>>(4, rc::gen::inRange(-1, 331));
    for (const EngramTable& table : tables) {
      List rows(table.primes.size());
      engram_rows(table, geometry.engram_n_heads, 2, classes, rows);
      for (size_t column_idx = 0; column_idx < rows.size(); ++column_idx) {
        RC_ASSERT(rows[column_idx] >= table.offsets[column_idx]);
        RC_ASSERT(rows[column_idx] < table.offsets[column_idx] + table.primes[column_idx]);
      }
    }
  });
  EXPECT_TRUE(held);
}

TEST(EngramPrimes, are_never_used_twice_in_a_model) {
  std::set<int64_t> seen;
  for (const EngramTable& table : named_tables("flash")) {
    for (const int64_t prime : table.primes) EXPECT_TRUE(seen.insert(prime).second) << prime;
  }
}

}  // namespace
}  // namespace monostep::model
