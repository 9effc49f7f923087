"""Whatever a call holds, its checks answer: wrong types beside wrong sizes, several faults at once."""

from __future__ import annotations

from itertools import islice

import pytest

from app.diagnose import fixes
from benchmarks.calls import calls
from kernels.registry import operations
from kernels.target import Target

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
        fixes.search(operation, call, operation.examine(call))


def test_a_wrong_type_behind_a_wrong_size_is_not_computed_with() -> None:
    valid = operations()["inkling_attn_prologue_decode"].valid
    for call in (
        valid.replace(dq=-256, dkv="silu"),
        valid.quantized().replace(dq=192, dkv=None),
        valid.quantized().replace(dq=192, dkv="x"),
    ):
        examination = operations()["inkling_attn_prologue_decode"].examine(call)
        assert examination.raised is not None
        fixes.search(operations()["inkling_attn_prologue_decode"], call, examination)
