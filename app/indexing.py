"""`faultbook index`, `diff`, `bundle`: the errors of any package, read from its sources."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from threading import Event, Thread
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from app.settings import SettingsError, load
from app.terminal import Exit, Json, complain, err, out, print_json, usage
from catalog.scan.source import printable

bundle = typer.Typer(name="bundle", help="Take snapshots to a host without network.", no_args_is_help=True)

_BAR = re.compile(r"━|\d+/\d+")
"""Lines of a progress bar that nobody looks at."""

SHOWN = 20
"""Unreadable files that are named; `--json` names all."""


def index(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="TARGET…",
            help="An installed package's name, a folder, a wheel or source archive, or a requirement such as "
            "sglang==0.5.23, whose wheel is fetched without its dependencies. Nothing of it is run.",
        ),
    ],
    upstream: Annotated[
        str | None,
        typer.Option(metavar="OWNER/REPO", help="Public repository that a fork's records belong to."),
    ] = None,
    macro: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[:CONDITIONS]", help="A further C++ macro that reports errors."),
    ] = None,
    code: Annotated[bool, typer.Option(help="Keep the lines around each place, in this index alone.")] = True,
    jobs: Annotated[int | None, typer.Option(min=1, max=256, help="Processes; default: all cores.")] = None,
    as_json: Json = False,
) -> None:
    """Read the errors that packages raise from their sources, so that they are found too."""
    from catalog.scan.listing import NoTarget, TargetError
    from catalog.scan.macros import MACROS, Macros, parse_macro
    from catalog.snapshots.index import index as make
    from catalog.snapshots.manifest import SnapshotError
    from catalog.snapshots.shelf import Shelf

    try:
        shelf = Shelf(load().data)
        macros = Macros((*MACROS, *map(parse_macro, macro or ())))
    except (SettingsError, ValueError) as error:
        usage(str(error))
    ended = Exit.OK
    answers = []
    for target in targets:
        with Progress(
            TextColumn(escape(printable(target)[:60])),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=err,
        ) as bar:
            task = bar.add_task("", total=None)
            try:
                made = make(
                    shelf,
                    target,
                    upstream=upstream,
                    macros=macros,
                    code=code,
                    processes=jobs,
                    progress=lambda at, bar=bar, task=task: bar.update(
                        task, completed=at.done, total=at.total
                    ),  # type: ignore[misc]
                )
            except (TargetError, SnapshotError, OSError) as error:
                wrong = isinstance(error, NoTarget)
                ended = max(ended, Exit.USAGE if wrong else Exit.NEGATIVE)
                bar.live.transient = True
                complain(printable(str(error)))
                continue
        answers.append(
            {
                **asdict(made.held),
                "files": made.files,
                "pythonSites": made.python_sites,
                "cppSites": made.cpp_sites,
                "unreadable": [asdict(item) for item in made.unreadable],
                "seconds": round(made.seconds, 2),
            }
        )
        for item in made.unreadable[:SHOWN]:
            err.print(f"not read: {escape(item.path)}: {escape(item.reason)}")
        if len(made.unreadable) > SHOWN:
            err.print(f"not read: {len(made.unreadable) - SHOWN} more files; --json names them")
        if not as_json:
            held = made.held
            out.print(
                f"{escape(held.package)} {escape(held.version)}: {held.records} records of {held.repo}, "
                f"{made.python_sites} Python and {made.cpp_sites} C++ sites in {made.files} files, "
                f"{len(made.unreadable)} not read, {made.seconds:.1f} s"
            )
    if as_json:
        print_json({"snapshots": answers})
    raise typer.Exit(ended)


def missing(data: Path, packages: Iterable[str]) -> list[str]:
    """The installed packages whose version is not indexed; what is not installed is passed over."""
    from catalog.scan.packages import normal
    from catalog.snapshots.manifest import SnapshotError
    from catalog.snapshots.shelf import Shelf

    try:
        held = {(item.package, item.version) for item in Shelf(data).held()}
    except SnapshotError:
        held = set()
    wanted = []
    for package in packages:
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
        if (normal(package), version) not in held:
            wanted.append(package)
    return wanted


@contextmanager
def indexing(data: Path, packages: Iterable[str]) -> Iterator[None]:
    """Index what is missing of some installed packages in a process of its own, while the block runs.

    One core at a low priority: the service it is for comes first, and takes the snapshots up by itself.
    """
    wanted = missing(data, packages)
    if not wanted:
        yield
        return
    err.print(f"indexing {escape(', '.join(wanted))} in the background")
    command = [sys.executable, "-m", "app.cli", "index", "--jobs", "1", "--json", "--", *wanted]
    nice = ["nice", "-n", "10"] if shutil.which("nice") else []
    process = subprocess.Popen(
        [*nice, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**os.environ, "FAULTBOOK_DATA": str(data), "TERM": "dumb"},
    )
    stopped = Event()
    told = Thread(target=_tell, args=(process, stopped), name="faultbook-indexing", daemon=True)
    told.start()
    try:
        yield
    finally:
        ended = process.poll() is not None
        stopped.set()
        process.terminate()
        process.wait()
        if ended:
            told.join(1.0)


def _tell(process: subprocess.Popen[str], stopped: Event) -> None:
    """Say what the process in the background could not do, unless it is stopped with the service."""
    assert process.stderr is not None
    with process.stderr as lines:
        for line in lines:
            if (text := line.strip()) and not _BAR.search(text):
                err.print(escape(f"indexing: {printable(text)[:300]}"))
    code = process.wait()
    if code > 0:
        err.print(f"indexing ended with code {code}; faultbook doctor says what is there")
    elif code < 0 and not stopped.is_set():
        # Most often for want of memory; what it had finished stays, the next start goes on.
        err.print(f"indexing was ended by signal {-code}; the next start goes on with what is missing")


def diff(
    before: Annotated[str, typer.Argument(metavar="A", help="An indexed version: sglang==0.5.22.")],
    after: Annotated[str, typer.Argument(metavar="B", help="Another of the same package.")],
    as_json: Json = False,
) -> None:
    """List the messages that appeared, changed, moved or vanished between two versions of a package."""
    from app.records.service import NotIndexed, difference
    from catalog import current

    (package, old), (other, new) = version_of(before), version_of(after)
    if package != other:
        usage(f"{package} and {other} are two packages")
    try:
        answer = difference(current.use(_data()).get(), package, old, new)
    except NotIndexed as error:
        usage(str(error))
    if as_json:
        print_json(answer)
        return
    for name, sign in (("appeared", "+"), ("changed", "~"), ("moved", ">"), ("vanished", "-")):
        for change in answer[name]:
            place = f"{change['filePath']}:{change['lineNumber']}"
            out.print(
                f"{sign} {escape(change['errorClass'])}: {escape(change['errorMessage'])}  ({escape(place)})"
            )
            was = change["before"]
            if name == "changed":
                out.print(f"    was: {escape(was['errorMessage'])}")
            elif name == "moved":
                out.print(f"    was at {escape(was['filePath'])}:{was['lineNumber']}")
    counts = ", ".join(f"{len(answer[name])} {name}" for name in ("appeared", "changed", "moved", "vanished"))
    err.print(f"{answer['equal']} equal, {counts}")


@bundle.command("export")
def export_bundle(file: Annotated[Path, typer.Argument(help="The file to write.")]) -> None:
    """Write all snapshots into one file."""
    from catalog.snapshots import bundle as bundles
    from catalog.snapshots.manifest import SnapshotError
    from catalog.snapshots.shelf import Shelf

    try:
        held = bundles.export(Shelf(_data()), file)
    except (SnapshotError, OSError) as error:
        usage(str(error))
    out.print(f"{len(held)} snapshots in {escape(str(file))}")


@bundle.command("import")
def import_bundle(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A file that export wrote.")],
) -> None:
    """Take in the snapshots of a file, once all of them are checked."""
    from catalog.snapshots import bundle as bundles
    from catalog.snapshots.manifest import SnapshotError
    from catalog.snapshots.shelf import Shelf

    try:
        held = bundles.take_in(Shelf(_data()), file)
    except (SnapshotError, OSError) as error:
        usage(str(error))
    for item in held:
        out.print(
            f"{escape(item.package)} {escape(item.version)}: {item.records} records of {escape(item.repo)}"
        )


def version_of(text: str) -> tuple[str, str]:
    """Name and version of `NAME==VERSION`, as snapshots have them; anything else is wrong usage."""
    from catalog.scan.packages import pinned

    try:
        return pinned(text)
    except ValueError as error:
        usage(str(error))


def _data() -> Path:
    try:
        return load().data
    except SettingsError as error:
        usage(str(error))
