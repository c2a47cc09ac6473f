// The server within TLS, with a certificate made for the test.

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <cstdio>
#include <filesystem>
#include <memory>

#include "server_fixture.h"

namespace tandem::net::testing {
namespace {

template <auto free>
struct Freed {
  template <typename T>
  void operator()(T* pointer) const {
    free(pointer);
  }
};
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Freed<X509_free>>;

/// PEM files of a new key and its self-signed certificate; gone with the object.
class CertificateFiles {
 public:
  CertificateFiles() : folder_(::testing::TempDir() + "tandem_tls_" + std::to_string(::getpid())) {
    std::filesystem::create_directories(folder_);
    const Key key(EVP_EC_gen("P-256"));
    const Certificate certificate(X509_new());
    ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), 1);
    X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -60);
    X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 3600);
    X509_set_pubkey(certificate.get(), key.get());
    X509_NAME* name = X509_get_subject_name(certificate.get());
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>("localhost"), -1, -1, 0);
    X509_set_issuer_name(certificate.get(), name);
    X509_sign(certificate.get(), key.get(), EVP_sha256());
    std::FILE* file = std::fopen(certificate_path().c_str(), "w");
    PEM_write_X509(file, certificate.get());
    std::fclose(file);
    file = std::fopen(key_path().c_str(), "w");
    PEM_write_PrivateKey(file, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
    std::fclose(file);
  }
  ~CertificateFiles() { std::filesystem::remove_all(folder_); }

  std::string certificate_path() const { return folder_ + "/certificate.pem"; }
  std::string key_path() const { return folder_ + "/key.pem"; }

 private:
  std::string folder_;
};

/// A blocking client within TLS that trusts anybody.
class TlsClient {
 public:
  explicit TlsClient(std::uint16_t port)
      : socket_(port), context_(SSL_CTX_new(TLS_client_method())), ssl_(SSL_new(context_.get())) {
    SSL_set_fd(ssl_.get(), socket_.fd());
    is_connected_ = SSL_connect(ssl_.get()) == 1;
  }
  bool is_connected() const { return is_connected_; }
  bool send(std::string_view bytes) {
    return SSL_write(ssl_.get(), bytes.data(), static_cast<int>(bytes.size())) > 0;
  }
  std::string receive_until(std::string_view needle) {
    std::string text;
    char bytes[4096];
    while (needle.empty() || text.find(needle) == std::string::npos) {
      const int count = SSL_read(ssl_.get(), bytes, sizeof bytes);
      if (count <= 0) break;
      text.append(bytes, static_cast<std::size_t>(count));
    }
    return text;
  }
  /// Says that nothing more will be sent.
  void finish_sending() {
    SSL_shutdown(ssl_.get());
    socket_.half_close();
  }
  void reset() { socket_.reset(); }

 private:
  RawSocket socket_;
  std::unique_ptr<SSL_CTX, Freed<SSL_CTX_free>> context_;
  std::unique_ptr<SSL, Freed<SSL_free>> ssl_;
  bool is_connected_ = false;
};

class HttpsTest : public HttpServerTest {
 protected:
  void start_tls(HttpServerOptions options = {}) {
    options.tls_certificate_file = files_.certificate_path();
    options.tls_key_file = files_.key_path();
    start(options);
  }
  CertificateFiles files_;
};

TEST_F(HttpsTest, AnswersRequestAfterRequest) {
  start_tls();
  TlsClient client(server_->port());
  ASSERT_TRUE(client.is_connected());
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(client.send("GET /hello HTTP/1.1\r\nHost: x\r\n\r\n"));
    EXPECT_NE(client.receive_until("hello").find("200 OK"), std::string::npos);
  }
  ASSERT_TRUE(client.send("GET /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
  EXPECT_NE(client.receive_until("").find("Connection: close"), std::string::npos);  // to the end
}

TEST_F(HttpsTest, CarriesLargeBodiesBothWays) {
  start_tls();
  const std::string body = std::string(700'000, 'a') + "end";
  TlsClient client(server_->port());
  ASSERT_TRUE(client.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: " +
                          std::to_string(body.size()) + "\r\n\r\n" + body));
  const std::string answer = client.receive_until("aend");
  EXPECT_NE(answer.find(body), std::string::npos);
}

TEST_F(HttpsTest, StreamsAndNoticesAClientThatLeaves) {
  start_tls();
  TlsClient client(server_->port());
  ASSERT_TRUE(client.send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n"));
  ASSERT_NE(parked(), nullptr);
  ASSERT_TRUE(parked()->write("one chunk"));
  EXPECT_NE(client.receive_until("one chunk").find("chunked"), std::string::npos);
  client.reset();
  EXPECT_TRUE(eventually([this] { return num_disconnects_ == 1; }));
  EXPECT_TRUE(eventually([this] { return server_->open_connections() == 0; }));
}

TEST_F(HttpsTest, AnswersAClientThatHasFinishedSending) {
  start_tls();
  TlsClient client(server_->port());
  ASSERT_TRUE(client.send("GET /park HTTP/1.1\r\nHost: x\r\n\r\n"));
  ASSERT_NE(parked(), nullptr);
  client.finish_sending();
  EXPECT_NE(client.receive_until("100 Continue\r\n\r\n"), "");
  parked()->respond(200, {}, "parked");
  EXPECT_NE(client.receive_until("parked").find("200 OK"), std::string::npos);
  EXPECT_EQ(num_disconnects_, 0);
}

TEST_F(HttpsTest, EndsWhatIsNoTls) {
  HttpServerOptions options;
  options.header_timeout = 200ms;
  start_tls(options);
  RawSocket plain(server_->port());
  plain.send("GET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(plain.receive_all().find("200 OK"), std::string::npos);
  RawSocket silent(server_->port());  // never begins its handshake
  silent.receive_all();
  EXPECT_TRUE(silent.is_closed_by_peer());
  EXPECT_TRUE(eventually([this] { return server_->open_connections() == 0; }));
}

TEST_F(HttpsTest, SaysWhichFileIsWrong) {
  const auto message = [](std::string certificate, std::string key) {
    HttpServerOptions options;
    options.port = 0;
    options.tls_certificate_file = std::move(certificate);
    options.tls_key_file = std::move(key);
    const auto server = HttpServer::start(options, {}, {});
    return server.ok() ? std::string() : server.status().message();
  };
  EXPECT_NE(message("/no/such.pem", files_.key_path()).find("'/no/such.pem'"), std::string::npos);
  EXPECT_NE(message(files_.certificate_path(), "/no/key").find("'/no/key'"), std::string::npos);
  const std::string certificate = files_.certificate_path();
  EXPECT_NE(message(certificate, certificate).find("TLS key"), std::string::npos);
}

}  // namespace
}  // namespace tandem::net::testing
