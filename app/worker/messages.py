"""What passes between the service and a worker process: plain dataclasses, no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from kernels.call import Call
from kernels.dtypes import Kind
from kernels.target import Target
from kernels.values import Listed, Randint, Values

Ending = Literal["returned", "raised", "crashed", "out-of-memory", "timed-out", "unsupported"]
Implementation = Literal["triton", "reference", "library"]


@dataclass(frozen=True, slots=True)
class Job:
    """One call of one operation; `seed` draws the values that the call leaves open.

    faulting   it is run although elements that are drawn turn out to fail a check of ours
    """

    operation: str
    call: Call
    seed: int = 0
    faulting: bool = False


@dataclass(frozen=True, slots=True)
class Device:
    """Where it ran; `emulated` when the call's own device is another kind.

    capability   compute capability such as "9.0", or AMD's name such as "gfx942"; None on a CPU
    """

    name: str
    capability: str | None
    emulated: bool

    @property
    def target(self) -> Target | None:
        """Its architecture; None on a CPU."""
        if self.capability is None or self.capability.startswith("gfx"):
            return None if self.capability is None else Target.parse(self.capability)
        return Target.of_capability(self.capability)


@dataclass(frozen=True, slots=True)
class Environment:
    """Versions of what ran."""

    torch: str | None = None
    triton: str | None = None
    cuda: str | None = None
    driver: str | None = None


@dataclass(frozen=True, slots=True)
class Worker:
    """What a worker says of itself once it is ready."""

    device: Device
    environment: Environment


@dataclass(frozen=True, slots=True)
class Output:
    """One written tensor, compared with the reference; errors over finite elements, in the output's own
    units.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    max_abs_error: float
    max_rel_error: float
    mismatches: int
    elements: int
    within: bool
    atol: float
    rtol: float
    share: float


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception of the operation; `check` is the id of the check that raised it, None for any other."""

    error_class: str
    message: str
    check: str | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a job.

    milliseconds   of the operation alone, None when it did not return
    seconds        for which it had a worker to itself, what is counted against a quota
    detail         where it crashed, ran out of memory or time, was refused, or wrote where it must not
    breaches       memory that it wrote and must not have, a sentence each
    drawn          elements of tensors described as drawn, of a large one the smallest and the largest, where
                   checks say more of the call with them
    """

    ending: Ending
    device: Device | None = None
    implementation: Implementation | None = None
    milliseconds: float | None = None
    outputs: tuple[Output, ...] = ()
    raised: Raised | None = None
    detail: str = ""
    environment: Environment = field(default_factory=Environment)
    seconds: float = 0.0
    breaches: tuple[str, ...] = ()
    drawn: Mapping[str, tuple[int | float | bool, ...]] = field(default_factory=dict)

    @property
    def agrees(self) -> bool:
        """Whether every output is within its tolerance of the reference, and nothing else was written."""
        within = all(output.within for output in self.outputs)
        return self.ending == "returned" and within and not self.breaches


def written_out(call: Call, elements: Mapping[str, tuple[int | float | bool, ...]]) -> Call:
    """The call with the elements of these tensors, in row-major order, in place of what draws them; with what
    lies between two that are told of a large one.
    """
    for name, each in elements.items():
        tensor = getattr(call, name)
        values: Values = Listed(tuple(each))
        if len(each) < tensor.numel and tensor.dtype.kind is not Kind.FLOAT:
            values = Randint(int(min(each)), int(max(each)) + 1, seed=tensor.values.seed)
        call = call.with_tensor(name, values=values)
    return call
