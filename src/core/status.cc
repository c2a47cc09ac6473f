#include "tandem/core/status.h"

namespace tandem::core {

Status Status::with_context(std::string_view context) const {
  if (ok()) return *this;
  return Status(code_, std::string(context) + ": " + message_);
}

Status invalid_argument(std::string m) { return {Code::kInvalidArgument, std::move(m)}; }
Status not_found(std::string m) { return {Code::kNotFound, std::move(m)}; }
Status data_loss(std::string m) { return {Code::kDataLoss, std::move(m)}; }
Status failed_precondition(std::string m) { return {Code::kFailedPrecondition, std::move(m)}; }
Status resource_exhausted(std::string m) { return {Code::kResourceExhausted, std::move(m)}; }
Status unavailable(std::string m) { return {Code::kUnavailable, std::move(m)}; }
Status unimplemented(std::string m) { return {Code::kUnimplemented, std::move(m)}; }
Status cancelled(std::string m) { return {Code::kCancelled, std::move(m)}; }
Status internal_error(std::string m) { return {Code::kInternal, std::move(m)}; }

}  // namespace tandem::core
