"""What upstream takes and then computes wrongly: checks of our own on what per_token_group_quant's tensors
hold.

They judge described values. A generator without bounds proves nothing and passes; live tensors are not read,
since that would wait for the GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from math import inf, lcm
from typing import Self

from kernels.checking import Fix, Severity, aside
from kernels.dtypes import ROUNDS_TO_INFINITY, DType
from kernels.per_token_group_quant.beyond import Hazard
from kernels.per_token_group_quant.launcher_counts import MaskDims
from kernels.per_token_group_quant.launcher_tensors import InputDims
from kernels.per_token_group_quant.signature import MASKED, PACKED, VALID, QuantCall, packed_columns
from kernels.spec import TensorSpec
from kernels.values import Arange, Full, Listed, Randint, Values, bounds, printable

FP16_UE8M0_FLOOR = 448.0 * 2.0**-16
"""A float16 group whose largest magnitude is not above this needs a multiplier of 2^16 or more, which float16
does not have.
"""

ROUNDS_TO_FLOOR = FP16_UE8M0_FLOOR + 2.0**-19
"""Largest described magnitude that float16 rounds to the floor: half a step above it, ties to even."""

RECIPROCAL_LIMIT = {DType.BF16: 2.0**126 + 2.0**118, DType.F32: 2.0**126 + 2.0**102}
"""The GPU's approximate division gives 0 for a divisor above 2^126; largest magnitude that rounds to that."""

CLAMPED_ONE_BY_ONE = 256
"""Counts of an arithmetic sequence that a fix writes out."""

PERIOD_LIMIT = 2**16
"""Elements of a repeated list that are looked at group by group."""


@dataclass(frozen=True)
class MaskedRowsOutOfRange(Hazard):
    """Rows past an expert's own are the next expert's; a negative count is read as a huge unsigned one."""

    message = "masked_m holds {got}, outside 0 … {rows}"
    reason = (
        "{where} {got} and an expert has {rows} rows: upstream goes on into the next expert's rows or out of "
        "bounds, and takes a negative count for one of about 4 billion"
    )
    looks_at = ("masked_m.values", "input.shape")
    requires = "counts from 0 to the rows of an expert"
    category = "values"
    premises = (InputDims, MaskDims)
    reads_values = True
    got: float
    rows: int
    where: str = aside()

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        if call.masked_m is None:
            return
        rows = call.input.shape[1]
        for where, count in _counts(call.masked_m):
            if not 0 <= count <= rows:
                yield cls(printable(count), rows, where)
                return

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        if call.masked_m is None:
            return
        clamped = _clamped(call.masked_m, self.rows)
        if clamped is not None:
            yield Fix(
                f"Clamp masked_m to 0 … {self.rows}",
                call.with_tensor("masked_m", values=clamped),
                safe=False,
                note="rows beyond an expert's capacity are lost: find out why they were counted",
            )

    @classmethod
    def example(cls) -> QuantCall:
        return MASKED.with_tensor("masked_m", values=Listed((8, 20)))


@dataclass(frozen=True)
class Float16WithUe8m0(Hazard):
    """A small group needs a multiplier of 2^16 or more, infinite in float16, where the product is taken."""

    message = "float16 input with scale_ue8m0: groups of magnitudes up to {floor} quantise to ±448"
    reason = (
        "with scale_ue8m0 codes are computed in the input's type, and a float16 group with no element above "
        "{floor} overflows there: each of its elements, zeros too, becomes ±448"
    )
    looks_at = ("input.dtype", "scale_ue8m0")
    requires = "bfloat16 or float32 input with scale_ue8m0, or no group that small"
    category = "values"
    severity = Severity.WARNING
    floor: float

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        if _multiplies_in_float16(call):
            least, most = _smallest_group(call)
            if least <= ROUNDS_TO_FLOOR < most:
                yield cls(FP16_UE8M0_FLOOR)

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        yield _in_bfloat16(call)

    @classmethod
    def example(cls) -> QuantCall:
        return PACKED.with_dtype("input", DType.F16)


