#!/usr/bin/env python3
"""Random calls that mix every feature, many at a time in too little KV memory and with clients that
leave, compared with the same calls one after the other; then a look for what they left.

Usage: mixed_calls_test.py TANDEM MODEL [DRAFT]
TANDEM_LOAD=full: 400 calls; else 80. TANDEM_SEED: of the calls.
"""

import http.client
import json
import os
import random
import sys
import threading
import time
import unittest

from server_process import run_tests

FULL = os.environ.get("TANDEM_LOAD") == "full"
CALLS = 400 if FULL else 80
SEED = int(os.environ.get("TANDEM_SEED", "1"))
CLIENTS = 16
WORDS = "the sea a ship went far and came home with gold for every child of our old town".split()
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def tool(name, strict):
    function = {"name": name, "strict": strict, "parameters": SCHEMA}
    return {"type": "function", "function": function}


class Calls:
    """Makes random calls: path and body."""

    def __init__(self, seed):
        self.dice = random.Random(seed)

    def one_in(self, n):
        return self.dice.randrange(n) == 0

    def text(self):
        length = self.dice.choice((1, 4, 20, 100, 300))
        shared = "Once upon a time " * self.dice.choice((0, 0, 20, 60))  # prefixes to share
        return shared + " ".join(self.dice.choice(WORDS) for _ in range(length))

    def form(self):
        schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
        return self.dice.choice(
            (
                {"response_format": schema},
                {"response_format": {"type": "json_object"}},
                {"regex": "[a-z]{2,9}( [a-z]{2,9}){0,5}"},
                {"choice": ["yes", "no", "perhaps"]},
                {"grammar": 'root ::= ("ab" | "c"){1,20}'},
            )
        )

    def common(self):
        dice = self.dice
        body = {"temperature": dice.choice((0, 0, 0.7, 1.3)), "seed": dice.randrange(1000)}
        extras = (
            {"top_p": 0.8},
            {"top_k": 5},
            {"min_p": 0.05},
            {"presence_penalty": 1.0, "frequency_penalty": 0.5},
            {"repetition_penalty": 1.2},
            {"logit_bias": {str(dice.randrange(300, 8000)): dice.choice((-100, 20))}},
            {"draft_length": dice.randrange(9)},
            {"min_tokens": 1},
            {"ignore_eos": True},
            {"stop": dice.sample(["e", "th", "ship", ". ", "zz"], 2)},
            {"stop_token_ids": [dice.randrange(300, 8000)]},
        )
        for extra in dice.sample(extras, dice.randrange(4)):
            body |= extra
        return body

    def chat(self):
        dice = self.dice
        body = self.common() | {"messages": [{"role": "user", "content": self.text()}]}
        body["max_tokens"] = dice.choice((1, 10, 40, 120))
        body["n"] = dice.choice((1, 1, 2, 3))
        if self.one_in(3):  # grows until memory runs out
            body |= {"max_tokens": 200, "ignore_eos": True}
        if self.one_in(3):
            body |= {"logprobs": True, "top_logprobs": dice.randrange(4)}
        if self.one_in(4):
            body |= dice.choice(({"thinking_budget": 10}, {"reasoning_effort": "low"}))
        if self.one_in(3):
            body["tools"] = [tool("save", self.one_in(2)), tool("send", self.one_in(2))]
            named = {"type": "function", "function": {"name": "send"}}
            body["tool_choice"] = dice.choice(("auto", "required", "none", named))
            body["parallel_tool_calls"] = self.one_in(2)
        if self.one_in(4):
            body |= self.form()
        self.stream_or_scores(body)
        return "/v1/chat/completions", body

    def completion(self):
        dice = self.dice
        body = self.common() | {"prompt": dice.choice((self.text(), [self.text(), self.text()]))}
        body["max_tokens"] = dice.choice((0, 1, 10, 60))
        if body["max_tokens"] == 0:
            body.pop("min_tokens", None)
        body["n"] = dice.choice((1, 1, 2))
        if self.one_in(2):
            body |= {"echo": self.one_in(2), "logprobs": dice.randrange(3)}
        if self.one_in(5):
            body |= self.form()
        self.stream_or_scores(body)
        return "/v1/completions", body

    def stream_or_scores(self, body):
        if self.one_in(2):
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        elif self.one_in(4):
            body["prompt_logprobs"] = self.dice.randrange(4)

    def response(self):
        body = {"input": self.text(), "temperature": 0, "max_output_tokens": 40}
        if self.one_in(2):
            body["tools"] = [{"type": "function", "name": "save", "parameters": SCHEMA}]
        return "/v1/responses", body

    def make(self):
        return self.dice.choice((self.chat, self.chat, self.completion, self.response))()


