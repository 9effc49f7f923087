"""Representations: bytes with a strong ETag, for conditional and compressed answers (RFC 9110)."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

from starlette.requests import Request
from starlette.responses import Response

from app.http.negotiation import weights

JSON = "application/json"
PUBLIC = "public, max-age=60"

# Below this a gzip header and one more packet-sized read cost more than the bytes saved.
WORTHWHILE = 512


@dataclass(frozen=True)
class Representation:
    """Immutable bytes to serve; build it once where the bytes do not change, so that they are digested and
    compressed once.
    """

    body: bytes
    media_type: str = JSON

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.body).hexdigest()[:32]

    @cached_property
    def etag(self) -> str:
        return f'"{self.digest}"'

    @cached_property
    def gzip_etag(self) -> str:
        return f'"{self.digest}-gzip"'

    @cached_property
    def zipped(self) -> bytes | None:
        """The body compressed, or None where that does not pay. No time stamp: same body, same bytes."""
        if len(self.body) < WORTHWHILE:
            return None
        zipped = gzip.compress(self.body, compresslevel=6, mtime=0)
        return zipped if len(zipped) < len(self.body) else None

    def respond(
        self,
        request: Request,
        *,
        cache_control: str = PUBLIC,
        headers: Mapping[str, str] | None = None,
        vary: str = "",
    ) -> Response:
        """200 or 304. `vary` names further request headers that chose this representation, such as Accept."""
        known = request.headers.get("if-none-match")
        compressed = len(self.body) >= WORTHWHILE and _takes_gzip(request.headers.get("accept-encoding", ""))
        match = None
        if known is not None:
            # A client that holds the other coding of the same bytes need not fetch them again.
            order = (self.gzip_etag, self.etag) if compressed else (self.etag, self.gzip_etag)
            match = next((tag for tag in order if matches(known, tag)), None)
        if headers:
            return self._response(compressed, match, cache_control, vary, headers)
        key = (compressed, match, cache_control, vary)
        if key not in self._ready:
            self._ready[key] = self._response(*key, {})
        return self._ready[key]

    @cached_property
    def _ready(self) -> dict[tuple[bool, str | None, str, str], Response]:
        """Responses made before: nothing of a request is in one, and sending it leaves it as it is."""
        return {}

    def _response(
        self,
        compressed: bool,
        match: str | None,
        cache_control: str,
        vary: str,
        headers: Mapping[str, str],
    ) -> Response:
        fields = {
            "Cache-Control": cache_control,
            "Vary": f"Accept-Encoding, {vary}" if vary else "Accept-Encoding",
            **headers,
        }
        if match is not None:
            return Response(status_code=304, headers={**fields, "ETag": match})
        if compressed and self.zipped is not None:
            fields |= {"ETag": self.gzip_etag, "Content-Encoding": "gzip"}
            return Response(self.zipped, media_type=self.media_type, headers=fields)
        return Response(self.body, media_type=self.media_type, headers={**fields, "ETag": self.etag})


def matches(if_none_match: str, etag: str) -> bool:
    """Weak comparison of a header's list with one strong tag; `*` matches any."""
    if if_none_match == etag:
        return True
    listed = (item.strip().removeprefix("W/") for item in if_none_match.split(","))
    return any(item in (etag, "*") for item in listed)


def json_response(
    request: Request,
    body: bytes,
    *,
    cache_control: str = PUBLIC,
    headers: Mapping[str, str] | None = None,
    media_type: str = JSON,
) -> Response:
    """A GET answer made for this request: ETag, 304 and gzip as for a stored one."""
    return Representation(body, media_type).respond(request, cache_control=cache_control, headers=headers)


@lru_cache(maxsize=512)
def _takes_gzip(header: str) -> bool:
    accepted = weights(header)
    gzip_weight = accepted.get("gzip", accepted.get("x-gzip", accepted.get("*", 0.0)))
    return gzip_weight > 0 and gzip_weight >= accepted.get("identity", 0.0)
