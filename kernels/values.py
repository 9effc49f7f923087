"""What a described tensor holds: generators that say their range without building anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from math import inf, isfinite, prod
from typing import Any, Literal

MIN_INT64, MAX_INT64 = -(2**63), 2**63 - 1


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

    def drawn(self) -> tuple[int, int]:
        """Low and high as torch draws between them: within 64 bits, and never equal."""
        low = max(min(self.low, MAX_INT64 - 1), MIN_INT64)
        return low, max(min(self.high, MAX_INT64), low + 1)


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


@dataclass(frozen=True, slots=True)
class Text:
    """The bytes of a text in UTF-8, then zeros; what does not fit is cut off."""

    text: str
    kind: Literal["text"] = "text"

    def encoded(self) -> bytes:
        """The bytes; a lone surrogate, which no file can hold, becomes a question mark."""
        return self.text.encode("utf-8", "replace")


Values = Randn | Zeros | Ones | Full | Arange | Randint | Listed | Text

MAX_NESTING = 64
"""Lists within lists that `read_values` takes: torch's limit on dimensions."""

_KINDS: dict[Any, Any] = {
    field.default: generator
    for generator in (Randn, Zeros, Ones, Full, Arange, Randint, Listed, Text)
    for field in fields(generator)
    if field.name == "kind"
}
_WHOLE = ("low", "high", "seed")


def read_values(value: Any) -> Values:
    """Read a generator's JSON form, `{"kind": "full", "value": 1}`; raises ValueError."""
    kind = value.get("kind") if isinstance(value, Mapping) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"expected an object whose kind is one of {', '.join(_KINDS)}")
    generator = _KINDS[kind]
    known = {field.name: field for field in fields(generator)}
    unknown = ", ".join(sorted(set(value) - set(known)))
    if unknown:
        raise ValueError(f"kind {kind} has no member {unknown[:80]}")
    missing = [name for name, field in known.items() if field.default is MISSING and name not in value]
    if missing:
        raise ValueError(f"kind {kind} needs {', '.join(missing)}")
    made = generator(**{name: _member(name, item) for name, item in value.items()})
    if isinstance(made, Randint) and made.low >= made.high:
        raise ValueError(f"randint draws from low up to high: {made.low} is not below {made.high}")
    if isinstance(made, Randn) and not made.std >= 0:
        raise ValueError("std is not negative")
    if not 0 <= (getattr(made, "seed", None) or 0) < 2**63:
        raise ValueError("seed is a whole number from 0 below 2^63")
    return made  # type: ignore[no-any-return]


def _member(name: str, item: Any) -> Any:
    if name == "kind" or (name == "seed" and item is None):
        return item
    if name == "text":
        if not isinstance(item, str):
            raise ValueError("text is a text")
        return item
    if name == "data":
        if not isinstance(item, list):
            raise ValueError("data is a list of numbers")
        return _elements(item, MAX_NESTING)
    if type(item) is int or (name not in _WHOLE and isinstance(item, (int, float))):
        return item
    raise ValueError(f"{name} is a {'whole ' if name in _WHOLE else ''}number")


def _elements(items: list[Any], nesting: int) -> tuple[object, ...]:
    if nesting == 0:
        raise ValueError(f"data is nested deeper than {MAX_NESTING} lists")
    if not all(isinstance(item, (int, float, list)) for item in items):
        raise ValueError("data is a list of numbers")
    return tuple(_elements(item, nesting - 1) if isinstance(item, list) else item for item in items)


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
            try:
                last = start + step * (count - 1)
            except OverflowError:  # a float step, and an index that no float holds
                return None
            return min(start, last), max(start, last)
        case Randint(low=low, high=high):
            return low, high - 1
        case Listed():
            elements = list(values.flat())
            return (min(elements), max(elements)) if elements else None
        case Text():
            data = values.encoded()[:count].ljust(min(count, len(values.encoded()) + 1), b"\0")
            return min(data), max(data)
        case Randn():
            return None


def seeded(values: Mapping[str, Values], seed: int) -> dict[str, Values]:
    """Give each drawn generator that names no seed one of its own: `seed` plus its place, so tensors
    differ.
    """
    return {
        name: replace(generator, seed=seed + place)
        if isinstance(generator, (Randn, Randint)) and generator.seed is None
        else generator
        for place, (name, generator) in enumerate(values.items())
    }


def printable(value: float | int) -> float | int:
    """A whole number beyond float64 as infinite: Python does not print arbitrarily long ones."""
    if isinstance(value, int) and abs(value) >= 2**1024:
        return inf if value > 0 else -inf
    return value


def representable(value: float | int) -> float | int:
    """The number where torch holds it, else the float nearest to it, which may be infinite."""
    if isinstance(value, int) and not MIN_INT64 <= value <= MAX_INT64:
        return float(printable(value))
    return value


def as_whole(value: float | int) -> int:
    """What a whole type holds of a number: an end of 64 bits, of one that has no whole part."""
    if isinstance(value, int) or isfinite(value):
        return int(value)
    return MAX_INT64 if value > 0 else MIN_INT64
