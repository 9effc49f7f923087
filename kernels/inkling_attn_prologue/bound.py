"""Checks that several operations make: declared once, then bound to each operation's own call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from kernels.checking import Check, LauncherCheck
from kernels.inkling_attn_prologue.signature import (
    DecodeCall,
    ExtendCall,
    PrologueCall,
    VerifyCall,
)
from kernels.upstream import SGLANG, File, Site

CUDA = File(SGLANG, "python/sglang/kernels/jit/csrc/inkling/inkling_attn_prologue_fused.cuh")

RUN = {
    VerifyCall: "AttnPrologueKernel::run",
    DecodeCall: "AttnPrologueDecodeKernel::run",
    ExtendCall: "AttnPrologueExtendKernel::run",
}


class PrologueCheck(Check[PrologueCall]):
    """A check of any prologue; its example varies the `valid` call of the operation that it is bound to."""

    valid: ClassVar[PrologueCall]


class Launched(LauncherCheck[PrologueCall], PrologueCheck):
    """A check of the compiled launchers: one condition and one text, at a line of its own in each."""

    @property
    def site(self) -> Site:
        return next(site for site in self.sites if site.function == RUN[type(self.valid)])


def at(
    *, verify: int | None = None, decode: int | None = None, extend: int | None = None
) -> tuple[Site, ...]:
    """The lines of a check in the three launchers, in the file's order; one file serves both versions."""
    lines = {VerifyCall: verify, DecodeCall: decode, ExtendCall: extend}
    return tuple(CUDA.at(RUN[call], line, line) for call, line in lines.items() if line is not None)


def bind(checks: Iterable[type[Check[Any]]], valid: PrologueCall) -> tuple[type[Check[Any]], ...]:
    """The checks as the operation of this valid call makes them: the same but for their examples.

    A premise stands before the check that names it, and is bound along. Of what a check looks at, the
    operation's own arguments remain.
    """
    names = {parameter.name for parameter in valid.arguments()}
    bound: dict[type[Check[Any]], type[Check[Any]]] = {}
    for check in checks:
        namespace = {
            "__module__": check.__module__,
            "__doc__": check.__doc__,
            "valid": valid,
            "premises": tuple(bound[premise] for premise in check.premises if premise in bound),
            "looks_at": tuple(path for path in check.looks_at if path.partition(".")[0] in names),
        }
        bound[check] = type(check.__name__, (check,), namespace)
    return tuple(bound.values())
