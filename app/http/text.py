"""Values to bytes that any JSON reader accepts, whatever text or number they hold."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_json

# A slash at the beginning of a word, and what follows it; never within an address.
_PLACE = re.compile(r"(?<![\w:/.~-])~?/(?:[^\s/'\"<>:;,()]{1,255}/){1,64}([^\s/'\"<>:;,()]{0,255})")


def scrub(text: str) -> str:
    """`text` with each lone surrogate, which has no UTF-8 form, replaced by U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def without_places(text: str) -> str:
    """`text` with each absolute path cut to its last part: where things lie on a host is not told."""
    return _PLACE.sub(r"\1", text)


def json_bytes(value: Any) -> bytes:
    """Compact UTF-8 JSON of plain values, dataclasses and models.

    NaN and infinities become null, lone surrogates U+FFFD.
    """
    try:
        return to_json(value, inf_nan_mode="null")
    except PydanticSerializationError:
        # Text that is not Unicode: rare, so only then is the value walked in Python.
        return to_json(_scrubbed(value), inf_nan_mode="null")


def _scrubbed(value: Any) -> Any:
    match value:
        case str():
            return scrub(value)
        case Mapping():
            return {_scrubbed(key): _scrubbed(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_scrubbed(item) for item in value]
        case BaseModel():
            return _scrubbed(dict(value))
        case _ if is_dataclass(value) and not isinstance(value, type):
            return {field.name: _scrubbed(getattr(value, field.name)) for field in fields(value)}
        case _:
            return value
