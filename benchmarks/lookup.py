"""How well and how fast texts are looked up, beside the obvious way on the same inputs.

    python -m benchmarks lookup [--cases FILE] [--older FILE.sqlite] [FILE.sqlite ...]

One table over the curated records and all snapshots given (`faultbook index` writes them): those of the data
folder where none is named, the curated records alone where there is none.

Messages are drawn from the templates with at least 12 literal characters, with plausible values; the right
answer is the record, or one with the same words. `--cases` reads real pastes, an object a line, of `text`
and `expect` (`null`, or `package`, `path`, `function`, and other places in `alts`); a case counts whose place
is indexed. `--older` reads the snapshot of an older release of one of the packages: its messages, those that
the newer release still has in these or other words, are looked for in the newer one.
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter, process_time
from typing import Final

from app.settings import Settings
from benchmarks.cases import Judge, read
from benchmarks.known import Known
from benchmarks.rival import Rival
from benchmarks.texts import FORMS, Sample, sample
from catalog.match import MATCH, Match
from catalog.match.clean import key
from catalog.match.values import plain
from catalog.snapshots.diff import compare
from catalog.snapshots.shelf import Shelf
from catalog.snapshots.snapshot import Snapshot

MIB: Final = 1 << 20
DRAWN: Final = 1500
"""Messages of each form."""
TOLD_APART: Final = 3
"""Templates that begin as a cut message does and can all be among three."""
TIMED: Final = 400
"""Messages that are timed, in so many rounds."""
ROUNDS: Final = 5
RIVALS: Final = 15
"""Messages of each form that the obvious way is asked about, and lines of its log."""
OLDER: Final = 800

Row = tuple[str, str, str]


def share(found: Sequence[bool]) -> str:
    """How many of them, as .987; n/a for none."""
    return f"{sum(found) / len(found):.3f}".removeprefix("0") if found else "n/a"


def times(
    function: Callable[[str], object], texts: Sequence[str], rounds: int = ROUNDS
) -> tuple[float, float]:
    """Median and 99th percentile of one call, µs."""
    taken = []
    for _ in range(rounds):
        for text in texts:
            started = perf_counter()
            function(text)
            taken.append((perf_counter() - started) * 1e6)
    return median(taken), quantiles(taken, n=100)[98]


def seconds(function: Callable[[], object]) -> float:
    """Processor time of one call."""
    started = process_time()
    function()
    return process_time() - started


def log(size: int, chance: random.Random, errors: Sequence[str] = ()) -> str:
    """Lines of a server's log; with `errors` one in a thousand is one of them."""
    ordinary = [
        f"[2026-01-01 00:00:{number:02} TP{number % 8}] Decode batch. #running-req: {number}, "
        f"token usage: 0.{number}, gen throughput (token/s): {number * 31.7:.2f}, #queue-req: 0,"
        for number in range(60)
    ]
    lines: list[str] = []
    length = 0
    while length < size:
        wrong = errors and len(lines) % 1000 == 999
        lines.append(chance.choice(errors if wrong else ordinary))
        length += len(lines[-1]) + 1
    return "\n".join(lines)


def tops(ranks: Sequence[int]) -> str:
    """Shares of first places and of places among three."""
    return f"{share([rank < 1 for rank in ranks])} / {share([rank < 3 for rank in ranks])}"


def accuracy(known: Known, rival: Rival) -> Iterator[Row]:
    """A row for each form in which messages are pasted."""
    drawn = list(known.drawn("accuracy", DRAWN))
    captured: list[bool] = []
    for name, form in FORMS.items():
        changed = ((each, form(each, random.Random(f"{name}{each.message}"))) for each in drawn)
        pasted = [(each, text) for each, text in changed if text is not None]
        ranks: list[int] = []
        rivals: list[int] = []
        for each, text in pasted:
            matches = known.matcher.match(text).matches
            ranks.append(known.rank(each.entry.record_id, [found.record_id for found in matches]))
            if len(rivals) < RIVALS:
                numbers = rival.find(text, 5)
                named = [known.entries[number].record_id for number in numbers]
                rivals.append(known.rank(each.entry.record_id, named))
            if name == "as raised":
                captured += (read_right(each, match) for match in matches if is_of(each, match))
        yield f"{name}: first / among 3 of {len(ranks)}", tops(ranks), tops(rivals)
        if name.startswith("cut"):
            pairs = zip(pasted, ranks, strict=True)
            less = [rank for (each, text), rank in pairs if len(text) < len(each.message)]
            yield f"those that lost something, {len(less)}", tops(less), ""
            few = [
                rank
                for (each, text), rank in zip(pasted, ranks, strict=True)
                if len(text) == len(each.message) or known.beginning_alike(each, len(text)) <= TOLD_APART
            ]
            yield f"without those that more templates begin as, {len(few)}", tops(few), ""
    yield f"captures equal to a full match of the regex, of {len(captured)}", share(captured), ""


