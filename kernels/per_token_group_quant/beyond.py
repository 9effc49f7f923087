"""What upstream takes and then corrupts memory with, or silently leaves out: checks of our own on the layout
of per_token_group_quant's tensors. Those on what the tensors hold are in beyond_values.py.

What happens otherwise was seen on an H200 with upstream's own kernel; README.md has the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from kernels.checking import Check, Fix, Severity, aside
from kernels.dtypes import DType
from kernels.overlap import Places, first_overlap
from kernels.per_token_group_quant.launcher_tensors import CodesDims, ScalesDims, dense
from kernels.per_token_group_quant.signature import MASKED, VALID, QuantCall, column_major_strides
from kernels.spec import TensorSpec
from kernels.target import Target

STORE_ALIGNMENT = 16
"""Bytes of one vectorised store: address and strides of the codes must be multiples of it."""

TMA_ALIGNMENT = 4
"""Elements of scales in the 16 bytes that every outer stride of a TMA load is a multiple of."""

BLACKWELL = 10
"""Major compute capability of the GPUs whose matrix instructions take UE8M0 scales in DeepGEMM."""

ELEMENTS_A_THREAD = 16

MAX_THREADS = 2**32
"""A thread's index, over all rows of a flat launch or of one expert, has 32 bits."""

MAX_EXPERTS = 65_535
"""Blocks of a grid's second dimension."""


class Hazard(Check[QuantCall]):
    """A call that upstream takes without a word."""

    raises = ValueError


@dataclass(frozen=True)
class CodesUnaligned(Hazard):
    """Codes are written in 16-byte vectors, which must start at multiples of 16."""

    message = "output_q {what} is {got} bytes, not a multiple of 16"
    reason = (
        "the {what} of output_q is {got} bytes, and codes are stored 16 bytes at a time: the next "
        "synchronisation reports a misaligned address and the process's GPU context is lost"
    )
    looks_at = ("output_q.offset", "output_q.strides")
    requires = "address, row stride and expert stride of output_q of multiples of 16 bytes"
    category = "alignment"
    premises = (CodesDims,)
    what: str
    got: int

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        codes = call.codes
        if not codes.numel:
            return
        *experts, rows, width = codes.shape
        places = [("address", codes.address)]
        if rows > 1 and codes.strides[-2] != width:  # a width that is no multiple fails with its group size
            places.append(("row stride", codes.strides[-2] * codes.itemsize))
        if experts and experts[0] > 1 and codes.strides[0] != rows * codes.strides[-2]:
            places.append(("expert stride", codes.strides[0] * codes.itemsize))
        for what, got in places:
            if got % STORE_ALIGNMENT:
                yield cls(what, got)

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        yield dense(call, "output_q")

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.with_tensor("output_q", offset=8)


@dataclass(frozen=True)
class CodesOverlap(Hazard):
    """Two rows of codes in the same bytes are written by two warps at once; either may be the last."""

    message = "rows of output_q overlap: {what} stride {got}, span {span}"
    reason = (
        "the {what} stride of output_q is {got} elements and each {what} spans {span}: rows are written over "
        "each other, and which one stays is left to chance"
    )
    looks_at = ("output_q.strides", "output_q.shape")
    requires = "every row of output_q in bytes of its own"
    category = "overlap"
    premises = (CodesDims,)
    what: str
    got: int
    span: int

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        codes = call.codes
        if codes.numel and (codes.shape[-1] == 1 or codes.strides[-1] == 1):  # other strides are refused
            found = first_overlap(codes.shape[-1], *_places(codes, "row", -2))
            if found:
                yield cls(*found)

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        yield dense(call, "output_q")

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.with_tensor("output_q", strides=(0, 1))


@dataclass(frozen=True)
class ScalesOverlap(Hazard):
    """Scales of two rows in the same bytes race, so a row is read back with another row's scale."""

    message = "scales in output_s overlap: {what} stride {got}, span {span}"
    reason = (
        "the {what} stride of output_s is {got} elements and each {what} spans {span}: scales are written "
        "over each other, so codes are read back with another row's scale"
    )
    looks_at = ("output_s.strides", "output_s.shape")
    requires = "every scale in bytes of its own"
    category = "overlap"
    premises = (ScalesDims,)
    what: str
    got: int
    span: int

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        scales = call.scales
        along, across, what = (-1, -2, "row") if call.row_major else (-2, -1, "column")
        if scales.numel and scales.strides[along] == 1:  # other strides are refused
            found = first_overlap(scales.shape[along], *_places(scales, what, across))
            if found:
                yield cls(*found)

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        apart = call.with_tensor("output_s", strides=(), offset=0) if call.row_major else _column_major(call)
        yield Fix("Give every scale its own place in output_s", apart, safe=True, note="another allocation")

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.with_tensor("output_s", strides=(1, 1))


