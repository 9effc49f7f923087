"""GPU operations' records: their code is run, and refuses every failing example and nothing that works."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import CodeType
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from catalog.faults import Fault, faults
from catalog.prose import Prose, path_of, read
from kernels.call import Call
from kernels.dtypes import DType
from kernels.examining import guard
from kernels.live import described, torch_dtype
from kernels.registry import Operation, folder_of, operations
from kernels.running import materialise
from kernels.spec import TensorSpec
from kernels.target import Target

pytestmark = pytest.mark.usefixtures("triton_mode")

FOLDERS = ("per_token_group_quant", "sparse_attn_v4_paged_decode", "inkling_attn_prologue", "flash_attn_fwd")
BUILT_LIMIT = 64 * 2**20
"""Bytes of storage above which a call's tensors are only described to torch, not built."""

WITHOUT_CODE: dict[str, str] = {
    "inkling_attn_prologue/qkvr_dimensions": "each function breaks it with arguments that the others lack",
}
"""Record → why no snippet can tell its failing calls from the valid one."""


@cache
def records() -> Mapping[str, Fault]:
    """Record `folder/check` → the checks it is about."""
    covered = [operation for operation in operations().values() if folder_of(operation) in FOLDERS]
    return {fault.name: fault for fault in faults(covered)}


@cache
def page(name: str) -> Prose:
    return read(path_of(name))


def repaired(operation: Operation) -> Iterator[Call]:
    """What the declared fixes make of the failing examples."""
    for check in operation.checks:
        example = check.example()
        if example is not None:
            for outcome in operation.examine(example).failed():
                for occurrence in outcome.occurrences:
                    for fix in occurrence.violation.fixes(occurrence.subject):
                        yield fix.call


@cache
def working(operation: Operation) -> tuple[Call, ...]:
    """The valid call, and every call that a declared fix of a failing example makes valid."""
    distinct = {repr(call): call for call in (operation.valid, *repaired(operation))}  # 128.0 equals 128
    return tuple(call for call in distinct.values() if not operation.examine(call).failed())


BUILT: dict[tuple[str, str, bool], Mapping[str, Any]] = {}


def arguments(operation: Operation, call: Call, emulated: bool) -> Mapping[str, Any]:
    """Live arguments on the CPU; emulated ones stand on the devices described and have no elements."""
    key = (operation.name, repr(call), emulated)
    if key not in BUILT:
        BUILT[key] = fakes(call) if emulated else materialise(call, operation.fill(call), "cpu")
    return BUILT[key]


def fakes(call: Call) -> Mapping[str, Any]:
    with FakeTensorMode():
        return {parameter.name: fake(getattr(call, parameter.name)) for parameter in call.arguments()}


def fake(value: Any) -> Any:
    if isinstance(value, TensorSpec):
        dtype, device = torch_dtype(value.dtype), value.device_index
        return torch.empty_strided(value.shape, value.strides, dtype=dtype, device=device)
    return torch_dtype(value) if isinstance(value, DType) else value


def emulated(name: str, calls: tuple[Call, ...]) -> bool:
    return any(map(huge, calls)) or page(name).family == "device-placement"


def huge(call: Call) -> bool:
    return any(tensor.storage_bytes > BUILT_LIMIT for _, tensor in call.tensors())


def cases(name: str) -> Iterator[tuple[Operation, Call, bool, bool]]:
    """Operation, call, whether the record's code must refuse it, whether its devices are emulated."""
    examples = [(shown.case.operation, shown.call) for shown in records()[name].demonstrations]
    apart = emulated(name, tuple(call for _, call in examples))
    for operation, call in examples:
        yield operation, call, True, apart
    for operation in {case.operation.name: case.operation for case in records()[name].cases}.values():
        for call in working(operation):
            if apart or not huge(call):
                yield operation, call, False, apart


@contextmanager
def on_gpu(target: Target | None) -> Iterator[None]:
    """Within it the GPU is of the call's architecture; where the call names none, of one that has all."""
    capability = (target.capability if target else None) or 100
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "get_device_capability", lambda *_: divmod(capability, 10))
        yield


def compiled(name: str, key: str) -> CodeType:
    return compile(getattr(page(name), key), f"{name}: {key}", "exec")


def written(key: str) -> list[str]:
    return [name for name in records() if path_of(name).is_file() and getattr(page(name), key) is not None]


@pytest.mark.parametrize("name", written("documentation"))
def test_a_page_is_neither_thin_nor_endless(name: str) -> None:
    prose = page(name)
    assert 2 <= len(prose.tags) <= 6
    assert 2 <= len(prose.solutions) <= 4
    assert 1 <= len(prose.tips) <= 3
    assert 2 <= len(prose.related) <= 5


@pytest.mark.parametrize("name", list(records()))
def test_code_is_absent_only_for_a_reason(name: str) -> None:
    absent = page(name).validation is None or page(name).type_guard is None
    assert absent == (name in WITHOUT_CODE or not records()[name].demonstrations)


@pytest.mark.parametrize("name", written("validation"))
def test_validation_raises_for_failing_calls_only(name: str) -> None:
    code = compiled(name, "validation")
    for operation, call, failing, apart in cases(name):
        names = {"torch": torch, **arguments(operation, call, apart)}
        with on_gpu(call.target):
            if failing:
                with pytest.raises((ValueError, TypeError, AssertionError)) as raised:
                    exec(code, names)  # noqa: S102 - the record's own snippet
                assert str(raised.value), "a validation without a text helps nobody"
            else:
                exec(code, names)  # noqa: S102


@pytest.mark.parametrize("name", written("type_guard"))
def test_type_guard_refuses_failing_calls_only(name: str) -> None:
    names: dict[str, Any] = {"torch": torch}
    exec(compiled(name, "type_guard"), names)  # noqa: S102
    [function] = [value for key, value in names.items() if inspect.isfunction(value)]
    parameters = list(inspect.signature(function).parameters)
    for operation, call, failing, apart in cases(name):
        given = arguments(operation, call, apart)
        with on_gpu(call.target):
            verdict = function(**{parameter: given[parameter] for parameter in parameters})
        assert verdict is (not failing), call


@pytest.mark.parametrize("name", written("try_catch"))
def test_try_catch_recovers(name: str) -> None:
    code = compiled(name, "try_catch")
    for shown in records()[name].demonstrations:
        operation = shown.case.operation
        calls: list[bool] = []
        names = {"torch": torch, **arguments(operation, shown.call, False)}
        names[operation.name] = guarded(operation, calls)
        exec(code, names)  # noqa: S102
        assert calls == [False, True], "the first call fails, the second passes"


def guarded(operation: Operation, calls: list[bool]) -> Any:
    """The operation's checks behind its signature; notes for each call whether they passed."""
    signature = inspect.Signature(
        inspect.Parameter(
            parameter.name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=inspect.Parameter.empty if parameter.required else parameter.default,
        )
        for parameter in operation.call.arguments()
    )

    def function(*positional: Any, **named: Any) -> tuple[None, ...]:
        bound = signature.bind(*positional, **named)
        call = described(operation.call, bound.arguments)
        for name, _ in call.tensors():
            call = call.with_tensor(name, device="cuda")
        calls.append(False)
        guard(operation.stages, call)
        calls[-1] = True
        return (None,) * len(operation.outputs)

    return function