VOLATILE = ("id", "created", "created_at", "call_id", "item_id", "prompt_tokens_details")
VOLATILE += ("completion_tokens_details", "input_tokens_details", "output_tokens_details")


def stable(value):
    """An answer without what may differ: ids, times, what drafts and the cache did."""
    if isinstance(value, dict):
        return {key: stable(each) for key, each in value.items() if key not in VOLATILE}
    return [stable(each) for each in value] if isinstance(value, list) else value


def joined(chunks):
    """What a stream says of each choice, however it was cut."""
    choices = {}
    for chunk in chunks:
        for part in chunk.get("choices", ()):
            said = choices.setdefault(part["index"], {"scores": [], "calls": {}})
            said["finish"] = part.get("finish_reason") or said.get("finish")
            delta = part.get("delta", {"content": part.get("text")})
            for name in ("content", "reasoning_content"):
                said[name] = said.get(name, "") + (delta.get(name) or "")
            for call in delta.get("tool_calls", ()):
                function = call["function"]
                name, arguments = said["calls"].get(call["index"], ("", ""))
                name += function.get("name", "")
                said["calls"][call["index"]] = name, arguments + function["arguments"]
            scores = part.get("logprobs") or {}
            for name in ("content", "tokens", "token_logprobs", "top_logprobs", "text_offset"):
                said["scores"] += [(name, each) for each in scores.get(name) or ()]
        if "error" in chunk:
            choices["error"] = chunk["error"]
        if chunk.get("usage"):
            choices["usage"] = stable(chunk["usage"])
    for said in choices.values():
        if "scores" in said:
            said["scores"].sort(key=lambda each: each[0])
    return choices


class Caller:
    def __init__(self, server):
        self.host = server.url.removeprefix("http://")

    def connect(self, path, body):
        connection = http.client.HTTPConnection(self.host, timeout=300)
        connection.request(
            "POST", path, json.dumps(body), {"Content-Type": "application/json"}
        )
        return connection

    def call(self, path, body):
        """Status and what does not depend on how the answer came."""
        connection = self.connect(path, body)
        answer = connection.getresponse()
        data = answer.read().decode()
        connection.close()
        if answer.status == 200 and body.get("stream"):
            lines = [line[6:] for line in data.split("\n\n") if line.startswith("data: {")]
            return answer.status, joined(json.loads(line) for line in lines)
        return answer.status, stable(json.loads(data))

    def leave(self, path, body, seconds):
        """Calls and goes away, sometimes with a part of the answer."""
        connection = self.connect(path, body)
        time.sleep(seconds)
        connection.sock.close()
        connection.close()


class MixedCallsTest(unittest.TestCase):
    server = None
    maxDiff = 2000

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.server.process.pid}/fd"))

    def run_together(self, calls, leaving):
        caller = Caller(self.server)
        answers = [None] * len(calls)
        todo = list(range(len(calls)))[::-1]
        lock = threading.Lock()

        def work():
            while True:
                with lock:
                    if not todo:
                        return
                    i = todo.pop()
                if i in leaving:
                    caller.leave(*calls[i], leaving[i])
                else:
                    answers[i] = caller.call(*calls[i])

        threads = [threading.Thread(target=work) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return answers

    def test_calls_do_not_disturb_each_other(self):
        maker = Calls(SEED)
        calls = [maker.make() for _ in range(CALLS)]
        dice = random.Random(SEED)
        leaving = {i: dice.random() * 0.5 for i in range(CALLS) if dice.randrange(6) == 0}
        Caller(self.server).call("/v1/completions", {"prompt": "a", "max_tokens": 1})
        descriptors = self.descriptors()
        together = self.run_together(calls, leaving)
        if FULL:  # of 80 calls, one to five are preempted
            self.assertGreater(self.server.metric("vllm:num_preemptions_total"), 0)
        good = 0
        for i, (path, body) in enumerate(calls):
            if i in leaving:
                continue
            with self.subTest(call=i, path=path, body=json.dumps(body)):
                alone = Caller(self.server).call(path, body)
                self.assertEqual(together[i], alone)
                self.assertIn(alone[0], (200, 400))
                good += alone[0] == 200
        self.assertGreater(good, CALLS // 2)
        self.assert_nothing_is_left(descriptors)

    def assert_nothing_is_left(self, descriptors):
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "tandem:kv_used_bytes")
        deadline = time.monotonic() + 30
        while any(self.server.metric(name) for name in names):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.1)
        while self.descriptors() > descriptors:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.1)
        self.assertEqual(self.server.metric("tandem:requests_failed_total"), 0)


if __name__ == "__main__":
    sys.exit(run_tests(MixedCallsTest, __doc__, ["--kv-memory", "4MiB", "--max-sequences", "12"]))