@dataclass(frozen=True)
class Float16GroupsOverflow(Hazard):
    """The described values prove what Float16WithUe8m0 warns of."""

    message = "a float16 group of magnitudes up to {largest} quantises to ±448 with scale_ue8m0"
    reason = (
        "a group has no element above {largest}, so its multiplier overflows float16 and every code of it "
        "becomes ±448"
    )
    looks_at = ("input.values", "input.dtype", "scale_ue8m0")
    requires = "bfloat16 or float32 input with scale_ue8m0, or larger values"
    category = "values"
    reads_values = True
    largest: float

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        if _multiplies_in_float16(call):
            _, most = _smallest_group(call)
            if most <= ROUNDS_TO_FLOOR:
                yield cls(most)

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        yield _in_bfloat16(call)

    @classmethod
    def example(cls) -> QuantCall:
        return PACKED.with_tensor("input", dtype=DType.F16, values=Full(0.005))


@dataclass(frozen=True)
class InputNotFinite(Hazard):
    """NaN becomes +448, and one infinity ruins its group: upstream says nothing either way."""

    message = "input holds {got}, which is not finite in {dtype}"
    reason = (
        "{got} is not finite in {dtype}: NaN is stored as +448, and an infinity makes its group's scale "
        "infinite or NaN and the group's codes meaningless"
    )
    looks_at = ("input.values", "input.dtype")
    requires = "values that are finite in the input's type"
    category = "values"
    reads_values = True
    got: float
    dtype: DType

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        limit = ROUNDS_TO_INFINITY.get(call.input.dtype)
        for value in _elements(call.input):
            if limit is not None and not abs(value) < limit:
                yield cls(printable(value), call.input.dtype)
                return

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        if self.dtype is DType.F16 and abs(self.got) < ROUNDS_TO_INFINITY[DType.BF16]:
            yield _in_bfloat16(call)

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.with_tensor("input", dtype=DType.F16, values=Full(70_000.0))


@dataclass(frozen=True)
class MagnitudeBeyondReciprocal(Hazard):
    """The approximate quotient is zero for a divisor above 2^126: the codes are zero, their scale is not."""

    message = "input magnitude {got} is above 2^126: float32 scales quantise its group to zeros"
    reason = (
        "the multiplier of a group is 448 (int8: 127) over its largest magnitude, and over {got} the GPU's "
        "approximate division gives 0: every code of the group is 0 beside a finite scale"
    )
    looks_at = ("input.values", "input.dtype", "scale_ue8m0")
    requires = "magnitudes up to 2^126 with float32 scales"
    category = "values"
    reads_values = True
    got: float

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        limit = RECIPROCAL_LIMIT.get(call.input.dtype)
        if (
            limit is None or call.scale_ue8m0 or call.fuse_silu_and_mul
        ):  # SiLU's product is what is divided by
            return
        for value in map(abs, _elements(call.input)):
            if limit < value < ROUNDS_TO_INFINITY[call.input.dtype]:
                yield cls(value)
                return

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        codes, scales = call.output_q, call.output_s
        if codes is not None and scales is not None and scales.ndim and codes.dtype is DType.F8_E4M3FN:
            shape = (*scales.shape[:-1], packed_columns(scales.shape[-1]))
            yield Fix(
                "Use UE8M0 scales, whose multiplier is exact",
                call.replace(scale_ue8m0=True, output_s=TensorSpec(shape, DType.I32, device=scales.device)),
                safe=False,
                note="whoever reads the scales must expect packed exponents",
            )

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.with_tensor("input", values=Full(3e38))


