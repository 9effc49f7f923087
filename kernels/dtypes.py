"""Element types: one table of names, widths and ranges for every spelling that users and libraries print."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cache


class Kind(Enum):
    """What an element type holds."""

    BOOL = "bool"
    INT = "int"
    FLOAT = "float"
    COMPLEX = "complex"


class DType(Enum):
    """An element type: torch's name without `torch.`, bits an element, what it holds, safetensors' name.

    Sub-byte members exist in checkpoint headers only; a tensor of them cannot be built with torch.
    """

    BOOL = ("bool", 8, Kind.BOOL, "BOOL")
    U8 = ("uint8", 8, Kind.INT, "U8")
    I8 = ("int8", 8, Kind.INT, "I8")
    U16 = ("uint16", 16, Kind.INT, "U16")
    I16 = ("int16", 16, Kind.INT, "I16")
    U32 = ("uint32", 32, Kind.INT, "U32")
    I32 = ("int32", 32, Kind.INT, "I32")
    U64 = ("uint64", 64, Kind.INT, "U64")
    I64 = ("int64", 64, Kind.INT, "I64")
    F4 = ("float4_e2m1fn", 4, Kind.FLOAT, "F4")
    F6_E2M3 = ("float6_e2m3fn", 6, Kind.FLOAT, "F6_E2M3")
    F6_E3M2 = ("float6_e3m2fn", 6, Kind.FLOAT, "F6_E3M2")
    F8_E4M3FN = ("float8_e4m3fn", 8, Kind.FLOAT, "F8_E4M3")
    F8_E4M3FNUZ = ("float8_e4m3fnuz", 8, Kind.FLOAT, "F8_E4M3FNUZ")
    F8_E5M2 = ("float8_e5m2", 8, Kind.FLOAT, "F8_E5M2")
    F8_E5M2FNUZ = ("float8_e5m2fnuz", 8, Kind.FLOAT, "F8_E5M2FNUZ")
    F8_E8M0 = ("float8_e8m0fnu", 8, Kind.FLOAT, "F8_E8M0")
    F16 = ("float16", 16, Kind.FLOAT, "F16")
    BF16 = ("bfloat16", 16, Kind.FLOAT, "BF16")
    F32 = ("float32", 32, Kind.FLOAT, "F32")
    F64 = ("float64", 64, Kind.FLOAT, "F64")
    C64 = ("complex64", 64, Kind.COMPLEX, "C64")
    C128 = ("complex128", 128, Kind.COMPLEX, None)

    def __init__(self, torch_name: str, bits: int, kind: Kind, safetensors: str | None) -> None:
        self.torch_name = torch_name
        self.bits = bits
        self.kind = kind
        self.safetensors = safetensors

    @property
    def itemsize(self) -> int:
        """Bytes an element; 1 for sub-byte types, which never stand alone in memory."""
        return max(1, self.bits // 8)

    @property
    def in_torch(self) -> bool:
        """Whether torch has tensors of this type."""
        return self.bits >= 8

    def __str__(self) -> str:
        return self.torch_name

    __hash__ = object.__hash__  # members are singletons; Enum's own hash costs a name lookup on a hot path

    @classmethod
    def parse(cls, text: str) -> DType:
        """The type a name means: torch's (with or without `torch.`), safetensors', or a common short form.

        Raises ValueError for an unknown name.
        """
        found = _names().get(text.strip().removeprefix("torch.").lower())
        if found is None:
            raise ValueError(f"unknown dtype {text[:40]!r}; known: {', '.join(d.torch_name for d in cls)}")
        return found


ROUNDS_TO_INFINITY = {
    DType.F16: 65_520.0,
    DType.BF16: 2.0**128 - 2.0**119,
    DType.F32: 2.0**128 - 2.0**103,
}
"""Smallest magnitude that a type rounds to infinity: half a step above its largest value."""

_SHORT_FORMS = {
    "half": DType.F16,
    "float": DType.F32,
    "double": DType.F64,
    "char": DType.I8,
    "byte": DType.U8,
    "short": DType.I16,
    "int": DType.I32,
    "long": DType.I64,
    "fp16": DType.F16,
    "fp32": DType.F32,
    "fp64": DType.F64,
    "fp8": DType.F8_E4M3FN,
    "fp8_e4m3": DType.F8_E4M3FN,
    "fp8_e4m3fn": DType.F8_E4M3FN,
    "float8_e4m3": DType.F8_E4M3FN,
    "e4m3fn": DType.F8_E4M3FN,
    "fp8_e4m3fnuz": DType.F8_E4M3FNUZ,
    "e4m3fnuz": DType.F8_E4M3FNUZ,
    "fp8_e5m2": DType.F8_E5M2,
    "e5m2": DType.F8_E5M2,
    "fp8_e8m0": DType.F8_E8M0,
    "ue8m0": DType.F8_E8M0,
}


@cache
def _names() -> dict[str, DType]:
    names = dict(_SHORT_FORMS)
    for dtype in DType:
        names[dtype.torch_name] = dtype
        if dtype.safetensors:
            names[dtype.safetensors.lower()] = dtype
    return names


@dataclass(frozen=True, slots=True)
class Torch:
    """Prints a type as torch does: `torch.bfloat16`."""

    dtype: DType

    def __str__(self) -> str:
        return f"torch.{self.dtype.torch_name}"


@dataclass(frozen=True, slots=True)
class Safetensors:
    """Prints a type as a safetensors header does: `BF16`."""

    dtype: DType

    def __str__(self) -> str:
        return self.dtype.safetensors or self.dtype.torch_name
