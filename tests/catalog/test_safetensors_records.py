"""The code in the safetensors records is run on real files: it must say what the record's checks say."""

from __future__ import annotations

import inspect
import json
import math
import os
import re
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from safetensors import SafetensorError, safe_open

from catalog.faults import Fault, faults
from catalog.prose import Prose, path_of, read, written_names
from catalog.store import load_catalog
from kernels.checking import Status
from kernels.safetensors_file.checks import OPERATIONS
from kernels.safetensors_file.file_start import FileStart
from kernels.safetensors_file.signature import SafetensorsCall
from tests.kernels.safetensors_file.files import ACCEPTED, REFUSED

[OPERATION] = OPERATIONS
FOLDER = "safetensors_file"
FAULTS = {fault.name: fault for fault in faults(OPERATIONS)}
NAMES: dict[str, Any] = {
    "json": json,
    "math": math,
    "os": os,
    "re": re,
    "safe_open": safe_open,
    "SafetensorError": SafetensorError,
}
WHOLE = {**{name: data for name, (data, *_) in REFUSED.items()}, **ACCEPTED}

# Beginnings of files, whose size nobody gave.
PARTS = {"part": ACCEPTED["valid"][:40], "header": ACCEPTED["valid"][:110]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every file of the tests, under its own name."""
    made = tmp_path_factory.mktemp("files")
    for name, data in (WHOLE | PARTS).items():
        (made / name).write_bytes(data)
    return made


def prose(name: str) -> Prose:
    return read(path_of(name))


def status(fault: Fault, name: str) -> Status:
    """What the record's checks together say of a file."""
    start = FileStart(PARTS[name]) if name in PARTS else FileStart(WHOLE[name], len(WHOLE[name]))
    checks = {case.check for case in fault.cases}
    outcomes = OPERATION.examine(SafetensorsCall(start)).outcomes
    found = {outcome.status for outcome in outcomes if outcome.check in checks}
    for answer in (Status.FAILED, Status.PASSED):
        if answer in found:
            return answer
    return Status.NOT_REACHED


def judged(fault: Fault) -> list[str]:
    """Files that the checks can be evaluated for; the others need not make sense to the record's code."""
    files = PARTS if fault.name.endswith("header_not_sent") else WHOLE
    return [name for name in files if status(fault, name) is not Status.NOT_REACHED]


def compiled(code: str | None, name: str) -> CodeType:
    assert code is not None
    return compile(code, name, "exec", dont_inherit=True)


def names_of(folder: Path, name: str) -> dict[str, Any]:
    path = folder / name
    return {**NAMES, "path": str(path), "data": path.read_bytes()}


def test_every_record_has_its_checks() -> None:
    assert {name for name in written_names() if name.startswith(f"{FOLDER}/")} == set(FAULTS)


@pytest.mark.parametrize("name", FAULTS)
def test_validation_raises_exactly_where_the_check_fails(name: str, folder: Path) -> None:
    code = compiled(prose(name).validation, name)
    verdicts = set()
    for file in judged(FAULTS[name]):
        expected = status(FAULTS[name], file)
        verdicts.add(expected)
        if expected is Status.FAILED:
            with pytest.raises(ValueError) as raised:  # noqa: PT011 (any text that says something)
                exec(code, names_of(folder, file))  # noqa: S102 (the record's own snippet)
            assert str(raised.value), file
        else:
            exec(code, names_of(folder, file))  # noqa: S102
    assert verdicts == {Status.FAILED, Status.PASSED}


@pytest.mark.parametrize("name", FAULTS)
def test_type_guard_holds_exactly_where_the_check_passes(name: str, folder: Path) -> None:
    names = dict(NAMES)
    exec(compiled(prose(name).type_guard, name), names)  # noqa: S102 (the record's own snippet)
    [function] = [value for value in names.values() if inspect.isfunction(value) and value is not safe_open]
    [parameter] = inspect.signature(function).parameters
    for file in judged(FAULTS[name]):
        verdict = function(names_of(folder, file)[parameter])
        assert verdict is (status(FAULTS[name], file) is Status.PASSED), file


@pytest.mark.parametrize("name", [name for name in FAULTS if prose(name).try_catch])
def test_try_catch_tells_the_record_s_fault_from_others(name: str, folder: Path) -> None:
    code = compiled(prose(name).try_catch, name)
    for file in WHOLE:
        try:
            exec(code, names_of(folder, file))  # noqa: S102 (the record's own snippet)
        except ValueError:
            assert status(FAULTS[name], file) is Status.FAILED, file
        except SafetensorError:
            assert status(FAULTS[name], file) is not Status.FAILED, file
            assert file in REFUSED
        else:
            assert file in ACCEPTED


@pytest.mark.parametrize("name", FAULTS)
def test_a_record_says_enough(name: str) -> None:
    record = prose(name)
    assert len(record.documentation) > 300
    assert len(record.solutions) >= 2
    assert len(record.tips) >= 2
    assert "safetensors" in record.tags
    assert all(tag == tag.lower() for tag in record.tags)
    related = [entry.check for entry in record.related]
    assert 2 <= len(set(related)) == len(related) <= 5
    assert name not in related


@pytest.mark.parametrize(
    ("said", "identifier"),
    [
        ("HeaderTooSmall", "header_too_small"),
        ("HeaderTooLarge", "header_too_large"),
        ("InvalidHeaderLength", "invalid_header_length"),
        ("InvalidHeader", "header_not_utf8"),
        ("InvalidHeaderDeserialization", "header_not_json"),
        ("MetadataIncompleteBuffer", "metadata_incomplete_buffer"),
        ('InvalidOffset("lm_head.weight")', "invalid_offset"),
        ("ValidationOverflow", "validation_overflow"),
        ("TensorInvalidInfo", "tensor_invalid_info"),
    ],
)
def test_the_names_that_earlier_versions_printed_find_the_record(said: str, identifier: str) -> None:
    """The library once printed the names of its errors in place of sentences."""
    catalog = load_catalog()
    report = catalog.matcher.match(
        f"safetensors_rust.SafetensorError: Error while deserializing header: {said}"
    )
    found = catalog.get(report.matches[0].record_id)
    assert found is not None
    assert found.fault.name == f"safetensors_file/{identifier}"
    assert report.matches[0].score >= 0.8
