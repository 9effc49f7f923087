"""Operations, found by their folders: `kernels/<folder>/checks.py` declares OPERATIONS; no list to edit."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import kernels
from kernels.call import Call
from kernels.checking import Check, Stages
from kernels.examining import Examination, checks_of, examine
from kernels.upstream import File
from kernels.values import Values

if TYPE_CHECKING:
    from kernels.checkpoint import Checkpoint


@dataclass(frozen=True)
class Operation:
    """One public function of upstream, described.

    name        the function's name
    stages      its checks, in upstream's order
    valid       a call that passes them all
    fit         completes the arguments a user gave, and `target` where one is known: the missing required
                ones, sized to those given
    fill        what each tensor without described values holds, so that the call is valid by construction
    outputs     arguments that the operation writes
    source      upstream's file
    module      dotted name of upstream's module, for reproduction scripts
    function    upstream's name of the function, where the operation is called otherwise
    needs       what a run would take that no worker has; empty where runs are possible
    claims      whether a checkpoint is of the format that the operation inspects, or means to be; None where
                it inspects none
    """

    name: str
    title: str
    summary: str
    call: type[Call]
    stages: Stages
    valid: Call
    fit: Callable[[Mapping[str, Any]], Call]
    fill: Callable[[Any], Mapping[str, Values]]
    outputs: tuple[str, ...]
    source: File
    module: str
    function: str = ""
    needs: str = ""
    claims: Callable[[Checkpoint], bool] | None = None

    @property
    def checks(self) -> tuple[type[Check[Any]], ...]:
        """Every check, in order."""
        return tuple(checks_of(self.stages))

    def check(self, identifier: str) -> type[Check[Any]] | None:
        """The check of this id."""
        return next((check for check in self.checks if check.id() == identifier), None)

    def examine(self, call: Call) -> Examination:
        """Every check's outcome for a call."""
        return examine(self.stages, call)


@cache
def operations() -> Mapping[str, Operation]:
    """All operations by name, in alphabetical order of their folders."""
    found: dict[str, Operation] = {}
    for module in pkgutil.iter_modules(kernels.__path__):
        if module.ispkg:
            checks = import_module(f"kernels.{module.name}.checks")
            for operation in checks.OPERATIONS:
                if operation.name in found:
                    raise ValueError(f"two operations are named {operation.name}")
                found[operation.name] = operation
    return found


def folder_of(operation: Operation) -> str:
    """The operation's folder in `kernels/`."""
    return operation.call.__module__.split(".")[1]


def has_kernel(operation: Operation) -> bool:
    """Whether its folder has a kernel of ours; else a plain torch reference is what runs."""
    return find_spec(f"kernels.{folder_of(operation)}.kernel") is not None
