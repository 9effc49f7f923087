"""Target: the GPU architecture that a call is meant for, and what of it checks depend on."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kernels.dtypes import DType

PATTERN = r"(?:sm([0-9]{2,3})[af]?|gfx[0-9a-f]{3,5})"
"""How an architecture is written: NVIDIA's compute capability without its point, or AMD's gfx name."""

FIRST_WITH_E4M3 = 89
"""Compute capability · 10 from which on NVIDIA's GPUs convert E4M3, and Triton compiles it."""

_WITHOUT_NEGATIVE_ZERO = re.compile("gfx94[0-9a-f]")


@dataclass(frozen=True, slots=True)
class Target:
    """An architecture by its name: sm90, sm100a, gfx942."""

    name: str

    @classmethod
    def parse(cls, text: str) -> Target:
        """Read a name; raises ValueError for what no architecture is called."""
        if re.fullmatch(PATTERN, text) is None:
            raise ValueError(f"{text[:40]!r} is no architecture; write it like sm90, sm100 or gfx942")
        return cls(text)

    @classmethod
    def of_capability(cls, capability: str) -> Target:
        """NVIDIA's architecture of a compute capability such as "9.0"."""
        return cls.parse("sm" + capability.replace(".", ""))

    @property
    def capability(self) -> int | None:
        """Ten times the compute capability; None for AMD's, which have none."""
        found = re.fullmatch(PATTERN, self.name)
        return int(found[1]) if found and found[1] else None

    @property
    def e4m3(self) -> DType:
        """Its FP8 type with three bits of mantissa: AMD's gfx94x have one without a negative zero."""
        fnuz = _WITHOUT_NEGATIVE_ZERO.fullmatch(self.name) is not None
        return DType.F8_E4M3FNUZ if fnuz else DType.F8_E4M3FN

    @property
    def compiles_e4m3(self) -> bool:
        """Whether Triton compiles its E4M3 type; NVIDIA's GPUs before sm89 have only E5M2."""
        return self.capability is None or self.capability >= FIRST_WITH_E4M3

    def serves(self, other: Target) -> bool:
        """Whether code meant for `other` may run on it: sm90a names the GPUs of sm90."""
        if self.capability is None or other.capability is None:
            return self.name == other.name
        return self.capability == other.capability

    def __str__(self) -> str:
        return self.name
