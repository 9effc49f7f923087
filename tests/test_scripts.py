"""Every script of an answer is Python that runs: the reproduction makes the call that was asked about, a
fix's code the call that passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError, safe_open

from app.diagnose import fixes
from benchmarks.calls import calls
from kernels.call import Call
from kernels.checkpoint import Checkpoint
from kernels.checkpoint_file import read_header
from kernels.dtypes import DType
from kernels.registry import Operation, operations
from kernels.rendering import fix_code, is_scripted, reproduction
from kernels.shards import Shards
from kernels.spec import TensorSpec
from tests.upstream_stand_in import on_this_host, stand_in

DRAWN = 40
"""Random calls of each operation besides its checks' examples."""

LARGEST = 64 << 20
"""Bytes of tensors that a script is run with."""

NAMES = [name for name in operations() if name != "safetensors_file"]


def asked(operation: Operation) -> Iterator[Call]:
    """The valid call, each check's example, and random calls."""
    yield operation.valid
    yield from (example for check in operation.checks if (example := check.example()) is not None)
    yield from islice(calls(operation, 31), DRAWN)


def is_small(call: Call) -> bool:
    return sum(getattr(value, "storage_bytes", 0) for _, value in call.stated()) <= LARGEST


def is_writable(call: Call) -> bool:
    """Whether torch has tensors of every type in the call's files."""
    files = [value for _, value in call.stated() if isinstance(value, (Checkpoint, Shards))]
    headers = [
        header
        for value in files
        for file in (value.values() if isinstance(value, Shards) else [value])
        for header in file.tensors.values()
    ]
    return all(DType.parse(header.dtype).in_torch for header in headers)


def differences(call: Call, received: dict[str, Any]) -> Iterator[str]:
    """What a call of upstream's function was given otherwise than described."""
    stated = dict(call.stated())
    if set(received) != set(stated):
        yield f"{sorted(set(received) ^ set(stated))} given or left out"
    for name in set(received) & set(stated):
        value, given = stated[name], received[name]
        if isinstance(value, TensorSpec):
            described = (value.shape, f"torch.{value.dtype}", value.strides, value.offset)
            found = (tuple(given.shape), str(given.dtype), tuple(given.stride()), given.storage_offset())
            # torch has its own word on where nothing begins
            if found != described and (value.numel or found[:2] != described[:2]):
                yield f"{name}: {found}, described {described}"
        elif isinstance(value, DType):
            if given is not getattr(torch, value.torch_name):
                yield f"{name}: {given}"
        elif (given, type(given)) != (value, type(value)):
            yield f"{name}: {given!r}, described {value!r}"


def test_differences_are_seen() -> None:
    valid = operations()["per_token_group_quant"].valid
    given = {name: torch.empty(4, 256) for name, _ in valid.tensors()}
    assert list(differences(valid, given))


@pytest.mark.parametrize("name", NAMES)
def test_a_reproduction_makes_the_call_asked_about(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    operation = operations()[name]
    received = stand_in(operation, monkeypatch)
    monkeypatch.chdir(tmp_path)
    told = []
    for call in filter(is_small, asked(operation)):
        received.clear()
        script = reproduction(operation, call)
        exec(on_this_host(script), names := {})  # noqa: S102 (the answer's own script)
        assert len(received) == 1, script
        if not hasattr(call, "to_call"):
            told += [(difference, script) for difference in differences(call, received[0])]
        elif is_writable(call) and isinstance(path := names.get("checkpoint"), str):
            with safe_open(path, framework="pt") as file:
                header = read_header(file)
            assert forgotten(header) == forgotten(call.checkpoint), script  # type: ignore[attr-defined]
    assert not told


def forgotten(file: Checkpoint) -> Checkpoint:
    """The file without what its tensors hold, of which a header says nothing."""
    headers = {name: type(header)(header.dtype, header.shape) for name, header in file.tensors.items()}
    return Checkpoint(file.metadata, headers)


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
@pytest.mark.parametrize("name", NAMES)
def test_a_fix_s_code_makes_the_call_that_passes(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    operation = operations()[name]
    received = stand_in(operation, monkeypatch)
    monkeypatch.chdir(tmp_path)
    tried = 0
    for call in filter(is_small, asked(operation)):
        for repair in fixes.search(call, operation.examine(call), operation.examine).repairs:
            if not is_small(repair.call) or not (is_writable(call) and is_writable(repair.call)):
                continue
            for path in tmp_path.iterdir():
                path.unlink()
            for argument, value in call.stated():
                if is_scripted(value):
                    exec(value.to_python(argument), {})  # noqa: S102 (the caller's own file)
            received.clear()
            script = fix_code(operation, call, repair.call)
            exec(on_this_host(script), names := {})  # noqa: S102 (the answer's own script)
            tried += 1
            if not hasattr(call, "to_call"):
                assert len(received) == 1, script
                assert not list(differences(repair.call, received[0])), script
            elif isinstance(path := names.get("checkpoint"), str):
                with safe_open(path, framework="pt") as file:
                    header = read_header(file)
                assert forgotten(header) == forgotten(repair.call.checkpoint), script  # type: ignore[attr-defined]
    assert tried >= 20


def test_a_file_s_reproduction_raises_what_is_predicted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    operation = operations()["safetensors_file"]
    monkeypatch.chdir(tmp_path)
    raised = 0
    for check in operation.checks:
        call = check.example()
        predicted = None if call is None else operation.examine(call).raised
        if call is None or predicted is None:
            continue
        with pytest.raises(SafetensorError) as caught:
            exec(reproduction(operation, call), {})  # noqa: S102 (the answer's own script)
        assert str(caught.value) == predicted.text
        raised += 1
    assert raised >= 10
