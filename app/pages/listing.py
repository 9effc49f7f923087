"""`/errors`: the records of a repository, a family, an operation or a tag, or with words in them."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response

from app.errors import Fault, InvalidRequest
from app.pages.presenting import stored
from app.records.schemas import PAGE
from catalog.current import library
from catalog.families import FAMILIES
from catalog.store import Filters

router = APIRouter()

Word = Annotated[str, Query(max_length=500)]


@router.get("/errors")
async def listing(
    request: Request,
    repo: Word = "",
    family: Word = "",
    operation: Word = "",
    tag: Word = "",
    q: Word = "",
    cursor: Word = "",
) -> Response:
    known = library()
    asked = {"repo": repo, "family": family, "operation": operation, "tag": tag, "q": q}
    criteria = {name: value for name, value in asked.items() if value}
    found = known.select(Filters(**criteria))
    try:
        records, after = known.page(found, cursor or None, PAGE)
    except KeyError:
        detail = "not a cursor of this service"
        raise InvalidRequest(f"cursor: {detail}.", faults=[Fault("/cursor", detail, "query")]) from None
    here = urlencode({**criteria, "cursor": cursor} if cursor else criteria, errors="replace")
    following = after and urlencode({**criteria, "cursor": after}, errors="replace")
    return stored(
        request,
        "errors.html",
        twin=f"/api/errors?{here}" if here else "/api/errors",
        criteria=criteria,
        family=FAMILIES.get(family),
        total=found.total,
        records=[item.record for item in records],
        following=following,
    )
