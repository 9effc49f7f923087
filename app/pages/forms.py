"""HTML forms: read strictly from a limited body, with nothing but the standard library."""

from __future__ import annotations

from urllib.parse import parse_qsl

from fastapi import Request
from starlette.concurrency import run_in_threadpool

from app.http.bodies import decode, malformed, media_type, read_bytes

FORM = "application/x-www-form-urlencoded"
PLAIN = "text/plain"

MAX_FIELDS = 16
"""Fields of one form; ours have at most four."""


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a form; 413, 415, or 422 where it is no form. Line ends are `\\n`; the last of equal
    names counts.
    """
    return await _fields(await read_bytes(request, FORM))


async def read_pasted(request: Request) -> dict[str, str]:
    """A form, or a text/plain body as its field `text`."""
    body = await read_bytes(request, FORM, PLAIN)
    return {"text": decode(body)} if media_type(request)[0] == PLAIN else await _fields(body)


async def _fields(body: bytes) -> dict[str, str]:
    # Decoding a form of 16 MiB takes a second.
    return await run_in_threadpool(parse_form, body) if len(body) > 65_536 else parse_form(body)


def parse_form(body: bytes) -> dict[str, str]:
    """`a=1&b=2` as a dictionary; InvalidRequest says what is wrong with it."""
    text = decode(body)
    if text.count("&") >= MAX_FIELDS:
        raise malformed(f"The form has more than {MAX_FIELDS} fields.")
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict")
    except UnicodeDecodeError:
        raise malformed("A field of the form is not UTF-8.") from None
    # Browsers send each line end of a text area as CR LF.
    return {name: value.replace("\r\n", "\n") for name, value in pairs}
