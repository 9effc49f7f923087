"""Compile a Triton kernel for a GPU that this host lacks: does it compile there, and what does it need?

The compiler needs no device. It refuses what the architecture lacks (float8_e4m3fn before sm89, for one) with
the message a user of that GPU would see.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kernels.interpreter import WrongMode, is_interpreting
from kernels.target import Target

# name → backend, architecture, threads a warp
TARGETS: Mapping[str, tuple[str, int | str, int]] = {
    "sm70": ("cuda", 70, 32),
    "sm75": ("cuda", 75, 32),
    "sm80": ("cuda", 80, 32),
    "sm86": ("cuda", 86, 32),
    "sm89": ("cuda", 89, 32),
    "sm90": ("cuda", 90, 32),
    "sm100": ("cuda", 100, 32),
    "sm103": ("cuda", 103, 32),
    "sm120": ("cuda", 120, 32),
    "sm121": ("cuda", 121, 32),
    "gfx942": ("hip", "gfx942", 64),
    "gfx950": ("hip", "gfx950", 64),
}

# name → bytes of shared memory that a program may have
SHARED_MEMORY: Mapping[str, int] = {
    "sm70": 98_304,
    "sm75": 65_536,
    "sm80": 166_912,
    "sm86": 101_376,
    "sm89": 101_376,
    "sm90": 232_448,
    "sm100": 232_448,
    "sm103": 232_448,
    "sm120": 101_376,
    "sm121": 101_376,
    "gfx942": 65_536,
    "gfx950": 163_840,
}

OVERLAPPING = frozenset(
    name
    for name, (_, architecture, _) in TARGETS.items()
    if isinstance(architecture, int) and architecture >= 90
)
"""Targets where a kernel may be launched before the one in front ends; see `kernels.devices`."""

# torch's name of an element type → Triton's
ELEMENT_TYPES: Mapping[str, str] = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "float32": "fp32",
    "float8_e4m3fn": "fp8e4nv",
    "float8_e4m3fnuz": "fp8e4b8",
    "float8_e5m2": "fp8e5",
    "int8": "i8",
    "uint8": "u8",
    "int32": "i32",
    "int64": "i64",
}


def offline_name(target: Target) -> str | None:
    """The one of TARGETS that a target is: sm90a is compiled as sm90; None where it is none of them."""
    return next((name for name in TARGETS if Target(name).serves(target)), None)


def pointer_to(dtype: object) -> str:
    """Triton's spelling of a pointer to a torch element type: torch.bfloat16 → "*bf16"."""
    return "*" + ELEMENT_TYPES[str(dtype).removeprefix("torch.")]


class NotCompilable(Exception):
    """The compiler refuses the kernel for this target; the text is the compiler's."""


@dataclass(frozen=True)
class Variant:
    """One compilation of a kernel, as the launcher would ask for it.

    kernel      the function decorated with triton.jit
    types       Triton's spelling of run-time arguments: "*bf16"; those left out are "i32"
    constants   values of the constexpr arguments, and of pointers that are None
    aligned     arguments known to be divisible by 16, which allows 16-byte accesses
    warps       warps a program
    stages      loads in flight in a pipelined loop, in iterations
    overlapped  launched before the kernel in front ends, which sm90 brought
    """

    kernel: Any
    types: Mapping[str, str]
    constants: Mapping[str, object]
    aligned: frozenset[str] = frozenset()
    warps: int = 4
    stages: int = 3
    overlapped: bool = False


@dataclass(frozen=True)
class Compiled:
    """What came out: `kind` cubin or hsaco, and the shared memory a program takes."""

    target: str
    kind: str
    shared_bytes: int
    binary: bytes = field(repr=False)


def compile_for(target: str, variant: Variant) -> Compiled:
    """Compile for one of TARGETS. Raises NotCompilable, and WrongMode where kernels are interpreted."""
    from triton import compile as compile_kernel
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.errors import TritonError
    from triton.experimental.gluon._runtime import GluonASTSource

    if is_interpreting():
        raise WrongMode("this process interprets kernels; compile in another one")
    names = variant.kernel.arg_names
    options: dict[str, object] = {"num_warps": variant.warps, "num_stages": variant.stages}
    if variant.overlapped:
        options["launch_pdl"] = True
    source = (GluonASTSource if variant.kernel.is_gluon() else ASTSource)(
        variant.kernel,
        {n: "constexpr" if n in variant.constants else variant.types.get(n, "i32") for n in names},
        dict(variant.constants),
        {(names.index(name),): [["tt.divisibility", 16]] for name in variant.aligned},
    )
    try:
        result = compile_kernel(source, target=GPUTarget(*TARGETS[target]), options=options)
    except TritonError as error:
        raise NotCompilable(_whole_text(error)) from error
    kind = "cubin" if "cubin" in result.asm else "hsaco"
    return Compiled(target, kind, result.metadata.shared, result.asm[kind])


def _whole_text(error: BaseException) -> str:
    """The compiler's text; of an error in a function that a kernel calls it shows the call alone."""
    root = error
    while root.__cause__ is not None:
        root = root.__cause__
    text, reason = str(error), str(root)
    return text if reason in text else f"{text}\n{reason}"
