// Result, its early-return macros, and the codes' names and exit codes.
#include "base/result.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace monostep {
namespace {

Result<int> half(int value) {
  if (value % 2 != 0) return Error{Code::kInvalidArgument, "is odd", "value"};
  return value / 2;
}

Result<int> quarter(int value, bool* finished) {
  TRY_ASSIGN(const int halved, half(value));
  TRY_ASSIGN(const int quartered, half(halved));
  *finished = true;
  return quartered;
}

Status check_even(int value, bool* finished) {
  TRY(half(value));
  *finished = true;
  return {};
}

TEST(Result, holds_a_value_or_an_error) {
  const Result<int> good = half(8);
  ASSERT_TRUE(good.ok());
  EXPECT_EQ(*good, 4);
  const Result<int> bad = half(7);
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.error().code, Code::kInvalidArgument);
  EXPECT_EQ(bad.error().message(), "value: is odd (invalid_argument)");
}

TEST(Result, a_message_without_a_place_has_no_colon) {
  EXPECT_EQ((Error{Code::kTimeout, "too late", ""}).message(), "too late (timeout)");
}

TEST(Result, assign_macro_leaves_at_the_first_error) {
  bool finished = false;
  EXPECT_EQ(*quarter(12, &finished), 3);
  EXPECT_TRUE(finished);
  finished = false;
  EXPECT_FALSE(quarter(6, &finished).ok());  // 3 is odd
  EXPECT_FALSE(quarter(5, &finished).ok());
  EXPECT_FALSE(finished);
}

TEST(Result, try_macro_leaves_at_an_error_and_goes_on_without) {
  bool finished = false;
  const Status refused = check_even(3, &finished);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().text, "is odd");
  EXPECT_FALSE(finished);
  EXPECT_TRUE(check_even(4, &finished).ok());
  EXPECT_TRUE(finished);
}

TEST(Result, moves_a_value_that_cannot_be_copied) {
  Result<std::unique_ptr<int>> made = std::make_unique<int>(5);
  const std::unique_ptr<int> taken = std::move(made).value();
  EXPECT_EQ(*taken, 5);
}

TEST(Result, exit_codes_tell_usage_files_and_device_apart) {
  EXPECT_EQ(exit_code(Code::kInvalidArgument), 2);
  EXPECT_EQ(exit_code(Code::kNotFound), 3);
  EXPECT_EQ(exit_code(Code::kUnsupported), 3);
  EXPECT_EQ(exit_code(Code::kCorrupt), 3);
  EXPECT_EQ(exit_code(Code::kUnavailable), 4);
  for (const Code code : {Code::kExhausted, Code::kTimeout, Code::kCancelled, Code::kDeviceFailed, Code::kInternal}) {
    EXPECT_EQ(exit_code(code), 1) << code_name(code);
  }
}

TEST(ResultDeathTest, value_of_an_error_is_our_bug) { EXPECT_DEATH(half(1).value(), "holds an error"); }
TEST(ResultDeathTest, error_of_a_value_is_our_bug) { EXPECT_DEATH(half(2).error(), "holds a value"); }

}  // namespace
}  // namespace monostep
