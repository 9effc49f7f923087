"""A whole call of the arguments that were given, and a sentence for each that was not."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from app.diagnose.answers import FITTED
from kernels.call import Argument, Call, plain
from kernels.registry import Operation
from kernels.target import Target


def complete(
    operation: Operation, given: Mapping[str, Any], target: Target | None = None
) -> tuple[Call, tuple[str, ...]]:
    """A whole call from the arguments given, for the target, and a sentence for each that was not given."""
    call = operation.fit(given if target is None else {**given, "target": target})
    sentences = []
    left = _left(operation.call)  # type: ignore[arg-type]
    for parameter in operation.call.arguments():
        if parameter.name in given:
            continue
        value = getattr(call, parameter.name)
        if value is parameter.default and not parameter.required:
            sentences.append(left[parameter.name])
            continue
        shown = _shown(parameter, value)
        origin = FITTED if parameter.required or value != parameter.default else "its default"
        sentences.append(f"{parameter.name} = {shown} ({origin})")
    return call, tuple(sentences)


@cache
def _left(call: type[Call]) -> dict[str, str]:
    """The sentence for each argument that is left to its default."""
    return {
        parameter.name: f"{parameter.name} = {_shown(parameter, parameter.default)} (its default)"
        for parameter in call.arguments()
        if not parameter.required
    }


def _shown(parameter: Argument, value: Any) -> str:
    return str(value) if parameter.is_tensor and value is not None else repr(plain(value))
