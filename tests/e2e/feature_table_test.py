#!/usr/bin/env python3
"""Drafts, and streaming, change no answer: every feature that a client can ask for, at temperature
0, with OpenAI's own Python client.

Usage: feature_table_test.py TANDEM MODEL DRAFT
Exit code 77 says that the test was skipped, with the reason on standard output.
"""

import json
import sys
import unittest

from server_process import SKIPPED, run_tests

try:
    import openai
except ImportError:
    print("skipped: the Python package 'openai' is not installed (pip install openai)")
    sys.exit(SKIPPED)

MESSAGES = [{"role": "user", "content": "Tell me about the sea."}]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 9}, "maxItems": 3},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "tags", "count"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA, "strict": True}}


def tools(strict):
    function = {"parameters": SCHEMA, "strict": strict}
    return [
        {"type": "function", "function": {"name": name, **function}} for name in ("find", "keep")
    ]


NAMED = {"type": "function", "function": {"name": "keep"}}
# The demo opens no thought by itself: the bias makes it do so once.
OPENING = {"<|channel>": 100}
THOUGHT = {"regex": "[a-z]{3,9}", "thinking_budget": 12}

# Every feature: members of the request; a dictionary under "extra" is beyond OpenAI's. Biases name
# tokens by their texts, which the test replaces by the numbers that the model's vocabulary gives.
CHATS = {
    "plain": {},
    "tools": {"tools": tools(False)},
    "strict tools": {"tools": tools(True)},
    "a call must come": {"tools": tools(True), "tool_choice": "required"},
    "a named call": {"tools": tools(False), "tool_choice": NAMED},
    "one call": {"tools": tools(True), "tool_choice": "required", "parallel_tool_calls": False},
    "form beside tools": {"tools": tools(True), "response_format": FORM},
    "json_object": {"response_format": {"type": "json_object"}},
    "json_schema": {"response_format": FORM},
    "grammar": {"extra": {"grammar": 'root ::= ("sea" | "sky" | [a-f]{2,9}) ("," root)?'}},
    "regex": {"extra": {"regex": "[A-Z][a-z ]{10,40}[.!]"}},
    "choice": {"extra": {"choice": ["the sea", "the sky", "the seven seas"]}},
    "stop": {"stop": [".", "zebra"]},
    "stop_token_ids": {"extra": {"stop_token_ids": [5, 107, 300]}},
    "presence_penalty": {"presence_penalty": 1.7},
    "frequency_penalty": {"frequency_penalty": 1.2},
    "repetition_penalty": {"extra": {"repetition_penalty": 1.4}},
    # Without full stops and commas no text here goes on as it would.
    "logit_bias": {"logit_bias": {" the": 2, ".": -20, ",": -20}},
    "logprobs": {"logprobs": True, "top_logprobs": 5},
    "logprobs under a form": {"logprobs": True, "top_logprobs": 2, "response_format": FORM},
    "n": {"n": 3},
    "min_tokens": {"extra": {"min_tokens": 30}},
    "ignore_eos": {"extra": {"ignore_eos": True}},
    "thought": {"logit_bias": OPENING, "extra": THOUGHT},
    "thought under a schema": {
        "logit_bias": OPENING,
        "response_format": FORM,
        "extra": {"thinking_budget": 9},
    },
    "reasoning_effort": {"reasoning_effort": "low"},
    "everything": {
        "logit_bias": OPENING,
        "n": 2,
        "logprobs": True,
        "top_logprobs": 1,
        "presence_penalty": 0.5,
        "response_format": FORM,
        "stop": ["}"],
        "extra": {"min_tokens": 5, "thinking_budget": 20},
    },
}
TEXTS = {
    "plain": {},
    "several prompts": {"prompt": ["The sea", "The sky is", "Once"], "n": 2},
    "echo": {"echo": True},
    "logprobs": {"logprobs": 3},
    "echo and logprobs": {"echo": True, "logprobs": 2, "prompt": ["The sea", "Once upon a time"]},
    "stop": {"stop": ["."]},
    "regex": {"extra": {"regex": "( [a-z]{1,7}){5,9}[.]"}},
    "min_tokens": {"extra": {"min_tokens": 30}},
}
RESPONSES = {
    "plain": {},
    "schema": {"text": {"format": {"type": "json_schema", "name": "thing", "schema": SCHEMA}}},
    "tools": {
        "tools": [{"type": "function", "name": "find", "parameters": SCHEMA, "strict": True}],
        "tool_choice": "required",
    },
}


def add_message(choice, message):
    """Joins a message, or the delta of one, to what is known of its choice."""
    choice["content"] += message.content or ""
    choice["thought"] += getattr(message, "reasoning_content", None) or ""
    for position, part in enumerate(message.tool_calls or []):
        index = getattr(part, "index", position)
        call = choice["calls"].setdefault(index, ["", ""])
        call[0] += part.function.name or ""
        call[1] += part.function.arguments or ""


