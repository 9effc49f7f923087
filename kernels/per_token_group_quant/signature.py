"""The call of per_token_group_quant: its arguments, a valid one, and what upstream allocates when outputs
are omitted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from kernels.call import Call, argument
from kernels.dtypes import DType
from kernels.spec import Shape, TensorSpec
from kernels.upstream import SGLANG, File
from kernels.values import Full, Randn, Values

PYTHON = File(SGLANG, "python/sglang/kernels/ops/quantization/per_token_group_quant.py")
LAUNCHER = File(SGLANG, "python/sglang/kernels/jit/csrc/gemm/per_token_group_quant.cuh")

INPUT_DTYPES = (DType.BF16, DType.F16, DType.F32)
CODE_DTYPES = (DType.F8_E4M3FN, DType.I8)
GROUP_SIZES = (16, 32, 64, 128, 256)
DEFAULT_GROUP_SIZE = 128
SILU_MODES = ("legacy", "dense")
SCALES_A_WORD = 4
"""UE8M0 exponents packed into one int32."""


@dataclass(frozen=True)
class QuantCall(Call):
    """Arguments of per_token_group_quant. T tokens, E experts, P tokens an expert, H output width, G = H
    / group_size.
    """

    positional: ClassVar[int] = 3

    input: TensorSpec = argument(
        "[T, H] or [E, P, H]; 2·H wide with fuse_silu_and_mul; bfloat16, float16 or float32"
    )
    output_q: TensorSpec | None = argument(
        "codes, [T, H] or [E, P, H]; float8_e4m3fn or int8; written", default=None
    )
    output_s: TensorSpec | None = argument(
        "scales, [.., G] float32, or [.., ceil(G/4)] int32 with scale_ue8m0; row- or column-major; written",
        default=None,
    )
    group_size: int = argument(
        "elements that share one scale: 16, 32, 64, 128 or 256",
        default=DEFAULT_GROUP_SIZE,
        choices=GROUP_SIZES,
    )
    scale_ue8m0: bool = argument("scales are powers of two, four exponent bytes to an int32", default=False)
    fuse_silu_and_mul: bool = argument("first reduce [.., 2·H] to [.., H] by silu(gate) · up", default=False)
    masked_m: TensorSpec | None = argument("[E] int32 or int64: valid rows of each expert", default=None)
    expected_m: int | None = argument(
        "hint: typical valid rows an expert; never changes a result", default=None
    )
    out_dtype: DType | None = argument(
        "type of the codes when they are allocated; float8_e4m3fn if None", default=None
    )
    column_major_scales: bool = argument("layout of the scales when they are allocated", default=False)
    sorted_token_ids: TensorSpec | None = argument(
        "[T] int32: tokens in expert order (release 0.5.23)", default=None
    )
    num_tokens_post_padded: TensorSpec | None = argument(
        "[1] int32: rows after padding (release 0.5.23)", default=None
    )
    num_valid_tokens: int = argument("ids from here on are padding (release 0.5.23)", default=0)
    silu_and_mul_mode: str = argument(
        "legacy rounds twice, dense once (release 0.5.23)", default="legacy", choices=SILU_MODES
    )

    @property
    def masked(self) -> bool:
        """Whether rows are counted per expert."""
        return self.masked_m is not None

    @property
    def ways(self) -> int:
        """Input columns to one output column."""
        return 2 if self.fuse_silu_and_mul else 1

    @property
    def hidden(self) -> int:
        """Output width H that the input implies."""
        return width_of(self.input) // self.ways

    @property
    def codes(self) -> TensorSpec:
        """output_q, where the caller or the allocation has given one."""
        if self.output_q is None:
            raise ValueError("output_q is absent")
        return self.output_q

    @property
    def scales(self) -> TensorSpec:
        """output_s, where the caller or the allocation has given one."""
        if self.output_s is None:
            raise ValueError("output_s is absent")
        return self.output_s

    @cached_property
    def groups(self) -> int:
        """Groups a row: the width of output_q in whole groups, rounded down as upstream does."""
        return width_of(self.codes) // self.group_size

    @property
    def row_major(self) -> bool:
        """Upstream's rule on the strides of whatever scale buffer is used."""
        return self.scales.strides[-2] >= self.scales.strides[-1]

    @property
    def scale_columns(self) -> int:
        """Columns that the scale buffer's type asks for: one a group, or one for four packed exponents."""
        return packed_columns(self.groups) if self.scales.dtype is DType.I32 else self.groups

    def allocated(self) -> QuantCall:
        """The call with outputs allocated as upstream does when both are omitted; with outputs given, as
        it is.
        """
        if self.output_q is not None or self.output_s is not None:
            return self
        rows = self.input.shape[:-1]
        device = self.input.device
        groups = self.hidden // self.group_size
        columns, scale_dtype = scale_form(groups, ue8m0=self.scale_ue8m0)
        strides = column_major_strides(rows, columns) if self.column_major_scales else ()
        return self.replace(
            output_q=TensorSpec((*rows, self.hidden), self.out_dtype or DType.F8_E4M3FN, device=device),
            output_s=TensorSpec((*rows, columns), scale_dtype, strides, device=device),
        )


