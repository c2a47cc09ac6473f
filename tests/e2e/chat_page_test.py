#!/usr/bin/env python3
"""Uses the built server's chat page in a headless browser, as people do: by keyboard.

Usage: chat_page_test.py TANDEM MODEL [DRAFT]
Needs chromium and its driver (Debian: chromium, chromium-driver). Exit code 77 says that the test
was skipped, with the reason on standard output.
"""

import base64
import json
import os
import shutil
import subprocess
import sys
import time
import unittest
import urllib.request

from server_process import SKIPPED, free_port, run_tests

DRIVER, BINARY = shutil.which("chromedriver"), shutil.which("chromium")
ENTER = "\ue007"
ESCAPE = "\ue00c"


class Browser:
    """A headless browser, driven by WebDriver's HTTP interface."""

    def __init__(self):
        port = free_port()
        self.process = subprocess.Popen(
            [DRIVER, f"--port={port}", "--log-level=SEVERE"], stdout=subprocess.DEVNULL
        )
        self.url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 30
        while True:
            try:
                if self.call("GET", "/status")["ready"]:
                    break
            except OSError:
                pass
            if time.monotonic() > deadline:
                raise RuntimeError("the browser's driver did not start")
            time.sleep(0.1)
        options = {
            "binary": BINARY,
            "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
        }
        wanted = {
            "capabilities": {
                "alwaysMatch": {
                    "goog:chromeOptions": options,
                    "goog:loggingPrefs": {"browser": "ALL"},
                }
            }
        }
        self.session = "/session/" + self.call("POST", "/session", wanted)["sessionId"]

    def call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, method=method)
        request.add_header("Content-Type", "application/json")
        return json.load(urllib.request.urlopen(request, timeout=90))["value"]

    def post(self, path, **body):
        return self.call("POST", self.session + path, body)

    def script(self, text, *arguments):
        return self.post("/execute/sync", script=text, args=list(arguments))

    def element(self, selector):
        found = self.post("/element", using="css selector", value=selector)
        return "/element/" + next(iter(found.values()))

    def click(self, selector):
        self.post(self.element(selector) + "/click")

    def type(self, selector, text):
        self.post(self.element(selector) + "/value", text=text)

    def press(self, keys):
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.post("/actions", actions=[{"type": "key", "id": "keys", "actions": actions}])

    def text(self, selector):
        return self.script("return document.querySelector(arguments[0])?.textContent", selector)

    def wait_for(self, script, what):
        deadline = time.monotonic() + 60
        while not self.script("return " + script):
            if time.monotonic() > deadline:
                raise AssertionError(f"{what} did not come; the page: {self.text('body')}")
            time.sleep(0.05)

    def close(self):
        try:
            self.call("DELETE", self.session)
        finally:
            self.process.kill()


