"""Random calls: distinct, the same for the same seed, right ones and wrong ones, for every operation."""

from __future__ import annotations

from itertools import islice

import pytest

from benchmarks.calls import LARGEST, calls
from kernels.registry import Operation, operations


@pytest.mark.parametrize("operation", list(operations().values()), ids=lambda operation: operation.name)
def test_calls_are_distinct_and_repeatable(operation: Operation) -> None:
    drawn = list(islice(calls(operation, 3), 60))
    assert len(set(drawn)) == 60
    assert drawn == list(islice(calls(operation, 3), 60))
    assert drawn[:5] != list(islice(calls(operation, 4), 5))
    assert all(call.describable for call in drawn)
    sizes = [sum(getattr(value, "storage_bytes", 0) for _, value in call.stated()) for call in drawn]
    assert max(sizes) <= LARGEST
    refused = [operation.examine(call).rejected for call in drawn]
    assert any(refused)
