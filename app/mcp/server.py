"""The tools as a server of the Model Context Protocol. Importing it takes a second: only who serves does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from importlib.metadata import version
from typing import Annotated, Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

from app.errors import Problem
from app.mcp.tools import Arguments, Level, Text, Tools

INSTRUCTIONS = (
    "Explains errors of GPU kernels and checkpoint loaders. Paste the error into search_error; where its "
    "match has an operation and a spec, diagnose lists every failing check of that call and suggest_fix the "
    "smallest change. get_error has the whole record."
)

Ask = Context[Any, Any]
Method = Callable[..., Awaitable[dict[str, Any]]]


def build(tools: Tools[Any]) -> MCPServer[Any]:
    """A server with the six tools; to `diagnose` and `suggest_fix` it passes the protocol's own request."""
    server: MCPServer[Any] = MCPServer(
        "faultbook",
        title="Faultbook",
        version=version("faultbook"),
        instructions=INSTRUCTIONS,
        log_level="WARNING",
    )
    reads = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)

    async def diagnose(
        operation: str,
        arguments: Arguments,
        ctx: Ask,
        level: Level = "checks",
        target: Annotated[str | None, "architecture whose rules apply: sm90, gfx942"] = None,
    ) -> dict[str, Any]:
        return await tools.diagnose(operation, arguments, _asker(ctx), level, target)

    async def suggest_fix(
        ctx: Ask,
        text: Text | None = None,
        operation: str | None = None,
        arguments: Arguments | None = None,
    ) -> dict[str, Any]:
        return await tools.suggest_fix(_asker(ctx), text, operation, arguments)

    described: tuple[tuple[Method, Method], ...] = (
        (tools.search_error, tools.search_error),
        (tools.get_error, tools.get_error),
        (tools.list_repos, tools.list_repos),
        (tools.describe_operation, tools.describe_operation),
        (diagnose, tools.diagnose),
        (suggest_fix, tools.suggest_fix),
    )
    for method, source in described:
        text = " ".join((source.__doc__ or "").split())
        server.add_tool(_told(method), name=source.__name__, description=text, annotations=reads)
    return server


def _asker(ctx: Ask) -> Any:
    """The HTTP request that brought the call; None over standard input."""
    return ctx.request_context.request


def _told(method: Method) -> Method:
    """The method with our problems as the protocol tells a tool's errors: with every fault."""

    @wraps(method)
    async def asked(*args: Any, **kwargs: Any) -> dict[str, Any]:
        try:
            return await method(*args, **kwargs)
        except Problem as problem:
            faults = [f"{fault.pointer or '/'}: {fault.detail}" for fault in problem.faults[:20]]
            raise ToolError("\n".join([str(problem.detail), *faults])) from None

    return asked
