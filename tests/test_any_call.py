"""Whatever a call holds, its checks answer: wrong types beside wrong sizes, several faults at once."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice, product
from math import inf, nan
from typing import Any

import pytest

from app.diagnose import fixes
from benchmarks.calls import calls
from kernels.registry import operations
from kernels.target import Target
from kernels.values import Arange, Full, Listed, Ones, Randint, Randn, Text, Values, Zeros

COUNT = 1_500


@pytest.mark.parametrize("name", operations())
@pytest.mark.parametrize("target", [None, Target("sm90")], ids=str)
def test_no_drawn_call_stops_a_check(name: str, target: Target | None) -> None:
    operation = operations()[name]
    for call in islice(calls(operation, 11), COUNT):
        operation.examine(call.replace(target=target))


@pytest.mark.parametrize("name", operations())
def test_no_drawn_call_stops_the_search_for_fixes(name: str) -> None:
    operation = operations()[name]
    for call in islice(calls(operation, 12), COUNT // 15):
        fixes.search(call, operation.examine(call), operation.examine)


def test_a_wrong_type_behind_a_wrong_size_is_not_computed_with() -> None:
    operation = operations()["inkling_attn_prologue_decode"]
    valid = operation.valid
    for call in (
        valid.replace(dq=-256, dkv="silu"),
        valid.quantized().replace(dq=192, dkv=None),
        valid.quantized().replace(dq=192, dkv="x"),
    ):
        examination = operation.examine(call)
        assert examination.raised is not None
        fixes.search(call, examination, operation.examine)


@pytest.mark.parametrize("changes", [{"dkv": None}, {"dkv": "x"}, {"page_size": "128"}, {"page_size": 128.0}])
def test_pools_of_no_whole_pages_are_mended_only_where_sizes_are_numbers(changes: dict[str, Any]) -> None:
    operation = operations()["inkling_attn_prologue_decode"]
    check = operation.check("pool_not_whole_pages")
    assert check is not None
    example = check.example()
    assert example is not None
    assert any(violation.fixes(example) for violation in check.find(example))
    call = example.replace(**changes)
    for violation in check.find(call):
        assert list(violation.fixes(call)) == []


ANY_SCALAR: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 2**31, 2**63, -(2**64), 10**400, -(10**400)),
    *(0.0, -0.0, 0.5, 1e308, -1e308, 5e-324, inf, -inf, nan),
    *("", "128", "silu", "\x00", "\ud800", "float8_e4m3fn"),
)


@pytest.mark.parametrize("name", operations())
def test_no_value_of_a_plain_argument_stops_a_check_or_the_search(name: str) -> None:
    operation = operations()[name]
    examples = [example for check in operation.checks if (example := check.example()) is not None]
    plain = [each.name for each in operation.call.arguments() if each.kind in (int, float, bool, str)]
    for call in (operation.valid, *examples[::4]):
        for argument, value in product(plain, ANY_SCALAR):
            changed = call.replace(**{argument: value})
            examination = operation.examine(changed)
            for outcome in examination.failed():
                assert all(
                    occurrence.violation.text is not None and occurrence.violation.explain() is not None
                    for occurrence in outcome.occurrences
                )
            if call is operation.valid:
                fixes.search(changed, examination, operation.examine)


ANY_VALUES: tuple[Values, ...] = (
    *map(Full, (nan, inf, -inf, 1e308, -1e39, 2**63, -(2**70), 10**400, True)),
    *(
        Arange(-5, 1e308),
        Arange(nan, 1),
        Arange(0.5, 10**30),
        Arange(2**62, 2**62),
        Arange(1e308, -1e308),
        Arange(10**400, 0.5),
    ),
    *(Randint(-(10**30), 10**30), Randint(2**63, 2**64), Randn(1e308, inf), Randn(nan, 0)),
    *(Listed(()), Listed((nan, 1)), Listed((inf, -inf)), Listed((True, 1.5)), Listed((2**70, (1, (-1,))))),
    *(Text(""), Text("\ud800\x00"), Text("[1, 2"), Zeros(), Ones()),
)


@pytest.mark.parametrize("name", operations())
def test_no_described_values_stop_a_check(name: str) -> None:
    operation = operations()[name]
    examples = [example for check in operation.checks if (example := check.example()) is not None]
    for call in (operation.valid, *examples[::8]):
        for (argument, tensor), values in product(call.tensors(), ANY_VALUES):
            for shape in (tensor.shape, (0, *tensor.shape[1:]), (2**40, *tensor.shape[1:])):
                operation.examine(call.with_tensor(argument, shape=shape, values=values))
        file = getattr(call, "checkpoint", None)
        for (key, header), values in product(file.tensors.items() if file else (), ANY_VALUES):
            changed = file.with_tensor(key, replace(header, values=values))
            operation.examine(call.replace(checkpoint=changed))
