#include "served.h"

#include <gtest/gtest.h>

#include <thread>

#include "tandem/net/http_client.h"

namespace tandem::app {

std::string wait_until_ready(const Program& program) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (std::chrono::steady_clock::now() < end) {
    const std::string log = program.errors();
    const std::size_t at = log.find("http://");
    const std::size_t url_end = log.find_first_of(",/ \n", at + 7);
    if (at != std::string::npos && url_end != std::string::npos) {
      const std::string url = log.substr(at, url_end - at);
      net::HttpRequest health{"GET", "/health", {}, ""};
      const auto answer = net::fetch(*net::parse_url(url), health, kPatience);
      if (answer.ok() && answer->status == 200) return url;
      EXPECT_TRUE(!answer.ok() || answer->status == 503);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  ADD_FAILURE() << "not ready: " << program.errors();
  return "http://127.0.0.1:1";
}

}  // namespace tandem::app
