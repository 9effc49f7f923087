"""Rendered calls are run: what they build has the shape, type, layout and place that was described."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from kernels.call import Call, argument
from kernels.dtypes import DType
from kernels.expressions import literal, tensor
from kernels.live import dtype_of
from kernels.registry import Operation, operations
from kernels.rendering import before_after, is_scripted, python_call, reproduction
from kernels.spec import TensorSpec
from kernels.values import Arange, Full, Listed, Ones, Randint, Randn, Text, Values, Zeros


@dataclass(frozen=True)
class SomeCall(Call):
    """Two tensors and plain values."""

    positional: ClassVar[int] = 2
    x: TensorSpec = argument("first")
    y: TensorSpec | None = argument("second", default=None)
    size: int = argument("a number", default=128)
    flag: bool = argument("a flag", default=False)
    kind: DType | None = argument("a type", default=None)
    mode: str = argument("a word", default="plain")


F32 = TensorSpec((2, 3), DType.F32)


def layout(built: torch.Tensor) -> tuple[Any, ...]:
    return tuple(built.shape), built.stride(), built.storage_offset(), dtype_of(built.dtype)


def described(spec: TensorSpec) -> tuple[Any, ...]:
    return spec.shape, spec.strides, spec.offset, spec.dtype


def run(expression: str) -> torch.Tensor:
    return eval(expression, {"torch": torch})  # type: ignore[no-any-return]  # noqa: S307


# --- tensors


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (F32, 'torch.empty(2, 3, dtype=torch.float32, device="cpu")'),
        (TensorSpec((), DType.BF16), 'torch.empty((), dtype=torch.bfloat16, device="cpu")'),
        (TensorSpec((5,), DType.I8), 'torch.empty(5, dtype=torch.int8, device="cpu")'),
        (
            TensorSpec((16, 14), DType.I32, (1, 16)),
            'torch.empty_strided((16, 14), (1, 16), dtype=torch.int32, device="cpu")',
        ),
        (
            TensorSpec((4, 256), DType.BF16, (264, 1)),
            'torch.empty(4, 264, dtype=torch.bfloat16, device="cpu")[..., :256]',
        ),
        (
            TensorSpec((4, 256), DType.BF16, (512, 1), offset=256),
            'torch.empty(4, 512, dtype=torch.bfloat16, device="cpu")[..., 256:512]',
        ),
        (
            TensorSpec((4, 256), DType.BF16, offset=8),
            'torch.empty(1032, dtype=torch.bfloat16, device="cpu")[8:].view(4, 256)',
        ),
        (TensorSpec((6,), DType.I32, offset=2), 'torch.empty(8, dtype=torch.int32, device="cpu")[2:]'),
        (
            TensorSpec((4, 8), DType.F16, (0, 1)),
            'torch.empty(1, 8, dtype=torch.float16, device="cpu").expand(4, 8)',
        ),
        (
            TensorSpec((2, 3), DType.F16, (4, 2), offset=1),
            'torch.empty(10, dtype=torch.float16, device="cpu").as_strided((2, 3), (4, 2), 1)',
        ),
        (TensorSpec((0, 4), DType.F32), 'torch.empty(0, 4, dtype=torch.float32, device="cpu")'),
    ],
)
def test_a_layout_is_written_as_one_would_make_it(spec: TensorSpec, text: str) -> None:
    assert tensor(spec, device="cpu") == text
    assert layout(run(text)) == described(spec)


VALUES: list[tuple[Values, Callable[[torch.Tensor], bool]]] = [
    (Zeros(), lambda t: bool((t == 0).all())),
    (Ones(), lambda t: bool((t == 1).all())),
    (Full(3), lambda t: bool((t == 3).all())),
    (Arange(2, 2), lambda t: t.flatten().tolist() == [2, 4, 6, 8, 10, 12]),
    (Arange(), lambda t: t.flatten().tolist() == [0, 1, 2, 3, 4, 5]),
    (Randint(4, 6), lambda t: set(t.flatten().tolist()) <= {4, 5}),
    (Listed(((1, 2, 3), (4, 5, 6))), lambda t: t.flatten().tolist() == [1, 2, 3, 4, 5, 6]),
    (Listed((1, 2, 3, 4)), lambda t: t.flatten().tolist() == [1, 2, 3, 4, 1, 2]),
    (Text("\n \x04\x08"), lambda t: t.flatten().tolist() == [10, 32, 4, 8, 0, 0]),
    (Text("\t\t\t\t\t\t\t"), lambda t: t.flatten().tolist() == [9] * 6),
    (Randn(mean=100.0, std=0.5), lambda t: bool(((t > 90) & (t < 110)).all())),
    (Randn(), lambda t: bool((t.abs() < 10).all())),
]


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.I32, DType.I64, DType.F8_E4M3FN], ids=str)
@pytest.mark.parametrize(
    ("values", "holds"), VALUES, ids=lambda item: str(item) if isinstance(item, Values) else ""
)
@pytest.mark.parametrize("strides", [(), (1, 2), (8, 1)])
def test_values_are_those_described(
    dtype: DType, values: Values, holds: Callable[[torch.Tensor], bool], strides: tuple[int, ...]
) -> None:
    spec = TensorSpec((2, 3), dtype, strides, values=values)
    built = run(tensor(spec, device="cpu"))
    assert layout(built) == described(spec)
    widened = built.to(torch.float32)
    if isinstance(values, Randn) and values.mean and dtype is DType.F8_E4M3FN:
        assert bool((widened >= 88).all()), "steps of 8 at 100"
    else:
        assert holds(widened)


def test_own_values_win_over_the_fill() -> None:
    assert tensor(TensorSpec((2,), DType.F32, values=Ones()), Zeros()).startswith("torch.ones(")
    assert tensor(TensorSpec((2,), DType.F32), Zeros()).startswith("torch.zeros(")


@pytest.mark.parametrize(
    ("own", "device", "written"),
    [
        ("cuda", "cuda", "cuda"),
        ("cuda:1", "cuda", "cuda:1"),
        ("cpu", "cuda", "cpu"),
        ("cuda", "cpu", "cpu"),
        ("cuda:1", "meta", "meta"),
        ("cpu", "meta", "cpu"),
    ],
)
def test_only_the_callers_gpu_is_replaced(own: str, device: str, written: str) -> None:
    assert tensor(TensorSpec((2,), DType.F32, device=own), device=device).endswith(f'device="{written}")')


# --- calls


def test_defaults_are_left_out_and_leading_arguments_have_no_names() -> None:
    assert (
        python_call("f", SomeCall(F32)) == 'x = torch.empty(2, 3, dtype=torch.float32, device="cuda")\nf(x)'
    )
    call = SomeCall(F32, F32, size=64, flag=True, kind=DType.I8, mode='a"b')
    assert python_call("f", call).splitlines()[-1] == (
        r'f(x, y, size=64, flag=True, kind=torch.int8, mode="a\"b")'
    )


def test_a_value_that_only_equals_its_default_is_written() -> None:
    assert python_call("f", SomeCall(F32, size=128.0)).endswith("f(x, size=128.0)")  # type: ignore[arg-type]
    assert python_call("f", SomeCall(F32, flag=0)).endswith("f(x, flag=0)")  # type: ignore[arg-type]


def test_a_long_call_is_filled_line_by_line() -> None:
    call = SomeCall(F32, F32, size=7, mode="x" * 80)
    lines = python_call("a_function_of_some_length", call).splitlines()
    assert lines[2:] == ["a_function_of_some_length(", "    x, y, size=7,", f'    mode="{"x" * 80}",', ")"]


def test_after_the_first_plain_value_all_arguments_have_names() -> None:
    @dataclass(frozen=True)
    class Mixed(Call):
        positional: ClassVar[int] = 3
        x: TensorSpec = argument("first")
        eps: float = argument("a number")
        y: TensorSpec = argument("second")

    assert python_call("f", Mixed(F32, 1e-6, F32)).endswith("f(x, eps=1e-06, y=y)")


@pytest.mark.parametrize(
    "value",
    [1, -1.5, True, None, "a", 'q"\\\n', "naïve ✓", float("inf"), float("-inf"), (1, 2), [1], {"a": 1}],
)
def test_literals_read_back(value: object) -> None:
    assert eval(literal(value), {}) == value  # noqa: S307


def test_a_literal_nan_and_a_type() -> None:
    assert literal(float("nan")) == 'float("nan")'
    assert literal(DType.BF16) == "torch.bfloat16"


def calls() -> Iterator[Any]:
    """Every valid call and example of the operations on tensors; those on files, and those that are called in
    a form of their own, test what they write."""
    for operation in operations().values():
        scripted = any(is_scripted(value) for _, value in operation.valid.stated())
        if scripted or hasattr(operation.valid, "to_call"):
            continue
        yield pytest.param(operation, operation.valid, id=f"{operation.name}/valid")
        for check in operation.checks:
            example = check.example()
            if example is not None:
                yield pytest.param(operation, example, id=f"{operation.name}/{check.id()}")


@pytest.mark.parametrize(("operation", "call"), list(calls()))
def test_every_example_is_rendered_to_the_call_it_is(operation: Operation, call: Call) -> None:
    names = [parameter.name for parameter in call.arguments()]
    received: dict[str, Any] = {}

    def function(*positional: Any, **named: Any) -> None:
        received.update(zip(names, positional, strict=False), **named)

    text = python_call("function", call, device="meta", fill=operation.fill(call))
    exec(text, {"torch": torch, "function": function})  # noqa: S102
    stated = dict(call.stated())
    assert set(received) == set(stated)
    for name, value in stated.items():
        if isinstance(value, TensorSpec):
            assert layout(received[name]) == described(value), name
        elif isinstance(value, DType):
            assert received[name] is getattr(torch, value.torch_name)
        else:
            assert (received[name], type(received[name])) == (value, type(value))


def test_before_and_after_show_what_matters() -> None:
    operation = operations()["per_token_group_quant"]
    check = operation.check("unsupported_scale_dtype")
    assert check is not None
    example = check.example()
    assert example is not None
    assert before_after(operation, example, operation.valid) == (
        "# before\n"
        'output_s = torch.empty(4, 2, dtype=torch.float16, device="cuda")\n'
        "per_token_group_quant(input, output_q, output_s)\n"
        "# after\n"
        'output_s = torch.empty(4, 2, dtype=torch.float32, device="cuda")\n'
        "per_token_group_quant(input, output_q, output_s)"
    )
    shown = before_after(operation, example, operation.valid, show=("input",))
    assert shown.count('input = torch.empty(4, 256, dtype=torch.bfloat16, device="cuda")') == 2


@pytest.mark.parametrize("operation", list(operations().values()), ids=lambda operation: operation.name)
def test_a_reproduction_runs_against_upstreams_module(operation: Operation, tmp_path: Path) -> None:
    """Run as a script of its own, upstream's module replaced by one that notes it was called."""
    function = operation.function or operation.name
    *parents, _ = operation.module.split(".")
    folder = tmp_path.joinpath(*parents)
    folder.mkdir(parents=True, exist_ok=True)
    module = tmp_path.joinpath(*operation.module.split(".")).with_suffix(".py")
    module.write_text(
        f"def {function}(*positional, **named):\n    print('called with', len(positional))\n", "utf-8"
    )
    script = tmp_path / "script.py"
    script.write_text(
        reproduction(operation, operation.valid).replace('device="cuda', 'device="cpu'), "utf-8"
    )
    done = subprocess.run(
        [sys.executable, script.name], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("called with ")
