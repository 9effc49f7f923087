"""Call: the arguments of one operation's public function, and what changes from one call to another."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Self

from kernels.dtypes import DType
from kernels.spec import TensorSpec
from kernels.target import Target

TENSOR_ATTRIBUTES = ("dtype", "shape", "strides", "offset", "device", "values")


def argument(summary: str, *, default: Any = dataclasses.MISSING, choices: tuple[Any, ...] = ()) -> Any:
    """A call's field: one line on what the argument is (shape, dtype, unit), its signature default, and its
    supported values where they are few.
    """
    return dataclasses.field(default=default, metadata={"summary": summary, "choices": choices})


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of an operation's signature.

    kind      TensorSpec, int, bool, float, str, DType, or an operation's own class
    nullable  None is a value of it
    choices   its supported values, where they are few and known; else empty
    """

    name: str
    kind: type
    nullable: bool
    required: bool
    default: Any
    summary: str
    choices: tuple[Any, ...] = ()

    @property
    def is_tensor(self) -> bool:
        """Whether the argument is a tensor."""
        return self.kind is TensorSpec


@dataclass(frozen=True, slots=True)
class Edit:
    """One change of a call: an attribute of an argument, before and after, in plain JSON values."""

    argument: str
    attribute: str
    before: Any
    after: Any


@dataclass(frozen=True)
class Call:
    """Base of every operation's call; its fields are the function's arguments in signature order.

    target   the architecture that it is meant for, which is no argument; None where it is not known
    """

    positional: ClassVar[int] = 0
    """How many leading arguments are customarily written without their names."""

    target: Target | None = dataclasses.field(default=None, kw_only=True)

    @classmethod
    @cache
    def arguments(cls) -> tuple[Argument, ...]:
        """The signature."""
        hints = typing.get_type_hints(cls)
        fields = (field for field in dataclasses.fields(cls) if "summary" in field.metadata)
        return tuple(_argument(field, hints[field.name]) for field in fields)

    @classmethod
    @cache
    def names(cls) -> tuple[str, ...]:
        """The arguments' names, in signature order."""
        return tuple(parameter.name for parameter in cls.arguments())

    def tensors(self) -> Iterator[tuple[str, TensorSpec]]:
        """The tensors that are present, in signature order."""
        for name in self.names():
            value = getattr(self, name)
            if isinstance(value, TensorSpec):
                yield name, value

    def stated(self) -> Iterator[tuple[str, Any]]:
        """The arguments that a caller writes: the required ones and those that differ from their default.

        128.0 differs from 128: a check may refuse one of them.
        """
        for parameter in self.arguments():
            value, default = getattr(self, parameter.name), parameter.default
            if value is default and not parameter.required:
                continue
            if parameter.required or value != default or type(value) is not type(default):
                yield parameter.name, value

    def upstream_arguments(self) -> tuple[list[Any], dict[str, Any]]:
        """What upstream's function is called with, by position and by name."""
        return [], dict(self.stated())

    def facts(self) -> dict[str, Any]:
        """Every field, without what was worked out from them."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @property
    def describable(self) -> bool:
        """Whether its tensors could be described to the API."""
        return all(tensor.describable for _, tensor in self.tensors())

    def replace(self, **changes: Any) -> Self:
        """The same call with some arguments replaced."""
        return dataclasses.replace(self, **changes)

    def without(self, *names: str) -> Self:
        """The same call with some arguments left to their defaults."""
        defaults = {parameter.name: parameter.default for parameter in self.arguments()}
        return self.replace(**{name: defaults[name] for name in names})

    def with_tensor(self, name: str, /, **attributes: Any) -> Self:
        """The same call with attributes of one tensor replaced; a new shape is laid out row-major."""
        if "shape" in attributes and "strides" not in attributes:
            attributes["strides"] = ()
        return self.replace(**{name: dataclasses.replace(getattr(self, name), **attributes)})

    def with_dtype(self, name: str, dtype: DType, /) -> Self:
        """The same call with one tensor of another element type, in the same layout."""
        return self.with_tensor(name, dtype=dtype)

    def edits_to(self, other: Call) -> tuple[Edit, ...]:
        """What to change in this call to get the other, argument by argument."""
        return tuple(
            edit for name in self.names() for edit in _edits(name, getattr(self, name), getattr(other, name))
        )


def plain(value: Any) -> Any:
    """A value as JSON carries it: types by their torch names, tensors and generators as objects."""
    if value is None or value.__class__ in _PLAIN:
        return value
    if isinstance(value, DType):
        return value.torch_name
    if isinstance(value, TensorSpec):
        return _tensor_json(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        to_json = getattr(value, "to_json", None)
        if to_json is not None:
            return to_json()
        fields = {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {name: item for name, item in fields.items() if item is not None}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    return value


_PLAIN = frozenset({bool, int, float, str})


def _tensor_json(tensor: TensorSpec) -> dict[str, Any]:
    """A tensor as the API takes it, what it takes for granted left out."""
    described: dict[str, Any] = {"shape": list(tensor.shape), "dtype": tensor.dtype.torch_name}
    if not tensor.is_default:
        described["strides"] = list(tensor.strides)
    if tensor.offset != 0:
        described["offset"] = tensor.offset
    if tensor.device != "cuda":
        described["device"] = tensor.device
    if tensor.values is not None:
        described["values"] = plain(tensor.values)
    return described


def arguments_json(call: Call) -> dict[str, Any]:
    """A call's arguments as JSON, those left at their defaults omitted."""
    return {name: plain(value) for name, value in call.stated()}


def shown(subject: Any, path: str) -> str:
    """What an argument, or an attribute of one, is in a subject, for people to read."""
    value = subject
    for name in path.split("."):
        if value is None:
            return "absent"
        value = getattr(value, name)
    if isinstance(value, (DType, TensorSpec)):
        return str(value)
    return str(tuple(value)) if isinstance(value, tuple) else repr(plain(value))


def _edits(name: str, before: Any, after: Any) -> Iterator[Edit]:
    if before is after or (before == after and type(before) is type(after)):
        return
    if isinstance(before, TensorSpec) and isinstance(after, TensorSpec):
        relaid = before.shape != after.shape and before.is_default and after.is_default
        for attribute in TENSOR_ATTRIBUTES:
            old, new = getattr(before, attribute), getattr(after, attribute)
            if old != new and not (relaid and attribute == "strides"):
                yield Edit(name, attribute, plain(old), plain(new))
    elif isinstance(before, TensorSpec) or isinstance(after, TensorSpec):
        yield Edit(name, "presence", plain(before), plain(after))
    elif hasattr(before, "edits_to") and type(before) is type(after):
        for pointer, old, new in before.edits_to(after):
            yield Edit(name, pointer, old, new)
    else:
        yield Edit(name, "value", plain(before), plain(after))


def _argument(field: dataclasses.Field[Any], hint: Any) -> Argument:
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    options = typing.get_args(hint) if union else (hint,)
    kinds = [typing.get_origin(option) or option for option in options if option is not type(None)]
    required = field.default is dataclasses.MISSING
    return Argument(
        name=field.name,
        kind=kinds[0],
        nullable=type(None) in options,
        required=required,
        default=None if required else field.default,
        summary=field.metadata["summary"],
        choices=field.metadata["choices"],
    )
