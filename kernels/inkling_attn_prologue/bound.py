"""Checks that several operations make: declared once, then bound to each operation's own call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, cast

from kernels.checking import Check
from kernels.inkling_attn_prologue.signature import PrologueCall


class PrologueCheck(Check[PrologueCall]):
    """A check of any prologue; its example varies the `valid` call of the operation that it is bound to."""

    valid: ClassVar[PrologueCall]


def bind(checks: Iterable[type[PrologueCheck]], valid: PrologueCall) -> tuple[type[PrologueCheck], ...]:
    """The checks as the operation of this valid call makes them: the same but for their examples.

    A premise stands before the check that names it, and is bound along.
    """
    bound: dict[type[Check[PrologueCall]], type[PrologueCheck]] = {}
    for check in checks:
        namespace = {
            "__module__": check.__module__,
            "__doc__": check.__doc__,
            "valid": valid,
            "premises": tuple(bound[premise] for premise in check.premises),
        }
        bound[check] = cast("type[PrologueCheck]", type(check.__name__, (check,), namespace))
    return tuple(bound.values())
