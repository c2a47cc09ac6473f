#!/usr/bin/env python3
"""Instructions of the CPU's hottest kernels against recorded ones: a regression shows without a clock.

    instruction_counts_test.py KERNEL_WORK COMPILER RECORD.json [--record]

Counted by callgrind on the AVX2 path (it knows no AVX-512) as the difference of two numbers of
repeats. The record holds one figure per compiler and kernel; COMPILER is its id and major version.
Exit status 77, with the reason: skipped.
"""
import json
import re
import shutil
import subprocess
import sys

SLACK = 0.03
KERNELS = ("q4_k_1_row", "q4_k_32_rows", "q6_k_1_row", "attention_int16", "attention_int8",
           "quantize_row")
REPEATS = (2, 10)


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


def count(program, kernel, repeats):
    done = subprocess.run(
        ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", program, kernel, "avx2",
         str(repeats)], capture_output=True, text=True, timeout=100)
    if done.returncode != 0:
        if "lacks the instructions" in done.stderr:
            skip("no AVX2 under valgrind here")
        sys.exit(f"{kernel}: {done.stderr}")
    return int(re.search(r"Collected : (\d+)", done.stderr).group(1))


def main():
    program, compiler, path = sys.argv[1:4]
    if shutil.which("valgrind") is None:
        skip("valgrind is not installed")
    with open(path, encoding="utf-8") as file:
        record = json.load(file)
    few, many = REPEATS
    counts = {kernel: (count(program, kernel, many) - count(program, kernel, few)) // (many - few)
              for kernel in KERNELS}
    if "--record" in sys.argv:
        record[compiler] = counts
        with open(path, "w", encoding="utf-8") as file:
            json.dump(record, file, indent=2, sort_keys=True)
            file.write("\n")
        return
    if compiler not in record:
        print(counts)
        skip(f"no figures of {compiler} in {path}; add them with --record")
    failures = 0
    for kernel, measured in counts.items():
        expected = record[compiler][kernel]
        change = measured / expected - 1
        print(f"{kernel}: {measured} instructions, {expected} recorded, {change:+.1%}")
        if abs(change) > SLACK:
            failures += 1
    if failures > 0:
        sys.exit(f"{failures} kernels differ by more than {SLACK:.0%}: slower ones are a regression, "
                 "faster ones are to be recorded with --record")


if __name__ == "__main__":
    main()