def is_of(each: Sample, found: Match) -> bool:
    """Whether a match is the sample's own record."""
    return found.record_id == each.entry.record_id and found.match_type == "pattern"


def read_right(each: Sample, found: Match) -> bool:
    """Whether the captures are what the pattern captures, or what the message was rendered with."""
    whole = re.fullmatch(each.entry.template.pattern, each.message, re.DOTALL)
    holes = each.entry.template.holes
    read = [capture.value for capture in found.captures]
    return any(
        read == [plain(value, hole.conversion) for value, hole in zip(values, holes, strict=True)]
        for values in (whole.groups() if whole else (), each.values)
    )


def speed(known: Known, rival: Rival, chance: random.Random) -> Iterator[Row]:
    """Rows of what messages, logs and hostile lines cost beside the bare scan for anchors."""
    matcher = known.matcher
    drawn = list(known.drawn("speed", TIMED))
    lines = [each.raised for each in drawn]

    def bare(text: str) -> object:
        return matcher.index.scan(key(text.encode("latin-1", "replace")))

    scan, scan_worst = times(bare, lines)
    middle, worst = times(matcher.match, lines)
    loop, loop_worst = times(lambda text: rival.loop(text, float("inf")), lines[:RIVALS], 1)
    yield "bare scan of a message, µs p50 / p99", f"{scan:.1f} / {scan_worst:.1f}", ""
    looped = f"{loop:,.0f} / {loop_worst:,.0f} without its limit"
    yield "a message, µs p50 / p99", f"{middle:.0f} / {worst:,.0f}", looped
    yield "p50 over the bare scan's (at most 15)", f"{middle / scan:.1f}", f"{loop / scan:,.0f}"

    quiet, errors = log(16 * MIB, chance), log(16 * MIB, chance, lines)
    plain_scan = seconds(lambda: matcher.index.promising(key(quiet.encode())))
    reports = []
    ours = seconds(lambda: reports.append(matcher.match(quiet)))
    few = quiet.split("\n")[:RIVALS]
    theirs = seconds(lambda: [rival.loop(line, float("inf")) for line in few])
    rate, rival_rate = len(quiet) / 1e6 / ours, sum(map(len, few)) / 1e6 / theirs
    yield "log of 16 MiB without an error, MB/s", f"{rate:.0f}", f"{rival_rate:.4f}"
    yield "its rate over the bare scan's (at least .75 / .45)", f"{plain_scan / ours:.2f}", ""
    false = sum(found.score >= MATCH for found in reports[0].matches)
    wrong = sum(bool(rival.loop(line, float("inf"))) for line in few)
    yield "false matches in it", f"{false}", f"{wrong} in {len(few)} lines"
    taken = seconds(lambda: matcher.match(errors))
    yield "log of 16 MiB, an error in 1,000 lines, MB/s", f"{len(errors) / 1e6 / taken:.0f}", ""
    long = max((each.message[:60] for each in drawn), key=len)
    for name, text in hostile(long).items():
        yield f"{name}, s (at most 0.2)", f"{seconds(partial(matcher.match, text)):.2f}", ""
    for name, flood in floods(long).items():
        yield f"{name}, s", f"{seconds(partial(matcher.match, flood)):.2f}", ""
    yield (
        "peak memory of the last, over its length",
        f"{peak(partial(matcher.match, flood), len(flood)):.1f}",
        "",
    )


