"""What a language model may ask, without the protocol: each tool is a method with plain arguments."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import Field
from starlette.concurrency import run_in_threadpool

from app.diagnose.offline import operation_document, operation_list
from app.errors import BadRequest, NotFound
from app.http.text import json_bytes
from app.lookup.service import match_text, repositories, tier
from app.records.service import document
from catalog.current import library

Asker = TypeVar("Asker")
Diagnose = Callable[[bytes, Asker], Awaitable[dict[str, Any]]]
LookedUp = Callable[[str | None, float], None]

SHOWN_OF_A_FIX = ("title", "edits", "safe", "note", "level", "code", "run")

Text = Annotated[
    str, Field(min_length=1, description="an error message, a traceback, or a log with one in it")
]
Arguments = Annotated[
    dict[str, Any],
    Field(
        description="arguments of the operation by name; a tensor as "
        '"bfloat16[16,7168]:stride(7168,1)" or {"shape": […], "dtype": …, "strides": […]}; '
        "what is omitted is filled in and listed in `assumed`"
    ),
]
Level = Annotated[
    Literal["checks", "run"],
    Field(description="checks: nothing is allocated; run: the real kernel on such tensors"),
]


class Tools(Generic[Asker]):
    """The tools over `diagnose`, which takes the body of POST /api/diagnose and whoever asks. `looked_up` is
    told of each look-up: how its best match was found, and the seconds it took.
    """

    def __init__(self, diagnose: Diagnose[Asker], looked_up: LookedUp) -> None:
        self._diagnose = diagnose
        self._looked_up = looked_up

    async def search_error(self, text: Text, repo: str | None = None, limit: int = 5) -> dict[str, Any]:
        """Records of the errors in a text; nothing of it is kept. A match's `operation` and `spec`, where it
        has them, are what `diagnose` takes.
        """
        if not 1 <= limit <= 25:
            raise BadRequest("limit is 1 to 25.")
        return await self._found(text, repo, limit)

    async def get_error(self, identifier: str) -> dict[str, Any]:
        """One record with what raises it, what it means, how to handle it, and its fix."""
        known = library()
        found = known.get(identifier) or known.by_slug(identifier)
        if found is None:
            raise NotFound("No record has this id or slug.")
        return document(known, found, full=True)

    async def list_repos(self) -> dict[str, Any]:
        """Repositories and packages whose errors are known."""
        return repositories()

    async def describe_operation(self, name: str | None = None) -> dict[str, Any]:
        """An operation's arguments, a call that passes and every check; without a name, which there are."""
        return operation_list() if name is None else await run_in_threadpool(operation_document, name)

    async def diagnose(
        self,
        operation: str,
        arguments: Arguments,
        asker: Asker,
        level: Level = "checks",
        target: str | None = None,
    ) -> dict[str, Any]:
        """Every check of a call, what the caller of upstream would see, and fixes that were tried again."""
        body = {"operation": operation, "arguments": arguments, "level": level, "target": target}
        return await self._diagnose(json_bytes(body), asker)

    async def suggest_fix(
        self,
        asker: Asker,
        text: str | None = None,
        operation: str | None = None,
        arguments: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """The smallest changes after which a call passes, checked again, as edits and as code: of the call
        described, or of the one that an error's text leads to.
        """
        source = None
        if operation is None:
            if not text:
                raise BadRequest("Give a text with an error, or an operation and its arguments.")
            match = await self._leading(text)
            operation, arguments, source = match["operation"], match["spec"]["arguments"], match["id"]
        body = {"operation": operation, "arguments": arguments or {}, "level": "checks"}
        answer = await self._diagnose(json_bytes(body), asker)
        return {
            "recordId": source,
            "operation": operation,
            "arguments": arguments,
            "verdict": answer["verdict"],
            "raised": answer["raised"],
            "failed": [row for row in answer["checks"] if row["status"] == "failed"],
            "fixes": [{name: fix[name] for name in SHOWN_OF_A_FIX} for fix in answer["fixes"]],
            "assumed": answer["assumed"],
        }

    async def _leading(self, text: str) -> dict[str, Any]:
        """The first match that leads to a call."""
        found = await self._found(text, None, 5)
        for match in found["matches"]:
            if match["operation"] and match["spec"]:
                return dict(match)
        raise NotFound("No error in this text leads to a call that can be described; search_error lists all.")

    async def _found(self, text: str, repo: str | None, limit: int) -> dict[str, Any]:
        began = perf_counter()
        answer = await run_in_threadpool(match_text, text, repo=repo, limit=limit)
        self._looked_up(tier(answer), perf_counter() - began)
        return answer
