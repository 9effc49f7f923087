"""A run for a stated architecture is refused by the very check that the description names for it."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

import pytest

from app.diagnose.questions import parse_question
from kernels.call import arguments_json
from kernels.checking import Check
from kernels.live import stated_devices
from kernels.registry import Operation, folder_of, operations
from kernels.running import Arguments, Runner, materialise
from kernels.values import seeded

SMALL = 64 << 20
"""Bytes of tensors that are built here."""

CASES = [
    pytest.param(operation, check, id=f"{name}-{check.id()}")
    for name, operation in operations().items()
    if not operation.needs
    for check in operation.checks
    if (example := check.example()) is not None and example.target is None
]


@pytest.mark.parametrize("target", ["sm75", "sm90"])
@pytest.mark.parametrize(("operation", "check"), CASES)
def test_the_guard_raises_what_the_checks_name(
    operation: Operation, check: type[Check[Any]], target: str
) -> None:
    example = check.example()
    assert example is not None
    body = {"operation": operation.name, "arguments": arguments_json(example), "target": target}
    call = parse_question(json.dumps(body).encode()).call  # as a client sends it: in an order of its own
    predicted = operation.examine(call).raised
    if predicted is None or sum(tensor.storage_bytes for _, tensor in call.tensors()) > SMALL:
        return
    runner: Runner = import_module(f"kernels.{folder_of(operation)}.op").RUNNERS[operation.name]
    arguments = (runner.build or materialise)(call, seeded(operation.fill(call), 0), "cpu")
    devices = {id(arguments[name]): tensor.device_index for name, tensor in call.tensors()}
    with stated_devices(devices, call.target):
        raised = _raised(runner, arguments)
    assert (type(raised).id(), raised.text) == (type(predicted).id(), predicted.text)


def _raised(runner: Runner, arguments: Arguments) -> Check[Any]:
    """The violation that the guarded function raises, in whatever class upstream has for it."""
    try:
        runner.function(**arguments)
    except Exception as error:
        violation: Check[Any] | None = getattr(error, "violation", None)
        if violation is None:
            raise
        return violation
    pytest.fail("nothing was raised")
