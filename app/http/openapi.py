"""The OpenAPI 3.1 document: the framework's, with our problems and the schemas that routes bring."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response

from app.errors import PROBLEM_JSON, SCHEMA
from app.http.caching import Representation
from app.http.text import json_bytes

router = APIRouter()

# For every route: whatever it does not answer itself is a problem.
ANY_PROBLEM: dict[int | str, dict[str, Any]] = {
    "default": {
        "description": "Not a success: what went wrong, as RFC 9457 problem details.",
        "content": {PROBLEM_JSON: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
}


def install(app: FastAPI) -> None:
    """Make `app.openapi()` the complete document. Call it before the first request."""
    build = app.openapi

    def complete() -> dict[str, Any]:
        if app.openapi_schema is None:
            _finish(build())
        return build()

    app.openapi = complete  # type: ignore[method-assign]


@router.get("/openapi.json", include_in_schema=False)
async def openapi(request: Request) -> Response:
    state = request.app.state
    if not hasattr(state, "openapi"):
        state.openapi = Representation(json_bytes(request.app.openapi()))
    stored: Representation = state.openapi
    return stored.respond(request)


def _finish(document: dict[str, Any]) -> None:
    """Move `$defs` that routes brought to where references within an OpenAPI document can reach them."""
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas["Problem"] = SCHEMA
    for owner in list(_objects(document["paths"], "$defs")):
        definitions = owner.pop("$defs")
        _redirect([owner, definitions], {f"#/$defs/{name}": name for name in definitions})
        names = {name: _free_name(name, schema, schemas) for name, schema in definitions.items()}
        _redirect([owner, definitions], {_COMPONENT + name: free for name, free in names.items()})
        schemas.update({names[name]: schema for name, schema in definitions.items()})


_COMPONENT = "#/components/schemas/"


def _redirect(value: Any, names: dict[str, str]) -> None:
    for holder in _objects(value, "$ref"):
        if holder["$ref"] in names:
            holder["$ref"] = _COMPONENT + names[holder["$ref"]]


def _free_name(name: str, schema: Any, taken: dict[str, Any]) -> str:
    """`name`, or the first of `name_2`, `name_3`, … that no other schema has."""
    candidates = (name, *(f"{name}_{number}" for number in range(2, len(taken) + 3)))
    return next(candidate for candidate in candidates if taken.get(candidate, schema) == schema)


def _objects(value: Any, key: str) -> Iterator[dict[str, Any]]:
    """Each object within `value` that has `key`."""
    if isinstance(value, dict):
        if key in value:
            yield value
        for item in value.values():
            yield from _objects(item, key)
    elif isinstance(value, list):
        for item in value:
            yield from _objects(item, key)
