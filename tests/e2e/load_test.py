#!/usr/bin/env python3
"""Loads the built server with many clients, rude ones among them, and looks for what they left.

Usage: load_test.py TANDEM MODEL [DRAFT]
TANDEM_LOAD=full: 1,000 idle streams, 10,000 requests and so on (minutes); else a tenth of that.
"""

import asyncio
import json
import os
import random
import signal
import sys
import time
import unittest

from server_process import run_tests

FULL = os.environ.get("TANDEM_LOAD") == "full"
IDLE = 1000 if FULL else 100
ACTIVE = 32
ACTIVE_TOKENS = 600 if FULL else 60
REQUESTS = 10_000 if FULL else 600
CONNECTIONS = 64
LEAVING = 1000 if FULL else 100
QUEUE = IDLE + 100
FLOOD = 2 * (QUEUE + ACTIVE)
SLOW = 50 if FULL else 10
MIB = 1 << 20


def body_of(**members):
    messages = [{"role": "user", "content": f"Tell me about the number {random.random()}."}]
    return json.dumps({"messages": messages} | members).encode()


def post(body, length=None):
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {length or len(body)}"
    return head.encode() + b"\r\n\r\n" + body


class Connection:
    """An HTTP connection that is kept open."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, port):
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def answer(self):
        """Status, headers and body of the next answer."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        status = int(head[0].split()[1])
        if "content-length" in headers:
            return status, headers, await self.reader.readexactly(int(headers["content-length"]))
        body = b""
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            body += (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readexactly(2)
        return status, headers, body

    async def ask(self, **members):
        self.writer.write(post(body_of(**members)))
        await self.writer.drain()
        return await self.answer()

    def close(self):
        self.writer.close()

    def abort(self):
        self.writer.transport.abort()


class LoadTest(unittest.TestCase):
    server = None

    def setUp(self):
        self.port = int(self.server.url.rsplit(":", 1)[1])

    def files(self):
        return len(os.listdir(f"/proc/{self.server.process.pid}/fd"))

    def soon(self, condition, what, seconds=60):
        deadline = time.monotonic() + seconds
        while not condition():
            self.assertLess(time.monotonic(), deadline, what)
            time.sleep(0.05)

    async def wait_for(self, metric, least):
        while await asyncio.to_thread(self.server.metric, metric) < least:
            await asyncio.sleep(0.05)

    async def idle_and_active(self):
        """Streams that wait, unread, beside others that run."""

        async def stream(connection, tokens):
            status, _, body = await connection.ask(
                stream=True, max_tokens=tokens, ignore_eos=True, stream_options={"include_usage": True}
            )
            self.assertEqual(status, 200)
            self.assertTrue(body.endswith(b"data: [DONE]\n\n"))
            usage = json.loads(body.split(b"\n\n")[-3].removeprefix(b"data: "))["usage"]
            self.assertEqual(usage["completion_tokens"], tokens)
            connection.close()

        active = [
            asyncio.create_task(stream(await Connection.open(self.port), ACTIVE_TOKENS))
            for _ in range(ACTIVE)
        ]
        await self.wait_for("vllm:num_requests_running", ACTIVE // 2)
        idle = []
        while len(idle) < IDLE:
            for _ in range(50):
                idle.append(
                    asyncio.create_task(stream(await Connection.open(self.port), 2))
                )
            await asyncio.sleep(0.2)  # no more than may wait for their prompt to be encoded
        await asyncio.gather(*active, *idle)

    async def short_requests(self, count):
        left = iter(range(count))

        async def client():
            connection = await Connection.open(self.port)
            for i in left:
                status, _, body = await connection.ask(max_tokens=2, stream=i % 2 == 0)
                self.assertEqual(status, 200, body)
                self.assertIn(b"[DONE]" if i % 2 == 0 else b'"finish_reason"', body)
            connection.close()

        await asyncio.gather(*(client() for _ in range(CONNECTIONS)))

    async def leave_at_any_moment(self, count):
        async def client(seed):
            dice = random.Random(seed)
            connection = await Connection.open(self.port)
            message = post(
                body_of(
                    max_tokens=dice.choice((2, 500)),
                    stream=dice.random() < 0.7,
                    n=dice.choice((1, 1, 3)),
                    ignore_eos=True,
                )
            )
            cut = dice.randrange(len(message)) if dice.random() < 0.25 else len(message)
            connection.writer.write(message[:cut])
            await asyncio.sleep(dice.random() * 0.3)
            connection.close() if dice.random() < 0.5 else connection.abort()

        for start in range(0, count, CONNECTIONS):
            await asyncio.gather(*(client(i) for i in range(start, min(start + CONNECTIONS, count))))

    async def flood(self):
        """More at once than may wait: each is answered, or told when to come back."""

        async def client():
            connection = await Connection.open(self.port)
            status, headers, body = await connection.ask(max_tokens=2)
            if status != 200:
                self.assertGreaterEqual(int(headers["retry-after"]), 1)
                self.assertIn(json.loads(body)["error"]["code"], ("queue_full", "overloaded"))
            connection.close()
            return status

        answers = await asyncio.gather(*(client() for _ in range(FLOOD)))
        counts = {status: answers.count(status) for status in sorted(set(answers))}
        self.assertLessEqual(set(counts), {200, 429, 503})
        self.assertGreaterEqual(counts[200], ACTIVE)
        self.assertGreater(len(counts), 1, "the flood was too small to be refused")
        print("flood:", counts)

    async def oversize(self):
        async def status_of(data):
            connection = await Connection.open(self.port)
            connection.writer.write(data)
            status, _, _ = await connection.answer()
            connection.close()
            return status

        self.assertEqual(await status_of(post(b"{}", length=9 * MIB)), 413)
        self.assertEqual(await status_of(post(b"{}", length=1 << 62)), 413)
        self.assertEqual(await status_of(b"GET /health HTTP/1.1\r\nX: " + b"x" * 100_000), 431)
        self.assertEqual(await status_of(b"\0\1\2\r\n\r\n"), 400)
        self.assertEqual(await status_of(post(b"[" * 100_000)), 400)

    async def start_slow_senders(self):
        senders = [await Connection.open(self.port) for _ in range(SLOW)]
        for i, sender in enumerate(senders):
            sender.writer.write(post(body_of(max_tokens=2))[: 5 + 10 * (i % 12)])
        return senders

    async def end_of_slow_senders(self, senders):
        """Each gets 408 in time, however slowly it goes on."""

        async def wait(sender):
            status, _, _ = await asyncio.wait_for(sender.answer(), 45)
            sender.close()
            return status

        self.assertEqual(set(await asyncio.gather(*map(wait, senders))), {408})

    def expect_nothing_left(self, files):
        for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "tandem:kv_used_bytes"):
            self.soon(lambda: self.server.metric(name) == 0, name)
        cached = self.server.metric("tandem:kv_cached_bytes")
        self.assertLessEqual(cached, self.server.metric("tandem:kv_total_bytes") / 8)
        self.soon(lambda: self.files() <= files, "file descriptors", 10)
        self.assertEqual(self.server.health(), 200)
        return self.server.metric("process_resident_memory_bytes")

    def test_nothing_is_lost_and_nothing_left(self):
        async def everything(part):
            senders = [] if part > 1 else await self.start_slow_senders()
            for step in (
                self.idle_and_active(),
                self.short_requests(REQUESTS // part),
                self.leave_at_any_moment(LEAVING // part),
                self.flood(),
                self.oversize(),
            ):
                started = time.monotonic()
                await step
                print(f"{step.__name__}: {time.monotonic() - started:.1f} s")
            if senders:
                await self.end_of_slow_senders(senders)

        files = self.files()
        asyncio.run(everything(10))  # fills pools and caches
        before = self.expect_nothing_left(files)
        asyncio.run(everything(1))
        after = self.expect_nothing_left(files)
        print(f"resident: {before / MIB:.1f} MiB after a tenth, {after / MIB:.1f} MiB after all")
        self.assertLess(after, before + 16 * MIB)
        self.server.process.send_signal(signal.SIGTERM)
        self.assertEqual(self.server.process.wait(timeout=60), 0)


if __name__ == "__main__":
    sys.exit(run_tests(LoadTest, __doc__, ["--max-queue", str(QUEUE), "--kv-memory", "256MiB"]))
