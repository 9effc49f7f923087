"""Every answer of the service that is not a success, and the one shape all of them have (RFC 9457).

    Problem
    ├── BadRequest            400  the request's syntax is wrong
    ├── Unauthorized          401  no key, or one that is not known
    ├── Forbidden             403  this service, or this key, does not allow it
    ├── NotFound              404  no such thing
    ├── MethodNotAllowed      405  the path exists, the method does not
    ├── Conflict              409  it exists but cannot be done
    ├── ContentTooLarge       413  more than this service takes
    ├── UnsupportedMediaType  415  a body in a format nobody reads here
    ├── InvalidRequest        422  well-formed, but not what the operation accepts: lists every fault
    ├── TooManyRequests       429  more requests, or more seconds of runs, than a caller has
    ├── HeadersTooLarge       431  more bytes of header fields than are read here
    ├── InternalError         500  our mistake
    └── Unavailable           503  busy or down: try again later
        └── Busy                   every place is taken: one will be free once a run has ended

A subclass with a `slug` of its own becomes a page at /about/problems/{slug}; its docstring is the
page's text.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http.client import responses
from math import ceil
from typing import Any, ClassVar
from urllib.parse import quote

from starlette.exceptions import HTTPException

PROBLEM_JSON = "application/problem+json"
PAGES = "/about/problems/"

# Faults listed in one answer, and characters of one fault's pointer and detail: a body of 16 MiB may hold a
# million.
MAX_FAULTS = 200
MAX_TEXT = 500


@dataclass(frozen=True)
class Fault:
    """One thing wrong with the input.

    `pointer` is an RFC 6901 pointer into the body, or `/name` of a parameter with `place` query, path or
    header.
    """

    pointer: str
    detail: str
    place: str = "body"

    def document(self) -> dict[str, str]:
        detail = self.detail if len(self.detail) <= MAX_TEXT else self.detail[: MAX_TEXT - 1] + "…"
        pointer = self.pointer
        if len(pointer) > MAX_TEXT:
            pointer = pointer[:MAX_TEXT].rpartition("/")[0]
            detail += " (in a member whose pointer is too long to show)"
        document = {"pointer": pointer, "detail": detail}
        return document if self.place == "body" else {**document, "in": self.place}


class Problem(HTTPException):
    """Something went wrong. Raised itself only for a status that has no class here (RFC 9457: `about:blank`).

    It is an HTTPException so that code between a route and the handler, which lets those pass, lets these
    pass too.
    """

    status: int = 500
    slug: str = ""
    title: str = ""
    kinds: ClassVar[dict[str, type[Problem]]] = {}

    def __init_subclass__(cls) -> None:
        if "slug" in vars(cls):
            if cls.slug in Problem.kinds:
                raise TypeError(f"two problems are called {cls.slug}")
            Problem.kinds[cls.slug] = cls

    def __init__(
        self,
        detail: str,
        *,
        faults: Iterable[Fault] = (),
        headers: Mapping[str, str] | None = None,
        members: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(self.status, detail, headers)
        self.faults = tuple(faults)
        self.members = dict(members or {})

    def document(self, *, base: str, instance: str) -> dict[str, Any]:
        """The problem as JSON; `base` is what precedes `/about/…` for this service's users."""
        document = {
            "type": base + PAGES + self.slug if self.slug else "about:blank",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "instance": quote(instance, safe="/:@!$&'()*+,;=~", errors="replace"),
            **self.members,
        }
        if self.faults:
            document["errors"] = [fault.document() for fault in self.faults[:MAX_FAULTS]]
        return document

    @classmethod
    def explanation(cls) -> str:
        """What the kind of problem means and what to do about it: the text of its page."""
        return inspect.cleandoc(cls.__doc__ or "")


class BadRequest(Problem):
    """The request's syntax is wrong, so it was not interpreted. The detail says where."""

    status, slug, title = 400, "bad-request", "Bad request"


