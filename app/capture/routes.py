"""GET /capture.py."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from app.capture.service import client
from app.http.caching import json_response
from app.http.urls import absolute

router = APIRouter(tags=["operators"])


class PythonSource(Response):
    """The form in which the file is documented and served."""

    media_type = "text/x-python"


@router.get(
    "/capture.py",
    summary="A Python file that writes down the call that failed in a running program",
    response_class=PythonSource,
)
async def capture(request: Request) -> Response:
    source = client(absolute(request, "/").rstrip("/"))
    return json_response(request, source.encode(), media_type="text/x-python; charset=utf-8")
