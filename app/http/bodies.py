"""Request bodies: limited while they arrive, decoded strictly, validated with a pointer for every fault.

JSON is RFC 8259 and no more: no NaN or Infinity, no number beyond float64, no lone surrogates, at most 200
levels and 4,300 digits of one integer. Of equal keys in one object the last counts.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from email.message import Message as Header
from functools import lru_cache
from itertools import islice
from math import isinf
from typing import Any, TypeAlias, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, from_json
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import MAX_FAULTS, ContentTooLarge, Fault, InvalidRequest, UnsupportedMediaType
from app.http.text import scrub

T = TypeVar("T")

# Values in one JSON body: beyond, telling what is wrong with each would take gigabytes.
MAX_VALUES = 1_000_000


class BodyLimit:
    """Counts a body as it arrives, whatever `Content-Length` says, and stops the reader at `limit` bytes."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self.app = app
        self.limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        length = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
        announced = int(length) if length.isdigit() and len(length) < 20 else 0
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            if announced <= self.limit:
                message = await receive()
                seen += len(message.get("body", b""))
                if seen <= self.limit:
                    return message
            raise ContentTooLarge(f"The body is longer than this service's limit of {self.limit:,} bytes.")

        await self.app(scope, counted, send)


def media_type(request: Request) -> tuple[str, str]:
    """The body's media type in lower case and its charset (`utf-8` where none is given)."""
    return _media_type(request.headers.get("content-type", "application/octet-stream"))


@lru_cache(maxsize=256)
def _media_type(text: str) -> tuple[str, str]:
    header = Header()
    header["content-type"] = text
    return header.get_content_type(), str(header.get_param("charset", "utf-8")).lower()


async def read_bytes(request: Request, *types: str) -> bytes:
    """The body, of one of the media `types` (`+json` names count as application/json); else 413 or 415."""
    kind, charset = media_type(request)
    if kind.endswith("+json"):
        kind = "application/json"
    if types and kind not in types:
        given = kind if "content-type" in request.headers else "none"
        raise UnsupportedMediaType(f"Content-Type must be {' or '.join(types)}, got {scrub(given)[:100]}.")
    if charset not in ("utf-8", "utf8", "us-ascii"):
        raise UnsupportedMediaType(f"Text must be UTF-8, got the charset {scrub(charset)[:100]}.")
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding != "identity":
        raise UnsupportedMediaType("Bodies are read as they are: send no Content-Encoding.")
    return await request.body()


async def read_json(request: Request, adapter: TypeAdapter[T]) -> T:
    """The JSON body as `adapter` validates it; 413, 415 or a 422 that lists every fault."""
    return parse_json(await read_bytes(request, "application/json"), adapter)


async def read_text(request: Request) -> str:
    """A text/plain body; 413, 415, or 422 where it is not UTF-8."""
    return decode(await read_bytes(request, "text/plain"))


def decode(body: bytes) -> str:
    """UTF-8, strictly; InvalidRequest names the first byte that is not."""
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise malformed(f"The body is not UTF-8: byte {error.start} cannot be decoded.") from None


@contextmanager
def _no_collection() -> Iterator[None]:
    """Parsed values hold no cycles, and looking for some while millions appear makes parsing slow
    (1.8 s against 0.27 s for 15 MB of `[]`).
    """
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


@_no_collection()
def parse_json(body: bytes, adapter: TypeAdapter[T]) -> T:
    """`body` as `adapter` validates it, in pydantic's JSON mode; InvalidRequest lists every fault."""
    value = load_json(body)
    try:
        return adapter.validate_json(body)
    except ValidationError as error:
        if error.error_count() > _MOST_ERRORS:
            raise malformed(f"The body has {error.error_count():,} faults, too many to list.") from None
        found = error.errors(include_url=False, include_input=False, include_context=False)
        raise invalid(found, value) from None


@_no_collection()
def load_json(body: bytes) -> Any:
    """`body` as plain Python values; InvalidRequest says where it is not JSON."""
    if not body.strip():
        raise malformed("The body is empty; JSON is expected.")
    try:
        value = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise malformed(f"The body is not JSON: {error}{_hint(body, str(error))}.") from None
    # Each value but the first follows one of these. They also stand in text: only then are values counted.
    if sum(map(body.count, (b",", b"[", b"{"))) >= MAX_VALUES and _holds_more(value, MAX_VALUES):
        raise ContentTooLarge(f"The body holds more than {MAX_VALUES:,} values.")
    # 1e999 is JSON by the grammar and infinity to the parser: search only text that can hold such a number.
    if _OVERFLOW.search(body):
        infinite = (
            _path(trail) for trail, number in _values(value) if isinstance(number, float) and isinf(number)
        )
        faults = [
            Fault(pointer(path), "a number beyond float64's range") for path in islice(infinite, MAX_FAULTS)
        ]
        if faults:
            raise InvalidRequest("The request has numbers beyond float64's range.", faults=faults)
    return value