def width_of(tensor: TensorSpec) -> int:
    """Columns of a tensor; 0 where it has no dimension."""
    return tensor.shape[-1] if tensor.ndim else 0


def packed_columns(groups: int) -> int:
    """int32 words that hold one UE8M0 byte a group."""
    return -(-groups // SCALES_A_WORD)


def scale_form(groups: int, *, ue8m0: bool) -> tuple[int, DType]:
    """Columns of a scale buffer and their type."""
    return (packed_columns(groups), DType.I32) if ue8m0 else (groups, DType.F32)


def column_major_strides(rows: Shape, columns: int) -> Shape:
    """Strides of a [.., columns] view of a [.., columns, rows rounded up to 4] buffer."""
    # As torch counts: no rows, or columns, are stepped over as one.
    padded = max(1, -(-rows[-1] // 4) * 4)
    return (*((max(1, columns) * padded,) * (len(rows) - 1)), 1, padded)


VALID = QuantCall(
    input=TensorSpec((4, 256), DType.BF16),
    output_q=TensorSpec((4, 256), DType.F8_E4M3FN),
    output_s=TensorSpec((4, 2), DType.F32),
)

PACKED = VALID.replace(output_s=TensorSpec((4, 1), DType.I32), scale_ue8m0=True)

MASKED = QuantCall(
    input=TensorSpec((2, 8, 512), DType.BF16),
    output_q=TensorSpec((2, 8, 512), DType.F8_E4M3FN),
    output_s=TensorSpec((2, 8, 4), DType.F32),
    masked_m=TensorSpec((2,), DType.I32),
)


def fit(given: Mapping[str, Any]) -> QuantCall:
    """Complete a user's arguments: an input sized to the codes or scales that were given."""
    arguments = dict(given)
    if "input" not in arguments:
        arguments["input"] = _input_for(arguments)
    return QuantCall(**arguments)


def _input_for(given: Mapping[str, Any]) -> TensorSpec:
    ways = 2 if given.get("fuse_silu_and_mul") else 1
    codes, scales = given.get("output_q"), given.get("output_s")
    if codes is not None and codes.ndim:
        return TensorSpec((*codes.shape[:-1], codes.shape[-1] * ways), DType.BF16, device=codes.device)
    if scales is not None and scales.ndim:
        size = given.get("group_size", 128)
        per_column = SCALES_A_WORD if scales.dtype is DType.I32 else 1
        width = scales.shape[-1] * per_column * (size if type(size) is int else 128) * ways
        return TensorSpec((*scales.shape[:-1], width), DType.BF16, device=scales.device)
    masked = given.get("masked_m")
    rows: Shape = (masked.shape[0], 8) if masked is not None and masked.ndim else (4,)
    return TensorSpec((*rows, 256 * ways), DType.BF16)


def fill(call: QuantCall) -> Mapping[str, Values]:
    """Normal input; three quarters of every expert's rows valid."""
    values: dict[str, Values] = {"input": Randn()}
    if call.masked_m is not None:
        tokens = call.input.shape[-2] if call.input.ndim >= 2 else 0
        values["masked_m"] = Full(tokens - tokens // 4)
    return values
