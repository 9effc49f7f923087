"""Calls that note what is read of them: which field, of a tensor which attribute, of sizes and strides which.

What is read is a `Path`; `Path.within` is what tells two calls apart that differ there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, SupportsIndex

from kernels.call import TENSOR_ATTRIBUTES, Call
from kernels.dtypes import DType
from kernels.spec import TensorSpec
from kernels.values import Values

WHOLE: Any = object()
"""In place of an index: all of them."""

LENGTH: Any = object()
"""In place of an index: how many there are."""

_ABSENT = object()
_INTS = frozenset({int})
_PLAIN = (int, float, str, bool, type(None), DType)


@dataclass(frozen=True, slots=True, eq=False)
class Path:
    """What is read; there is one object for each.

    attribute   of the tensor `name`; "" for the field itself, of a tensor that it is one
    index       of sizes or strides: a place, (start, stop, step), WHOLE or LENGTH
    """

    name: str
    attribute: str = ""
    index: Any = WHOLE

    def within(self, value: Any) -> object:
        """What tells values of the field `name` apart here."""
        if isinstance(value, TensorSpec):
            if not self.attribute:
                return TensorSpec
            value = getattr(value, self.attribute)
            if self.index is not WHOLE:
                if self.index is LENGTH:
                    return len(value)
                try:
                    value = value[slice(*self.index) if type(self.index) is tuple else self.index]
                except IndexError:
                    return _ABSENT
        return key_of(value)


@cache
def path(name: str, attribute: str = "", index: Any = WHOLE) -> Path:
    """The one object for what is read."""
    return Path(name, attribute, index)


def key_of(value: Any) -> object:
    """A value as a key of a dictionary: 1, 1.0 and True are told apart, other objects by what they are."""
    kind = type(value)
    if kind is int or kind is str:
        return value
    if kind is tuple:
        return value if _INTS.issuperset(map(type, value)) else (tuple, repr(value))
    if kind in _PLAIN:
        return kind, value
    if isinstance(value, Values):
        return kind, repr(value)
    return _Self(value)


class _Self:
    """An object that is equal to itself alone; it lives as long as what is kept by it."""

    __slots__ = ("held",)

    def __init__(self, held: object) -> None:
        self.held = held

    def __hash__(self) -> int:
        return id(self.held)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Self) and other.held is self.held


class Noting:
    """Makes calls of one class that note in `reads` what is read of the fields that are `moving`."""

    def __init__(self, call: type[Call], moving: Container[tuple[str, str]], reads: dict[Path, None]) -> None:
        self._class = _noting_call(call, moving, reads)
        self._moving, self._reads = moving, reads
        self._tensors = {
            field.name: _noting_tensor(field.name, moving, reads) for field in dataclasses.fields(call)
        }

    def watched(self, values: Mapping[str, Any], tensors: set[str]) -> Call:
        """A call of these fields; `tensors` names those of which an attribute moves."""
        subject = object.__new__(self._class)
        fields = vars(subject)
        fields.update(values)
        for name in tensors:
            if isinstance(fields[name], TensorSpec):
                fields[name] = self._watched_tensor(name, fields[name])
        return subject

    def _watched_tensor(self, name: str, tensor: TensorSpec) -> TensorSpec:
        made = object.__new__(self._tensors[name])
        for attribute in TENSOR_ATTRIBUTES:
            value = getattr(tensor, attribute)
            if attribute in ("shape", "strides") and (name, attribute) in self._moving:
                value = _Sizes(value)
                value.note = _noter(name, attribute, self._reads)
            object.__setattr__(made, attribute, value)
        return made


class _Sizes(tuple[int, ...]):
    """Sizes or strides that note which of them are read."""

    note: Callable[[Any], None]

    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        self.note((index.start, index.stop, index.step) if isinstance(index, slice) else index)
        return tuple.__getitem__(self, index)

    def __len__(self) -> int:
        self.note(LENGTH)
        return tuple.__len__(self)

    def __iter__(self) -> Iterator[int]:
        self.note(WHOLE)
        return tuple.__iter__(self)

    def __eq__(self, other: object) -> bool:
        self.note(WHOLE)
        return tuple.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        self.note(WHOLE)
        return tuple.__ne__(self, other)

    def __hash__(self) -> int:
        self.note(WHOLE)
        return tuple.__hash__(self)

    def __contains__(self, item: object) -> bool:
        self.note(WHOLE)
        return tuple.__contains__(self, item)

    def __add__(self, other: Any) -> Any:
        self.note(WHOLE)
        return tuple.__add__(self, other)

    def __radd__(self, other: Any) -> Any:
        self.note(WHOLE)
        return tuple.__add__(other, tuple(self))

    def __mul__(self, count: SupportsIndex) -> Any:
        self.note(WHOLE)
        return tuple.__mul__(self, count)

    def __lt__(self, other: Any) -> bool:
        self.note(WHOLE)
        return tuple.__lt__(self, other)

    def __gt__(self, other: Any) -> bool:
        self.note(WHOLE)
        return tuple.__gt__(self, other)

    def __le__(self, other: Any) -> bool:
        self.note(WHOLE)
        return tuple.__le__(self, other)

    def __ge__(self, other: Any) -> bool:
        self.note(WHOLE)
        return tuple.__ge__(self, other)

    def __bool__(self) -> bool:
        self.note(LENGTH)
        return tuple.__len__(self) > 0

    def __repr__(self) -> str:
        self.note(WHOLE)
        return tuple.__repr__(self)

    def __reversed__(self) -> Iterator[int]:
        self.note(WHOLE)
        return reversed(tuple(tuple.__iter__(self)))

    def count(self, value: Any) -> int:
        self.note(WHOLE)
        return tuple.count(self, value)

    def index(self, value: Any, *span: Any) -> int:
        self.note(WHOLE)
        return tuple.index(self, value, *span)


def _noter(name: str, attribute: str, reads: dict[Path, None]) -> Callable[[Any], None]:
    def note(index: Any) -> None:
        reads[path(name, attribute, index)] = None

    return note


def _noting_call(call: type[Call], moving: Container[tuple[str, str]], reads: dict[Path, None]) -> type[Call]:
    """A class of the same calls that notes the fields that are read.

    What a call works out once and keeps is worked out at each reading instead: whoever reads it reads what it
    rests on.
    """
    computed = {
        name: member.func
        for base in reversed(call.__mro__)
        for name, member in vars(base).items()
        if isinstance(member, cached_property)
    }
    fields = {field.name for field in dataclasses.fields(call)}

    def read(self: Call, name: str) -> Any:
        if name in computed:
            return computed[name](self)
        if name in fields and (name, "") in moving:
            reads[path(name)] = None
        return object.__getattribute__(self, name)

    return type(call.__name__, (call,), {"__getattribute__": read})


def _noting_tensor(
    argument: str, moving: Container[tuple[str, str]], reads: dict[Path, None]
) -> type[TensorSpec]:
    """A class of the same tensors that notes the attributes that are read; sizes and strides note by
    themselves.
    """
    noted = {name for name in TENSOR_ATTRIBUTES if name not in ("shape", "strides")}

    def read(self: TensorSpec, name: str) -> Any:
        if name in noted and (argument, name) in moving:
            reads[path(argument, name)] = None
        return object.__getattribute__(self, name)

    def equals(self: TensorSpec, other: object) -> bool:
        return isinstance(other, TensorSpec) and _attributes(self) == _attributes(other)

    members = {
        "__slots__": (),
        "__getattribute__": read,
        "__eq__": equals,
        "__hash__": TensorSpec.__hash__,
    }
    return type(TensorSpec.__name__, (TensorSpec,), members)


def _attributes(tensor: TensorSpec) -> tuple[Any, ...]:
    return tuple(getattr(tensor, attribute) for attribute in TENSOR_ATTRIBUTES)
