"""The built server as a process, for tests that drive it from outside."""

import json
import socket
import subprocess
import sys
import time
import unittest
import urllib.error
import urllib.request

SKIPPED = 77  # exit code of a test that cannot run here


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """The server process; ready once constructed."""

    def __init__(self, tandem, model, draft, options=()):
        port = free_port()
        command = [tandem, "serve", "--model", model, "--port", str(port), "--context", "2048"]
        if draft:
            command += ["--draft", draft]
        command += options
        self.url = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen(command)
        deadline = time.monotonic() + 60
        while self.health() != 200:
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                raise RuntimeError("the server did not become ready")
            time.sleep(0.05)

    def health(self):
        try:
            return urllib.request.urlopen(self.url + "/health", timeout=5).status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def metric(self, name):
        text = urllib.request.urlopen(self.url + "/metrics", timeout=5).read().decode()
        for line in text.splitlines():
            if line.startswith(name + "{") or line.startswith(name + " "):
                return float(line.split()[-1])
        raise KeyError(name)

    def post(self, path, body):
        request = urllib.request.Request(
            self.url + path,
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        return json.load(urllib.request.urlopen(request, timeout=60))


def run_tests(case, usage, options=()):
    """Runs the program TEST TANDEM MODEL [DRAFT]: starts the server, as case.server, runs the tests
    and ends it. Returns the exit code."""
    if len(sys.argv) < 3:
        print(usage)
        return 2
    case.server = Server(*sys.argv[1:3], sys.argv[3] if len(sys.argv) > 3 else None, options)
    try:
        program = unittest.main(argv=sys.argv[:1], exit=False, verbosity=2)
        return 0 if program.result.wasSuccessful() else 1
    finally:
        case.server.process.kill()