@dataclass(frozen=True)
class LayoutRequestIgnored(Hazard):
    """column_major_scales speaks of scales that are allocated; with buffers passed, their strides decide."""

    message = "column_major_scales is ignored: output_s is passed and is row-major"
    reason = (
        "column_major_scales only chooses the layout of scales that are allocated; the output_s passed is "
        "row-major by its strides, and is written so"
    )
    looks_at = ("column_major_scales", "output_s.strides")
    requires = "column_major_scales only where output_s is allocated, or an output_s laid out so"
    category = "layout"
    severity = Severity.WARNING
    premises = (ScalesDims,)

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        *_, rows, columns = call.scales.shape
        if call.column_major_scales and rows > 1 and columns > 1 and call.row_major:
            yield cls()

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        yield Fix("Leave column_major_scales out", call.without("column_major_scales"), safe=True)
        note = "another layout for whoever reads it"
        yield Fix("Lay output_s out column-major", _column_major(call), safe=False, note=note)

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.replace(column_major_scales=True)


@dataclass(frozen=True)
class ExpectedRowsIgnored(Hazard):
    """expected_m is a hint on how many rows an expert has valid; without masked_m all are."""

    message = "expected_m is ignored without masked_m"
    reason = "expected_m is {got}, and without masked_m every row is quantised"
    looks_at = ("expected_m", "masked_m")
    requires = "expected_m only with masked_m"
    category = "presence"
    severity = Severity.WARNING
    got: object = aside()

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        if call.expected_m is not None and call.masked_m is None:
            yield cls(call.expected_m)

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        yield Fix("Leave expected_m out", call.without("expected_m"), safe=True)

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.replace(expected_m=4)


@dataclass(frozen=True)
class ColumnStrideNotForTma(Hazard):
    """Matrix kernels fetch column-major scales by TMA, whose strides are multiples of 16 bytes."""

    message = "{what} stride {got} of output_s is not a multiple of 4 elements"
    reason = (
        "the {what} stride of column-major output_s is {got} elements, {in_bytes} bytes: a kernel that loads "
        "the scales by TMA needs multiples of 16 bytes and refuses them"
    )
    looks_at = ("output_s.strides",)
    requires = "column and expert strides of a column-major output_s of multiples of 4 elements"
    category = "alignment"
    severity = Severity.WARNING
    premises = (ScalesDims,)
    what: str
    got: int
    in_bytes: int = aside()

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        scales = call.scales
        if scales.numel and not call.row_major:
            for places in _places(scales, "column", -1):
                if places.count > 1 and places.stride % TMA_ALIGNMENT:
                    yield cls(places.name, places.stride, places.stride * scales.itemsize)

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        title = "Pad the columns of output_s to multiples of 4"
        yield Fix(title, _column_major(call), safe=True, note="another allocation")

    @classmethod
    def example(cls) -> QuantCall:
        return QuantCall(
            TensorSpec((5, 256), DType.BF16),
            TensorSpec((5, 256), DType.F8_E4M3FN),
            TensorSpec((5, 2), DType.F32, (1, 5)),
        )


@dataclass(frozen=True)
class PackedScalesBeforeBlackwell(Hazard):
    """Packed exponents are what matrix instructions of Blackwell take; before it scales are floats."""

    message = "output_s holds packed UE8M0 scales in columns, and the target is {architecture}"
    reason = (
        "DeepGEMM reads packed UE8M0 scales on sm100; on {architecture} its kernels want float32 scales, "
        "column-major, columns padded to multiples of 4, and refuse or misread these"
    )
    looks_at = ("output_s.dtype", "output_s.strides", "scale_ue8m0")
    requires = "float32 scales for a GPU other than sm100 and its relatives"
    category = "dtype"
    severity = Severity.WARNING
    premises = (ScalesDims,)
    architecture: str

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        capability = None if call.target is None else call.target.capability
        packed = call.scales.dtype is DType.I32 and call.scales.numel and not call.row_major
        if packed and capability is not None and capability // 10 != BLACKWELL:
            yield cls(str(call.target))

    def describe_actual(self, call: QuantCall, /) -> str:
        return f"output_s = {call.scales}, target = {call.target}"

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        note = "codes and scales change: a scale is then no longer rounded up to a power of two"
        allocated = call.without("output_q", "output_s").replace(scale_ue8m0=False, column_major_scales=True)
        yield Fix("Have float32 scales allocated: scale_ue8m0=False", allocated, safe=False, note=note)

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.without("output_q", "output_s").replace(
            scale_ue8m0=True, column_major_scales=True, target=Target("sm90")
        )


