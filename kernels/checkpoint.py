"""A safetensors file described by its header: string metadata, and a type and shape for each tensor name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Generic, TypeVar

from kernels import checkpoint_script
from kernels.call import plain
from kernels.dtypes import DType
from kernels.spec import MAX_DIMENSIONS, Shape
from kernels.values import Values, read_values

V = TypeVar("V")

MAX_SIZE = 2**63 - 1
"""Elements along one dimension: what torch holds in 64 bits."""

RESERVED = "__metadata__"
"""Key of the metadata in a header, which no tensor can have as its name."""


class FaultyMembers(ValueError):
    """A JSON value that describes no argument; `faults` lists (JSON pointer within it, what is wrong)."""

    def __init__(self, faults: list[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{where or '/'}: {what}" for where, what in faults))
        self.faults = faults


class Frozen(Mapping[str, V], Generic[V]):
    """A mapping in the order given that never changes, so that calls which hold one are hashable."""

    __slots__ = ("_hash", "_items")

    def __init__(self, items: Mapping[str, V] | None = None) -> None:
        self._items = dict(items or {})
        self._hash: int | None = None

    def __getitem__(self, name: str) -> V:
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, name: object) -> bool:
        return name in self._items

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self._items.items()))
        return self._hash

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._items!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._items,)  # strings hash otherwise in another process


class NameMapper(Frozen[str]):
    """Layer prefix in the file → prefix in the model; a prefix it does not list keeps its name."""

    __slots__ = ()

    def __call__(self, prefix: str) -> str:
        return self.get(prefix, prefix)

    @classmethod
    def from_json(cls, value: Any) -> NameMapper:
        """Read `{"prefix": "prefix", …}`; raises FaultyMembers."""
        return cls(_object(value, "an object of prefix → prefix", _text))

    @staticmethod
    def json_schema() -> dict[str, Any]:
        """JSON Schema of what `from_json` takes."""
        return {"type": "object", "additionalProperties": {"type": "string"}}


@dataclass(frozen=True, slots=True)
class Header:
    """One tensor's entry in a header.

    dtype    safetensors' name of the element type: `BF16`
    shape    sizes, elements; () is one element without dimensions
    values   what it holds; None leaves that to the operation's own fill
    """

    dtype: str
    shape: Shape
    values: Values | None = None

    @property
    def numel(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return -(-self.numel * DType.parse(self.dtype).bits // 8)

    def with_dtype(self, dtype: str) -> Header:
        """The same shape with another element type."""
        return replace(self, dtype=dtype)

    def with_shape(self, *shape: int) -> Header:
        """The same elements, in row-major order, with another shape."""
        return replace(self, shape=shape)

    def to_json(self) -> dict[str, Any]:
        """As the API takes it."""
        entry: dict[str, Any] = {"dtype": self.dtype, "shape": list(self.shape)}
        return entry if self.values is None else {**entry, "values": plain(self.values)}

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


@dataclass(frozen=True)
class Checkpoint:
    """What a safetensors file says of itself before any tensor is read."""

    metadata: Mapping[str, str]
    tensors: Mapping[str, Header]

    def __post_init__(self) -> None:
        for name in ("metadata", "tensors"):
            if not isinstance(getattr(self, name), Frozen):
                object.__setattr__(self, name, Frozen(getattr(self, name)))

    @property
    def storage_bytes(self) -> int:
        """Bytes of tensor data in the file."""
        return sum(header.nbytes for header in self.tensors.values())

    def with_metadata(self, key: str, value: str) -> Checkpoint:
        """The same file with one metadata entry added or replaced."""
        return replace(self, metadata={**self.metadata, key: value})

    def without_metadata(self, *keys: str) -> Checkpoint:
        """The same file without these metadata entries."""
        return replace(self, metadata=_without(self.metadata, keys))

    def with_tensor(self, name: str, header: Header) -> Checkpoint:
        """The same file with one tensor added or replaced."""
        return replace(self, tensors={**self.tensors, name: header})

    def without_tensors(self, *names: str) -> Checkpoint:
        """The same file without these tensors."""
        return replace(self, tensors=_without(self.tensors, names))

    def edits_to(self, other: Checkpoint) -> Iterator[tuple[str, Any, Any]]:
        """(JSON pointer, before, after) of each difference; None before adds a member, after removes it."""
        yield from _differences("/metadata", self.metadata, other.metadata)
        for pointer, before, after in _differences("/tensors", self.tensors, other.tensors):
            if before is None or after is None:
                yield pointer, plain(before), plain(after)
            else:
                old, new = before.to_json(), after.to_json()
                for key in dict.fromkeys((*old, *new)):
                    if old.get(key) != new.get(key):
                        yield f"{pointer}/{key}", old.get(key), new.get(key)

    def to_json(self) -> dict[str, Any]:
        """As the API takes it."""
        return {
            "metadata": dict(self.metadata),
            "tensors": {name: header.to_json() for name, header in self.tensors.items()},
        }

    @classmethod
    def from_json(cls, value: Any) -> Checkpoint:
        """Read `{"metadata": {key: text}, "tensors": {name: {"dtype", "shape", "values"?}}}`.

        Element types may have torch's names too. Raises FaultyMembers listing every fault; what a file cannot
        hold, such as text outside UTF-8, is one.
        """
        members: dict[str, Any] = {"metadata": {}, "tensors": {}}
        faults: list[tuple[str, str]] = []
        if not isinstance(value, Mapping):
            raise FaultyMembers([("", "expected an object with metadata and tensors")])
        for key, item in value.items():
            try:
                if key == "metadata":
                    members[key] = _object(item, "an object of text → text", _text)
                elif key == "tensors":
                    members[key] = _object(
                        item, "an object of tensor name → dtype and shape", _header, RESERVED
                    )
                else:
                    faults.append((f"/{escaped(key)}", "unknown member; known: metadata, tensors"))
            except FaultyMembers as error:
                faults += [(f"/{escaped(key)}{where}", what) for where, what in error.faults]
        if "tensors" not in value:
            faults.append(("/tensors", "missing"))
        if faults:
            raise FaultyMembers(faults)
        return cls(**members)

    @staticmethod
    def json_schema() -> dict[str, Any]:
        """JSON Schema of what `from_json` takes."""
        size = {"type": "integer", "minimum": 0, "maximum": MAX_SIZE}
        header = {
            "type": "object",
            "required": ["dtype", "shape"],
            "additionalProperties": False,
            "properties": {
                "dtype": {"type": "string", "examples": ["I8", "BF16"]},
                "shape": {"type": "array", "maxItems": MAX_DIMENSIONS, "items": size},
                "values": {"type": "object", "required": ["kind"]},
            },
        }
        return {
            "type": "object",
            "required": ["tensors"],
            "additionalProperties": False,
            "properties": {
                "metadata": {"type": "object", "additionalProperties": {"type": "string"}},
                "tensors": {"type": "object", "additionalProperties": header},
            },
        }

    def to_python(self, name: str) -> str:
        """Lines that write such a file, after which `name` holds its path."""
        return checkpoint_script.writing(name, self)

    def to_revision(self, name: str, revised: Checkpoint) -> str:
        """Lines that turn the caller's own file into the revised one; `name` then holds the new path."""
        return checkpoint_script.revising(name, self, revised)

    def to_contrast(self, name: str, other: Checkpoint, *, afresh: bool) -> str:
        """Lines that make this file of the other's `tensors` and `metadata`; nothing where they agree."""
        return checkpoint_script.contrasting(name, other, self, afresh=afresh)


