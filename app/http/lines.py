"""Lines of the log as JSON, and the short way for the one that every request writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from time import time
from typing import Any

from app.http.text import json_bytes

direct: Callable[[str], None] | None = None
"""Writes a line without a record of the logging module; set where the log is our own and JSON."""


def line(
    moment: float, level: str, logger: str, message: str, request: str, fields: Mapping[str, Any]
) -> str:
    """One event; `moment` in seconds since 1970, `request` "-" outside of one."""
    known = {} if request == "-" else {"requestId": request}
    written = {
        "time": _stamp(moment),
        "level": level,
        "logger": logger,
        "message": message,
        **known,
        **fields,
    }
    return json_bytes(written).decode()


def access_line(
    logger: str, message: str, request: str, fields: tuple[str, str, str, int, float], key: str
) -> str:
    """The same for a request, put together by hand: none of its parts has anything to escape.

    fields   method, quoted path, route template, status, milliseconds
    """
    method, path, route, status, milliseconds = fields
    caller = f',"key":"{key}"' if key else ""
    return (
        f'{{"time":"{_stamp(time())}","level":"info","logger":"{logger}","message":"{message}",'
        f'"requestId":"{request}","method":"{method}","path":"{path}","route":"{route}",'
        f'"status":{status},"milliseconds":{milliseconds:.3f}{caller}}}'
    )


def _stamp(moment: float) -> str:
    """ISO 8601 in UTC, to the millisecond."""
    second = int(moment)
    return f"{_second(second)}.{int((moment - second) * 1000):03d}+00:00"


@lru_cache(maxsize=4)
def _second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
