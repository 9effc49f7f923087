"""Lines of the log as JSON, and the short way for one that every request writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from app.http.text import json_bytes

Direct = Callable[[str, str, str, Mapping[str, Any]], None]

direct: Direct | None = None
"""Writes (logger, message, request id, fields) at level info; set where the log is our own and JSON."""


def line(
    moment: float, level: str, logger: str, message: str, request: str, fields: Mapping[str, Any]
) -> str:
    """One event; `moment` in seconds since 1970, `request` "-" outside of one."""
    known = {} if request == "-" else {"requestId": request}
    written = {
        "time": datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds"),
        "level": level,
        "logger": logger,
        "message": message,
        **known,
        **fields,
    }
    return json_bytes(written).decode()
