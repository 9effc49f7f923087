"""The command line: the same services as the API, without a server.

Data goes to standard output and messages to standard error. Exit codes: 0 a match or all checks pass, 1 no
match or a
check fails, 2 wrong usage, 3 unsupported on this host, 4 the worker crashed or timed out, 5 an internal
error.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.markup import escape

from app.access.command import keys
from app.cluster.command import worker
from app.errors import Problem
from app.http.text import json_bytes
from app.indexing import bundle, diff, index, indexing, version_of
from app.mcp.command import mcp
from app.printing import show_diagnosis, show_matches
from app.sweep.command import sweep
from app.terminal import Arguments, Exit, Json, Spec, call_body, complain, harmless, out, print_json, usage

if TYPE_CHECKING:
    from catalog.library import Library

cli = typer.Typer(
    name="faultbook",
    help="Find the record of a kernel or checkpoint error, run the call it happened in, and verify the fix.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

GRACE = 5
"""Seconds that requests have to end after a signal; runs still going on are then killed."""

VERDICTS = {
    "passed": Exit.OK,
    "rejected": Exit.NEGATIVE,
    "wrong-result": Exit.NEGATIVE,
    "unsupported": Exit.UNSUPPORTED,
    "crashed": Exit.CRASHED,
    "out-of-memory": Exit.CRASHED,
    "timed-out": Exit.CRASHED,
}


def main() -> NoReturn:
    """The console script: every ending is one of the exit codes, and no traceback reaches the user."""
    if sys.stdout is not None:
        sys.stdout = _Listener(sys.stdout)
    try:
        # Without its standalone mode the parser returns the code of a typer.Exit.
        code = cli(standalone_mode=False)
    except typer.Abort:
        sys.exit(Exit.USAGE)
    except Problem as problem:
        complain(
            str(problem.detail), *(f"{fault.pointer or '/'}: {fault.detail}" for fault in problem.faults)
        )
        sys.exit(Exit.USAGE if problem.status < 500 else Exit.UNSUPPORTED)
    except Exception as error:  # noqa: BLE001 (the last resort: an exit code instead of a traceback)
        show = getattr(error, "show", None)
        if show is not None:  # a usage error of the parser
            show(file=sys.stderr)
            sys.exit(Exit.USAGE)
        complain(f"internal error: {type(error).__name__}: {error}")
        sys.exit(Exit.INTERNAL)
    sys.exit(code or Exit.OK)


@cli.command()
def match(
    source: Annotated[str, typer.Argument(help="A file, a folder of logs, or - for standard input.")] = "-",
    repo: Annotated[str | None, typer.Option(help="Only records of this repository.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="Most matches to print.")] = 5,
    package: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME==VERSION", help="Installed version of a package, of several indexed."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Find the records of the errors in a text: a line, a traceback or a whole log."""
    from app.lookup.command import answer_of

    installed = dict(map(version_of, package or ()))
    answer = answer_of(source, _use_snapshots, repo=repo, packages=installed, limit=limit)
    if as_json:
        print_json(answer)
    else:
        show_matches(out, answer)
    raise typer.Exit(Exit.OK if answer["hasMatch"] else Exit.NEGATIVE)


@cli.command()
def explain(
    name: Annotated[str, typer.Argument(metavar="ID|SLUG", help="A record's id, or its slug.")],
    as_json: Json = False,
) -> None:
    """Print one record."""
    from rich.markdown import Markdown

    from app.records.service import document
    from catalog.markdown import markdown

    known = _use_snapshots()
    found = known.get(name) or known.by_slug(name)
    if found is None:
        complain(f"no record has the id or slug {name}")
        raise typer.Exit(Exit.NEGATIVE)
    if as_json:
        print_json(document(known, found))
        return
    shown = harmless(markdown(found, known.notes(found)))
    if out.is_terminal:
        out.print(Markdown(shown))
    else:
        typer.echo(shown)


@cli.command()
def operations(
    name: Annotated[str | None, typer.Argument(help="One operation, with its arguments and checks.")] = None,
    as_json: Json = False,
) -> None:
    """List the operations that can be diagnosed."""
    from rich.table import Table

    from app.diagnose.offline import operation_document, operation_list

    if name is None:
        listed = operation_list()
        if as_json:
            print_json(listed)
            return
        table = Table("operation", "checks", "what it does", box=None)
        for item in listed["operations"]:
            table.add_row(item["name"], str(item["checks"]), item["summary"])
        out.print(table)
        return
    document = operation_document(name)
    if as_json:
        print_json(document)
        return
    out.print(f"[bold]{escape(document['name'])}[/bold]  {escape(document['summary'])}\n")
    for argument, form in document["callSchema"]["properties"].items():
        out.print(f"  {escape(argument)}  {escape(form['description'])}")
    out.print()
    for check in document["checks"]:
        shown = check["message"] or f"({check['errorClass']} without a text) {check['reason']}"
        out.print(f"  {check['order']:>2}  {escape(check['id'])}: {escape(shown)}")


