"""The log: one line an event, as JSON for machines or as text for a terminal.

Neither form holds what a request brought: of an exception in a request its class and the lines of code that
it came through are logged, not its message, which may quote what was pasted.
"""

from __future__ import annotations

import logging
import sys
import traceback
from contextlib import nullcontext
from functools import partial
from types import TracebackType
from typing import Literal, TextIO, TypeAlias

from app.http import lines
from app.http.observe import request_id

ExcInfo: TypeAlias = (
    "tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]"
)


class RequestIdFilter(logging.Filter):
    """Gives every record the id of the request that it was logged for, `-` outside of one."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.request_id = request_id.get()
        return True


class TextFormatter(logging.Formatter):
    """For people."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s [%(request_id)s] %(message)s")

    def formatException(self, ei: ExcInfo) -> str:
        return "\n".join(discreet(ei))


class JsonFormatter(logging.Formatter):
    """An object a line: time, level, logger, message, requestId, and the fields of what is logged."""

    def format(self, record: logging.LogRecord) -> str:
        fields = dict(getattr(record, "fields", {}))
        if record.exc_info:
            fields["exception"] = discreet(record.exc_info)
        return lines.line(
            record.created,
            record.levelname.lower(),
            record.name,
            record.getMessage(),
            getattr(record, "request_id", "-"),
            fields,
        )


def discreet(error: ExcInfo) -> list[str]:
    """An exception's class and its lines of code; outside of a request its message too."""
    kind, value, trace = error
    if kind is None:
        return []
    if request_id.get() == "-":
        return "".join(traceback.format_exception(kind, value, trace)).splitlines()
    frames = traceback.extract_tb(trace)
    places = [f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in frames]
    return [*places, f"{kind.__module__}.{kind.__qualname__}"]


def configure_logging(form: Literal["auto", "json", "text"] = "auto") -> None:
    """Our loggers and uvicorn's to standard error, unless the host has configured logging itself.

    uvicorn's access log is silenced, since it prints query strings and ours replaces it.
    """
    logging.getLogger("uvicorn.access").setLevel(logging.CRITICAL)
    ours = logging.getLogger("faultbook")
    if ours.handlers or logging.getLogger().handlers:
        return
    text = sys.stderr.isatty() if form == "auto" else form == "text"
    handler = logging.StreamHandler()
    handler.addFilter(RequestIdFilter())
    handler.setFormatter(TextFormatter() if text else JsonFormatter())
    if not text:
        lines.direct = partial(_write, handler)
    for logger in (ours, logging.getLogger("uvicorn.error")):
        logger.addHandler(handler)
        logger.propagate = False
    ours.setLevel(logging.INFO)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)


def _write(handler: logging.StreamHandler[TextIO], line: str) -> None:
    """As the handler would, with its lock, but without a record."""
    with handler.lock or nullcontext():
        handler.stream.write(line + "\n")
        handler.stream.flush()