@dataclass(frozen=True)
class TooLargeForOneLaunch(Hazard):
    """Thread indices have 32 bits, and a grid 65,535 blocks in the dimension that counts experts."""

    message = "{got} {what} are too many for one launch, which has at most {limit}"
    reason = "the call needs {got} {what} and upstream's one launch has at most {limit}"
    looks_at = ("output_q.shape", "masked_m")
    requires = "fewer than 2^36 codes, with masked_m for each of at most 65,535 experts"
    category = "shape"
    premises = (CodesDims,)
    got: int
    what: str
    limit: int

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        *experts, rows, width = call.codes.shape
        if not call.codes.numel:
            return
        threads = rows * width // ELEMENTS_A_THREAD
        if threads >= MAX_THREADS:
            yield cls(threads, "threads", MAX_THREADS - 1)
        if experts and experts[0] > MAX_EXPERTS:
            yield cls(experts[0], "experts", MAX_EXPERTS)

    @classmethod
    def example(cls) -> QuantCall:
        return MASKED.replace(
            input=TensorSpec((70_000, 1, 128), DType.BF16),
            output_q=TensorSpec((70_000, 1, 128), DType.F8_E4M3FN),
            output_s=TensorSpec((70_000, 1, 1), DType.F32),
            masked_m=TensorSpec((70_000,), DType.I32),
        )


@dataclass(frozen=True)
class SortedLayoutMisread(Hazard):
    """The kernel gets the addresses of the ids and of the count, and takes them for dense ones of its GPU."""

    message = "{argument} is {got}, where the kernel reads {wanted}"
    reason = (
        "{argument} is {got}; its address is passed on as it is, and the kernel reads {wanted} there: "
        "memory of something else, or none that the GPU can reach"
    )
    looks_at = ("sorted_token_ids", "num_tokens_post_padded", "input.device")
    requires = "sorted_token_ids dense and num_tokens_post_padded of one element, on the input's device"
    category = "layout"
    argument: str
    got: str
    wanted: str

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        if call.sorted_token_ids is None:
            return
        for name in ("sorted_token_ids", "num_tokens_post_padded"):
            tensor = getattr(call, name)
            if tensor is None:
                continue
            if tensor.device_index != call.input.device_index:
                yield cls(name, f"on {tensor.device_index}", f"memory of {call.input.device_index}")
            if name == "sorted_token_ids" and not tensor.is_contiguous:
                yield cls(name, f"laid out with strides {tensor.strides}", "one id behind the other")
            elif name != "sorted_token_ids" and not tensor.numel:
                yield cls(name, "empty", "one number")

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        mended = call
        for name in ("sorted_token_ids", "num_tokens_post_padded"):
            tensor = getattr(call, name)
            if tensor is not None:
                shape = tensor.shape if tensor.numel else (1,)
                whole = TensorSpec(shape, tensor.dtype, device=call.input.device, values=tensor.values)
                mended = mended.replace(**{name: whole})
        yield Fix("Copy both to the input's device, dense", mended, safe=True, note="a copy of the ids")

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.replace(
            sorted_token_ids=TensorSpec((4,), DType.I32, device="cpu"),
            num_tokens_post_padded=TensorSpec((1,), DType.I32),
            num_valid_tokens=4,
        )


def _places(tensor: TensorSpec, name: str, dim: int) -> tuple[Places, ...]:
    """Where one dimension's items start, and every expert's."""
    item = Places(name, tensor.shape[dim], tensor.strides[dim])
    experts = [Places("expert", tensor.shape[0], tensor.strides[0])] if tensor.ndim == 3 else []
    return (item, *experts)


def _column_major(call: QuantCall) -> QuantCall:
    """The call with scales laid out as upstream allocates them column-major."""
    *rows, columns = call.scales.shape
    return call.with_tensor("output_s", strides=column_major_strides(tuple(rows), columns), offset=0)


ON_CODES = (CodesUnaligned, CodesOverlap, TooLargeForOneLaunch)
ON_SCALES = (ScalesOverlap, LayoutRequestIgnored, ColumnStrideNotForTma, PackedScalesBeforeBlackwell)
ON_ARGUMENTS = (ExpectedRowsIgnored, SortedLayoutMisread)
