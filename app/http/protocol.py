"""HTTP as uvicorn reads it, with limits on what it keeps before a request's head is whole, and on how long it
waits for a client.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.errors import PROBLEM_JSON
from app.http.headers import DATA_POLICY
from app.http.text import json_bytes

LONGEST_LINE = 64 * 1024
"""Bytes of a request line, beside the limit on header fields: a search's query stands in it."""


LINGER = 1.0
"""Seconds for which what a refused client still sends is read and dropped."""


HEAD_SECONDS = 20.0
"""In which a request's head has to arrive, from the connection's or its own first byte on."""

BODY_SECONDS = 600.0
"""In which its body has to."""

PAUSE = 30.0
"""Seconds without a byte in either direction while one is waited for."""

LOOK = 5.0
"""Seconds between looks at a connection's clock."""


class BoundedHttp(HttpToolsProtocol):
    """The parser itself keeps a field of any length; here a head that is too long ends its connection. So
    does a client that takes its time to send a request or to read its answer: each holds a file descriptor,
    of which a process has so many.

    Made by `bounded`. What cannot be parsed gets a problem document too, though no request exists for it.
    """

    most_bytes = 2 * LONGEST_LINE
    _in_head = True
    _in_body = False
    _head_bytes = 0
    _refused = False
    _unread = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since = self._moved = self._read = self.loop.time()
        self._look = self.loop.call_later(LOOK, self._check)

    def connection_lost(self, exc: Exception | None) -> None:
        self._look.cancel()
        super().connection_lost(exc)

    def _check(self) -> None:
        """End the connection of a client that is late."""
        now = self.loop.time()
        unread = self.transport.get_write_buffer_size()
        if not unread or unread != self._unread:
            self._unread, self._read = unread, now
        if now - self._read > PAUSE:
            self.transport.abort()
            return
        self._look = self.loop.call_later(LOOK, self._check)
        if self.flow.read_paused:
            self._since = self._moved = now  # it is us who do not read
        elif self._in_head and now - self._since > HEAD_SECONDS:
            self._end_late(f"The request's head was not whole after {HEAD_SECONDS:g} s.")
        elif self._in_body and (now - self._moved > PAUSE or now - self._since > BODY_SECONDS):
            self._end_late("The request's body did not arrive in time.")

    def _end_late(self, detail: str) -> None:
        if self._refused:
            return
        answering = self.cycle is not None and not self.cycle.response_complete
        if self._in_head and answering:
            return  # the former request's answer is still under way
        if self._in_head and not self._head_bytes:
            self.transport.close()  # nothing was asked
        elif self._in_body and (self.cycle.response_started or not answering):
            self.transport.close()  # it was refused before its body had come
        else:
            self._refuse(408, detail)

    def data_received(self, data: bytes) -> None:
        """Parse, and count what a head that is not whole yet has taken."""
        if self._refused:
            return
        self._moved = self.loop.time()
        before = self._in_head
        super().data_received(data)
        # Of data in which a head only begins, the part before it is the former request's.
        if before and self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > self.most_bytes and not self._refused:
                self._refuse(431, f"The request's head takes more than {self.most_bytes:,} bytes.")

    def on_message_begin(self) -> None:
        self._in_head, self._in_body, self._head_bytes = True, False, 0
        self._since = self.loop.time()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head, self._in_body = False, True
        self._since = self.loop.time()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_body = False
        super().on_message_complete()

    def _unsupported_upgrade_warning(self) -> None:
        """No protocol but HTTP is spoken, which whoever asks for another is not told in the log."""

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

    def _refuse(self, status: int, detail: str) -> None:
        phrase = HTTPStatus(status).phrase
        body = json_bytes({"type": "about:blank", "title": phrase, "status": status, "detail": detail})
        head = (
            f"HTTP/1.1 {status} {phrase}\r\ncontent-type: {PROBLEM_JSON}\r\n"
            f"content-length: {len(body)}\r\ncontent-security-policy: {DATA_POLICY}\r\n"
            f"x-content-type-options: nosniff\r\ncache-control: no-store\r\nconnection: close\r\n\r\n"
        )
        self._refused = True
        self.transport.write(head.encode("ascii") + body)
        # Closed at once, with data unread, the connection would be reset and the answer lost.
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(LINGER, self.transport.close)


def bounded(header_bytes: int) -> type[BoundedHttp]:
    """The protocol for `uvicorn.run(http=…)`, for a limit on a request's header fields."""
    return type("BoundedHttp", (BoundedHttp,), {"most_bytes": header_bytes + LONGEST_LINE})
