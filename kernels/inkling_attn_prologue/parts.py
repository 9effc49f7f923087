"""Arguments that upstream takes one after the other: every check of one comes before any of the next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import ClassVar

from kernels.call import shown
from kernels.checking import Check, Each, Stages
from kernels.inkling_attn_prologue.bound import bind
from kernels.inkling_attn_prologue.signature import PrologueCall


@dataclass(frozen=True, slots=True)
class Part:
    """One argument of a call, where several go through the same statement."""

    call: PrologueCall
    name: str


class PartCheck(Check[Part]):
    """A check of each of the arguments in `parts`; its example varies the `valid` call."""

    pythons_own = True
    valid: ClassVar[PrologueCall]
    parts: ClassVar[tuple[str, ...]]
    beside: ClassVar[tuple[str, ...]] = ()
    """What else of the call a violation depends on."""

    def describe_actual(self, part: Part, /) -> str:
        own = [path for path in self.looks_at if path.partition(".")[0] == part.name]
        return ", ".join(f"{path} = {shown(part.call, path)}" for path in (*own, *self.beside))

    def blames(self, part: Part, /) -> tuple[str, ...]:
        others = (path.partition(".")[0] for path in self.beside)
        return tuple(dict.fromkeys((part.name, *others)))


def staged(checks: tuple[type[Check[PrologueCall]] | type[PartCheck], ...], valid: PrologueCall) -> Stages:
    """The checks as the operation of this valid call makes them: those of parts run part by part."""
    groups = groupby(bind(checks, valid), key=lambda check: getattr(check, "parts", None))
    return tuple(
        stage
        for names, group in groups
        for stage in (group if names is None else [Each(partial(_parts, names), tuple(group), blocks=True)])
    )


def _parts(names: tuple[str, ...], call: PrologueCall) -> Iterator[Part]:
    return (Part(call, name) for name in names)
