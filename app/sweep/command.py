"""`faultbook sweep`: the boundary map without a server."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from app.settings import SettingsError, load
from app.terminal import Arguments, Exit, Json, Spec, call_body, literal, out, print_json, usage

_RANGE = re.compile(r"(-?[0-9]{1,19}):(-?[0-9]{1,19})(?::([0-9]{1,19}))?")


def sweep(
    operation: Annotated[str, typer.Argument(help="An operation's name; see `faultbook operations`.")],
    vary: Annotated[
        list[str],
        typer.Option(
            metavar="WHAT=VALUES",
            help="What to vary, once or twice: group_size=16,32,64, input.shape.1=16:4096:16, "
            "output_s.dtype=float32,int32; values with commas of their own as a JSON list.",
        ),
    ],
    spec: Spec = None,
    arg: Arguments = None,
    target: Annotated[
        str | None, typer.Option(help="Architecture whose rules to apply: sm90, sm100, gfx942.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say where a call passes while one or two of its arguments vary, and which check rules the rest out."""
    from app.http.text import json_bytes
    from app.sweep.service import sweep as answered
    from catalog import current

    try:
        settings = load()
    except SettingsError as error:
        usage(str(error))
    current.use_unless_used(settings.data, settings.notes)
    body = call_body(operation, spec, arg or [], target=target)
    for member in ("level", "device", "seed"):  # of a request to diagnose, which a sweep has no use for
        body.pop(member, None)
    axes = dict(_axis(text) for text in vary)
    if len(axes) < len(vary):
        usage("--vary names the same thing twice")
    answer = answered(json_bytes({**body, "vary": axes})).model_dump(by_alias=True, mode="json")
    if as_json:
        print_json(answer)
    else:
        show(out, answer)
    raise typer.Exit(Exit.OK if answer["passing"] == len(answer["points"]) else Exit.NEGATIVE)


def show(out: Console, answer: dict[str, Any]) -> None:
    """Every region: where it is, and what rules it out."""
    out.print(f"{answer['passing']:,} of {len(answer['points']):,} calls pass")
    for region in answer["regions"]:
        where = ", ".join(f"{path} = {_extent(extent)}" for path, extent in region["values"].items())
        says = "[green]passes[/green]" if region["passes"] else f"[red]{escape(region['ruledBy'])}[/red]"
        out.print(f"  {escape(where)}: {says}")


def _extent(extent: dict[str, Any]) -> str:
    first, last = json.dumps(extent["from"]), json.dumps(extent["to"])
    return first if extent["count"] == 1 else f"{first} … {last} ({extent['count']:,} values)"


def _axis(text: str) -> tuple[str, Any]:
    path, equals, values = text.partition("=")
    if not equals or not values.strip():
        usage(f"--vary takes WHAT=VALUES, got {text[:80]}")
    found = _RANGE.fullmatch(values.strip())
    if found is not None:
        return path.strip(), {"from": int(found[1]), "to": int(found[2]), "step": int(found[3] or 1)}
    listed = literal(values)
    if isinstance(listed, list):
        return path.strip(), listed
    return path.strip(), [literal(value.strip()) for value in values.split(",")]
