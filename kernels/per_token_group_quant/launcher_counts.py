"""What the launcher of per_token_group_quant asks of the tensors that say which rows are valid."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

from kernels.checking import Fix, LauncherCheck, aside
from kernels.dtypes import DType, Kind
from kernels.launching import NotContiguous, WrongDims, WrongDtype, WrongSize
from kernels.per_token_group_quant.launcher_tensors import InputDims, OnInputsDevice, dense, sites_of
from kernels.per_token_group_quant.python_checks import QuantCheck
from kernels.per_token_group_quant.signature import (
    LAUNCHER,
    MASKED,
    VALID,
    QuantCall,
)
from kernels.spec import TensorSpec

COUNT_DTYPES = (DType.I32, DType.I64)


@dataclass(frozen=True)
class MaskTypeHasNoName(QuantCheck):
    """A failed match prints the tensor's type, and tvm-ffi has no name for complex numbers: what it says of
    that takes the place of the refusal.
    """

    raises = ValueError
    message = "DLDataType contains unknown type_code=5"
    pythons_own = True
    reason = "masked_m is {got}; the launcher refuses it, and cannot print its type"
    looks_at = ("masked_m.dtype",)
    requires = "masked_m int32 or int64"
    category = "dtype"
    got: DType = aside()

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        if call.masked_m is not None and call.masked_m.dtype.kind is Kind.COMPLEX:
            yield cls(call.masked_m.dtype)

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        yield Fix("Cast masked_m to int32", call.with_dtype("masked_m", DType.I32), safe=False)

    @classmethod
    def example(cls) -> QuantCall:
        return MASKED.with_dtype("masked_m", DType.C64)


@dataclass(frozen=True)
class MaskDims(WrongDims[QuantCall]):
    """One count an expert."""

    tensor = "masked_m"
    sites = sites_of((616, 714))
    looks_at = ("masked_m.shape",)
    requires = "masked_m of 1 dimension"

    @classmethod
    def causes(cls, call: QuantCall, tensor: TensorSpec, /) -> Iterator[tuple[Any, ...]]:
        if tensor.ndim != 1:
            yield 1, tensor.ndim

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        if call.input.ndim:
            yield Fix(
                "Make masked_m [E]", call.with_tensor("masked_m", shape=(call.input.shape[0],)), safe=True
            )

    @classmethod
    def example(cls) -> QuantCall:
        return MASKED.with_tensor("masked_m", shape=(2, 1))


@dataclass(frozen=True)
class MaskExperts(WrongSize[QuantCall]):
    """One count an expert."""

    tensor = "masked_m"
    sites = MaskDims.sites
    looks_at = ("masked_m.shape", "input.shape")
    requires = "as many counts in masked_m as experts in input"
    premises = (InputDims, MaskDims)

    @classmethod
    def causes(cls, call: QuantCall, tensor: TensorSpec, /) -> Iterator[tuple[Any, ...]]:
        if tensor.shape[0] != call.input.shape[0]:
            yield 0, "num_experts", call.input.shape[0], tensor.shape[0]

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        yield Fix(
            "One count an expert", call.with_tensor("masked_m", shape=(call.input.shape[0],)), safe=True
        )

    @classmethod
    def example(cls) -> QuantCall:
        return MASKED.with_tensor("masked_m", shape=(3,))


@dataclass(frozen=True)
class MaskStrided(NotContiguous[QuantCall]):
    """Counts are read as a dense array."""

    tensor = "masked_m"
    sites = MaskDims.sites
    looks_at = ("masked_m.strides",)
    requires = "masked_m contiguous"
    premises = (MaskDims,)

    @classmethod
    def causes(cls, call: QuantCall, tensor: TensorSpec, /) -> Iterator[tuple[Any, ...]]:
        if not tensor.is_contiguous:
            yield ()

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        yield dense(call, "masked_m")

    @classmethod
    def example(cls) -> QuantCall:
        return MASKED.with_tensor("masked_m", strides=(2,))


@dataclass(frozen=True)
class MaskDtype(WrongDtype[QuantCall]):
    """Counts are 32- or 64-bit integers."""

    tensor = "masked_m"
    sites = MaskDims.sites
    looks_at = ("masked_m.dtype",)
    requires = "masked_m int32 or int64"

    @classmethod
    def causes(cls, call: QuantCall, tensor: TensorSpec, /) -> Iterator[tuple[Any, ...]]:
        if tensor.dtype not in COUNT_DTYPES:
            yield tensor.dtype, ", ".join(map(str, COUNT_DTYPES))

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        yield Fix("Cast masked_m to int32", call.with_dtype("masked_m", DType.I32), safe=True)

    @classmethod
    def example(cls) -> QuantCall:
        return MASKED.with_dtype("masked_m", DType.I16)


@dataclass(frozen=True)
class MaskDevice(OnInputsDevice):
    """One launch, one device."""

    tensor = "masked_m"
    sites = MaskDims.sites
    looks_at = ("masked_m.device", "input.device")
    requires = "masked_m on the input's device"

    @classmethod
    def variant(cls, call: QuantCall, /) -> int:
        return 0

    @classmethod
    def example(cls) -> QuantCall:
        return MASKED.with_tensor("masked_m", device="cpu")


class _SortedDtype(LauncherCheck[QuantCall]):
    """The sorted layout's index arrays are int32."""

    category = "dtype"


