"""`faultbook keys`: make an API key and the entry that is kept of it."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from app.access.caller import Scope
from app.access.keys import BadKeys, digest_of, entry, new_key
from app.terminal import Json, complain, print_json, usage

SHORTEST = 32
"""Characters of a key that is given: fewer can be guessed from its digest."""


def keys(
    name: Annotated[str, typer.Argument(help="Whose key it is: appears in logs and quotas.")],
    scope: Annotated[
        list[Scope] | None,
        typer.Option(help="What it may do; repeat for several. admin includes the others. Default: read."),
    ] = None,
    gpu_seconds: Annotated[
        float | None, typer.Option(min=0, help="Seconds that its runs may take in one UTC day.")
    ] = None,
    hash_only: Annotated[
        bool, typer.Option("--hash", help="Read the key from standard input instead of making one.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make an API key: print it once, and the entry for FAULTBOOK_API_KEYS or FAULTBOOK_API_KEYS_FILE."""
    key = sys.stdin.readline().strip() if hash_only else new_key()
    if len(key) < SHORTEST:
        usage(f"a key has {SHORTEST} or more characters")
    limit = None if gpu_seconds is None else f"{gpu_seconds:g}"
    try:
        made = entry(name, "+".join(scope or [Scope.READ]), f"sha256-{digest_of(key)}", limit)
    except BadKeys as error:
        usage(str(error))
    if as_json:
        print_json({"key": None if hash_only else key, "entry": str(made)})
        return
    if not hash_only:
        complain(f"the key, shown only now: {key}")
    typer.echo(str(made))
