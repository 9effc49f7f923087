"""Calls that are wrong in several ways at once: the examples of several checks in one call, or, of a file,
which is one argument, the example of one check changed at random.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from random import Random

from benchmarks.calls import calls
from kernels.call import Call
from kernels.checking import Severity
from kernels.registry import Operation

ATTEMPTS = 3000


def several(operation: Operation, faults: int, wanted: int, seed: int) -> Iterator[Call]:
    """At most `wanted` calls in which `faults` checks of error severity fail at least."""
    found = 0
    for source in (_joined(operation, faults, seed), calls(operation, seed)):
        for call in islice(source, ATTEMPTS):
            failed = operation.examine(call).failed()
            if sum(outcome.check.severity is Severity.ERROR for outcome in failed) >= faults:
                yield call
                found += 1
                if found == wanted:
                    return
        if found:
            return


def _joined(operation: Operation, faults: int, seed: int) -> Iterator[Call]:
    """Calls of the examples of so many checks, drawn at random, where they change different arguments."""
    examples = [example for check in operation.checks if (example := check.example()) is not None]
    draw = Random(seed)
    for _ in range(ATTEMPTS if len(examples) >= faults else 0):
        call = _merged(operation.valid, draw.sample(examples, faults))
        if call is not None:
            yield call


def _merged(valid: Call, examples: list[Call]) -> Call | None:
    """The valid call with what each example changes; None where two change one argument."""
    changes: dict[str, object] = {}
    for example in examples:
        for edit in valid.edits_to(example):
            value = getattr(example, edit.argument)
            if changes.setdefault(edit.argument, value) is not value:
                return None
    return valid.replace(**changes)
