"""The response class of routes that return a plain value."""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse

from app.http.text import json_bytes


class SafeJSONResponse(JSONResponse):
    """A plain value as `json_bytes` writes it."""

    def render(self, content: Any) -> bytes:
        return json_bytes(content)
