"""The code in the Comfy records is run on real files: it refuses failing examples and nothing that works."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from os import fspath
from types import CodeType
from typing import Any

import pytest
import torch
from safetensors import safe_open

from app.lookup.service import match_text
from catalog.faults import Fault, faults
from catalog.match import MATCH
from catalog.prose import Prose, path_of, read, written_names
from catalog.store import load_catalog
from catalog.template import Template
from kernels.comfy_checkpoint.checks import OPERATIONS
from kernels.comfy_checkpoint.op import RUNNERS
from kernels.comfy_checkpoint.signature import ComfyCall
from kernels.values import seeded
from tests.kernels.comfy_checkpoint.test_refused import ACCEPTED

[OPERATION] = OPERATIONS
FOLDER = "comfy_checkpoint"
RECORDS: Mapping[str, Fault] = {fault.name.partition("/")[2]: fault for fault in faults(OPERATIONS)}
ARGUMENTS = ("name_mapper", "x", "layer", "capability", "backend", "tp_size", "partitions")


def prose(identifier: str) -> Prose:
    return read(path_of(f"{FOLDER}/{identifier}"))


@cache
def working() -> tuple[ComfyCall, ...]:
    """The valid call, every accepted file, and every call that a fix of a failing example makes sound."""
    calls = [OPERATION.valid, *(call for call, _ in ACCEPTED.values())]
    for check in OPERATION.checks:
        example = check.example()
        if example is not None:
            for outcome in OPERATION.examine(example).failed():
                for occurrence in outcome.occurrences:
                    calls += [fix.call for fix in occurrence.violation.fixes(occurrence.subject)]
    sound = {repr(call): call for call in calls if not OPERATION.examine(call).failed()}
    return tuple(call for call in sound.values() if isinstance(call, ComfyCall))


def sound_for(identifier: str) -> Iterator[ComfyCall]:
    """What works, for the code of a record: several files only where it is about them."""
    several = any("others" in case.check.looks_at for case in RECORDS[identifier].cases)
    return (call for call in working() if several or call.others is None)


BUILT: dict[str, dict[str, Any]] = {}


def built(call: ComfyCall) -> dict[str, Any]:
    """Live arguments; the checkpoint lies on disk."""
    key = repr(call)
    if key not in BUILT:
        build = RUNNERS[OPERATION.name].build
        assert build is not None
        BUILT[key] = build(call, seeded(OPERATION.fill(call), 7), "cpu")
    return BUILT[key]


@contextmanager
def names_of(call: ComfyCall) -> Iterator[dict[str, Any]]:
    """What a record's code may use, on one file."""
    arguments = built(call)
    path = str(arguments["checkpoint"].path)
    with ExitStack() as stack:
        checkpoint = stack.enter_context(safe_open(path, framework="pt"))
        yield {
            **{name: arguments[name] for name in ARGUMENTS},
            "json": json,
            "torch": torch,
            "safe_open": safe_open,
            "path": path,
            "paths": [path, *map(fspath, (arguments["others"] or {}).values())],
            "checkpoint": checkpoint,
            "metadata": checkpoint.metadata() or {},
            "tensors": headers(checkpoint),
            "markers": markers(checkpoint),
        }