@dataclass(frozen=True)
class SortedIdsDtype(_SortedDtype):
    """Token ids are read as int32."""

    message = "sorted_token_ids must have dtype int32"
    sites = (LAUNCHER.at("run", None, 671),)
    reason = "sorted_token_ids is {got}"
    looks_at = ("sorted_token_ids.dtype",)
    requires = "sorted_token_ids int32"
    got: DType = aside()

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        if call.sorted_token_ids is not None and call.sorted_token_ids.dtype is not DType.I32:
            yield cls(call.sorted_token_ids.dtype)

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        yield Fix("Cast sorted_token_ids to int32", call.with_dtype("sorted_token_ids", DType.I32), safe=True)

    @classmethod
    def example(cls) -> QuantCall:
        return SORTED.with_dtype("sorted_token_ids", DType.I64)


@dataclass(frozen=True)
class PaddedCountDtype(_SortedDtype):
    """The padded row count is read as int32."""

    message = "num_tokens_post_padded must have dtype int32"
    sites = (LAUNCHER.at("run", None, 672),)
    reason = "num_tokens_post_padded is {got}"
    looks_at = ("num_tokens_post_padded.dtype",)
    requires = "num_tokens_post_padded int32"
    got: DType = aside()

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        count = call.num_tokens_post_padded
        if call.sorted_token_ids is not None and count is not None and count.dtype is not DType.I32:
            yield cls(count.dtype)

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        cast = call.with_dtype("num_tokens_post_padded", DType.I32)
        yield Fix("Cast num_tokens_post_padded to int32", cast, safe=True)

    @classmethod
    def example(cls) -> QuantCall:
        return SORTED.with_dtype("num_tokens_post_padded", DType.I64)


@dataclass(frozen=True)
class ValidTokensOutOfRange(LauncherCheck[QuantCall]):
    """Ids are int32, so their bound must be one too."""

    message = "num_valid_tokens out of range: {num_valid_tokens}"
    sites = (LAUNCHER.at("run", None, 673),)
    reason = "num_valid_tokens is {got}, outside 0 … 2^31 - 1"
    looks_at = ("num_valid_tokens",)
    requires = "0 <= num_valid_tokens < 2^31"
    category = "values"
    got: int

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        count = call.num_valid_tokens
        if call.sorted_token_ids is not None and isinstance(count, int) and not 0 <= count < 2**31:
            yield cls(count)

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        rows = call.input.shape[0] if call.input.ndim else 0
        yield Fix(f"Pass num_valid_tokens={rows}", call.replace(num_valid_tokens=rows), safe=True)

    @classmethod
    def example(cls) -> QuantCall:
        return SORTED.replace(num_valid_tokens=-1)


@dataclass(frozen=True)
class SortedIdsTooFew(LauncherCheck[QuantCall]):
    """Every row looks its token id up."""

    message = "sorted_token_ids must cover every row"
    sites = (LAUNCHER.at("run", None, 676),)
    reason = "sorted_token_ids has {got} ids for {rows} rows"
    looks_at = ("sorted_token_ids.shape", "input.shape")
    requires = "at least as many ids as input rows"
    category = "shape"
    premises = (InputDims,)
    got: int = aside()
    rows: int = aside()

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        if call.sorted_token_ids is not None and call.sorted_token_ids.numel < call.input.shape[0]:
            yield cls(call.sorted_token_ids.numel, call.input.shape[0])

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        yield Fix(
            "One id a row", call.with_tensor("sorted_token_ids", shape=(call.input.shape[0],)), safe=True
        )

    @classmethod
    def example(cls) -> QuantCall:
        return SORTED.with_tensor("sorted_token_ids", shape=(3,))


SORTED = VALID.replace(
    sorted_token_ids=TensorSpec((4,), DType.I32),
    num_tokens_post_padded=TensorSpec((1,), DType.I32),
    num_valid_tokens=4,
)
