"""Target: the GPU architecture that a call is meant for, and what of it checks depend on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from kernels.dtypes import DType

PATTERN = r"(?:sm([0-9]{2,3})[af]?|gfx[0-9a-f]{3,5})"
"""How an architecture is written: NVIDIA's compute capability without its point, or AMD's gfx name."""

GPUS: Mapping[str, str] = {
    "v100": "sm70",
    "t4": "sm75",
    "rtx2080": "sm75",
    "a100": "sm80",
    "a800": "sm80",
    "a30": "sm80",
    "a10": "sm86",
    "a10g": "sm86",
    "a40": "sm86",
    "a6000": "sm86",
    "rtxa6000": "sm86",
    "rtx3090": "sm86",
    "l4": "sm89",
    "l20": "sm89",
    "l40": "sm89",
    "l40s": "sm89",
    "rtx4090": "sm89",
    "h20": "sm90",
    "h100": "sm90",
    "h200": "sm90",
    "h800": "sm90",
    "gh200": "sm90",
    "b100": "sm100",
    "b200": "sm100",
    "gb200": "sm100",
    "b300": "sm103",
    "gb300": "sm103",
    "rtx5090": "sm120",
    "rtxpro6000": "sm120",
    "gb10": "sm121",
    "mi250": "gfx90a",
    "mi250x": "gfx90a",
    "mi300a": "gfx942",
    "mi300x": "gfx942",
    "mi325x": "gfx942",
    "mi350x": "gfx950",
    "mi355x": "gfx950",
}
"""Well-known GPUs, in small letters without spaces → their architecture."""

GENERATIONS: Mapping[str, str] = {
    "volta": "sm70",
    "turing": "sm75",
    "ada": "sm89",
    "hopper": "sm90",
}
"""Names of generations that have one architecture → that."""

MAX_NAME = 64
"""Characters of a name that are looked at."""

FIRST_WITH_E4M3 = 89
"""Compute capability · 10 from which on NVIDIA's GPUs convert E4M3, and Triton compiles it."""

_WITHOUT_NEGATIVE_ZERO = re.compile("gfx94[0-9a-f]")


@dataclass(frozen=True, slots=True)
class Target:
    """An architecture by its name: sm90, sm100a, gfx942."""

    name: str

    @classmethod
    def parse(cls, text: str) -> Target:
        """Read an architecture's name, sm90 or sm_90, a compute capability, 9.0, or a well-known GPU's name,
        H100; raises ValueError for others.
        """
        name = re.sub(r"[\s_-]+", "", text[:MAX_NAME]).lower()
        name = re.sub(r"^(?:nvidia|amd|geforce|tesla|instinct)+", "", name)
        name = GPUS.get(name) or GENERATIONS.get(name) or name
        if re.fullmatch(r"[0-9]{1,2}\.[0-9]", name):
            name = "sm" + name.replace(".", "")
        if re.fullmatch(PATTERN, name) is None:
            raise ValueError(
                f"{text[:40]!r} is no architecture; write sm80, sm86, sm89, sm90, sm100, sm103, sm120, "
                "gfx942 or another, or a GPU such as A100, H100, B200 or MI300X"
            )
        return cls(name)

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
