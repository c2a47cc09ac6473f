#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fake_engine.h"
#include "tandem/net/http_client.h"
#include "tandem/server/server.h"

namespace tandem::server::testing {

using namespace std::chrono_literals;

/// All bytes, a few letters and the tokens of the chat template.
inline std::shared_ptr<const tokenizer::Tokenizer> test_tokenizer() {
  using tokenizer::TokenKind;
  tokenizer::VocabData data;
  const auto add = [&data](std::string token, TokenKind kind) {
    data.tokens.push_back(std::move(token));
    data.kinds.push_back(kind);
  };
  for (const char* token : {"<pad>", "<eos>", "<bos>", "<|turn>", "<turn|>", "<|tool_response>"}) {
    add(token, TokenKind::kControl);
  }
  add("<|channel>", TokenKind::kUserDefined);
  add("<channel|>", TokenKind::kUserDefined);
  for (int byte = 0; byte < 256; ++byte) add(fmt::format("<0x{:02X}>", byte), TokenKind::kByte);
  for (const char* token : {"a", "b", "c", "\xE2\x96\x81", "\n"}) add(token, TokenKind::kNormal);
  for (const char* token : {"<|tool_call>", "<tool_call|>", "<|\"|>"}) {
    add(token, TokenKind::kUserDefined);
  }
  data.bos = 2;
  data.eos = 1;
  return tokenizer::Tokenizer::create(std::move(data)).value();
}

/// The ids of a text in which the tokenizer's special tokens are tokens, every other byte one.
inline std::vector<TokenId> tokens_of(std::string_view text) {
  constexpr std::string_view kSpecial[] = {"<|channel>",   "<channel|>", "<|tool_call>",
                                           "<tool_call|>", "<|\"|>",     "<turn|>"};
  const auto tokenizer = test_tokenizer();
  std::vector<TokenId> tokens;
  while (!text.empty()) {
    const auto* found = std::find_if(std::begin(kSpecial), std::end(kSpecial),
                                     [&](std::string_view each) { return text.starts_with(each); });
    const std::size_t length = found == std::end(kSpecial) ? 1 : found->size();
    tokens.push_back(found == std::end(kSpecial) ? byte_tokens(text.substr(0, 1)).front()
                                                 : tokenizer->find(*found));
    text.remove_prefix(length);
  }
  return tokens;
}

/// A server over a FakeEngine, and clients of it.
class ServerTest : public ::testing::Test {
 protected:
  static constexpr const char* kModel = "demo/model";
  static constexpr int kMaxContext = 100, kMaxRequests = 41;

  void start(ServerOptions options = {}) {
    options.port = 0;
    options.model_name = kModel;
    options.access_log = false;
    auto server = Server::start(options);
    ASSERT_TRUE(server.ok()) << server.status().message();
    server_ = std::move(server).value();
  }
  void attach() {
    ServedModel model;
    model.engine = &engine_;
    model.tokenizer = test_tokenizer();
    model.template_variant = chat::TemplateVariant::kOpenTurn;
    model.max_context = kMaxContext;
    model.max_requests = kMaxRequests;
    model.fingerprint = "fp";
    server_->attach(std::move(model));
  }
  void start_and_attach(ServerOptions options = {}) {
    start(std::move(options));
    attach();
  }

  net::ClientResponse call(std::string method, std::string target, std::string body = {},
                           net::Headers headers = {}, std::chrono::milliseconds timeout = 20s) {
    const net::Url url{"127.0.0.1", server_->port(), ""};
    auto answer = net::fetch(
        url, {std::move(method), std::move(target), std::move(headers), std::move(body)}, timeout);
    if (answer.ok()) return std::move(answer).value();
    return {0, {}, answer.status().message()};
  }
  net::ClientResponse get(std::string target) { return call("GET", std::move(target)); }
  net::ClientResponse chat(const std::string& members = {}) {
    return call("POST", "/v1/chat/completions", chat_body(members));
  }
  net::ClientResponse complete(std::string body) {
    return call("POST", "/v1/completions", std::move(body));
  }
  static std::string chat_body(const std::string& members = {}) {
    return R"({"messages":[{"role":"user","content":"Hi"}])" +
           (members.empty() ? "" : "," + members) + "}";
  }

  /// A call on a thread of its own: its answer when get() is called.
  class Pending {
   public:
    template <typename Call>
    explicit Pending(Call call) : thread_([this, call] { answer_ = call(); }) {}
    ~Pending() { join(); }
    const net::ClientResponse& get() {
      join();
      return answer_;
    }

   private:
    void join() {
      if (thread_.joinable()) thread_.join();
    }
    net::ClientResponse answer_;
    std::thread thread_;
  };

  FakeEngine engine_;
  std::unique_ptr<Server> server_;
};

}  // namespace tandem::server::testing
