"""Where a statement of a Python file stands, and which texts names hold there."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from catalog.scan.expressions import MOST
from catalog.scan.model import Parts

Texts = dict[str, list[Parts]]
"""Name → the texts it may hold; a name that may hold anything else is not in it."""

BUILT_IN: Final = frozenset(
    name
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, BaseException)
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where statements stand. `names` are dotted: classes and functions around them."""

    function: str | None = None
    owner: str | None = None
    conditions: tuple[str, ...] = ()

    def under(self, *more: str) -> Place:
        """The same place where more has to hold; "" says nothing."""
        return replace(self, conditions=(*self.conditions, *filter(None, more)))


def merge(texts: Texts, *outcomes: Texts) -> None:
    """After branches: each name holds what any of them left in it, nothing where one left it unknown."""
    if not outcomes:
        return
    kept = set(outcomes[0]).intersection(*outcomes[1:])
    merged = {
        name: list(dict.fromkeys(parts for known in outcomes for parts in known[name]))[:MOST]
        for name in kept
    }
    texts.clear()
    texts.update(merged)


def without(texts: Mapping[str, list[Parts]], arguments: ast.arguments) -> Texts:
    """What names hold inside a function, whose parameters hide those of their names."""
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    named += [extra for extra in (arguments.vararg, arguments.kwarg) if extra is not None]
    hidden = {argument.arg for argument in named}
    return {name: known for name, known in texts.items() if name not in hidden}


def is_class(name: str) -> bool:
    """Whether a dotted name is spelled as a class is, rather than as a variable that holds one caught."""
    last = name.rpartition(".")[2].lstrip("_")
    return last[:1].isupper() and not last.isupper()
