"""Queries for records, and their answers as OpenAPI shows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from catalog.record import ErrorType, Severity, schema
from catalog.store import Filters

T = TypeVar("T")

PAGE = 50
MAX_PAGE = 200

# A form sends its empty fields too.
Optional = Annotated[T | None, BeforeValidator(lambda value: None if value == "" else value)]
Word = Optional[Annotated[str, Field(max_length=500)]]


class RecordQuery(BaseModel):
    """Criteria of a list of records, all of which hold, and which page of it."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    repo: Word = Field(None, description="public repository, owner/name")
    operation: Word = Field(None, description="operation that makes one of its checks")
    error_class: Word = Field(None, description="exception class, or the last part of its dotted name")
    error_type: Optional[ErrorType] = Field(None, description="how the error shows itself")
    severity: Optional[Severity] = Field(None, description="what happens when it is ignored")
    tag: Word = Field(None, description="one of its tags")
    family: Word = Field(None, description="its backgroundTag")
    package: Word = Field(None, description="name of the installed package")
    q: Word = Field(None, description="words that all occur in it")
    regex: Optional[str] = Field(None, description="RE2 expression searched in errorMessage")
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE, description="most records to answer")] = PAGE
    cursor: Word = Field(None, description="where to go on; taken from the Link header")

    @property
    def filters(self) -> Filters:
        """The criteria without the page."""
        return Filters(**self.model_dump(exclude={"limit", "cursor"}))

    def parameters(self, **changes: Any) -> dict[str, Any]:
        """As query parameters, changed."""
        return {**self.model_dump(by_alias=True, exclude_none=True), **changes}


_VERSION: Mapping[str, Any] = {"type": "string", "description": "changes with the records' content"}

SUMMARY: Mapping[str, Any] = {
    "title": "Summary",
    "type": "object",
    "properties": {
        name: schema()["properties"][name]
        for name in (
            "id",
            "repo",
            "slug",
            "errorCode",
            "errorMessage",
            "errorType",
            "errorClass",
            "severity",
            "filePath",
            "lineNumber",
            "tags",
            "backgroundTag",
        )
    }
    | {"operations": {"type": "array", "items": {"type": "string"}}},
}

ONE: Mapping[str, Any] = {
    "title": "OneRecord",
    "type": "object",
    "required": ["record", "datasetVersion"],
    "properties": {
        "record": {
            **{
                key: value
                for key, value in schema().items()
                if key not in ("$schema", "additionalProperties")
            },
            "properties": {
                **schema()["properties"],
                "x": {"type": "object", "description": "with view=full: sites, checks, fix, reproduction, …"},
            },
            "additionalProperties": False,
        },
        "datasetVersion": _VERSION,
    },
}

LIST: Mapping[str, Any] = {
    "title": "Records",
    "type": "object",
    "required": ["errors", "total", "datasetVersion"],
    "properties": {
        "errors": {"type": "array", "items": SUMMARY},
        "total": {"type": "integer", "description": "records that fulfil the criteria, on all pages"},
        "datasetVersion": _VERSION,
    },
}


_CHANGE: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        **{
            name: schema()["properties"][name]
            for name in ("id", "errorMessage", "errorClass", "filePath", "lineNumber")
        },
        "function": {"type": ["string", "null"]},
        "before": {"type": ["object", "null"], "description": "what it was in the older version"},
    },
}

DIFFERENCE: Mapping[str, Any] = {
    "title": "Difference",
    "type": "object",
    "required": ["package", "from", "to", "equal", "appeared", "changed", "moved", "vanished"],
    "properties": {
        **{name: {"type": "string"} for name in ("package", "repo", "from", "to")},
        "equal": {"type": "integer", "description": "records that both versions have"},
        **{
            name: {"type": "array", "items": _CHANGE} for name in ("appeared", "changed", "moved", "vanished")
        },
        "datasetVersion": _VERSION,
    },
}

MANIFEST: Mapping[str, Any] = {
    "title": "Manifest",
    "type": "object",
    "required": ["files", "datasetVersion"],
    "properties": {
        "files": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    **{
                        name: {"type": "string"}
                        for name in ("path", "sha256", "package", "version", "repo", "made")
                    },
                    **{name: {"type": "integer"} for name in ("bytes", "records")},
                },
            },
        },
        "datasetVersion": _VERSION,
    },
}


def answer(shape: Mapping[str, Any], media_type: str = "application/json") -> dict[int | str, dict[str, Any]]:
    """The `responses=` of a route whose answers have this JSON Schema."""
    return {200: {"description": "Found", "content": {media_type: {"schema": dict(shape)}}}}
