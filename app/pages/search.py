"""`/`: the search box, what it found, and what there is to find."""

from __future__ import annotations

from collections import Counter
from functools import cache
from time import perf_counter
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse

from app.http.metrics import metrics_of
from app.http.urls import link
from app.lookup.service import match_text, search, tier
from app.pages.forms import read_pasted
from app.pages.presenting import NOT_STORED, page, record_path, stored
from catalog import current
from catalog.current import library
from catalog.families import FAMILIES
from catalog.match import kind_of, redact
from catalog.store import Filters
from kernels.registry import operations

router = APIRouter()

NEAR = 0.1
"""Score from which a record is shown as similar to a text without a match; chance reaches half of it."""

MOST_ECHOED = 2000
"""Characters of a pasted text that come back in the box; a longer one stays with its owner."""


@router.get("/")
async def home(request: Request, q: str = "") -> Response:
    if library().get(q.strip()):
        return RedirectResponse(link(request, record_path(q.strip())), 302, NOT_STORED)
    if not q.strip():
        return stored(request, "home.html", twin="/api/repos", text="", answer=None, **contents())
    query = urlencode({"q": q}, errors="replace")
    worded = library().select(Filters(q=q)).total
    return await _answer(request, q, f"/api/search?{query}", worded=worded, query=query)


@router.post("/")
async def pasted(request: Request) -> Response:
    """A whole traceback or log: it is in no address, no log and no cache."""
    form = await read_pasted(request)
    return await _answer(request, form.get("text", ""), "/api/match")


async def _answer(request: Request, text: str, twin: str, *, worded: int = 0, query: str = "") -> Response:
    began = perf_counter()
    answer = await run_in_threadpool(found_in, text) if text.strip() else None
    if answer:
        metrics_of(request).looked_up("page", tier(answer), perf_counter() - began)
    shown = redact(text) if len(text) <= MOST_ECHOED else ""
    return page(
        request,
        "home.html",
        twin=twin,
        text=shown,
        answer=answer,
        worded=worded,
        words=query,
        **contents(),
    )


def found_in(text: str) -> dict[str, Any]:
    """The answer of POST /api/match, each match with its `kind`; with `near`, the most similar records,
    where nothing in the text is like an error that is known.
    """
    answer = match_text(text)
    matches = [{**found, "kind": kind_of(found["score"])} for found in answer["matches"]]
    near = [] if matches else [found for found in search(text)["matches"] if found["score"] >= NEAR]
    return {**answer, "matches": matches, "near": near}


@cache
def contents() -> dict[str, Any]:
    """What the catalog holds, counted."""
    known = library()
    counts = Counter(found.record.background_tag for found in known.catalog.records)
    return {
        "repositories": known.repositories,
        "families": [(name, family, counts[name]) for name, family in FAMILIES.items() if counts[name]],
        "operations": list(operations().values()),
    }


current.listen(contents.cache_clear)