def joined_chat(answers):
    """Choices of one answer, from its chunks or from the whole of it."""
    choices = {}
    for answer in answers:
        for part in answer.choices:
            empty = {"content": "", "thought": "", "calls": {}, "logprobs": [], "end": None}
            choice = choices.setdefault(part.index, empty)
            add_message(choice, part.delta if hasattr(part, "delta") else part.message)
            choice["end"] = part.finish_reason or choice["end"]
            if part.logprobs:
                choice["logprobs"] += [each.model_dump() for each in part.logprobs.content]
    return choices


def joined_text(answers):
    choices = {}
    for answer in answers:
        for part in answer.choices:
            choice = choices.setdefault(part.index, {"text": "", "logprobs": {}, "end": None})
            choice["text"] += part.text
            choice["end"] = part.finish_reason or choice["end"]
            for name, values in (part.logprobs.model_dump() if part.logprobs else {}).items():
                choice["logprobs"].setdefault(name, []).extend(values)
    return choices


class FeatureTableTest(unittest.TestCase):
    server = None

    def setUp(self):
        self.client = openai.OpenAI(
            base_url=self.server.url + "/v1", api_key="none", max_retries=0, timeout=120
        )
        self.model = self.client.models.list().data[0].id

    def run_table(self, create, joined, table):
        accepted = 0
        for name, members in table.items():
            with self.subTest(feature=name):
                expected = None
                for length, stream in ((0, False), (0, True), (4, False), (4, True), (None, False)):
                    extra = members.get("extra", {}) | {"draft_length": length}
                    rest = self.without_extra(members)
                    if stream:
                        rest |= {"stream": True, "stream_options": {"include_usage": True}}
                    answer = create(extra_body=extra, **rest)
                    parts = list(answer) if stream else [answer]
                    usage = parts[-1].usage
                    seen = (joined(parts), usage.completion_tokens)
                    expected = expected or seen
                    self.assertEqual(seen, expected, f"draft_length {length}, stream {stream}")
                    details = usage.completion_tokens_details
                    accepted += details.accepted_prediction_tokens
                    if length == 0:
                        self.assertEqual(details.drafted_tokens, 0)
        self.assertGreater(accepted, 0)

    def without_extra(self, members):
        """Members that OpenAI's client knows by name, biases by the numbers of their tokens."""
        rest = {name: value for name, value in members.items() if name != "extra"}
        if "logit_bias" in rest:
            rest["logit_bias"] = {
                str(self.server.post("/tokenize", {"prompt": text})["tokens"][-1]): bias
                for text, bias in rest["logit_bias"].items()
            }
        return rest

    def test_chats(self):
        defaults = {"model": self.model, "messages": MESSAGES, "max_tokens": 48, "temperature": 0}
        self.run_table(
            lambda **rest: self.client.chat.completions.create(**(defaults | rest)),
            joined_chat,
            CHATS,
        )

    def test_texts(self):
        defaults = {"model": self.model, "prompt": "Once", "max_tokens": 32, "temperature": 0}
        self.run_table(
            lambda **rest: self.client.completions.create(**(defaults | rest)), joined_text, TEXTS
        )

    def test_responses(self):
        for name, members in RESPONSES.items():
            with self.subTest(feature=name):
                outputs = []
                for length in (0, 4):
                    request = {"model": self.model, "input": "The sea?", "temperature": 0}
                    request |= {"max_output_tokens": 120, "extra_body": {"draft_length": length}}
                    whole = self.client.responses.create(**request, **members)
                    events = list(self.client.responses.create(stream=True, **request, **members))
                    for answer in (whole, events[-1].response):
                        items = [item.model_dump() for item in answer.output]
                        for item in items:
                            item.pop("id")
                            item.pop("call_id", None)
                        outputs.append((answer.status, items))
                for output in outputs[1:]:
                    self.assertEqual(output, outputs[0])

    def test_features_show(self):
        """That the features of the table come to bear, so that equal answers say something."""
        defaults = {"model": self.model, "messages": MESSAGES, "max_tokens": 48, "temperature": 0}

        def chat(name):
            answer = self.client.chat.completions.create(
                extra_body=CHATS[name].get("extra"),
                **(defaults | self.without_extra(CHATS[name])),
            )
            return joined_chat([answer])[0]

        plain = chat("plain")["content"]
        for name in ("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias"):
            self.assertNotEqual(chat(name)["content"], plain, name)
        self.assertTrue(plain.startswith(chat("stop")["content"]))
        self.assertLess(len(chat("stop")["content"]), len(plain))
        self.assertGreaterEqual(len(chat("a call must come")["calls"]), 1)
        self.assertEqual(chat("a named call")["calls"][0][0], "keep")
        self.assertGreater(len(chat("thought")["thought"]), 0)
        self.assertRegex(chat("thought")["content"], r"\A[a-z]{3,9}\Z")

    def test_harnesses_score_texts(self):
        """What evaluation harnesses ask for: the log-probabilities of given texts."""
        texts = ["The sea is deep and blue.", "Once upon a time there was a cat \u00e9\u4e16."]
        ids = [self.server.post("/tokenize", {"prompt": text})["tokens"] for text in texts]
        members = {"model": self.model, "echo": True, "logprobs": 1, "temperature": 0}
        by_ids = self.client.completions.create(prompt=ids, max_tokens=1, **members)
        self.assertEqual(len(by_ids.choices), 2)
        for choice, tokens in zip(by_ids.choices, ids):
            logprobs = choice.logprobs
            self.assertEqual(len(logprobs.tokens), len(tokens) + 1)
            self.assertIsNone(logprobs.token_logprobs[0])
            self.assertIsNone(logprobs.top_logprobs[0])
            rows = zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs)
            for token, own, top in list(rows)[1:]:
                self.assertLessEqual(own, max(top.values()))
                if "\ufffd" not in token:  # parts of characters are spelled alike
                    self.assertEqual(top[token], own)
            # The last token was chosen at temperature 0: the likeliest.
            self.assertEqual(logprobs.token_logprobs[-1], max(logprobs.top_logprobs[-1].values()))
        for _ in range(2):  # the second time with a prefix cache that knows the texts
            by_text = self.client.completions.create(prompt=texts, max_tokens=0, **members)
            self.assertEqual(by_text.usage.completion_tokens, 0)
            for choice, text, scored in zip(by_text.choices, texts, by_ids.choices):
                self.assertEqual(choice.text, text)
                self.assertEqual(choice.finish_reason, "length")
                logprobs = choice.logprobs
                self.assertEqual(logprobs.token_logprobs, scored.logprobs.token_logprobs[:-1])
                self.assertEqual(logprobs.tokens, scored.logprobs.tokens[:-1])
                self.assertEqual(logprobs.text_offset[:2], [0, 0])  # <bos> is not in the text
                for token, offset in list(zip(logprobs.tokens, logprobs.text_offset))[1:]:
                    if "\ufffd" not in token:
                        self.assertEqual(text[offset : offset + len(token)], token)
        # A token scored in a prompt has the log-probability that it was chosen with.
        whole = self.client.completions.create(
            model=self.model, prompt=ids[0], max_tokens=20, logprobs=1, temperature=0
        ).choices[0]
        chosen = whole.logprobs.token_logprobs
        again = self.client.completions.create(
            prompt=by_ids.choices[0].text[: -len(by_ids.choices[0].logprobs.tokens[-1])]
            + whole.text,
            max_tokens=0,
            **members,
        ).choices[0]
        if again.logprobs.tokens[len(ids[0]) :] == whole.logprobs.tokens:
            self.assertEqual(again.logprobs.token_logprobs[len(ids[0]) :], chosen)

    def test_prompt_logprobs(self):
        """vLLM's form: what `echo` says of the same tokens, with their places among the others."""
        text = "Once upon a time a ship"
        ids = self.server.post("/tokenize", {"prompt": text})["tokens"]
        echoed = self.client.completions.create(
            model=self.model, prompt=ids, max_tokens=0, echo=True, logprobs=2
        ).choices[0]
        members = {"max_tokens": 4, "temperature": 0, "n": 2, "prompt_logprobs": 2}
        answer = self.server.post("/v1/completions", {"prompt": text} | members)
        for choice in answer["choices"]:
            scores = choice["prompt_logprobs"]
            self.assertEqual(len(scores), len(ids))
            self.assertIsNone(scores[0])
            rows = zip(scores, ids, echoed.logprobs.token_logprobs, echoed.logprobs.tokens)
            for score, token, logprob, spelled in list(rows)[1:]:
                own = score[str(token)]
                self.assertAlmostEqual(own["logprob"], logprob, places=6)
                self.assertEqual(own["decoded_token"], spelled)
                ranked = sorted(score.values(), key=lambda each: each["rank"])
                self.assertEqual([each["rank"] for each in ranked[:2]], [1, 2])
                self.assertEqual(ranked, sorted(ranked, key=lambda each: -each["logprob"]))
        chat = self.server.post("/v1/chat/completions", {"messages": MESSAGES} | members)
        self.assertEqual(len(chat["prompt_logprobs"]), chat["usage"]["prompt_tokens"])
        self.assertNotIn("prompt_logprobs", chat["choices"][0])


if __name__ == "__main__":
    sys.exit(run_tests(FeatureTableTest, __doc__))
