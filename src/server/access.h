#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tandem/core/status.h"
#include "tandem/net/http_server.h"

namespace tandem::server {

/// Reads API keys from a file, one a line; empty lines and lines that begin with # are none.
/// kInvalidArgument when there is none or one could not be sent in a header.
core::Result<std::vector<std::string>> load_api_keys(const std::string& path);

/// Whether `authorization` (the header's value) is a bearer token among `keys`. The time it takes
/// says nothing about the keys but their number and length.
bool is_authorized(std::string_view authorization, const std::vector<std::string>& keys);

/// The headers by which a browser lets pages of `origin` read an answer; none where `allowed` has
/// neither that origin nor "*".
net::Headers cors_headers(std::string_view origin, const std::vector<std::string>& allowed);

/// Whether a request that changes something comes from a web page of another origin that is not
/// among `allowed`. Browsers send any page's text/plain and form bodies to any address without
/// asking, with the page's origin; so a page could use a server that asks for no key. Programs send
/// no Origin, the server's own page its own, extensions and applications one that is no web page's.
bool is_foreign_page(const net::HttpRequest& request, const std::vector<std::string>& allowed);

}  // namespace tandem::server
