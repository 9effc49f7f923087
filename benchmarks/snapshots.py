"""Look-ups over snapshots beside the bare scan of their automaton: what is paid for beyond finding anchors.

    python -m benchmarks.snapshots FILE.sqlite ...

Start: files to first answer. Messages: records drawn from the snapshots, rendered with plausible values
behind their class; cut ones are searched for. Log: 16 MiB without an error. Hostile: one line of 1 MiB that
repeats a literal.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from time import perf_counter

from benchmarks.lookup import MIB, log, per_text, rendered
from catalog.match import MATCH, Matcher
from catalog.match.clean import key
from catalog.match.model import Entry
from catalog.snapshots.snapshot import Snapshot

EACH = 400
"""Records drawn from a snapshot."""


def resident() -> float:
    """Resident memory of this process, MB."""
    pages = int(Path("/proc/self/statm").read_text("utf-8").split()[1])
    return pages * 4096 / 1e6


def drawn(snapshots: list[Snapshot], chance: random.Random) -> list[Entry]:
    """Records with enough words of their own to be found by them."""
    entries: list[Entry] = []
    for snapshot in snapshots:
        numbers = snapshot.numbers("NOT wordless AND severity != 'warning'")
        some = sorted(chance.sample(numbers, min(EACH, len(numbers))))
        entries += [entry for entry in snapshot.entries(some) if entry.template.literal_weight >= 20]
    return entries


def share(found: list[bool]) -> str:
    """How many of them, as .987."""
    return f"{sum(found) / len(found):.3f}".lstrip("0")


def main() -> None:
    files = [Path(argument) for argument in sys.argv[1:]]
    before, started = resident(), perf_counter()
    snapshots = [Snapshot(file) for file in files]
    matcher = Matcher.of(snapshots)
    matcher.match("ValueError: a first question")
    start, memory = perf_counter() - started, resident() - before

    chance = random.Random(0)
    entries = drawn(snapshots, chance)
    texts = [rendered(entry) for entry in entries]
    lines = [
        f"{entry.sites[0].exception.rpartition('.')[2]}: {text}"
        for entry, text in zip(entries, texts, strict=True)
    ]

    def bare(text: str) -> bool:
        return matcher.index.promising(key(text.encode("latin-1", "replace")))

    scan, scan_worst = per_text(bare, lines)
    middle, worst = per_text(matcher.match, lines)

    def first(entry: Entry, text: str) -> bool:
        """Whether the record, or one with the same words, is the first match."""
        matches = matcher.match(text).matches
        return (
            bool(matches)
            and matches[0].score >= MATCH
            and (
                entry.record_id in {matches[0].record_id, *matches[0].siblings}
                or matches[0].rendered == rendered(entry)
            )
        )

    def among(entry: Entry, query: str, most: int) -> bool:
        return any(
            entry.record_id in {found.record_id, *found.siblings}
            for found in matcher.search(query, limit=most)
        )

    exact = share([first(entry, line) for entry, line in zip(entries, lines, strict=True)])
    pairs = list(zip(entries, texts, strict=True))
    cut = [share([among(entry, text[:size], 3) for entry, text in pairs]) for size in (60, 40)]

    text = log(["nothing is wrong here"], 16 * MIB, random.Random(1)).replace("ValueError: ", "INFO ")
    started = perf_counter()
    bare(text)
    bare_speed = len(text) / 1e6 / (perf_counter() - started)
    started = perf_counter()
    report = matcher.match(text)
    speed = len(text) / 1e6 / (perf_counter() - started)
    literal = texts[0][:40]
    started = perf_counter()
    matcher.match(literal * (MIB // len(literal)))
    hostile = perf_counter() - started

    rows = {
        "templates": f"{len(matcher.index)}",
        "start to first answer, s": f"{start:.2f}",
        "memory, MB": f"{memory:.0f}",
        "bare scan of a message, µs p50 / p99": f"{scan:.1f} / {scan_worst:.1f}",
        "match of a message, µs p50 / p99": f"{middle:.0f} / {worst:.0f}",
        "p50 over the bare scan": f"{middle / scan:.0f}",
        "first of rendered messages": exact,
        "among 3, cut to 60 / 40 characters": " / ".join(cut),
        "log, MB/s (bare scan)": f"{speed:.0f} ({bare_speed:.0f})",
        "false matches in the log": f"{sum(found.score >= MATCH for found in report.matches)}",
        "hostile line of 1 MiB, s": f"{hostile:.2f}",
    }
    print(f"| {', '.join(file.stem for file in files)} | |\n| --- | --- |")
    for name, value in rows.items():
        print(f"| {name} | {value} |")


if __name__ == "__main__":
    main()
