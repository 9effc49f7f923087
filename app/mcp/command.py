"""`faultbook mcp`: the protocol over standard input and output, for a program that starts it."""

from __future__ import annotations

import sys
from typing import Any

from app.terminal import Exit, usage


def mcp() -> None:
    """Serve the Model Context Protocol on standard input and output, without a server."""
    from app.diagnose.offline import diagnose_body
    from app.mcp.server import build
    from app.mcp.tools import Tools
    from app.settings import SettingsError, load
    from catalog import current

    try:
        settings = load()
    except SettingsError as error:
        usage(str(error))
    current.use(settings.data, settings.notes)

    async def diagnose(body: bytes, _: None) -> dict[str, Any]:
        return await diagnose_body(body)

    # The protocol's own stream is standard output itself, not the command line's wrapper of it.
    sys.stdout = sys.__stdout__
    build(Tools(diagnose, lambda *_: None)).run("stdio")
    sys.exit(Exit.OK)
