"""Problems that `python -m benchmarks.kernels` times; each module of this folder exposes PROBLEMS.

To add an operation, write `benchmarks/problems/<folder of kernels/>.py` with PROBLEMS, a sequence of
`Problem`; no list names it. Upstream's interpreter reads such a module too, and there `kernels` may be
another package: at its top it imports torch and this module alone, and our or upstream's functions only
inside `ours` and `upstream`, upstream's by `from_upstream`.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Arguments = Mapping[str, Any]
Function = Callable[[Arguments], object]


@dataclass(frozen=True)
class Problem:
    """One size of one operation.

    operation   name of the operation, as in kernels.registry
    size        what else identifies the problem, in words
    build       generator of a device → arguments on that device; the same seed gives the same tensors
    ours        imports our function and returns it, taking the arguments
    upstream    the same for upstream's; one that is plain torch names "torch" as `upstream_package`
    moved       bytes that must move: inputs read once, outputs written once
    flops       multiplications and additions that must be done; 0 where the bytes bound it
    outputs     arguments that a call writes wholly and does not read; they are poisoned before. Without any,
                the returned tensors are what a call writes
    rate        torch's name of the element type whose matrix rate bounds `flops`
    """

    operation: str
    size: str
    build: Callable[[torch.Generator], dict[str, Any]]
    ours: Callable[[], Function]
    upstream: Callable[[], Function] | None
    moved: int
    flops: int = 0
    outputs: tuple[str, ...] = ()
    rate: str = "bfloat16"
    upstream_package: str = "sglang"

    @property
    def name(self) -> str:
        """Operation and size."""
        return f"{self.operation}: {self.size}"


def from_upstream(module: str, function: str) -> Callable[..., object]:
    """A function of upstream's package; imported by name, for it is no dependency of this project."""
    found: Callable[..., object] = getattr(import_module(module), function)
    return found


def by_name(function: Callable[..., object]) -> Function:
    """A function that takes a problem's arguments by their names."""
    return lambda arguments: function(**arguments)


def problems() -> Iterator[Problem]:
    """Every problem, by module in alphabetical order."""
    for module in pkgutil.iter_modules(__path__):
        yield from import_module(f"{__name__}.{module.name}").PROBLEMS
