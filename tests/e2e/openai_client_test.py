#!/usr/bin/env python3
"""Drives the built server with OpenAI's own Python client.

Usage: openai_client_test.py TANDEM MODEL [DRAFT]
Exit code 77 says that the test was skipped, with the reason on standard output.
"""

import collections
import json
import math
import signal
import sys
import time
import unittest

from server_process import SKIPPED, run_tests

try:
    import openai
except ImportError:
    print("skipped: the Python package 'openai' is not installed (pip install openai)")
    sys.exit(SKIPPED)

MESSAGES = [{"role": "user", "content": "Tell me about the sea."}]


def chi_square_limit(categories):
    """What a chi-square over so many categories exceeds once in 20,000 times (Wilson-Hilferty)."""
    freedom = categories - 1
    spread = 2 / (9 * freedom)
    return freedom * (1 - spread + 3.89 * math.sqrt(spread)) ** 3


def differs(left, right):
    """Whether two samples of one size are unlikely to have one law."""
    counts = [collections.Counter(left), collections.Counter(right)]
    cells = {}
    for token in counts[0] | counts[1]:
        pair = [count[token] for count in counts]
        cell = cells.setdefault(token if sum(pair) >= 10 else None, [0, 0])
        cell[:] = [cell[0] + pair[0], cell[1] + pair[1]]
    distance = sum((a - b) ** 2 / (a + b) for a, b in cells.values())
    return distance > chi_square_limit(len(cells))


def misfits(sample, law):
    """Whether a sample is unlikely to have a law, given as the probabilities of some tokens."""
    counts = collections.Counter(sample)
    cells = [(counts[t], p * len(sample)) for t, p in law.items() if p * len(sample) >= 5]
    seen, expected = (sum(cell[i] for cell in cells) for i in (0, 1))
    if len(sample) - expected >= 5:
        cells.append((len(sample) - seen, len(sample) - expected))
    distance = sum((a - b) ** 2 / b for a, b in cells)
    return distance > chi_square_limit(len(cells))