def hostile(message: str) -> dict[str, str]:
    """Lines of 1 MiB that cost most."""
    return {
        f"a line of 1 MiB: one {kind} repeated": text * (MIB // len(text))
        for kind, text in (
            ("literal", message[:40]),
            ("message", f"{message} "),
            ("exception", f"ValueError: {message} "),
            ("letter", "x"),
        )
    }


def floods(message: str) -> dict[str, str | bytes]:
    """Texts of the size that is just accepted, or of very many lines."""
    return {
        "a line of 16 MiB": "x" * (16 * MIB),
        "a line of 16 MiB, one message repeated": f"{message} " * (16 * MIB // (len(message) + 1)),
        "16 MiB of NUL": b"\0" * (16 * MIB),
        "16 MiB that are no UTF-8": b"\xff\xfe\x80a" * (4 * MIB),
        "16 MiB of lines, each one an error": f"ValueError: {message}\n" * (16 * MIB // (len(message) + 13)),
        "a million lines": "line 1 ok\n" * 1_000_000,
    }


def peak(function: Callable[[], object], size: int) -> float:
    """The most Python memory held during a call, over a size."""
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1] / size
    finally:
        tracemalloc.stop()


def real(known: Known, file: Path) -> Iterator[Row]:
    """Rows of the real cases; what is missed is named."""
    judge = Judge(known)
    ranks: dict[str, int | None] = {}
    false = []
    negatives = 0
    for case in read(file):
        report = known.matcher.match(case.text)
        if not case.places:
            negatives += 1
            false += [case.name] * report.has_match
        elif judge.counts(case):
            ranks[case.name] = judge.rank(case, report)
    for title, most in (("first", 1), ("among 5", 5)):
        missed = [name for name, rank in ranks.items() if rank is None or rank >= most]
        found = f"{len(ranks) - len(missed)} of {len(ranks)}"
        yield f"real cases: {title}", " but ".join([found, ", ".join(missed)] if missed else [found]), ""
    yield "real pastes of no record: false matches", f"{len(false)} of {negatives}", ""


def older(known: Known, file: Path, chance: random.Random) -> Iterator[Row]:
    """A row for the messages of an older release, looked for in the newer one."""
    before = Snapshot(file)
    after = next(found for found in known.snapshots if found.package == before.package)
    changes = compare(before, after)
    became = {
        change.before.id: change.after.id
        for change in (*changes.moved, *changes.changed)
        if change.before is not None and change.after is not None
    }
    reworded = {change.before.id for change in changes.changed if change.before is not None}
    gone = {change.before.id for change in changes.vanished if change.before is not None}
    numbers = before.numbers("NOT wordless AND severity != 'warning'")
    drawn = [
        sample(entry, chance)
        for at in chance.sample(range(len(numbers)), len(numbers))[:OLDER]
        for entry in before.entries([numbers[at]])
        if entry.record_id not in gone and entry.template.literal_weight >= 12
    ]
    ranks: dict[bool, list[int]] = {False: [], True: []}
    for each in drawn:
        found = [match.record_id for match in known.matcher.match(each.raised).matches]
        name = each.entry.record_id
        ranks[name in reworded].append(known.rank(became.get(name, name), found))
    every = ranks[False] + ranks[True]
    names = f"{before.package} {before.version} in {after.version}"
    yield f"messages of {names}: first / among 3 (.95) of {len(every)}", tops(every), ""
    yield f"those reworded since, of {len(ranks[True])}", tops(ranks[True]), ""


_START = """
import sys
from pathlib import Path
from time import process_time
from catalog.match import Matcher
from catalog.snapshots.snapshot import Snapshot
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6
before, started = resident(), process_time()
matcher = Matcher.of([Snapshot(Path(name)) for name in sys.argv[1:]])
matcher.match(next(matcher.index.entries(0, None)).message)
print(process_time() - started, resident() - before, end=" ")
matcher.match("ValueError: a question that no record is of")
print(process_time() - started, resident() - before)
"""


def start(files: Sequence[Path]) -> Iterator[Row]:
    """Rows of the time from saved snapshots to the first answer, and of the memory they take."""
    runs = [
        subprocess.run(
            [sys.executable, "-c", _START, *map(str, files)], check=True, capture_output=True, text=True
        )
        for _ in range(3)
    ]
    taken = [tuple(map(float, run.stdout.split())) for run in runs]
    yield "start to first answer, s (.5 / 1.2)", f"{median(each[0] for each in taken):.2f}", ""
    yield "memory, MB (30 / 140)", f"{median(each[1] for each in taken):.0f}", ""
    then = [f"{median(each[at] for each in taken):{form}}" for at, form in ((2, ".2f"), (3, ".0f"))]
    yield "the same with a first text of no record: s / MB", " / ".join(then), ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE.sqlite")
    parser.add_argument("--cases", type=Path)
    parser.add_argument("--older", type=Path)
    asked = parser.parse_args()
    shelf = Shelf(Settings().data)
    files = asked.files or [shelf.folder / held.path for held in shelf.held()]
    known = Known([Snapshot(file) for file in files])
    rival = Rival(known.entries)
    names = ", ".join(file.stem for file in files) or "curated records alone"
    print(
        f"{names}\n\n| {len(known.entries):,} templates | here | a loop of `re.search` |\n| --- | --- | --- |"
    )
    rows = [
        start(files) if files else (),
        speed(known, rival, random.Random(1)),
        accuracy(known, rival),
        real(known, asked.cases) if asked.cases else (),
        older(known, asked.older, random.Random(2)) if asked.older else (),
    ]
    for row in (row for part in rows for row in part):
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
