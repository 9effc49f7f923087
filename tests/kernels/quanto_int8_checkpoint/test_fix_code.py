"""Code that goes with fixes and records, run on real files: it changes what it says and nothing else."""

from __future__ import annotations

import base64
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from catalog.load import load
from kernels.checking import Origin
from kernels.checkpoint import Checkpoint
from kernels.checkpoint_file import read_header
from kernels.quanto_int8_checkpoint.checks import OPERATIONS
from kernels.quanto_int8_checkpoint.op import RUNNERS, quanto_int8_checkpoint
from kernels.quanto_int8_checkpoint.quantization_map import MAP_KEY
from kernels.quanto_int8_checkpoint.signature import QuantoCall
from kernels.rendering import before_after, fix_code
from kernels.values import seeded
from tests.kernels.quanto_int8_checkpoint.test_checks import HAZARDS, REFUSED

[OPERATION] = OPERATIONS
BUILD = RUNNERS[OPERATION.name].build
PLACEHOLDER = "placeholder"


def repairs() -> Iterator[Any]:
    """Every fix that any check offers for its example, and for the files that the checks are tested with."""
    examples = {check.id(): check.example() for check in OPERATION.checks}
    calls: dict[str, Any] = {
        **examples,
        **{name: call for name, (call, *_) in HAZARDS.items()},
        **{name: call for name, (call, *_) in REFUSED.items()},
    }
    for name, call in calls.items():
        if call is None:
            continue
        for outcome in OPERATION.examine(call).failed():
            for occurrence in outcome.occurrences:
                for fix in occurrence.violation.fixes(occurrence.subject):
                    yield pytest.param(call, fix.call, id=f"{name}: {fix.title}")


def write(call: QuantoCall, path: Path) -> None:
    assert BUILD is not None
    shutil.copy(BUILD(call, seeded(OPERATION.fill(call), 7), "cpu")["checkpoint"], path)


def header(path: Path | str) -> Checkpoint:
    with safe_open(path, framework="pt") as file:
        return read_header(file)


def plain(file: Checkpoint) -> tuple[dict[str, Any], dict[str, str]]:
    """Metadata, the map decoded where it can be, and each tensor's type and shape."""
    metadata: dict[str, Any] = dict(file.metadata)
    with suppress(KeyError, ValueError):
        metadata[MAP_KEY] = json.loads(base64.b64decode(metadata[MAP_KEY], validate=True))
    return metadata, {name: str(tensor) for name, tensor in file.tensors.items()}


def inspect(path: str, mapper: Callable[[str], str] = lambda prefix: prefix) -> None:
    """Upstream's function by ours."""
    prefixes, _ = quanto_int8_checkpoint(path)
    if len({mapper(prefix) for prefix in prefixes}) < len(prefixes):
        raise ValueError("Quanto layers collide after parameter mapping")


