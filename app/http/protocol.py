"""HTTP as uvicorn reads it, with a limit on what it keeps before a request's head is whole."""

from __future__ import annotations

from http import HTTPStatus

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.errors import PROBLEM_JSON
from app.http.text import json_bytes

LONGEST_LINE = 64 * 1024
"""Bytes of a request line, beside the limit on header fields: a search's query stands in it."""


LINGER = 1.0
"""Seconds for which what a refused client still sends is read and dropped."""


class BoundedHttp(HttpToolsProtocol):
    """The parser itself keeps a field of any length; here a head that is too long ends its connection.

    Made by `bounded`. What cannot be parsed gets a problem document too, though no request exists for it.
    """

    most_bytes = 2 * LONGEST_LINE
    _in_head = True
    _head_bytes = 0
    _refused = False

    def data_received(self, data: bytes) -> None:
        """Parse, and count what a head that is not whole yet has taken."""
        if self._refused:
            return
        before = self._in_head
        super().data_received(data)
        # Of data in which a head only begins, the part before it is the former request's.
        if before and self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > self.most_bytes and not self._refused:
                self._refuse(431, f"The request's head takes more than {self.most_bytes:,} bytes.")

    def on_message_begin(self) -> None:
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

    def _refuse(self, status: int, detail: str) -> None:
        phrase = HTTPStatus(status).phrase
        body = json_bytes({"type": "about:blank", "title": phrase, "status": status, "detail": detail})
        head = (
            f"HTTP/1.1 {status} {phrase}\r\ncontent-type: {PROBLEM_JSON}\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
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