class OpenAiClientTest(unittest.TestCase):
    server = None

    def setUp(self):
        self.client = openai.OpenAI(
            base_url=self.server.url + "/v1", api_key="none", max_retries=0, timeout=60
        )
        self.model = self.client.models.list().data[0].id

    def chat(self, **members):
        members = {"model": self.model, "messages": MESSAGES, "max_tokens": 24} | members
        return self.client.chat.completions.create(**members)

    def post(self, path, body):
        return self.server.post(path, body)

    def test_models(self):
        self.assertEqual(self.client.models.retrieve(self.model).id, self.model)
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("no/such-model")

    def test_chat_streamed_and_whole_agree(self):
        whole = self.chat(temperature=0)
        self.assertEqual(whole.object, "chat.completion")
        self.assertTrue(whole.id.startswith("chatcmpl-"))
        self.assertEqual(whole.choices[0].message.role, "assistant")
        self.assertIn(whole.choices[0].finish_reason, ("stop", "length"))
        chunks = list(self.chat(temperature=0, stream=True, stream_options={"include_usage": True}))
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(len({chunk.id for chunk in chunks}), 1)
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        self.assertEqual(text, whole.choices[0].message.content)
        finishes = [c.choices[0].finish_reason for c in chunks if c.choices]
        self.assertEqual([f for f in finishes if f], [whole.choices[0].finish_reason])
        for usage in (whole.usage, chunks[-1].usage):
            self.assertEqual(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens)
            self.assertLessEqual(usage.completion_tokens, 24)
            details = usage.completion_tokens_details
            self.assertEqual(
                details.drafted_tokens,
                details.accepted_prediction_tokens + details.rejected_prediction_tokens,
            )
        self.assertEqual(whole.usage.completion_tokens, chunks[-1].usage.completion_tokens)

    def test_text_completions(self):
        whole = self.client.completions.create(
            model=self.model, prompt="Once upon a time", max_tokens=16, temperature=0
        )
        self.assertEqual(whole.object, "text_completion")
        parts = self.client.completions.create(
            model=self.model, prompt="Once upon a time", max_tokens=16, temperature=0, stream=True
        )
        self.assertEqual("".join(part.choices[0].text for part in parts), whole.choices[0].text)

    def test_a_seed_repeats_a_sample(self):
        texts = {self.chat(temperature=1, seed=7).choices[0].message.content for _ in range(3)}
        self.assertEqual(len(texts), 1)

    def test_drafts_change_nothing(self):
        texts = {
            self.chat(temperature=0, extra_body={"draft_length": k}).choices[0].message.content
            for k in (0, 1, 4)
        }
        self.assertEqual(len(texts), 1)

    def sampled(self, prompt, first_seed, count=1024, **body):
        """The tokens of `count` texts of three tokens; the seeds are fixed."""
        texts = []
        for seed in range(first_seed, first_seed + count, 128):
            answer = self.client.completions.create(
                model=self.model,
                prompt=prompt,
                max_tokens=3,
                seed=seed,
                n=128,
                logprobs=0,
                extra_body={"temperature": 1, "top_k": 0, "top_p": 1} | body,
            )
            texts += [c.logprobs.tokens if c.logprobs else [] for c in answer.choices]
        return texts

    def test_drafts_change_no_law(self):
        prompt = "Once upon a time"
        drafted = self.sampled(prompt, 0, draft_length=4)
        plain = self.sampled(prompt, 5000, draft_length=0)
        self.assertEqual(drafted[:128], self.sampled(prompt, 0, count=128, draft_length=0))
        for position in (0, 1, 2):
            columns = [[t[position] for t in texts if len(t) > position] for texts in (drafted, plain)]
            size = min(map(len, columns))
            self.assertGreater(size, 1000)
            self.assertFalse(differs(columns[0][:size], columns[1][:size]), position)
        cold = self.sampled(prompt, 0, draft_length=0, temperature=0.7)
        firsts = [[t[0] for t in texts if t][:1000] for texts in (cold, plain)]
        self.assertTrue(differs(*firsts))  # it can tell

        # What comes second, after the most frequent first token, against the model's own law.
        first = collections.Counter(t[0] for t in drafted if t).most_common(1)[0][0]
        second = [t[1] for t in drafted if len(t) > 1 and t[0] == first]
        law = self.client.completions.create(
            model=self.model, prompt=prompt + first, max_tokens=1, logprobs=20
        ).choices[0].logprobs.top_logprobs[0]
        law = {token: math.exp(logprob) for token, logprob in law.items()}
        self.assertGreater(len(second), 500)
        self.assertFalse(misfits(second, law))
        self.assertTrue(misfits([t[0] for t in drafted if t], law))

    def test_max_tokens_and_ignore_eos(self):
        answer = self.chat(max_completion_tokens=9, extra_body={"ignore_eos": True})
        self.assertEqual(answer.usage.completion_tokens, 9)
        self.assertEqual(answer.choices[0].finish_reason, "length")

    def test_stop(self):
        plain = self.chat(temperature=0).choices[0].message.content
        stop = plain[len(plain) // 2 : len(plain) // 2 + 3]
        cut = self.chat(temperature=0, stop=[stop]).choices[0]
        self.assertEqual(cut.message.content, plain[: plain.index(stop)])
        self.assertEqual(cut.finish_reason, "stop")

    def test_errors(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(temperature=9)
        self.assertEqual(caught.exception.body["param"], "temperature")
        with self.assertRaises(openai.NotFoundError):
            self.chat(model="gpt-5")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(messages=[{"role": "user", "content": "word " * 4000}])
        self.assertEqual(caught.exception.body["code"], "context_length_exceeded")

    def test_several_choices(self):
        several = self.chat(n=3, temperature=1, seed=5)
        self.assertEqual([choice.index for choice in several.choices], [0, 1, 2])
        self.assertEqual(
            several.choices[0].message.content,
            self.chat(temperature=1, seed=5).choices[0].message.content,
        )
        texts = ["", "", ""]
        for chunk in self.chat(n=3, temperature=1, seed=5, stream=True):
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
        self.assertEqual(texts, [choice.message.content for choice in several.choices])
        again = self.chat(n=3, temperature=1, seed=5)
        self.assertGreaterEqual(again.usage.prompt_tokens_details.cached_tokens, 0)
        self.assertEqual(again.usage.prompt_tokens, self.chat().usage.prompt_tokens)

    def test_logprobs(self):
        members = {"temperature": 0, "logprobs": True, "top_logprobs": 3}
        choices = [
            self.chat(extra_body={"draft_length": k}, **members).choices[0] for k in (0, 4)
        ]
        scored = choices[0].logprobs.content
        self.assertEqual(scored, choices[1].logprobs.content)
        text = b"".join(bytes(each.bytes) for each in scored).decode(errors="replace")
        self.assertEqual(text, choices[0].message.content)
        for each in scored:
            self.assertLessEqual(each.logprob, 0)
            self.assertEqual(len(each.top_logprobs), 3)
            self.assertEqual(each.token, each.top_logprobs[0].token)  # temperature 0: the likeliest
        streamed = []
        for chunk in self.chat(stream=True, **members):
            if chunk.choices[0].logprobs:
                streamed += chunk.choices[0].logprobs.content
        self.assertEqual(streamed, scored)

    def test_logprobs_of_texts(self):
        answer = self.client.completions.create(
            model=self.model, prompt="Once upon a time", max_tokens=8, temperature=0, logprobs=2
        )
        choice = answer.choices[0]
        self.assertEqual("".join(choice.logprobs.tokens), choice.text)
        self.assertEqual(len(choice.logprobs.token_logprobs), len(choice.logprobs.tokens))
        for token, offset in zip(choice.logprobs.tokens, choice.logprobs.text_offset):
            self.assertEqual(choice.text[offset : offset + len(token)], token)

    def test_bias_penalties_and_least_length(self):
        plain = self.chat(temperature=0).choices[0].message.content
        first = self.post("/tokenize", {"content": plain})["tokens"][0]
        banned = self.chat(temperature=0, logit_bias={str(first): -100})
        self.assertNotEqual(banned.choices[0].message.content[:3], plain[:3])
        for members in (
            {"presence_penalty": 1.5},
            {"frequency_penalty": 1.5},
            {"extra_body": {"repetition_penalty": 1.3}},
        ):
            texts = set()
            for k in (0, 4):
                body = members.get("extra_body", {}) | {"draft_length": k}
                answer = self.chat(temperature=0, **(members | {"extra_body": body}))
                texts.add(answer.choices[0].message.content)
            self.assertEqual(len(texts), 1, members)
        least = self.chat(max_tokens=200, extra_body={"min_tokens": 150})
        self.assertGreaterEqual(least.usage.completion_tokens, 150)

    def test_json_schema(self):
        schema = {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 12},
                "count": {"type": "integer", "minimum": 0, "maximum": 99},
                "kind": {"enum": ["sea", "sky"]},
            },
            "required": ["name", "count", "kind"],
            "additionalProperties": False,
        }
        form = {"type": "json_schema", "json_schema": {"name": "thing", "schema": schema}}
        texts = set()
        for k in (0, 1, 4):
            answer = self.chat(
                temperature=0,
                max_tokens=200,
                response_format=form,
                extra_body={"draft_length": k},
            )
            self.assertEqual(answer.choices[0].finish_reason, "stop")
            texts.add(answer.choices[0].message.content)
        self.assertEqual(len(texts), 1)
        thing = json.loads(texts.pop())
        self.assertEqual(list(thing), ["name", "count", "kind"])
        self.assertIn(thing["kind"], ("sea", "sky"))
        for seed in range(4):
            answer = self.chat(temperature=1, seed=seed, max_tokens=200, response_format=form)
            self.assertLessEqual(json.loads(answer.choices[0].message.content)["count"], 99)
        response = self.client.responses.create(
            model=self.model,
            input="Name a thing.",
            max_output_tokens=200,
            text={"format": {"type": "json_schema", "name": "thing", "schema": schema}},
        )
        self.assertIn(json.loads(response.output_text)["kind"], ("sea", "sky"))

    def test_other_forms(self):
        answer = self.chat(max_tokens=400, extra_body={"regex": "[0-9]{3}-[a-c]{2}"})
        self.assertRegex(answer.choices[0].message.content, r"\A[0-9]{3}-[a-c]{2}\Z")
        answer = self.chat(extra_body={"choice": ["red", "green"]})
        self.assertIn(answer.choices[0].message.content, ("red", "green"))
        answer = self.chat(extra_body={"grammar": 'root ::= "a" [bc] "d"'})
        self.assertIn(answer.choices[0].message.content, ("abd", "acd"))
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(extra_body={"regex": "(a"})
        self.assertEqual(caught.exception.body["param"], "regex")

    def test_calls_that_must_come(self):
        parameters = {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 20},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
        }
        tools = [
            {"type": "function", "function": {"name": name, "parameters": parameters, "strict": s}}
            for name, s in (("weather", True), ("flights", True))
        ]
        members = {"tools": tools, "temperature": 0, "max_tokens": 300}
        chosen = {"type": "function", "function": {"name": "flights"}}
        for choice in ("required", chosen):
            whole = self.chat(tool_choice=choice, parallel_tool_calls=False, **members).choices[0]
            self.assertEqual(whole.finish_reason, "tool_calls")
            call = whole.message.tool_calls[0].function
            arguments = json.loads(call.arguments)
            self.assertEqual(sorted(arguments), ["city", "days"])
            self.assertIn(arguments["days"], range(1, 10))
            self.assertIsNone(whole.message.content)
            if choice == chosen:
                self.assertEqual(call.name, "flights")
            streamed = ["", ""]
            num_pieces = 0
            for chunk in self.chat(
                tool_choice=choice,
                parallel_tool_calls=False,
                stream=True,
                extra_body={"draft_length": 4},
                **members,
            ):
                for part in chunk.choices[0].delta.tool_calls or []:
                    streamed[0] += part.function.name or ""
                    streamed[1] += part.function.arguments or ""
                    num_pieces += bool(part.function.arguments)
            self.assertEqual(streamed, [call.name, call.arguments])
            self.assertGreater(num_pieces, 2)

    def test_a_form_beside_tools(self):
        schema = {
            "type": "object",
            "properties": {"kind": {"enum": ["sea", "sky"]}},
            "required": ["kind"],
            "additionalProperties": False,
        }
        form = {"type": "json_schema", "json_schema": {"name": "thing", "schema": schema}}
        tool = {"type": "function", "function": {"name": "f", "parameters": schema, "strict": True}}
        for seed in range(4):
            choice = self.chat(
                tools=[tool], response_format=form, temperature=1, seed=seed, max_tokens=200
            ).choices[0]
            calls = choice.message.tool_calls or []
            self.assertEqual(choice.finish_reason, "tool_calls" if calls else "stop")
            if not calls:
                self.assertIn(json.loads(choice.message.content)["kind"], ("sea", "sky"))
            for call in calls:
                self.assertIn(json.loads(call.function.arguments)["kind"], ("sea", "sky"))
        forced = self.chat(
            tools=[tool], response_format=form, tool_choice="required", max_tokens=200, temperature=0
        )
        self.assertTrue(forced.choices[0].message.tool_calls)

    def test_usage_in_every_chunk(self):
        options = {"include_usage": True, "continuous_usage_stats": True}
        chunks = list(self.chat(stream=True, temperature=0, stream_options=options))
        counts = [chunk.usage.completion_tokens for chunk in chunks]
        self.assertEqual(counts, sorted(counts))
        self.assertEqual(counts[-1], self.chat(temperature=0).usage.completion_tokens)

    def test_tools(self):
        tool = {
            "type": "function",
            "function": {
                "name": "get_weather",
                "description": "Get the weather",
                "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
            },
        }
        plain = self.chat().usage.prompt_tokens
        with_tool = self.chat(tools=[tool]).usage.prompt_tokens
        self.assertGreater(with_tool, plain + 10)
        self.assertEqual(self.chat(tools=[tool], tool_choice="none").usage.prompt_tokens, plain)
        call = {"name": "get_weather", "arguments": '{"city":"Rome"}'}
        history = MESSAGES + [
            {
                "role": "assistant",
                "tool_calls": [{"id": "call_1", "type": "function", "function": call}],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
        ]
        answer = self.chat(messages=history, tools=[tool])
        self.assertIn(answer.choices[0].finish_reason, ("stop", "length", "tool_calls"))
        prompt = self.post("/apply-template", {"messages": history, "tools": [tool]})["prompt"]
        self.assertIn('<|tool_call>call:get_weather{city:<|"|>Rome<|"|>}<tool_call|>', prompt)
        self.assertIn('<|tool_response>response:get_weather{value:<|"|>sunny<|"|>}', prompt)

    def test_roles_parts_and_thinking(self):
        parts = [{"type": "text", "text": "Tell me"}, {"type": "text", "text": " about the sea."}]
        messages = [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": parts},
        ]
        self.assertGreater(len(self.chat(messages=messages).choices[0].message.content), 0)
        prompt = self.post("/apply-template", {"messages": messages, "reasoning_effort": "high"})
        self.assertIn("<|turn>system\n<|think|>\nBe brief.<turn|>", prompt["prompt"])
        thinking = {"chat_template_kwargs": {"enable_thinking": True}}
        message = self.chat(temperature=0, extra_body=thinking).choices[0].message
        self.assertNotIn("<|channel>", message.content or "")

    def test_thoughts_keep_to_their_budget(self):
        opening = self.post("/tokenize", {"prompt": "<|channel>"})["tokens"][-1]
        texts = set()
        for k in (0, 4):
            answer = self.chat(
                temperature=0,
                max_tokens=100,
                logit_bias={str(opening): 100},  # the grammar allows a thought at the start alone
                extra_body={"thinking_budget": 8, "regex": "[0-9]{3}", "draft_length": k},
            )
            self.assertRegex(answer.choices[0].message.content, r"\A[0-9]{3}\Z")
            self.assertEqual(answer.usage.completion_tokens_details.reasoning_tokens, 10)
            texts.add(answer.choices[0].message.reasoning_content)
        self.assertEqual(len(texts), 1)
        self.chat(reasoning_effort="low", max_tokens=8)

    def test_text_completions_of_several_prompts(self):
        tokens = self.post("/tokenize", {"prompt": "The sky"})["tokens"]
        answer = self.client.completions.create(
            model=self.model,
            prompt=["The sea", "The sky", "Once"],
            max_tokens=8,
            temperature=0,
            echo=True,
            n=2,
        )
        self.assertEqual(len(answer.choices), 6)
        for choice, prompt in zip(answer.choices[::2], ("The sea", "The sky", "Once")):
            self.assertTrue(choice.text.startswith(prompt))
        by_ids = self.client.completions.create(
            model=self.model, prompt=tokens, max_tokens=8, temperature=0
        )
        self.assertEqual("The sky" + by_ids.choices[0].text, answer.choices[2].text)

    def test_tokens_and_back(self):
        answer = self.post("/tokenize", {"prompt": "Hello you", "return_token_strs": True})
        self.assertEqual(answer["count"], len(answer["tokens"]))
        self.assertEqual("".join(answer["token_strs"]), "<bos>Hello you")
        text = self.post("/detokenize", {"tokens": answer["tokens"]})
        self.assertEqual(text["prompt"], "<bos>Hello you")
        chat = self.post("/tokenize", {"messages": MESSAGES})
        self.assertEqual(chat["count"], self.chat().usage.prompt_tokens)

    def test_responses(self):
        members = {"model": self.model, "max_output_tokens": 24, "temperature": 0}
        whole = self.client.responses.create(input="Tell me about the sea.", **members)
        self.assertIn(whole.status, ("completed", "incomplete"))
        chat = self.chat(temperature=0)
        self.assertEqual(whole.output_text, chat.choices[0].message.content)
        self.assertEqual(whole.usage.output_tokens, chat.usage.completion_tokens)
        events = list(
            self.client.responses.create(input="Tell me about the sea.", stream=True, **members)
        )
        self.assertEqual(events[0].type, "response.created")
        self.assertEqual([event.sequence_number for event in events], list(range(len(events))))
        deltas = [e.delta for e in events if e.type == "response.output_text.delta"]
        self.assertEqual("".join(deltas), whole.output_text)
        self.assertIn(events[-1].type, ("response.completed", "response.incomplete"))
        self.assertEqual(events[-1].response.output_text, whole.output_text)

    def test_responses_with_history_and_tools(self):
        tool = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}
        history = [
            {"role": "user", "content": [{"type": "input_text", "text": "Call f."}]},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "done"},
        ]
        answer = self.client.responses.create(
            model=self.model,
            instructions="Be brief.",
            input=history,
            tools=[tool],
            max_output_tokens=8,
        )
        self.assertEqual(answer.object, "response")
        self.assertEqual(answer.tools[0].name, "f")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.responses.create(model=self.model, input="Hi", previous_response_id="x")
        self.assertEqual(caught.exception.body["param"], "previous_response_id")

    def test_a_client_that_leaves_frees_its_slot(self):
        before = self.server.metric("tandem:requests_cancelled_total")
        stream = self.chat(stream=True, max_tokens=1900, extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        deadline = time.monotonic() + 10
        while self.server.metric("tandem:requests_cancelled_total") == before:
            self.assertLess(time.monotonic(), deadline, "the request was not cancelled")
            time.sleep(0.02)
        self.assertEqual(self.server.metric("vllm:num_requests_running"), 0)

    def test_zz_sigterm_drains(self):
        stream = self.chat(stream=True, max_tokens=40, extra_body={"ignore_eos": True})
        first = next(stream)
        self.server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        rest = list(stream)
        self.assertEqual(first.id, rest[-1].id)
        self.assertEqual(rest[-1].choices[0].finish_reason, "length")
        self.assertEqual(self.server.process.wait(timeout=60), 0)


if __name__ == "__main__":
    sys.exit(run_tests(OpenAiClientTest, __doc__))