def _counts(tensor: TensorSpec) -> Iterator[tuple[str, float]]:
    """Counts that the values of masked_m prove, and whose they are; of a generator the extreme ones."""
    values, experts = tensor.values, tensor.shape[0]
    if isinstance(values, Listed):
        for expert, count in enumerate(islice(values.flat(), experts)):
            yield f"the count of expert {expert} is", count
    elif isinstance(values, Arange) and experts:
        found = bounds(values, tensor.shape) or ()
        last = experts - 1
        for count in found:
            yield f"the count of expert {0 if count == values.start else last} is", count
    else:
        drawn = isinstance(values, Randint)
        words = ("counts are drawn from", "counts are drawn up to") if drawn else ("every count is",) * 2
        yield from zip(words, bounds(values, tensor.shape) or (), strict=False)


def _clamped(tensor: TensorSpec, rows: int) -> Values | None:
    """Values of masked_m with every count brought into 0 … rows; None where they would be a long list."""
    match tensor.values:
        case Listed() as listed:
            return Listed(tuple(_clamp(count, rows) for count in listed.flat()))
        case Full(value=value):
            return Full(_clamp(value, rows))
        case Randint(low=low, high=high) as drawn:
            first, last = _clamp(low, rows), _clamp(high - 1, rows)
            return Randint(first, last + 1, seed=drawn.seed)
        case Arange(start=start, step=step) if tensor.numel <= CLAMPED_ONE_BY_ONE:
            return Listed(tuple(_clamp(start + step * place, rows) for place in range(tensor.numel)))
    return None


def _clamp(count: float, rows: int) -> int:
    return int(min(count, rows)) if count > 0 else 0


def _multiplies_in_float16(call: QuantCall) -> bool:
    return call.input.dtype is DType.F16 and bool(call.scale_ue8m0) and call.input.numel > 0


def _in_bfloat16(call: QuantCall) -> Fix[QuantCall]:
    """bfloat16 has float32's range; its 8 bits of precision are more than the codes' 4."""
    changed = call.with_dtype("input", DType.BF16)
    return Fix("Keep the input in bfloat16", changed, safe=True, note="a cast rounds to 8 bits of precision")


def _smallest_group(call: QuantCall) -> tuple[float, float]:
    """Between what and what the largest magnitude of the smallest group lies, as far as values prove it."""
    proved = bounds(call.input.values, call.input.shape)
    if proved is None or any(value != value for value in proved):
        return 0.0, inf
    low, high = proved
    least, most = 0 if low <= 0 <= high else min(abs(low), abs(high)), max(abs(low), abs(high))
    if call.fuse_silu_and_mul:
        return 0.0, most * most  # |silu(gate)| <= |gate|
    grouped = _smallest_listed_group(call)
    return (least, most) if grouped is None else (grouped, grouped)


def _smallest_listed_group(call: QuantCall) -> float | None:
    """Largest magnitude of the smallest group of listed values; None where rows or the list do not tell."""
    size, values, tensor = call.group_size, call.input.values, call.input
    every_row = call.masked_m is None and call.sorted_token_ids is None
    if not isinstance(values, Listed) or not every_row or type(size) is not int or size <= 0:
        return None
    if not tensor.shape or tensor.shape[-1] % size:
        return None
    magnitudes = [abs(value) for value in islice(values.flat(), tensor.numel)]
    period = min(tensor.numel, lcm(len(magnitudes), size))  # a list that is too short is repeated
    if period > max(PERIOD_LIMIT, len(magnitudes)):
        return None
    magnitudes *= -(-period // len(magnitudes))
    return min(max(magnitudes[start : start + size]) for start in range(0, period, size))


def _elements(tensor: TensorSpec) -> Iterator[float]:
    """Elements that the values prove: all of a list, the extreme ones of a generator."""
    if isinstance(tensor.values, Listed):
        yield from islice(tensor.values.flat(), tensor.numel)
    else:
        yield from bounds(tensor.values, tensor.shape) or ()


ON_VALUES = (
    MaskedRowsOutOfRange,
    Float16WithUe8m0,
    Float16GroupsOverflow,
    InputNotFinite,
    MagnitudeBeyondReciprocal,
)