def malformed(detail: str) -> InvalidRequest:
    """A body of which no part can be pointed at: the pointer is that of the whole."""
    return InvalidRequest(detail, faults=[Fault("", detail)])


def invalid(errors: Iterable[ErrorDetails], body: Any, others: Iterable[Fault] = ()) -> InvalidRequest:
    """Pydantic's errors about `body`, after `others`, as a problem with one fault per pointer and text."""
    found = (Fault(pointer(resolve(error, body)), scrub(error["msg"])) for error in errors)
    faults = list(dict.fromkeys([*others, *found]))
    return InvalidRequest(_summary(len(faults)), faults=faults)


def pointer(path: Iterable[str | int]) -> str:
    """RFC 6901: `["a/b", 0]` is `/a~1b/0`."""
    return "".join("/" + scrub(str(step)).replace("~", "~0").replace("/", "~1") for step in path)


def resolve(error: ErrorDetails, body: Any) -> list[str | int]:
    """Where in `body` an error is.

    Pydantic's `loc` also holds names of union members and validators, which are no part of the body: a step
    counts only if the body has it, or if it is the missing member itself.
    """
    path: list[str | int] = []
    here = body
    for step in error["loc"]:
        if _has(here, step):
            here = here[step]
            path.append(step)
        elif error["type"] == "missing" and step == error["loc"][-1]:
            path.append(step)
    return path


def _has(value: Any, step: str | int) -> bool:
    if isinstance(value, list):
        return isinstance(step, int) and step < len(value)
    return isinstance(value, dict) and step in value


def request_body(**content: TypeAdapter[Any] | Mapping[str, Any]) -> dict[str, Any]:
    """`openapi_extra` of a route that reads its body itself: `request_body(json=adapter, plain=TEXT)`.

    Keys are `json`, `plain` and `binary`; values a TypeAdapter or a JSON Schema.
    """
    types = {"json": "application/json", "plain": "text/plain", "binary": "application/octet-stream"}
    documented = {types[name]: {"schema": _schema(schema)} for name, schema in content.items()}
    return {"requestBody": {"required": True, "content": documented}}


def _schema(schema: TypeAdapter[Any] | Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(schema, TypeAdapter):
        return schema.json_schema()
    return schema


def _summary(count: int) -> str:
    if count == 1:
        return "The request has one fault."
    shown = f"; the first {MAX_FAULTS} are listed" if count > MAX_FAULTS else ""
    return f"The request has {count:,} faults{shown}."


# Pydantic makes a dictionary of each error before the first can be read.
_MOST_ERRORS = 20_000
# A float64 ends near 1.8e308: three digits of exponent, or two and at least 209 digits before it.
_OVERFLOW = re.compile(rb"[eE]\+?[0-9]{3}|[0-9]{200}")
_POSITION = re.compile(r"at line (\d+) column (\d+)$")


def _holds_more(value: Any, limit: int) -> bool:
    """Whether there are more than `limit` values within `value`; looks at no more than that many."""
    seen = 0
    todo: list[Any] = [[value]]
    while todo and seen <= limit:
        here = todo.pop()
        items = here.values() if isinstance(here, dict) else here
        seen += len(items)
        if seen <= limit:
            todo.extend(item for item in items if isinstance(item, list | dict))
    return seen > limit


# A value's path, linked from its last step up: most are never spelled out.
_Trail: TypeAlias = "tuple[_Trail, str | int] | None"


def _values(value: Any) -> Iterator[tuple[_Trail, Any]]:
    """Every value within `value`, itself first, in the order of the text."""
    todo: list[tuple[_Trail, Any]] = [(None, value)]
    while todo:
        trail, here = todo.pop()
        yield trail, here
        if isinstance(here, dict):
            todo.extend(((trail, key), item) for key, item in reversed(here.items()))
        elif isinstance(here, list):
            todo.extend(((trail, index), here[index]) for index in reversed(range(len(here))))


def _path(trail: _Trail) -> list[str | int]:
    steps: list[str | int] = []
    while trail is not None:
        trail, step = trail
        steps.append(step)
    return steps[::-1]


def _hint(body: bytes, message: str) -> str:
    """What the parser's message means, where that is not plain from it."""
    if message.startswith("number out of range"):
        return " (an integer of more than 4,300 digits)"
    if message.startswith("recursion limit"):
        return " (nested more than 200 levels deep)"
    if message.startswith(("unexpected end of hex escape", "lone")):
        return " (a surrogate escape needs its other half)"
    if position := _POSITION.search(message):
        line, column = int(position[1]), int(position[2])
        text = body.split(b"\n")[line - 1][max(column - 10, 0) : column + 10]
        if b"NaN" in text or b"Infinity" in text:
            return " (NaN and Infinity are not JSON)"
    return ""
