"""The code in the Quanto records is run on real files: it must say exactly what the record's check says."""

from __future__ import annotations

import base64
import inspect
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import CodeType
from typing import Any

import pytest
import torch
from safetensors import safe_open

from catalog.prose import Prose, path_of, read, written_names
from kernels.checking import Check, Status
from kernels.quanto_int8_checkpoint.checks import OPERATIONS
from kernels.quanto_int8_checkpoint.op import RUNNERS
from kernels.quanto_int8_checkpoint.signature import VALID, QuantoCall
from kernels.values import seeded
from tests.kernels.quanto_int8_checkpoint.test_checks import ACCEPTED, HAZARDS, REFUSED

[OPERATION] = OPERATIONS
FOLDER = "quanto_int8_checkpoint"
CHECKS = {check.id(): check for check in OPERATION.checks}
REACHABLE = [identifier for identifier, check in CHECKS.items() if not check.unreachable]
NAMES: dict[str, Any] = {"safe_open": safe_open, "json": json, "base64": base64, "torch": torch}


def prose(identifier: str) -> Prose:
    return read(path_of(f"{FOLDER}/{identifier}"))


def compiled(code: str | None, name: str) -> CodeType:
    assert code is not None
    return compile(code, name, "exec", dont_inherit=True)


@cache
def files() -> Mapping[str, QuantoCall]:
    """The valid call, every check's example, and every file that the checks are tested with."""
    examples = {f"example of {identifier}": check.example() for identifier, check in CHECKS.items()}
    return {
        "valid": VALID,
        **{name: call for name, call in examples.items() if isinstance(call, QuantoCall)},
        **{name: call for name, (call, _) in ACCEPTED.items()},
        **{name: call for name, (call, *_) in (HAZARDS | REFUSED).items()},
    }


@cache
def written(name: str) -> Mapping[str, Any]:
    """Live arguments of a file's call; the checkpoint lies on disk."""
    call = files()[name]
    build = RUNNERS[OPERATION.name].build
    assert build is not None
    return build(call, seeded(OPERATION.fill(call), 7), "cpu")


@contextmanager
def names_of(name: str) -> Iterator[dict[str, Any]]:
    """What a record's code may use, on one file."""
    arguments = written(name)
    path = str(arguments["checkpoint"].path)
    with safe_open(path, framework="pt") as checkpoint:
        yield {
            **NAMES,
            "path": path,
            "checkpoint": checkpoint,
            "name_mapper": arguments["name_mapper"],
            "x": arguments["x"],
        }


def status(check: type[Check[Any]], name: str) -> Status:
    [outcome] = [outcome for outcome in OPERATION.examine(files()[name]).outcomes if outcome.check is check]
    return outcome.status


def judged(check: type[Check[Any]]) -> list[str]:
    """Files that the check can be evaluated for; the others need not make sense to the record's code."""
    return [name for name in files() if status(check, name) is not Status.NOT_REACHED]


def test_every_check_has_its_record_and_every_record_its_check() -> None:
    assert {name for name in written_names() if name.startswith(f"{FOLDER}/")} == {
        f"{FOLDER}/{identifier}" for identifier in CHECKS
    }


@pytest.mark.parametrize("identifier", CHECKS)
def test_code_is_absent_only_where_no_file_reaches_the_check(identifier: str) -> None:
    record = prose(identifier)
    absent = record.validation is None or record.type_guard is None
    assert absent == (identifier not in REACHABLE)


@pytest.mark.parametrize("identifier", REACHABLE)
def test_validation_raises_exactly_where_the_check_fails(identifier: str) -> None:
    code = compiled(prose(identifier).validation, identifier)
    verdicts: set[Status] = set()
    for name in judged(CHECKS[identifier]):
        expected = status(CHECKS[identifier], name)
        verdicts.add(expected)
        with names_of(name) as names:
            del names["checkpoint"]
            if expected is Status.FAILED:
                with pytest.raises((ValueError, AssertionError, SystemExit)) as raised:
                    exec(code, names)  # noqa: S102 (the record's own snippet)
                assert str(raised.value), "a validation without a text helps nobody"
            else:
                exec(code, names)  # noqa: S102
    assert verdicts == {Status.FAILED, Status.PASSED}


@pytest.mark.parametrize("identifier", REACHABLE)
def test_type_guard_holds_exactly_where_the_check_passes(identifier: str) -> None:
    names = dict(NAMES)
    exec(compiled(prose(identifier).type_guard, identifier), names)  # noqa: S102 (the record's own snippet)
    [function] = [value for value in names.values() if inspect.isfunction(value)]
    parameters = list(inspect.signature(function).parameters)
    assert parameters[0] == "checkpoint"
    assert inspect.signature(function).return_annotation is bool
    for name in judged(CHECKS[identifier]):
        with names_of(name) as given:
            verdict = function(**{parameter: given[parameter] for parameter in parameters})
        assert verdict is (status(CHECKS[identifier], name) is Status.PASSED), name


@pytest.mark.parametrize("identifier", CHECKS)
def test_related_records_exist_and_are_others(identifier: str) -> None:
    related = [entry.check for entry in prose(identifier).related]
    assert 2 <= len(related) <= 5
    assert len(set(related)) == len(related)
    assert f"{FOLDER}/{identifier}" not in related
    assert set(related) <= written_names()


@pytest.mark.parametrize("identifier", CHECKS)
def test_a_record_says_enough(identifier: str) -> None:
    record = prose(identifier)
    assert len(record.documentation) > 300
    assert len(record.solutions) >= 2
    assert len(record.tips) >= 2
    assert "quanto" in record.tags
    assert all(tag == tag.lower() for tag in record.tags)