def escaped(name: str) -> str:
    """A member's name as a reference token of a JSON pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")


def _differences(
    at: str, before: Mapping[str, V], after: Mapping[str, V]
) -> Iterator[tuple[str, V | None, V | None]]:
    for name in dict.fromkeys((*before, *after)):
        old, new = before.get(name), after.get(name)
        if old != new:
            yield f"{at}/{escaped(name)}", old, new


def _without(members: Mapping[str, V], names: tuple[str, ...]) -> dict[str, V]:
    return {name: item for name, item in members.items() if name not in names}


def _object(value: Any, form: str, read: Callable[[Any], V], reserved: str | None = None) -> dict[str, V]:
    """An object's members, each read; raises FaultyMembers listing every fault."""
    if not isinstance(value, Mapping):
        raise FaultyMembers([("", f"expected {form}")])
    members: dict[str, V] = {}
    faults: list[tuple[str, str]] = []
    for name, item in value.items():
        try:
            if name == reserved:
                raise ValueError(f"{name} is the metadata's own key in a header")
            members[_text(name)] = read(item)
        except FaultyMembers as error:
            faults += [(f"/{escaped(name)}{where}", what) for where, what in error.faults]
        except ValueError as error:
            faults.append((f"/{escaped(name)}", str(error)))
    if faults:
        raise FaultyMembers(faults)
    return members


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("expected text")
    if not encodable(value):
        raise ValueError("holds half of a surrogate pair, which UTF-8 cannot store")
    return value


def encodable(text: str) -> bool:
    """Whether UTF-8, and so a header, can store it."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def _header(value: Any) -> Header:
    if not isinstance(value, Mapping):
        raise ValueError('expected an object such as {"dtype": "I8", "shape": [3, 2]}')
    faults: list[tuple[str, str]] = []
    members: dict[str, Any] = {}
    readers: dict[str, Callable[[Any], Any]] = {"dtype": _dtype, "shape": _shape, "values": read_values}
    for key, item in value.items():
        try:
            if key not in readers:
                raise ValueError("unknown member; known: dtype, shape, values")
            members[key] = readers[key](item)
        except FaultyMembers as error:
            faults += [(f"/{escaped(key)}{where}", what) for where, what in error.faults]
        except ValueError as error:
            faults.append((f"/{escaped(key)}", str(error)))
    faults += [(f"/{key}", "missing") for key in ("dtype", "shape") if key not in value]
    if faults:
        raise FaultyMembers(faults)
    header = Header(**members)
    if header.numel * DType.parse(header.dtype).bits % 8:
        raise FaultyMembers(
            [("/shape", f"{header.numel} elements of {header.dtype} do not fill whole bytes")]
        )
    return header


def _dtype(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a dtype is a name such as BF16")
    try:
        name = DType.parse(value).safetensors
    except ValueError:
        name = None
    if name is None:
        known = ", ".join(dtype.safetensors for dtype in DType if dtype.safetensors)
        raise ValueError(f"safetensors has no type {value[:40]!r}; known: {known}")
    return name


def _shape(value: Any) -> Shape:
    if not isinstance(value, list):
        raise ValueError("expected a list of sizes")
    if len(value) > MAX_DIMENSIONS:
        raise ValueError(f"a tensor has at most {MAX_DIMENSIONS} dimensions")
    faults = [
        (f"/{index}", f"expected a whole number from 0 to {MAX_SIZE}")
        for index, size in enumerate(value)
        if type(size) is not int or not 0 <= size <= MAX_SIZE
    ]
    if faults:
        raise FaultyMembers(faults)
    return tuple(value)
