"""The checks of per_token_group_quant in order, and those that Python and torch make on upstream's behalf."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

from kernels.checking import Fix, Given, Step, aside
from kernels.dtypes import DType
from kernels.per_token_group_quant import beyond, beyond_values
from kernels.per_token_group_quant.beyond_devices import ON_DEVICES
from kernels.per_token_group_quant.launcher import (
    COMPILED,
    ON_ALIGNMENT,
    ON_CODES,
    ON_COUNTS,
    ON_INPUT,
    ON_SCALES,
    ON_SORTED,
    ON_WIDTHS,
)
from kernels.per_token_group_quant.python_checks import (
    CodesWithoutScales,
    DenseModeUnsupported,
    MaskedAndSorted,
    OutDtypeConflicts,
    PackedScalesWithoutUe8m0,
    QuantCheck,
    ScalesWithoutCodes,
    Ue8m0WithoutPackedScales,
    UnknownSiluMode,
    UnsupportedCodeDtype,
    UnsupportedGroupSize,
    UnsupportedInputDtype,
    UnsupportedScaleDtype,
)
from kernels.per_token_group_quant.python_errors import (
    SCHEMA,
    AllocationOfAFloat,
    CodesHaveNoDimensions,
    GroupSizeNegative,
    InputCannotBeUnpacked,
    PaddedCountMissing,
    ScalesHaveNoDimensions,
    accepted,
    allocates,
)
from kernels.per_token_group_quant.repairs import divides, group_sizes, whole_group_size
from kernels.per_token_group_quant.signature import (
    PYTHON,
    VALID,
    QuantCall,
    fill,
    fit,
)
from kernels.registry import Operation
from kernels.spec import TensorSpec


@dataclass(frozen=True)
class GroupSizeIsNotAnInteger(QuantCheck):
    """A float group size makes the allocated scale buffer's size a float, which torch refuses."""

    raises = TypeError
    message = (
        "empty(): argument 'size' failed to unpack the object at pos {position} with error "
        '"type must be tuple of ints,but got {got}"'
    )
    pythons_own = True
    reason = "group_size is a {got}; the number of groups derived from it must be a whole number"
    looks_at = ("group_size",)
    requires = "group_size an int"
    category = "type"
    position: int
    got: str

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        position = call.input.ndim - (1 if call.column_major_scales else 0)
        if allocates(call) and position > 1 and type(call.group_size) is float and call.group_size:
            yield cls(position, "float")

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        yield from whole_group_size(call)

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.without("output_q", "output_s").replace(group_size=128.0)


@dataclass(frozen=True)
class GroupSizeIsNotANumber(QuantCheck):
    """Allocation divides the width by group_size before anything looks at its type."""

    raises = TypeError
    message = "unsupported operand type(s) for //: 'int' and '{got}'"
    pythons_own = True
    reason = "group_size is a {got}; it must be an int"
    looks_at = ("group_size",)
    requires = "group_size an int"
    category = "type"
    got: str

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        known = isinstance(call.group_size, (int, float)) or not call.input.ndim
        if allocates(call) and not known:
            yield cls(type(call.group_size).__name__)

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        yield from group_sizes(call)

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.without("output_q", "output_s").replace(group_size="128")


@dataclass(frozen=True)
class AllocationDividesByZero(QuantCheck):
    """The number of scales to allocate is the width divided by group_size."""

    raises = ZeroDivisionError
    message = "integer division or modulo by zero"
    pythons_own = True
    reason = "group_size is 0, and the scale buffer to allocate has width // group_size columns"
    looks_at = ("group_size",)
    requires = "group_size in (16, 32, 64, 128, 256)"
    category = "values"

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        if allocates(call) and call.input.ndim and call.group_size == 0:
            yield cls()

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        yield from group_sizes(call)

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.without("output_q", "output_s").replace(group_size=0)


