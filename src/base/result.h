// Result<T>: a value or an Error, for everything that a user, a file or the network can cause. Included by every
// module. Errors carry a code, words for a person and the place they are about (file, tensor, key). No exceptions
// anywhere.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace monostep {

enum class Code {
  kInvalidArgument,
  kNotFound,
  kUnsupported,
  kExhausted,
  kUnavailable,
  kCorrupt,
  kTimeout,
  kCancelled,
  kDeviceFailed,
  kInternal,
};

// The code's name as it appears in messages, e.g. "invalid_argument".
std::string_view code_name(Code code);

// The process exit code for an error that ends a program: 2 usage or configuration, 3 model files, 4 no device, else 1.
int exit_code(Code code);

struct Error {
  Code code = Code::kInternal;
  std::string text;   // what is wrong: expected and found
  std::string place;  // where: file, tensor, key; may be empty

  // "place: text (code)", the form that is printed.
  std::string message() const;
};

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Error error) : error_(std::move(error)) {}

  bool ok() const { return value_.has_value(); }
  explicit operator bool() const { return ok(); }

  T& value() & {
    CHECK(ok(), "value() of a Result that holds an error");
    return *value_;
  }
  const T& value() const& {
    CHECK(ok(), "value() of a Result that holds an error");
    return *value_;
  }
  T&& value() && {
    CHECK(ok(), "value() of a Result that holds an error");
    return std::move(*value_);
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  const Error& error() const {
    CHECK(!ok(), "error() of a Result that holds a value");
    return error_;
  }

 private:
  std::optional<T> value_;
  Error error_;
};

// A Result without a value.
template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)), failed_(true) {}

  bool ok() const { return !failed_; }
  explicit operator bool() const { return ok(); }
  const Error& error() const {
    CHECK(failed_, "error() of a Result that holds no error");
    return error_;
  }

 private:
  Error error_;
  bool failed_ = false;
};

using Status = Result<void>;

}  // namespace monostep

// Leaves the enclosing function with the error of `expression` (a Result<void> or Result<T> whose value is not needed).
#define TRY(expression)                                     \
  do {                                                      \
    if (auto try_result = (expression); !try_result.ok()) { \
      return try_result.error();                            \
    }                                                       \
  } while (0)

// Declares `declaration` with the value of `expression`, or leaves the enclosing function with its error.
#define TRY_ASSIGN(declaration, expression) TRY_ASSIGN_AT(declaration, expression, __LINE__)
#define TRY_ASSIGN_AT(declaration, expression, line) TRY_ASSIGN_NAMED(declaration, expression, line)
#define TRY_ASSIGN_NAMED(declaration, expression, line)          \
  auto try_assign_##line = (expression);                         \
  if (!try_assign_##line.ok()) return try_assign_##line.error(); \
  declaration = std::move(try_assign_##line).value()
