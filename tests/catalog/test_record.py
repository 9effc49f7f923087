"""Schema version 2: strict reading, writing, and the JSON Schema made from the same declaration."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import jsonschema
import pytest

from catalog.record import Record, RecordError, schema


def value(**changes: Any) -> dict[str, Any]:
    """A record as JSON, with every optional key filled."""
    return {
        "id": "0123456789abcdef",
        "repo": "owner/name",
        "slug": "bad-shape",
        "errorCode": "E1",
        "errorMessage": "bad shape {shape}",
        "messagePattern": "bad shape (.+?)",
        "errorType": "validation",
        "errorClass": "ValueError",
        "httpStatus": 400,
        "severity": "error",
        "filePath": "a/b.py",
        "lineNumber": 3,
        "sourceCode": "raise",
        "sourceCodeStart": 3,
        "sourceCodeEnd": 3,
        "githubUrl": "https://example.org",
        "documentation": "d",
        "triggerScenarios": "t",
        "commonSituations": "c",
        "solutions": ["s"],
        "exampleFix": "f",
        "handlingStrategy": "try-catch",
        "validationCode": "v",
        "typeGuard": "g",
        "tryCatchPattern": "p",
        "preventionTips": [],
        "tags": ["a", "b"],
        "backgroundTag": "tensor-shape-mismatch",
        "analyzedSha": "a" * 40,
        "analyzedAt": "2026-01-02T03:04:05.678Z",
        "schemaVersion": 2,
        **changes,
    }


KEYS = list(value())

NULLABLE = {
    "errorCode",
    "httpStatus",
    "lineNumber",
    "sourceCode",
    "sourceCodeStart",
    "sourceCodeEnd",
    "githubUrl",
    "exampleFix",
    "handlingStrategy",
    "validationCode",
    "typeGuard",
    "tryCatchPattern",
    "backgroundTag",
}

WRONG = {
    "id": ["0123456789ABCDEF", "0123", 1],
    "repo": [""],
    "errorType": ["warning", None],
    "severity": ["fatal"],
    "httpStatus": [99, 600, "400", True],
    "lineNumber": [0, 1.5, True, "3"],
    "solutions": ["s", [1], None],
    "handlingStrategy": ["pray"],
    "tags": [[None]],
    "analyzedSha": ["a" * 39, "G" * 40],
    "analyzedAt": ["2026-01-02", "2026-01-02T03:04:05+01:00"],
    "schemaVersion": [1, "2", True, None],
}


def test_a_record_has_the_31_keys_in_order() -> None:
    assert list(Record.from_json(value()).to_json()) == KEYS
    assert len(KEYS) == 31


def test_reading_and_writing_are_inverse() -> None:
    assert Record.from_json(value()).to_json() == value()


@pytest.mark.parametrize("key", KEYS)
def test_every_key_is_required(key: str) -> None:
    incomplete = {name: item for name, item in value().items() if name != key}
    with pytest.raises(RecordError) as raised:
        Record.from_json(incomplete)
    assert raised.value.faults == ((f"/{key}", "is missing"),)


def test_unknown_keys_are_refused() -> None:
    with pytest.raises(RecordError) as raised:
        Record.from_json(value(x={}))
    assert raised.value.faults == (("/x", "is not a key of a record"),)


@pytest.mark.parametrize("key", KEYS)
def test_null_is_for_optional_keys_only(key: str) -> None:
    if key in NULLABLE:
        assert Record.from_json(value(**{key: None})).to_json()[key] is None
    else:
        with pytest.raises(RecordError, match=key):
            Record.from_json(value(**{key: None}))


@pytest.mark.parametrize(("key", "wrong"), [(key, wrong) for key, items in WRONG.items() for wrong in items])
def test_wrong_values_are_refused(key: str, wrong: Any) -> None:
    with pytest.raises(RecordError) as raised:
        Record.from_json(value(**{key: wrong}))
    assert {pointer.split("/")[1] for pointer, _ in raised.value.faults} == {key}


@pytest.mark.parametrize("whole", [None, [], "record", 2])
def test_what_is_no_object_is_refused(whole: Any) -> None:
    with pytest.raises(RecordError):
        Record.from_json(whole)


def test_every_fault_is_listed() -> None:
    with pytest.raises(RecordError) as raised:
        Record.from_json(value(id="x", severity="y", tags=[1, 2]))
    assert [pointer for pointer, _ in raised.value.faults] == ["/id", "/severity", "/tags/0", "/tags/1"]


def test_the_json_schema_is_valid_and_says_the_same() -> None:
    document = json.loads(json.dumps(schema()))
    jsonschema.Draft202012Validator.check_schema(document)
    validator = jsonschema.Draft202012Validator(document)
    validator.validate(value())
    for key, items in WRONG.items():
        for wrong in items:
            assert not validator.is_valid(value(**{key: wrong})), (key, wrong)
    assert not validator.is_valid(value(x=1))
    for key in KEYS:
        assert validator.is_valid(value(**{key: None})) == (key in NULLABLE), key


def test_every_key_is_described() -> None:
    assert all(entry["description"] for entry in schema()["properties"].values())


def test_a_record_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Record.from_json(value()).id = "0" * 16  # type: ignore[misc]
