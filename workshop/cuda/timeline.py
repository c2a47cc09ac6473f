"""timeline.py FILE [STEPS_BACK]: the last step but STEPS_BACK of a time line, by kind of kernel.

Count, mean us of one, and by how much all of them move the end of the chain: a kernel moves it by
what its end lies behind the latest end before it. Steps begin with the kernel that makes RoPE's tables.
"""

import collections
import re
import sys


def kind(name):
    m = re.search(r"\d([a-z][a-z_]*_kernel)((?:I(?:L[ib]\d+E)+)?)", name)
    if not m:
        return name[:40]
    arguments = re.findall(r"L[ib](\d+)E", m[2])
    return m[1].removesuffix("_kernel") + ("<" + ",".join(arguments) + ">" if arguments else "")


def read(path):
    for line in open(path):
        start, end, x, y, name = line.rstrip("\n").split(" ", 4)
        yield int(start), int(end), kind(name), int(x), int(y)


def main():
    rows = sorted(read(sys.argv[1]))
    back = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    begins = [i for i, r in enumerate(rows) if r[2] == "rope"]
    step = rows[begins[-1 - back] : begins[-back] if back else len(rows)]
    latest = step[0][0]
    table = collections.defaultdict(lambda: [0, 0.0, 0.0])
    for start, end, name, x, y in step:
        entry = table[(name, x, y)]
        entry[0] += 1
        entry[1] += (end - start) / 1e3
        entry[2] += max(end - latest, 0) / 1e3
        latest = max(latest, end)
    print(f"{len(step)} kernels and copies, {(latest - step[0][0]) / 1e3:.0f} us")
    for (name, x, y), (count, own, moved) in sorted(table.items(), key=lambda e: -e[1][2]):
        print(f"{name:32} {x:8} {y:5}  n {count:4}  each {own / count:7.2f}  moves {moved:8.1f}")


main()