def headers(checkpoint: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
    parts = {name: checkpoint.get_slice(name) for name in checkpoint.keys()}  # noqa: SIM118
    return {name: (part.get_dtype(), tuple(part.get_shape())) for name, part in parts.items()}


def markers(checkpoint: Any) -> dict[str, Any]:
    """Markers as the file has them; those that cannot be read are left out."""
    found: dict[str, Any] = {}
    try:
        declared = json.loads((checkpoint.metadata() or {}).get("_quantization_metadata", "{}"))
        found |= {prefix: marker for prefix, marker in declared["layers"].items() if isinstance(marker, dict)}
    except (ValueError, TypeError, KeyError):
        pass
    for name in checkpoint.keys():  # noqa: SIM118
        if name.endswith(".comfy_quant") and checkpoint.get_slice(name).get_dtype() == "U8":
            try:
                marker = json.loads(bytes(checkpoint.get_tensor(name).tolist()))
            except ValueError:
                continue
            if isinstance(marker, dict):
                prefix = name.removesuffix(".comfy_quant")
                found[prefix] = {**found.get(prefix, {}), **marker}
    return found


def compiled(code: str | None, name: str) -> CodeType:
    assert code is not None
    return compile(code, name, "exec", dont_inherit=True)


def failing(identifier: str) -> list[ComfyCall]:
    return [shown.call for shown in RECORDS[identifier].demonstrations if isinstance(shown.call, ComfyCall)]


def test_there_is_something_that_works_in_every_format() -> None:
    methods = {call.handler for call in working()}
    assert methods >= {"comfy_nvfp4", "comfy_fp8", "convrot_int8", "kitchen_w4a8", "kitchen_w4a4", "mxfp8"}


def test_every_record_has_its_file() -> None:
    written = {name.partition("/")[2] for name in written_names() if name.startswith(f"{FOLDER}/")}
    assert written == set(RECORDS)


@pytest.mark.parametrize("identifier", RECORDS)
def test_validation_raises_for_failing_files_only(identifier: str) -> None:
    code = compiled(prose(identifier).validation, identifier)
    assert failing(identifier)
    for call in failing(identifier):
        with names_of(call) as names, pytest.raises((ValueError, TypeError)) as raised:
            exec(code, names)  # noqa: S102 (the record's own snippet)
        assert str(raised.value), "a validation without a text helps nobody"
    for call in sound_for(identifier):
        with names_of(call) as names:
            exec(code, names)  # noqa: S102


@pytest.mark.parametrize("identifier", RECORDS)
def test_type_guard_refuses_failing_files_only(identifier: str) -> None:
    names: dict[str, Any] = {"json": json, "torch": torch, "safe_open": safe_open}
    exec(compiled(prose(identifier).type_guard, identifier), names)  # noqa: S102 (the record's own snippet)
    [function] = [value for value in names.values() if inspect.isfunction(value)]
    assert inspect.signature(function).return_annotation is bool
    parameters = list(inspect.signature(function).parameters)
    for call, sound in [
        *((call, False) for call in failing(identifier)),
        *((call, True) for call in sound_for(identifier)),
    ]:
        with names_of(call) as given:
            verdict = function(**{parameter: given[parameter] for parameter in parameters})
        assert verdict is sound, call


@pytest.mark.parametrize("identifier", RECORDS)
def test_a_record_says_enough_and_leads_on(identifier: str) -> None:
    record = prose(identifier)
    assert len(record.documentation) > 180
    assert 2 <= len(record.solutions) <= 4
    assert 1 <= len(record.tips) <= 3
    assert "comfy" in record.tags
    assert all(tag == tag.lower() for tag in record.tags)
    related = [entry.check for entry in record.related]
    assert 2 <= len(related) == len(set(related)) <= 5
    assert f"{FOLDER}/{identifier}" not in related
    assert set(related) <= written_names()


FORMERLY = [
    ("embedding_as_linear", NotImplementedError, "Comfy INT8 embedding weights support lookup only"),
    (
        "nvfp4_capability",
        ValueError,
        "Comfy NVFP4 layer 'blk.fc' must request full_precision_matrix_mult",
    ),
    (
        "nvfp4_pre_quant_scale",
        ValueError,
        "Comfy NVFP4 layer 'blk.fc' has a pre-quant scale that the native NVFP4 GEMM cannot consume",
    ),
]


@pytest.mark.parametrize(("identifier", "raises", "text"), FORMERLY)
def test_what_earlier_versions_said_finds_the_record_too(
    identifier: str, raises: type[Exception], text: str
) -> None:
    catalog = load_catalog()
    report = catalog.matcher.match(f"{raises.__name__}: {text}")
    assert report.matches[0].record_id == RECORDS[identifier].id
    assert report.matches[0].score >= MATCH
    found = catalog.get(RECORDS[identifier].id)
    assert found is not None
    [wording] = found.x["lifecycle"]["priorWordings"]
    assert re.fullmatch(Template.parse(wording).pattern, text)
    answer = match_text(f"{raises.__name__}: {text}".encode(), repo=None, limit=1)
    assert answer["matches"][0]["spec"]["operation"] == OPERATION.name


def test_no_other_record_of_the_folder_has_had_another_wording() -> None:
    worded = {found.fault.name for found in load_catalog().records if found.x["lifecycle"]["priorWordings"]}
    held = {name for name in worded if name.startswith(f"{FOLDER}/")}
    assert held == {f"{FOLDER}/{identifier}" for identifier, _, _ in FORMERLY}
