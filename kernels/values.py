"""What a described tensor holds: generators that say their range without building anything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Literal


@dataclass(frozen=True, slots=True)
class Randn:
    """Normal values; nothing is known of their bounds until they are drawn."""

    kind: Literal["randn"] = "randn"
    mean: float = 0.0
    std: float = 1.0
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Zeros:
    """Every element 0."""

    kind: Literal["zeros"] = "zeros"


@dataclass(frozen=True, slots=True)
class Ones:
    """Every element 1."""

    kind: Literal["ones"] = "ones"


@dataclass(frozen=True, slots=True)
class Full:
    """Every element `value`."""

    value: float | int | bool
    kind: Literal["full"] = "full"


@dataclass(frozen=True, slots=True)
class Arange:
    """start, start + step, start + 2·step, … in row-major order."""

    start: float | int = 0
    step: float | int = 1
    kind: Literal["arange"] = "arange"


@dataclass(frozen=True, slots=True)
class Randint:
    """Whole numbers drawn evenly from [low, high)."""

    low: int
    high: int
    kind: Literal["randint"] = "randint"
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Listed:
    """The elements themselves, nested as the shape or flat in row-major order; repeated when too few."""

    data: tuple[object, ...]
    kind: Literal["list"] = "list"

    def flat(self) -> Iterator[float | int | bool]:
        """The elements in row-major order."""
        stack: list[Iterator[object]] = [iter(self.data)]
        while stack:
            for item in stack[-1]:
                if isinstance(item, (tuple, list)):
                    stack.append(iter(item))
                    break
                if isinstance(item, (int, float)):
                    yield item
            else:
                stack.pop()


Values = Randn | Zeros | Ones | Full | Arange | Randint | Listed


def bounds(values: Values | None, shape: tuple[int, ...]) -> tuple[float | int, float | int] | None:
    """(smallest, largest) element that these values prove, or None when they prove nothing."""
    count = prod(shape)
    if values is None or count == 0:
        return None
    match values:
        case Zeros():
            return 0, 0
        case Ones():
            return 1, 1
        case Full(value=value):
            return value, value
        case Arange(start=start, step=step):
            last = start + step * (count - 1)
            return min(start, last), max(start, last)
        case Randint(low=low, high=high):
            return low, high - 1
        case Listed():
            elements = list(values.flat())
            return (min(elements), max(elements)) if elements else None
        case Randn():
            return None