@pytest.fixture
def upstream(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that has upstream's function where upstream has it."""
    parts = OPERATION.module.split(".")
    for length in range(1, len(parts) + 1):
        monkeypatch.setitem(sys.modules, ".".join(parts[:length]), ModuleType("standing in"))
    setattr(sys.modules[OPERATION.module], str(OPERATION.function), inspect)


@pytest.mark.usefixtures("upstream")
@pytest.mark.parametrize(("call", "fixed"), list(repairs()))
def test_a_fixs_code_turns_the_users_file_into_the_fixed_one(
    call: QuantoCall, fixed: QuantoCall, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "checkpoint.safetensors"
    write(call, own)
    bytes_before = own.read_bytes()
    code = fix_code(OPERATION, call, fixed)
    names: dict[str, Any] = {}
    exec(code.replace('device="cuda"', 'device="cpu"'), names)  # noqa: S102 (our own script)
    assert own.read_bytes() == bytes_before, "the user's file is never written to"
    assert plain(header(names["checkpoint"])) == plain(fixed.checkpoint)
    changed = call.checkpoint != fixed.checkpoint
    assert (names["checkpoint"] != "checkpoint.safetensors") == changed
    if not OPERATION.examine(fixed).rejected:
        quanto_int8_checkpoint(names["checkpoint"], fixed.name_mapper)
    keep_their_numbers(load_file(own), load_file(names["checkpoint"]), call, fixed)


def keep_their_numbers(
    old: Mapping[str, torch.Tensor], new: Mapping[str, torch.Tensor], call: QuantoCall, fixed: QuantoCall
) -> None:
    """What is not changed, or changed in shape alone, holds the same elements in the same order."""
    before, after = call.checkpoint.tensors, fixed.checkpoint.tensors
    for name in before.keys() & after.keys():
        one, other = before[name], after[name]
        if (one.dtype, one.numel, one.values) == (other.dtype, other.numel, other.values):
            assert torch.equal(old[name].flatten(), new[name].flatten()), name


def test_a_repeated_scale_is_the_one_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call, *_ = REFUSED["scale 0-d"]
    [occurrence] = [one for out in OPERATION.examine(call).failed() for one in out.occurrences]
    [fix] = occurrence.violation.fixes(occurrence.subject)
    monkeypatch.chdir(tmp_path)
    write(call, tmp_path / "checkpoint.safetensors")
    names: dict[str, Any] = {}
    exec(fix_code(OPERATION, call, fix.call), names)  # noqa: S102 (our own script)
    name = "blk.0.proj.weight._scale"
    one = load_file("checkpoint.safetensors")[name]
    assert load_file(names["checkpoint"])[name].tolist() == [[one.item()]] * 3


def test_numbers_that_nobody_has_are_not_made_up() -> None:
    call, *_ = REFUSED["no scale"]
    [occurrence] = [one for out in OPERATION.examine(call).failed() for one in out.occurrences]
    [fix] = occurrence.violation.fixes(occurrence.subject)
    code = fix_code(OPERATION, call, fix.call)
    assert f'= torch.full((3, 1), float("nan"), dtype=torch.float32)  # a {PLACEHOLDER}' in code


SHOWN = [curated.fault.shown for curated in load(strict=False) if curated.fault.name.startswith("quanto_")]


@pytest.mark.parametrize(
    "shown", [shown for shown in SHOWN if shown], ids=lambda shown: str(shown.case.check.id())
)
def test_a_records_example_fails_and_then_passes(
    shown: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the tensors and metadata of the file that passes; each section saves the file that it speaks of."""
    example, check = shown.call, shown.case.check
    fixed = OPERATION.valid if shown.fix is None else shown.fix.call
    text = before_after(OPERATION, example, fixed, show=check.arguments())
    assert len(text.splitlines()) <= 50
    before, after = text.replace('device="cuda"', 'device="cpu"').split("# after\n")
    monkeypatch.chdir(tmp_path)
    path = "checkpoint.safetensors"
    write(fixed, tmp_path / path)
    with safe_open(path, framework="pt") as file:
        metadata = dict(file.metadata())
    names = {
        "base64": base64,
        "json": json,
        "torch": torch,
        "save_file": save_file,
        "checkpoint": path,
        "tensors": load_file(path),
        "metadata": metadata,
        "inspect_quanto_int8_checkpoint": inspect,
        "quanto_int8_checkpoint": quanto_int8_checkpoint,
    }
    live = OPERATION.examine(example).rejected and not check.reads_values
    if live:
        with pytest.raises(ValueError) as raised:  # noqa: PT011 (the text is compared below)
            exec(before, names)  # noqa: S102 (the record's own snippet)
        if check.origin() is Origin.UPSTREAM:
            assert shown.violation.text.startswith(str(raised.value))
    else:
        exec(before, names)  # noqa: S102
    assert plain(header(path)) == plain(example.checkpoint)
    exec(after, names)  # noqa: S102
    assert plain(header(path)) == plain(fixed.checkpoint)


def test_an_example_is_the_lines_that_matter() -> None:
    [shown] = [shown for shown in SHOWN if shown and shown.case.check.id() == "aux_scale_not_scalar"]
    assert shown.fix is not None
    name = '"language_model.layers.0.mlp.up_proj.input_scale"'
    assert before_after(OPERATION, shown.call, shown.fix.call) == (
        "# before\n"
        f"tensors[{name}] = torch.ones(1, dtype=torch.bfloat16)\n"
        "save_file(tensors, checkpoint, metadata)\n"
        "inspect_quanto_int8_checkpoint(checkpoint)\n"
        "# after\n"
        f"tensors[{name}] = tensors[{name}].reshape(())\n"
        "save_file(tensors, checkpoint, metadata)\n"
        "inspect_quanto_int8_checkpoint(checkpoint)"
    )
