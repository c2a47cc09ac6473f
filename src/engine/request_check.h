#pragma once

#include "tandem/core/status.h"
#include "tandem/engine/request.h"

namespace tandem::engine {

/// Whether a request is well-formed and its prompt leaves room for a token in a context of
/// `context` tokens. is_bound_by_kv: the KV memory, not the model or an option, sets the context.
/// kInvalidArgument says which field is wrong.
core::Status check_request(const Request& request, int vocab_size, int context,
                           bool is_bound_by_kv);

}  // namespace tandem::engine
