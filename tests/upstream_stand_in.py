"""Modules in the place of upstream's, whose function notes what it is called with."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from kernels.registry import Operation

Received = list[dict[str, Any]]
"""The arguments of each call, by name."""


def stand_in(operation: Operation, patch: pytest.MonkeyPatch) -> Received:
    """Put a module with the operation's function where scripts import it from, until `patch` is undone."""
    received: Received = []
    names = [parameter.name for parameter in operation.call.arguments()]

    def function(*positional: Any, **named: Any) -> None:
        received.append({**dict(zip(names, positional, strict=False)), **named})

    parts = operation.module.split(".")
    for end in range(1, len(parts) + 1):
        module = ModuleType(".".join(parts[:end]))
        module.__path__ = []
        patch.setitem(sys.modules, module.__name__, module)
    setattr(module, operation.function or operation.name, function)
    return received


def on_this_host(script: str) -> str:
    """The script with its tensors on the CPU, whatever device it names."""
    for device in ("cuda", "cuda:0", "cuda:1", "cuda:3", "hip", "xpu", "mps", "meta"):
        script = script.replace(f'device="{device}"', 'device="cpu"')
    return script