@dataclass(frozen=True)
class InputHasNoRows(QuantCheck):
    """The allocation reads the input's last size, and the one before it for column-major scales."""

    raises = IndexError
    message = "tuple index out of range"
    pythons_own = True
    reason = "input has {dims} dimensions, too few to allocate the outputs from its shape"
    looks_at = ("input.shape",)
    requires = "input of 2 dimensions, or 3 with masked_m"
    category = "shape"
    dims: int = aside()

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        needed = 2 if call.column_major_scales and not call.scale_ue8m0 else 1
        if allocates(call) and call.input.ndim < needed:
            yield cls(call.input.ndim)

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        if call.input.ndim == 1:
            yield Fix(
                "Give the input a token dimension",
                call.with_tensor("input", shape=(1, *call.input.shape)),
                safe=True,
            )

    @classmethod
    def example(cls) -> QuantCall:
        return QuantCall(TensorSpec((256,), DType.BF16), column_major_scales=True)


ALLOCATION = (
    GroupSizeIsNotAnInteger,
    GroupSizeIsNotANumber,
    AllocationDividesByZero,
    InputHasNoRows,
    InputCannotBeUnpacked,
    AllocationOfAFloat,
    GroupSizeNegative,
)


CODES = (ScalesWithoutCodes, *ALLOCATION)


SCALES = (CodesWithoutScales, *ALLOCATION)


@dataclass(frozen=True)
class NoCpuImplementation(QuantCheck):
    """The operator is registered for CUDA; torch's dispatcher picks by the tensors' devices."""

    raises = NotImplementedError
    message = "Could not run 'sglang::per_token_group_quant' with arguments from the 'CPU' backend."
    pythons_own = True
    reason = (
        "every tensor is on the CPU and the operator exists for CUDA only; torch's text goes on with "
        "the list of "
        "backends"
    )
    looks_at = ("input.device", "output_q.device", "output_s.device")
    requires = "tensors on one CUDA device"
    category = "device"

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        if all(tensor.device == "cpu" for _, tensor in call.tensors()):
            yield cls()

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        moved = call
        for name, _ in call.tensors():
            moved = moved.with_tensor(name, device="cuda")
        yield Fix("Move every tensor to the GPU", moved, safe=True, note="one copy of each tensor")

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.replace(**{name: replace(tensor, device="cpu") for name, tensor in VALID.tensors()})


@dataclass(frozen=True)
class WrongArgumentType(QuantCheck):
    """torch checks the Python types of an operator's plain arguments against its schema."""

    raises = RuntimeError
    message = (
        "sglang::per_token_group_quant() Expected a value of type '{wanted}' for argument '{argument}' "
        "but instead found type '{got}'."
    )
    pythons_own = True
    reason = "{argument} is {what}, and the operator's schema has {wanted}"
    looks_at = (
        *("group_size", "scale_ue8m0", "fuse_silu_and_mul"),
        *("expected_m", "num_valid_tokens", "silu_and_mul_mode"),
    )
    requires = (
        "group_size, expected_m and num_valid_tokens ints of 64 bits; scale_ue8m0 and fuse_silu_and_mul "
        "bool; silu_and_mul_mode a str"
    )
    category = "type"
    wanted: str
    argument: str
    got: str
    what: str = aside()

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        for name, wanted in SCHEMA:
            value = getattr(call, name)
            if not accepted(value, wanted):
                kind = "Tensor" if isinstance(value, TensorSpec) else type(value).__name__
                yield cls(wanted, name, kind, "beyond 64 bits" if kind == "int" else f"a {kind}")

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        value = getattr(call, self.argument)
        if self.wanted == "bool":
            said = f"Pass {self.argument} as a bool"
            yield Fix(said, call.replace(**{self.argument: bool(value)}), safe=True)
        elif self.argument == "expected_m":
            yield Fix("Leave expected_m out", call.without("expected_m"), safe=True)
        elif self.argument != "group_size":
            said = f"Leave {self.argument} at its default"
            yield Fix(said, call.without(self.argument), safe=self.argument == "silu_and_mul_mode")
        elif isinstance(value, float):
            yield from whole_group_size(call)
        else:
            yield from group_sizes(call)

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.replace(group_size=128.0)


