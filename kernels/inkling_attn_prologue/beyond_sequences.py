"""What upstream takes of sequences that contradict one another, as described bounds and owners prove."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

from kernels.checking import Fix
from kernels.inkling_attn_prologue.beyond import Hazard
from kernels.inkling_attn_prologue.beyond_values import undescribed
from kernels.inkling_attn_prologue.derived import elements, extremes, owners, tokens
from kernels.inkling_attn_prologue.signature import ExtendCall, PrologueCall
from kernels.spec import TensorSpec
from kernels.values import Listed, Randint, Randn


@dataclass(frozen=True)
class SequencesOutOfStep(Hazard):
    """cu and si say the same twice, and both are believed."""

    message = "cu and si are out of step: {what}"
    reason = "{what}: tokens are given another sequence's history, or memory outside is read"
    looks_at = ("cu.values", "si.values", "qkvr.shape", "cache_indices.shape")
    reads_values = True
    requires = "cu from 0 to T, non-decreasing; cu[si[t]] <= t < cu[si[t] + 1] for every token"
    category = "values"
    what: str

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        if isinstance(call, ExtendCall) and tokens(call):
            found = next(_out_of_step(call), None)
            if found is not None:
                yield cls(found)

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        changed = undescribed(call, "cu", "si")
        yield Fix("Compute cu and si from the same lengths", changed, safe=False)

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.with_tensor("cu", values=Listed((0, 4, 3)))


def _drawn_apart(tensor: TensorSpec) -> bool:
    """Whether several elements are drawn, of which any may be the largest."""
    values = tensor.values
    several = isinstance(values, Randn) or (isinstance(values, Randint) and values.high - values.low > 1)
    return several and tensor.numel > 1


def _out_of_step(call: ExtendCall) -> Iterator[str]:
    rows, sequences = tokens(call), owners(call)
    if not sequences:
        yield f"{rows} tokens belong to no sequence"
        return
    drawn = [name for name, tensor in (("cu", call.cu), ("si", call.si)) if _drawn_apart(tensor)]
    if drawn:
        yield f"{drawn[0]} is drawn at random, and sequences follow one another"
        return
    starts = elements(call.cu, sequences + 1)
    if starts:
        if starts[0] != 0:
            yield f"cu begins with {starts[0]}, not with 0"
        if starts[-1] != rows:
            yield f"cu ends with {starts[-1]}, and there are {rows} tokens"
        for index, (start, end) in enumerate(pairwise(starts)):
            if end < start:
                yield f"cu falls from {start} to {end} at sequence {index}"
    elif (proved := extremes(call.cu, sequences + 1)) is not None and not 0 <= proved[0] <= proved[1] <= rows:
        yield f"cu holds numbers from {proved[0]} to {proved[1]}, and there are {rows} tokens"
    for owner in extremes(call.si, rows) or ():
        if not 0 <= owner < sequences:
            yield f"si names sequence {owner}, and there are {sequences}"
            return
    owned = elements(call.si, rows)
    if owned is None:
        return
    for token, (owner, following) in enumerate(pairwise(owned)):
        if following < owner:
            yield f"si falls from {owner} to {following} at token {token + 1}"
    if starts and len(starts) == sequences + 1:
        for token, owner in enumerate(owned):
            start, end = starts[int(owner)], starts[int(owner) + 1]
            if not start <= token < end:
                yield f"si puts token {token} into sequence {owner}, which cu says is {start} … {end}"
