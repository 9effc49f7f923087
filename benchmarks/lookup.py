"""What looking a text up costs, beside the obvious way in the same run: `re.search` over all patterns.

    python -m benchmarks.lookup [number of synthetic templates ...]

Catalogs: the curated records alone, then with synthetic templates added (10,000 unless numbers are given).
Texts: each curated template rendered (a line, and the last line of a traceback), messages of no template,
and a log of 16 MiB in which one line in a thousand is an error. The loop is timed on fewer of them.
"""

from __future__ import annotations

import random
import re
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from statistics import median, quantiles
from time import perf_counter

from catalog.match import Entry, Matcher, Site
from catalog.store import entry, load_catalog
from catalog.template import Template

MIB = 1 << 20
ROUNDS = 5
LOOP_MESSAGES = 20
LOOP_LOG = 1 << 14
VALUES = {
    "dtype": "torch.bfloat16",
    "shape": "(16, 7168)",
    "int": "448",
    "float": "0.5",
    "bool": "True",
    "device": "cuda:0",
    "path": "/models/a/model.safetensors",
    "name": "blocks.3.ffn",
    "text": "['blocks.0.weight']",
}
WORDS = (
    *(
        "tensor",
        "scale",
        "shape",
        "dtype",
        "layer",
        "weight",
        "expected",
        "must be",
        "divisible by",
        "head dim",
    ),
    *(
        "cache",
        "page",
        "block",
        "kernel",
        "requires",
        "contiguous",
        "unsupported",
        "invalid",
        "missing",
        "mask",
    ),
    *("checkpoint", "backend", "attention", "stride", "aligned", "device", "index", "token", "batch", "rank"),
    *("config", "format", "method", "value", "range", "rows", "columns", "bytes", "quantization", "is not"),
)


def rendered(known: Entry) -> str:
    """The entry's message with plausible values."""
    first, *rest = known.template.segments
    return first + "".join(
        VALUES[kind] + segment for kind, segment in zip(known.hole_kinds, rest, strict=True)
    )


def synthetic(count: int, chance: random.Random) -> Iterator[Entry]:
    """Entries of made-up sentences: 5 to 14 words, up to 3 holes, and one name that few others have."""
    for number in range(count):
        words = chance.choices(WORDS, k=chance.randint(5, 14))
        words.insert(chance.randrange(len(words)), f"name_{number % 4001:x}")
        holes = chance.randint(0, 3)
        for _ in range(holes):
            words.insert(chance.randint(1, len(words)), "{value}")
        site = Site(f"pkg/module_{number % 997}.py", f"f{number}", (number % 2000,), "ValueError")
        kinds = ("text",) * holes
        yield Entry(f"{number:016x}", "synthetic/package", " ".join(words), None, (site,), False, kinds)


def per_text(
    function: Callable[[str], object], texts: Sequence[str], rounds: int = ROUNDS
) -> tuple[float, float]:
    """Median and 99th percentile of one call, µs."""
    times = []
    for _ in range(rounds):
        for text in texts:
            started = perf_counter()
            function(text)
            times.append((perf_counter() - started) * 1e6)
    return median(times), quantiles(times, n=100)[98]


def log(messages: Sequence[str], size: int, chance: random.Random) -> str:
    """Lines of a server's log, about one in a thousand an error."""
    ordinary = [
        f"[2026-01-01 00:00:{number:02} TP{number % 8}] Decode batch. #running-req: {number}, "
        f"token usage: 0.{number}, gen throughput (token/s): {number * 31.7:.2f}, #queue-req: 0,"
        for number in range(60)
    ]
    lines: list[str] = []
    length = 0
    while length < size:
        line = (
            f"ValueError: {chance.choice(messages)}" if len(lines) % 1000 == 999 else chance.choice(ordinary)
        )
        lines.append(line)
        length += len(line) + 1
    return "\n".join(lines)


def measured(name: str, entries: Sequence[Entry], known: Sequence[Entry]) -> str:
    """One row of the table."""
    tracemalloc.start()
    matcher = Matcher(entries)
    memory = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    started = perf_counter()
    matcher = Matcher(entries)
    build = perf_counter() - started

    messages = [rendered(each) for each in known]
    lines = [f"{each.sites[0].exception}: {text}" for each, text in zip(known, messages, strict=True)]
    stacks = [
        f'Traceback (most recent call last):\n  File "/x/{each.sites[0].path}", line 7, in f\n    g()\n{line}'
        for each, line in zip(known, lines, strict=True)
    ]
    others = [f"OSError: {' '.join(reversed(text.split()))}" for text in messages]
    found = sum(
        each.record_id in {match.record_id for match in matcher.match(line).matches}
        for each, line in zip(known, lines, strict=True)
    )
    patterns = [re.compile(Template.parse(each.message).pattern) for each in entries if not each.textless]

    def loop(text: str) -> list[re.Match[str]]:
        return [match for pattern in patterns if (match := pattern.search(text))]

    text = log(messages, 16 * MIB, random.Random(1))
    started = perf_counter()
    matcher.match(text)
    speed = len(text) / 1e6 / (perf_counter() - started)
    started = perf_counter()
    for line in text[:LOOP_LOG].split("\n"):
        loop(line)
    loop_speed = LOOP_LOG / 1e6 / (perf_counter() - started)

    figures = [per_text(matcher.match, texts) for texts in (lines, stacks, others)]
    figures.append(per_text(matcher.search, messages))
    figures.append(per_text(loop, lines[:LOOP_MESSAGES], 1))
    cells = [name, f"{len(patterns)}", f"{build:.2f}", f"{memory / 1e6:.0f}", f"{found}/{len(known)}"]
    cells += [f"{middle:,.0f} / {worst:,.0f}" for middle, worst in figures]
    return " | ".join([*cells, f"{speed:.0f}", f"{loop_speed:.3f}"])


def main() -> None:
    curated = [entry(found.fault) for found in load_catalog().records if not found.fault.pythons_own]
    known = [each for each in curated if not each.textless and each.sites]
    heads = ["catalog", "templates", "build s", "Python MB", "found", "a line: p50 / p99 µs", "a traceback"]
    heads += ["no record's", "a search", "loop of re.search, a line", "log MB/s", "loop's log MB/s"]
    print(" | ".join(heads))
    print(" | ".join("---" for _ in heads))
    print(measured("curated", curated, known))
    for count in [int(argument) for argument in sys.argv[1:]] or [10_000]:
        print(measured("with synthetic", [*curated, *synthetic(count, random.Random(0))], known), flush=True)


if __name__ == "__main__":
    main()