@cli.command()
def diagnose(
    operation: Annotated[str, typer.Argument(help="An operation's name; see `faultbook operations`.")],
    spec: Spec = None,
    arg: Arguments = None,
    level: Annotated[
        str | None,
        typer.Option(help="checks: nothing is allocated; run: the real operation. Default: checks."),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(help="Architecture whose rules to apply: sm90, sm100, gfx942. Default: the GPU's own."),
    ] = None,
    as_json: Json = False,
) -> None:
    """List every check that a call fails, and what to change."""
    import asyncio

    from app.diagnose.offline import diagnose_body

    body = {"level": "checks", **call_body(operation, spec, arg or [], level=level, target=target)}
    answer = asyncio.run(diagnose_body(json_bytes(body)))
    if as_json:
        print_json(answer)
    else:
        show_diagnosis(out, answer)
    raise typer.Exit(VERDICTS[answer["verdict"]])


@cli.command()
def checkpoint(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE.safetensors…",
            exists=True,
            dir_okay=False,
            help="A file, or those of one component in the order they are read in; only headers are read.",
        ),
    ],
    operation: Annotated[
        str | None, typer.Option(help="The format to inspect; without it, the one that claims the file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say whether checkpoint files can be opened, and what their format's loader would refuse."""
    import asyncio

    from app.diagnose.offline import diagnose_paths

    answer = asyncio.run(diagnose_paths(files, operation))
    if as_json:
        print_json(answer)
    else:
        out.print(escape(answer["operation"]))
        show_diagnosis(out, answer)
    raise typer.Exit(VERDICTS[answer["verdict"]])


@cli.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on (FAULTBOOK_HOST).")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port (FAULTBOOK_PORT).")] = None,
    index_too: Annotated[
        list[str] | None,
        typer.Option(
            "--index",
            metavar="PACKAGE",
            help="An installed package to index in the background, unless its version is indexed.",
        ),
    ] = None,
) -> None:
    """Serve the API and the pages."""
    import uvicorn

    from app.environment import ForeignKernels, address, refuse_foreign_kernels
    from app.http.leaving import serve as serve_app
    from app.http.protocol import bounded
    from app.main import create_app
    from app.settings import SettingsError, load

    overrides = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    try:
        refuse_foreign_kernels()
        settings = load(**overrides)
        app = create_app(settings)
    except (ForeignKernels, SettingsError) as error:
        complain(str(error))
        raise typer.Exit(Exit.USAGE) from None
    place = address(settings)
    if place.state != "ok":
        complain(f"{place.detail}; {place.remedy}")
        raise typer.Exit(Exit.USAGE)
    # uvicorn raises the signal again once it has stopped: as an exit, so that temporary files are removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(Exit.OK))
    with indexing(settings.data, index_too or []):
        config = uvicorn.Config(
            app,
            host=settings.host,
            port=settings.port,
            http=bounded(int(settings.max_header_bytes)),
            ws="none",  # what is no HTTP would pass by every layer that looks at requests
            forwarded_allow_ips=settings.forwarded_allow_ips,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=GRACE,
        )
        started = serve_app(config, app)
    if not started:
        raise typer.Exit(Exit.UNSUPPORTED)


@cli.command()
def doctor(as_json: Json = False) -> None:
    """Say what this host has, what is missing and how to get it."""
    from app.environment import findings
    from app.settings import SettingsError, load

    try:
        found = list(findings(load()))
    except SettingsError as error:
        complain(str(error))
        raise typer.Exit(Exit.USAGE) from None
    if as_json:
        print_json({"findings": found})
    else:
        marks = {
            "ok": "[green]ok[/green]",
            "missing": "[yellow]missing[/yellow]",
            "broken": "[red]broken[/red]",
        }
        for finding in found:
            out.print(f"{marks[finding.state]:<10} {finding.name}: {escape(finding.detail)}")
            if finding.remedy:
                out.print(f"           {escape(finding.remedy)}")
    broken = any(finding.required and finding.state != "ok" for finding in found)
    raise typer.Exit(Exit.UNSUPPORTED if broken else Exit.OK)


cli.command()(worker)
cli.command()(index)
cli.command()(keys)
cli.command()(mcp)
cli.command()(diff)
cli.add_typer(bundle)
cli.command()(sweep)


def _use_snapshots() -> Library:
    """The records and snapshots that this command answers from."""
    from app.settings import SettingsError, load
    from catalog import current

    try:
        settings = load()
    except SettingsError as error:
        usage(str(error))
    current.log.addHandler(logging.NullHandler())  # what is left out is said below, once
    reader = current.use(settings.data, settings.notes)
    known = reader.get()
    complain(*reader.problems)
    return known


class _Listener:
    """Standard output for as long as somebody reads it; what is written after that is dropped."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._gone = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write, unless the reader has gone."""
        self._tell(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Flush, unless the reader has gone."""
        self._tell(self._stream.flush)

    def _tell(self, act: Callable[[], object]) -> None:
        if self._gone:
            return
        try:
            act()
        except BrokenPipeError:
            self._gone = True
            # The interpreter flushes the real stream at exit: let it do so into nothing.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())


if __name__ == "__main__":
    main()
