#!/usr/bin/env python3
"""Converts the pair to other forms and measures that drafts are accepted as before.

Usage: convert_round_trip_test.py TANDEM MODEL DRAFT
GGUF -> BF16 directory -> FP8 directory, drafter GGUF -> BF16 directory -> Q8_0 GGUF; pairs of these
are served and measured with `tandem bench` and drafts of a fixed length. The rate of every position
must stay within 0.03 of the original pair's. With greedy answers the rates are the same in every run;
takes 40 s of one core.
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest

from server_process import Server

DRAFT_LENGTH = 3
PROMPTS = 96
TOLERANCE = 0.03


class ConvertRoundTripTest(unittest.TestCase):
    tandem = model = draft = None

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="tandem-convert-")
        self.addCleanup(self.folder.cleanup)

    def convert(self, source, name, form):
        target = os.path.join(self.folder.name, name)
        subprocess.run([self.tandem, "convert", source, target, "--to", form], check=True)
        return target

    def acceptance(self, model, draft):
        """Rates by position of a served pair."""
        dataset = os.path.join(os.path.dirname(self.model), "sharegpt-bench.json")
        options = ["--draft-length", str(DRAFT_LENGTH), "--device", "cpu"]
        options += ["--threads", "1"]  # the least trouble on a busy machine
        server = Server(self.tandem, model, draft, options)
        try:
            command = [self.tandem, "bench", "--url", server.url, "--dataset", dataset]
            command += ["--prompts", str(PROMPTS), "--concurrency", "16", "--max-tokens", "64"]
            command += ["--output", "-"]
            done = subprocess.run(command, check=True, capture_output=True, timeout=300)
        finally:
            server.process.terminate()
            server.process.wait(timeout=30)
        row = json.loads(done.stdout)
        self.assertEqual(row["errors"], 0)
        return row["acceptance"]["per_position"]

    def test_drafts_are_accepted_alike_in_every_form(self):
        bf16 = self.convert(self.model, "bf16", "bf16")
        fp8 = self.convert(bf16, "fp8", "fp8")
        assistant = self.convert(self.draft, "assistant", "bf16")
        q8_0 = self.convert(assistant, "assistant.gguf", "q8_0")
        expected = self.acceptance(self.model, self.draft)
        self.assertEqual(len(expected), DRAFT_LENGTH)
        for name, pair in {
            "BF16 directory, BF16 assistant": (bf16, assistant),
            "GGUF, Q8_0 made of the assistant": (self.model, q8_0),
            "FP8 directory, Q8_0 made of the assistant": (fp8, q8_0),
        }.items():
            with self.subTest(pair=name):
                rates = self.acceptance(*pair)
                print(name, [round(rate, 3) for rate in rates], "of", [round(r, 3) for r in expected])
                for position, (rate, before) in enumerate(zip(rates, expected, strict=True)):
                    self.assertAlmostEqual(rate, before, delta=TOLERANCE, msg=f"position {position}")


if __name__ == "__main__":
    ConvertRoundTripTest.tandem, ConvertRoundTripTest.model, ConvertRoundTripTest.draft = sys.argv[1:4]
    unittest.main(argv=sys.argv[:1])
