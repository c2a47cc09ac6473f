#pragma once

#include <memory>

#include "tandem/net/http_server.h"
#include "tandem/server/service.h"

namespace tandem::server {

/// Answers one HTTP request, or hands it to a Generation. Thread: I/O; never blocks.
void route(const std::shared_ptr<Service>& service, net::HttpRequest request,
           std::shared_ptr<net::Responder> responder);

}  // namespace tandem::server
