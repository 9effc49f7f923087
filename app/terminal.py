"""What all commands of the command line share: consoles, exit codes, and how a call is written there."""

from __future__ import annotations

import codecs
import json
import sys
from enum import IntEnum
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from app.http.text import json_bytes

_CONTROLS = {
    code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    for code in (
        *(code for code in range(0x20) if chr(code) not in "\t\n"),
        *range(0x7F, 0xA0),
        *range(0x202A, 0x202F),
        *range(0x2066, 0x206A),
    )
}


def harmless(text: str) -> str:
    """`text` with what a terminal would act on, or show in another order, as escapes: logs and sources are
    others' words, and a terminal takes orders from what it shows.
    """
    return text.translate(_CONTROLS)


class Terminal(Console):
    """Nothing but its own styles reaches a terminal as a control."""

    def render_str(self, text: str, *args: Any, **options: Any) -> Text:
        """As Console's; every text that is printed comes through here."""
        return super().render_str(harmless(text), *args, **options)


out = Terminal(highlight=False, soft_wrap=True)
err = Terminal(stderr=True, highlight=False, soft_wrap=True)

Json = Annotated[bool, typer.Option("--json", help="Print the API's JSON instead of text.")]

Spec = Annotated[
    Path | None, typer.Option(exists=True, dir_okay=False, help="JSON: the API's body, or its arguments.")
]
Arguments = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE", help="One argument: output_s=int32[16,14]:stride(1,16), scale_ue8m0=true."
    ),
]


class Exit(IntEnum):
    """What the process ends with."""

    OK = 0
    NEGATIVE = 1
    USAGE = 2
    UNSUPPORTED = 3
    CRASHED = 4
    INTERNAL = 5


def call_body(operation: str, spec: Path | None, pairs: list[str], **options: str | None) -> dict[str, Any]:
    """The API's body from a spec file and single arguments, which win over it."""
    body: dict[str, Any] = {"operation": operation, "arguments": {}}
    if spec is not None:
        from app.http.bodies import load_json

        read = load_json(spec.read_bytes().removeprefix(codecs.BOM_UTF8))
        if not isinstance(read, dict):
            usage(f"{spec}: an object is expected")
        body |= read if "arguments" in read or "operation" in read else {"arguments": read}
        if body["operation"] != operation:
            usage(f"{spec} is for {body['operation']}, not for {operation}")
    body |= {name: value for name, value in options.items() if value is not None}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            usage(f"--arg takes NAME=VALUE, got {pair[:80]}")
        if not isinstance(body["arguments"], dict):
            usage(f"{spec}: arguments is not an object")
        body["arguments"] = {**body["arguments"], name.strip(): literal(value)}
    return body


def literal(text: str) -> Any:
    """JSON where it is JSON, Python's True, False and None, else the text itself: a tensor or a type."""
    spelled = {"True": True, "False": False, "None": None}
    if text in spelled:
        return spelled[text]
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(value, float) and not isfinite(value):
        usage(f"{text[:80]} is no number that a call can be described with")
    return value


def complain(*lines: str) -> None:
    """Sentences on standard error."""
    for line in lines:
        err.print(f"faultbook: {escape(line)}")


def usage(sentence: str) -> NoReturn:
    """Say what is wrong with the command, and end."""
    complain(sentence)
    raise typer.Exit(Exit.USAGE)


def print_json(value: Any) -> None:
    """A value as the API would send it."""
    sys.stdout.write(json_bytes(value).decode() + "\n")