@dataclass(frozen=True)
class GroupCountDividesByZero(QuantCheck):
    """With buffers passed, the number of groups is the width of output_q divided by group_size."""

    raises = ZeroDivisionError
    message = "integer division or modulo by zero"
    pythons_own = True
    reason = "group_size is 0, and a row has output_q.shape[-1] // group_size groups"
    looks_at = ("group_size",)
    requires = "group_size in (16, 32, 64, 128, 256)"
    category = "values"
    premises = (WrongArgumentType,)

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        if call.group_size == 0:
            yield cls()

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        yield from group_sizes(call)

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.replace(group_size=0)


@dataclass(frozen=True)
class ScalesHaveNoRows(QuantCheck):
    """Row- or column-major is read off the last two strides, so the scale buffer needs two."""

    raises = IndexError
    message = "Dimension out of range (expected to be in range of [{low}, {high}], but got -2)"
    pythons_own = True
    reason = "output_s has {dims} dimensions; its layout is read off its last two strides"
    looks_at = ("output_s.shape",)
    requires = "output_s of 2 dimensions, or 3 with masked_m"
    category = "shape"
    low: int
    high: int
    dims: int = aside()

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        dims = call.scales.ndim
        if dims == 1:
            yield cls(-1, 0, dims)

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        if call.output_q is not None and divides(call.group_size):
            shape = (*call.output_q.shape[:-1], call.scale_columns)
            yield Fix(
                f"Allocate output_s as {list(shape)}", call.with_tensor("output_s", shape=shape), safe=True
            )

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.with_tensor("output_s", shape=(8,))


ON_ARGUMENTS = (
    ScalesWithoutCodes,
    *ALLOCATION,
    CodesWithoutScales,
    OutDtypeConflicts,
)


BUFFERS = (ScalesWithoutCodes, CodesWithoutScales, *ALLOCATION)


STAGES = (
    *ON_ARGUMENTS,
    Step(QuantCall.allocated, premises=ALLOCATION),
    Given(ALLOCATION, (WrongArgumentType, NoCpuImplementation)),
    Given(CODES, (CodesHaveNoDimensions, GroupCountDividesByZero)),
    Given(
        SCALES,
        (
            *(ScalesHaveNoRows, ScalesHaveNoDimensions),
            *(PackedScalesWithoutUe8m0, Ue8m0WithoutPackedScales, UnsupportedScaleDtype),
        ),
    ),
    UnsupportedInputDtype,
    Given(CODES, (UnsupportedCodeDtype,)),
    UnsupportedGroupSize,
    UnknownSiluMode,
    Given(CODES, (DenseModeUnsupported,)),
    MaskedAndSorted,
    *COMPILED,
    PaddedCountMissing,
    *ON_SORTED,
    *ON_INPUT,
    Given(CODES, ON_CODES),
    Given(SCALES, ON_SCALES),
    *ON_ALIGNMENT,
    Given((*BUFFERS, WrongArgumentType, GroupCountDividesByZero), ON_WIDTHS),
    *ON_COUNTS,
    Given(CODES, beyond.ON_CODES),
    Given(SCALES, beyond.ON_SCALES),
    *beyond.ON_ARGUMENTS,
    *ON_DEVICES,
    *beyond_values.ON_VALUES,
)


OPERATIONS = (
    Operation(
        name="per_token_group_quant",
        title="Per-token group quantisation",
        summary="Quantise rows to FP8 or int8 codes, one scale for each group of consecutive elements",
        call=QuantCall,
        stages=STAGES,
        valid=VALID,
        fit=fit,
        fill=fill,
        outputs=("output_q", "output_s"),
        source=PYTHON,
        module="sglang.kernels.ops.quantization.per_token_group_quant",
    ),
)
