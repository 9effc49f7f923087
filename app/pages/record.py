"""`/errors/{id}/{slug}`: a record, in the order in which the public dataset shows its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.responses import RedirectResponse

from app.errors import NotFound
from app.http.caching import PUBLIC
from app.http.urls import link
from app.lookup.service import path_of
from app.pages.presenting import stored
from catalog.additions import request as spec_of
from catalog.current import library
from catalog.faults import Case, Demonstration
from catalog.library import Known
from catalog.load import Curated

router = APIRouter()

PROVENANCE = {
    "authored": "written for this catalog",
    "derived": "computed from the checks",
    "extracted": "read off the package's source",
}


@dataclass(frozen=True, slots=True)
class Shown:
    """One of the record's checks with its code and the call that breaks it."""

    case: Case
    code: str
    demonstration: Demonstration | None

    @property
    def spec(self) -> dict[str, Any] | None:
        """The failing call as a diagnosis request."""
        if self.demonstration is None:
            return None
        return spec_of(self.case.operation, self.demonstration.call)


@router.get("/errors/{identifier}")
async def without_slug(request: Request, identifier: str) -> Response:
    return _moved(request, _found(identifier))


@router.get("/errors/{identifier}/{slug}")
async def record(request: Request, identifier: str, slug: str) -> Response:
    found = _found(identifier)
    if slug != found.record.slug:
        return _moved(request, found)
    return stored(
        request,
        "record.html",
        twin=f"/api/errors/{identifier}",
        path=path_of(found),
        found=found,
        record=found.record,
        fault=found.fault,
        textless=found.fault.textless if found.fault else found.x["match"]["regex"] is None,
        captures=found.x["match"]["captures"],
        sites=found.x["sites"],
        checks=shown_checks(found) if isinstance(found, Curated) else [],
        before=found.x.get("before", []),
        provenance=provenance(found),
        notes=library().notes(found),
    )


def shown_checks(found: Curated) -> list[Shown]:
    """The record's checks, in the operations' order."""
    demonstrations = {shown.case: shown for shown in found.fault.demonstrations}
    return [
        Shown(case, described["source"], demonstrations.get(case))
        for case, described in zip(found.fault.cases, found.x["checks"], strict=True)
    ]


def provenance(found: Known) -> list[tuple[str, str, list[str]]]:
    """How the record's fields came about: the name of it, what it means, the fields."""
    return [
        (name, meaning, [field for field, origin in found.x["provenance"].items() if origin == name])
        for name, meaning in PROVENANCE.items()
    ]


def _found(identifier: str) -> Known:
    found = library().get(identifier)
    if found is None:
        raise NotFound("No record has this id.")
    return found


def _moved(request: Request, found: Known) -> Response:
    """To the address that the record has: its slug is part of it."""
    address = link(request, path_of(found))
    return RedirectResponse(address, 301, {"Cache-Control": PUBLIC})
