"""Schema version 2: the 31 keys of a record, declared once; JSON, its schema and strict reading follow."""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Final, Literal

SCHEMA_VERSION: Final = 2

ErrorType = Literal["exception", "error_code", "console", "http", "validation", "panic"]
Severity = Literal["critical", "error", "warning", "info"]
Handling = Literal["try-catch", "type-guard", "validation", "retry", "fallback"]

ID: Final = "^[0-9a-f]{16}$"
SHA: Final = "^[0-9a-f]{40}$"
INSTANT: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?Z$"


def _key(description: str, **keywords: Any) -> dict[str, Any]:
    """What a record's key holds, and JSON Schema keywords beyond its type."""
    return {"description": description, **keywords}


class RecordError(ValueError):
    """A value that is no record; `faults` lists each as (JSON pointer, what is wrong)."""

    def __init__(self, faults: tuple[tuple[str, str], ...]) -> None:
        super().__init__("; ".join(f"{pointer or 'the record'} {text}" for pointer, text in faults))
        self.faults = faults


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One error a package raises: its identity, where it stands, and what to do about it."""

    id: Annotated[
        str, _key("first 16 hex digits of SHA-256 over repo, code or message, and path", pattern=ID)
    ]
    repo: Annotated[str, _key("public repository, owner/name", minLength=1)]
    slug: Annotated[str, _key("readable name, unique within the repository", minLength=1)]
    error_code: Annotated[str | None, _key("code that the package gives the error, where it has one")]
    error_message: Annotated[str, _key("upstream's text with its holes, to the letter")]
    message_pattern: Annotated[str, _key("regular expression: the literals, each hole as (.+?), unanchored")]
    error_type: Annotated[ErrorType, _key("how the error shows itself")]
    error_class: Annotated[str, _key("exception class, dotted unless built in", minLength=1)]
    http_status: Annotated[
        int | None, _key("status of the response that carries it", minimum=100, maximum=599)
    ]
    severity: Annotated[Severity, _key("what happens when it is ignored")]
    file_path: Annotated[str, _key("file that raises it, within the repository", minLength=1)]
    line_number: Annotated[int | None, _key("line of the raise at analyzedSha", minimum=1)]
    source_code: Annotated[
        str | None, _key("upstream's lines around the raise, from the user's own installation")
    ]
    source_code_start: Annotated[int | None, _key("first line of sourceCode", minimum=1)]
    source_code_end: Annotated[int | None, _key("last line of sourceCode", minimum=1)]
    github_url: Annotated[str | None, _key("those lines at analyzedSha on the public repository")]
    documentation: Annotated[str, _key("what the error means")]
    trigger_scenarios: Annotated[str, _key("which calls raise it")]
    common_situations: Annotated[str, _key("how one gets there")]
    solutions: Annotated[tuple[str, ...], _key("what to do, the first choice first")]
    example_fix: Annotated[str | None, _key("a failing and a passing call")]
    handling_strategy: Annotated[Handling | None, _key("how calling code best deals with it")]
    validation_code: Annotated[str | None, _key("code that refuses the faulty arguments before the call")]
    type_guard: Annotated[str | None, _key("predicate that holds for arguments that pass")]
    try_catch_pattern: Annotated[str | None, _key("code that recovers after the error")]
    prevention_tips: Annotated[tuple[str, ...], _key("how not to get there again")]
    tags: Annotated[tuple[str, ...], _key("words to filter by")]
    background_tag: Annotated[str | None, _key("family of the error, from a closed list")]
    analyzed_sha: Annotated[str, _key("commit that path, line and link refer to", pattern=SHA)]
    analyzed_at: Annotated[str, _key("when the prose was written, ISO 8601 UTC", pattern=INSTANT)]
    schema_version: Annotated[Literal[2], _key("version of this schema")]

    def to_json(self) -> dict[str, Any]:
        """The record as JSON carries it, keys in the schema's order."""
        return {
            key: list(value) if isinstance(value := getattr(self, name), tuple) else value
            for name, key in _names().items()
        }

    @classmethod
    def from_json(cls, value: Any) -> Record:
        """Read a record strictly; RecordError lists unknown and missing keys and wrong types."""
        faults = tuple(_faults(value, schema(), ""))
        if faults:
            raise RecordError(faults)
        fields: dict[str, Any] = {
            name: tuple(item) if isinstance(item := value[key], list) else item
            for name, key in _names().items()
        }
        return cls(**fields)


@cache
def schema() -> Mapping[str, Any]:
    """JSON Schema (2020-12) of a record."""
    properties = {}
    for name, hint in typing.get_type_hints(Record, include_extras=True).items():
        kind, keywords = typing.get_args(hint)
        properties[_camel(name)] = {**_typed(kind), **keywords}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Record",
        "description": (Record.__doc__ or "").strip(),
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


@cache
def _names() -> dict[str, str]:
    """Field → JSON key."""
    return {field.name: _camel(field.name) for field in dataclasses.fields(Record)}


def _camel(name: str) -> str:
    return re.sub(r"_([a-z])", lambda found: found[1].upper(), name)


_JSON_TYPES: Final = {str: "string", int: "integer", types.NoneType: "null"}


def _typed(hint: Any) -> dict[str, Any]:
    """The schema of a field's type."""
    if hint in _JSON_TYPES:
        return {"type": _JSON_TYPES[hint]}
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return {"const": options[0]} if len(options) == 1 else {"enum": list(options)}
    if origin is tuple:
        return {"type": "array", "items": _typed(options[0])}
    parts = [_typed(option) for option in options]
    if any("enum" in part for part in parts):
        return {"enum": [*(choice for part in parts for choice in part.get("enum", ())), None]}
    return {"type": [part["type"] for part in parts]}


_PYTHON_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "null": (types.NoneType,),
    "array": (list, tuple),
    "object": (dict,),
}


def _faults(value: Any, wanted: Mapping[str, Any], pointer: str) -> Iterator[tuple[str, str]]:
    """What breaks the schema, for the keywords that `schema` uses."""
    if "const" in wanted and (value != wanted["const"] or isinstance(value, bool)):
        yield pointer, f"must be {wanted['const']}"
    if "enum" in wanted and value not in wanted["enum"]:
        yield pointer, f"must be one of {', '.join(str(choice) for choice in wanted['enum'])}"
    names = wanted.get("type", ())
    names = (names,) if isinstance(names, str) else tuple(names)
    allowed = tuple(kind for name in names for kind in _PYTHON_TYPES[name])
    if allowed and (not isinstance(value, allowed) or isinstance(value, bool)):
        yield pointer, f"must be {' or '.join(names)}"
    elif isinstance(value, str):
        if len(value) < wanted.get("minLength", 0):
            yield pointer, "must not be empty"
        if "pattern" in wanted and not re.search(wanted["pattern"], value):
            yield pointer, f"must match {wanted['pattern']}"
    elif isinstance(value, int):
        if not wanted.get("minimum", value) <= value <= wanted.get("maximum", value):
            yield pointer, "is out of range"
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _faults(item, wanted["items"], f"{pointer}/{index}")
    elif isinstance(value, dict):
        properties = wanted["properties"]
        for key in wanted["required"]:
            if key not in value:
                yield f"{pointer}/{key}", "is missing"
        for key, item in value.items():
            if key in properties:
                yield from _faults(item, properties[key], f"{pointer}/{key}")
            else:
                yield f"{pointer}/{key}", "is not a key of a record"