class Unauthorized(Problem):
    """This service has API keys, and the request brought none that it knows.

    Send one as `Authorization: Bearer KEY`. Browsers that are asked for a name and a password take the key as
    the password, with any name. Keys come from the service's operator, who makes them with `faultbook keys`.
    """

    status, slug, title = 401, "unauthorized", "A key is needed"

    def __init__(
        self,
        detail: str,
        *,
        wrong: bool = False,
        basic: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`wrong`: a key came and is not known (RFC 6750); `basic`: a browser may ask its user for one."""
        challenge = 'Bearer realm="faultbook"' + (', error="invalid_token"' if wrong else "")
        if basic:
            challenge += ', Basic realm="faultbook", charset="UTF-8"'
        super().__init__(detail, headers={"WWW-Authenticate": challenge, **(headers or {})})


class Forbidden(Problem):
    """The service understood the request, and its settings or the request's key do not allow it.

    A key has scopes, `read`, `diagnose` and `admin`; the detail names the one that is missing. A service that
    listens beyond its own machine and has no keys runs no kernels unless its operator has allowed that; the
    checks of level `checks` need no such permission.
    """

    status, slug, title = 403, "forbidden", "Not allowed here"


class NotFound(Problem):
    """Nothing has this address or this name. Ids of records have 16 hexadecimal digits in lower case."""

    status, slug, title = 404, "not-found", "Not found"


class MethodNotAllowed(Problem):
    """The address exists, but not with this method. The `Allow` header lists the ones it has."""

    status, slug, title = 405, "method-not-allowed", "Method not allowed"


class Conflict(Problem):
    """What was asked for exists, but not in a state in which this can be done to it."""

    status, slug, title = 409, "conflict", "Conflict"


class ContentTooLarge(Problem):
    """The request holds or describes more than this service takes. The detail names the limit.

    A whole log is rarely needed: the traceback with the lines around it is enough. Tensors too large to run
    can still be diagnosed at level `checks`, where nothing is allocated.
    """

    status, slug, title = 413, "content-too-large", "Content too large"


class UnsupportedMediaType(Problem):
    """The body's `Content-Type` or `Content-Encoding` is not one that is read here; see the detail."""

    status, slug, title = 415, "unsupported-media-type", "Unsupported media type"


class InvalidRequest(Problem):
    """The request is not of the form that this address expects.

    `errors` lists every fault with a JSON pointer (RFC 6901) into the body, or with the parameter's name and
    where it stands (`in`). Unusual tensors are no fault: overlapping strides or a size of zero are diagnosed.
    """

    status, slug, title = 422, "invalid-request", "Invalid request"


class TooManyRequests(Problem):
    """The caller has made more requests, or used more seconds of runs, than this service grants one caller.

    `Retry-After` says when the next one is granted.
    """

    status, slug, title = 429, "too-many-requests", "Too many requests"

    def __init__(
        self, detail: str, *, retry_after: float = 1.0, headers: Mapping[str, str] | None = None
    ) -> None:
        """`retry_after` in seconds; told rounded up."""
        super().__init__(detail, headers={"Retry-After": str(max(1, ceil(retry_after))), **(headers or {})})


class HeadersTooLarge(Problem):
    """The request's header fields take more bytes than this service reads; cookies are never needed here."""

    status, slug, title = 431, "headers-too-large", "Header fields too large"


class InternalError(Problem):
    """The service made a mistake; the request may well be right.

    The log holds the cause under the request id of the answer (header `X-Request-Id`): quote it in a report.
    """

    status, slug, title = 500, "internal-error", "Internal error"


class Unavailable(Problem):
    """The service, or a worker it needs, is busy, starting or down. `Retry-After` says when to try again."""

    status, slug, title = 503, "unavailable", "Unavailable"

    def __init__(
        self,
        detail: str,
        *,
        retry_after: int = 5,
        headers: Mapping[str, str] | None = None,
        members: Mapping[str, Any] | None = None,
    ) -> None:
        """`retry_after` in seconds."""
        super().__init__(
            detail, headers={"Retry-After": str(retry_after), **(headers or {})}, members=members
        )


class Busy(Unavailable):
    """Every place is taken by runs that end in time: who waits will find one."""


# Says more than the status' own phrase, which is all that the router knows.
_DETAILS = {404: "Nothing is served at this address.", 405: "This address does not have this method."}


def from_http(error: HTTPException) -> Problem:
    """An exception of the framework as one of ours, with its status and headers."""
    if isinstance(error, Problem):
        return error
    phrase = responses.get(error.status_code, "Error")
    detail = _DETAILS.get(error.status_code, phrase) if error.detail in ("", phrase) else str(error.detail)
    kind = next((kind for kind in Problem.kinds.values() if kind.status == error.status_code), Problem)
    problem = kind(detail, headers=error.headers)
    if kind is Problem:
        problem.status, problem.title = error.status_code, phrase
    return problem


def described(*kinds: type[Problem]) -> dict[int | str, dict[str, Any]]:
    """The `responses=` of a route that may raise `kinds`: their OpenAPI form."""
    found: dict[int | str, dict[str, Any]] = {}
    for kind in kinds:
        first = kind.explanation().partition("\n\n")[0].replace("\n", " ")
        before = found.get(kind.status)
        found[kind.status] = {
            "description": f"{before['description']} Or: {first}" if before else first,
            "content": {PROBLEM_JSON: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
    return found


SCHEMA: dict[str, Any] = {
    "title": "Problem",
    "description": "RFC 9457 problem details.",
    "type": "object",
    "required": ["type", "title", "status", "detail", "instance"],
    "properties": {
        "type": {"type": "string", "format": "uri-reference"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "instance": {"type": "string", "format": "uri-reference"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["pointer", "detail"],
                "properties": {
                    "pointer": {"type": "string", "description": "RFC 6901, into the body or the parameters"},
                    "detail": {"type": "string"},
                    "in": {"enum": ["query", "path", "header", "cookie"]},
                },
            },
        },
    },
}