class ChatPageTest(unittest.TestCase):
    server = None

    @classmethod
    def setUpClass(cls):
        cls.browser = Browser()
        cls.addClassCleanup(cls.browser.close)

    def setUp(self):
        self.browser.post("/window/rect", width=1000, height=800)
        self.browser.post("/url", url=self.server.url + "/")
        self.browser.script("localStorage.clear()")
        self.browser.post("/refresh")
        self.browser.wait_for("document.getElementById('model').textContent", "the model's name")

    def tearDown(self):
        log = self.browser.post("/se/log", type="browser")
        self.assertEqual([entry for entry in log if entry["level"] == "SEVERE"], [])

    def set_field(self, name, value):
        self.browser.script(
            "document.getElementById('settings').querySelector('[name=' + arguments[0] + ']')"
            ".value = arguments[1]",
            name,
            value,
        )

    def settle(self):
        self.browser.wait_for(
            "document.querySelector('.model .figures')?.textContent &&"
            " !document.querySelector('.running')",
            "the end of an answer",
        )

    def test_answers_by_keyboard_and_shows_figures(self):
        self.set_field("temperature", "0")
        self.set_field("max_tokens", "40")
        self.set_field("draft_length", "4")
        self.browser.type("#input", "Tell me about the sea." + ENTER)
        self.settle()
        body = {"messages": [{"role": "user", "content": "Tell me about the sea."}]}
        body |= {"temperature": 0, "max_tokens": 40}
        expected = self.server.post("/v1/chat/completions", body)["choices"][0]["message"]
        self.assertEqual(self.browser.text(".model .text"), expected["content"])
        figures = self.browser.text(".model .figures")
        self.assertIn("40 tokens", figures)
        self.assertIn("of drafts accepted", figures)
        self.assertEqual(self.browser.text(".user .text"), "Tell me about the sea.")
        # The next turn goes on with the conversation.
        self.browser.type("#input", "And the sky?" + ENTER)
        self.browser.wait_for(
            "document.querySelectorAll('.model').length == 2 &&"
            " !document.querySelector('.running')",
            "the second answer",
        )
        last = "return [...document.querySelectorAll('.figures')].at(-1).textContent"
        self.assertIn("prompt tokens cached", self.browser.script(last))

    def add_to_requests(self, members):
        """Every request of the page gets these members, too."""
        self.browser.script(
            "const send = window.fetch; window.fetch = (url, options) => {"
            " if (options?.body) options = {...options, body: JSON.stringify("
            " {...JSON.parse(options.body), ...arguments_of_test})};"
            " return send(url, options); }".replace("arguments_of_test", json.dumps(members))
        )

    def test_a_thought_is_shown_folded(self):
        opening = self.server.post("/tokenize", {"prompt": "<|channel>"})["tokens"][-1]
        self.browser.script("document.querySelector('#settings [name=thinking]').checked = true")
        # The demo's model does not think by itself: the bias begins a thought, the form ends it.
        self.add_to_requests(
            {"logit_bias": {opening: 100}, "thinking_budget": 8, "regex": "[0-9]{3}"}
        )
        self.browser.type("#input", "Think." + ENTER)
        self.settle()
        self.assertRegex(self.browser.text(".model .text"), r"\A[0-9]{3}\Z")
        self.assertTrue(self.browser.text(".model .thought").removeprefix("Thinking").strip())
        is_open = "return document.querySelector('.model .thought').open"
        self.assertFalse(self.browser.script(is_open))
        self.browser.click(".model .thought summary")
        self.assertTrue(self.browser.script(is_open))

    def test_escape_and_the_button_stop(self):
        for stop in (lambda: self.browser.press(ESCAPE), lambda: self.browser.click("#stop")):
            before = self.server.metric("tandem:requests_cancelled_total")
            self.set_field("max_tokens", "1800")
            self.set_field("min_p", "0")
            self.add_to_requests({"ignore_eos": True})
            self.browser.type("#input", "Go on for ever." + ENTER)
            self.browser.wait_for(
                "document.querySelector('.running .text')?.textContent", "the first text"
            )
            stop()
            self.browser.wait_for("!document.querySelector('.running')", "the stop")
            self.assertIn("stopped", self.browser.text(".model .figures"))
            deadline = time.monotonic() + 20
            while self.server.metric("tandem:requests_cancelled_total") == before:
                self.assertLess(time.monotonic(), deadline, "the request was not cancelled")
                time.sleep(0.05)
            self.browser.post("/refresh")

    def test_settings_hold_and_errors_show(self):
        self.browser.click("#open-settings")
        self.browser.type("#settings [name=system]", "Be brief.")
        self.browser.script("document.querySelector('[name=temperature]').value = '9'")
        self.browser.script("document.querySelector('#settings').close()")
        self.browser.wait_for(
            "Object.values(localStorage).some((item) => item.includes('Be brief.'))", "the saving"
        )
        self.browser.post("/refresh")
        value = self.browser.script("return document.querySelector('[name=system]').value")
        self.assertEqual(value, "Be brief.")
        self.browser.type("#input", "Hi" + ENTER)
        self.browser.wait_for("document.querySelector('.error')", "the error")
        self.assertIn("'temperature' must be", self.browser.text(".error"))
        self.browser.post("/se/log", type="browser")  # the 400 is meant
        self.browser.click("#new-chat")
        self.assertIsNone(self.browser.text(".message"))

    def test_fits_a_phone_and_both_schemes(self):
        self.browser.post("/window/rect", width=360, height=640)
        for scheme in ("light", "dark"):
            self.browser.post(
                "/goog/cdp/execute",
                cmd="Emulation.setEmulatedMedia",
                params={"features": [{"name": "prefers-color-scheme", "value": scheme}]},
            )
            wide = self.browser.script(
                "return document.documentElement.scrollWidth > window.innerWidth"
            )
            self.assertFalse(wide, "the page is wider than the screen")
            contrast = self.browser.script(
                """
                const light = (color) => {
                  const c = color.match(/[0-9.]+/g).slice(0, 3).map((v) => {
                    v /= 255;
                    return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
                  });
                  return 0.2126 * c[0] + 0.7152 * c[1] + 0.0722 * c[2];
                };
                const style = getComputedStyle(document.body);
                const a = light(style.color), b = light(style.backgroundColor);
                return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
                """
            )
            self.assertGreater(contrast, 7, scheme)
            picture = os.environ.get("TANDEM_PAGE_PICTURES")
            if picture:
                shot = self.browser.call("GET", self.browser.session + "/screenshot")
                with open(f"{picture}/{scheme}.png", "wb") as file:
                    file.write(base64.b64decode(shot))


if __name__ == "__main__":
    if not DRIVER or not BINARY:
        print("skipped: chromium and chromedriver are not installed")
        sys.exit(SKIPPED)
    sys.exit(run_tests(ChatPageTest, __doc__))
