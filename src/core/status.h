#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "tandem/core/check.h"

namespace tandem::core {

/// What kind of failure a Status reports. The server maps these to HTTP codes.
enum class Code {
  kOk,
  kInvalidArgument,    ///< the caller's input is wrong (HTTP 400)
  kNotFound,           ///< no such file, key or tensor (404)
  kDataLoss,           ///< a file is damaged or lies about its contents
  kFailedPrecondition, ///< valid by itself, but does not fit what it is combined with
  kResourceExhausted,  ///< out of memory, pages or queue slots (429)
  kUnavailable,        ///< not now: loading, draining (503)
  kUnimplemented,      ///< a real feature of the file or API that Tandem does not have
  kCancelled,
  kInternal,           ///< a device fault or a broken invariant (500)
};

/// Success, or a failure from the outside world with one sentence that says what is wrong, where,
/// and what to do. Programmer errors use CHECK instead. Cheap to copy when ok.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

  /// The same failure, its message preceded by "`context`: ". Ok stays ok.
  Status with_context(std::string_view context) const;

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

Status invalid_argument(std::string message);
Status not_found(std::string message);
Status data_loss(std::string message);
Status failed_precondition(std::string message);
Status resource_exhausted(std::string message);
Status unavailable(std::string message);
Status unimplemented(std::string message);
Status cancelled(std::string message);
Status internal_error(std::string message);

/// A value or the Status that explains why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}  // NOLINT: implicit on purpose
  Result(Status status) : state_(std::move(status)) {  // NOLINT
    TANDEM_CHECK(!std::get<Status>(state_).ok(), "a Result made of an ok Status has no value");
  }

  bool ok() const { return std::holds_alternative<T>(state_); }
  Status status() const { return ok() ? Status() : std::get<Status>(state_); }

  const T& value() const& { return checked(); }
  T& value() & { return const_cast<T&>(std::as_const(*this).checked()); }
  T&& value() && { return std::move(const_cast<T&>(std::as_const(*this).checked())); }
  const T& operator*() const& { return value(); }
  T& operator*() & { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  const T* operator->() const { return &value(); }
  T* operator->() { return &value(); }

 private:
  const T& checked() const {
    TANDEM_CHECK(ok(), std::get<Status>(state_).message().c_str());
    return std::get<T>(state_);
  }

  std::variant<Status, T> state_;
};

}  // namespace tandem::core

/// Returns the Status of `expr` from the enclosing function unless it is ok.
#define TANDEM_TRY(expr)                                        \
  do {                                                          \
    if (auto tandem_status_ = (expr); !tandem_status_.ok()) {   \
      return tandem_status_;                                    \
    }                                                           \
  } while (false)

#define TANDEM_CONCAT_INNER_(a, b) a##b
#define TANDEM_CONCAT_(a, b) TANDEM_CONCAT_INNER_(a, b)

/// `TANDEM_ASSIGN(auto x, f())`: x is the value of the Result, or its Status is returned.
#define TANDEM_ASSIGN(declaration, expr)                                       \
  auto TANDEM_CONCAT_(tandem_result_, __LINE__) = (expr);                      \
  if (!TANDEM_CONCAT_(tandem_result_, __LINE__).ok()) {                        \
    return TANDEM_CONCAT_(tandem_result_, __LINE__).status();                  \
  }                                                                            \
  declaration = std::move(TANDEM_CONCAT_(tandem_result_, __LINE__)).value()
