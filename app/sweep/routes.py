"""POST /api/diagnose/sweep."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool

from app.errors import ContentTooLarge, InvalidRequest, NotFound, UnsupportedMediaType, described
from app.http.bodies import read_bytes, request_body
from app.sweep.schemas import SweepModel, SweepRequest
from app.sweep.service import sweep

router = APIRouter(tags=["diagnosis"])


@router.post(
    "/api/diagnose/sweep",
    summary="Where a call passes while one or two of its arguments vary, and which check rules the rest out",
    responses={
        200: {"model": SweepModel},
        **described(NotFound, ContentTooLarge, UnsupportedMediaType, InvalidRequest),
    },
    openapi_extra=request_body(json=SweepRequest.model_json_schema()),
)
async def boundary_map(request: Request) -> Response:
    body = await read_bytes(request, "application/json")
    return Response(
        await run_in_threadpool(_answer, body),
        media_type="application/json",
        headers={"Cache-Control": "no-store"},
    )


def _answer(body: bytes) -> str:
    return sweep(body).model_dump_json(by_alias=True)
