"""What upstream's Python refuses in sparse_attn_v4_paged_decode, in its order; then all other checks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

from kernels.checking import Check, Fix, aside
from kernels.dtypes import DType, Torch
from kernels.registry import Operation
from kernels.sparse_attn_v4_paged_decode.beyond_numbers import BEYOND
from kernels.sparse_attn_v4_paged_decode.partial_results import AFTER_CHECKS
from kernels.sparse_attn_v4_paged_decode.python_errors import PoolHasNoWidth
from kernels.sparse_attn_v4_paged_decode.repairs import CONVERTED, rearranged
from kernels.sparse_attn_v4_paged_decode.signature import (
    E4M3,
    FP8,
    GROUP,
    PYTHON,
    QUANTIZED,
    QUERY_DTYPES,
    VALID,
    SparseCall,
    fill,
    fit,
)
from kernels.spec import Shape, TensorSpec
from kernels.upstream import Site

_ONE_BYTE_CODES = (DType.U8, DType.I8)


def _at(pinned: int, released: int) -> tuple[Site, ...]:
    return (PYTHON.at("_sparse_attn_v4_paged_decode_triton", pinned, released),)


@dataclass(frozen=True)
class QNotGpu(Check[SparseCall]):
    """The kernel reads device memory; q's device stands for all tensors'."""

    raises = RuntimeError
    message = "Triton sparse_attn_v4_paged_decode requires CUDA/HIP tensors"
    sites = _at(652, 723)
    reason = "q is on {device}; the kernel runs on a CUDA or HIP device only"
    looks_at = ("q.device",)
    requires = "q on a CUDA or HIP device"
    category = "device"
    device: str = aside()

    @classmethod
    def find(cls, call: SparseCall, /) -> Iterator[Self]:
        if call.q.device_type != "cuda":
            yield cls(call.q.device)

    def fixes(self, call: SparseCall, /) -> Iterator[Fix[SparseCall]]:
        moved = {
            name: replace(tensor, device="cuda")
            for name, tensor in call.tensors()
            if tensor.device_type != "cuda"
        }
        yield Fix(
            "Move q and every other tensor to the GPU",
            call.replace(**moved),
            safe=True,
            note="one copy of each tensor",
        )

    @classmethod
    def example(cls) -> SparseCall:
        return VALID.replace(**{name: replace(tensor, device="cpu") for name, tensor in VALID.tensors()})


@dataclass(frozen=True)
class QDtype(Check[SparseCall]):
    """Scores are matrix products of 16-bit floats; the pool is read in q's type."""

    raises = RuntimeError
    message = "sparse_attn_v4_paged_decode expects fp16/bf16 q, got {q.dtype}"
    sites = _at(656, 727)
    reason = "q is {got}; it must be bfloat16 or float16"
    looks_at = ("q.dtype",)
    requires = "q bfloat16 or float16"
    category = "dtype"
    got: Torch

    @classmethod
    def find(cls, call: SparseCall, /) -> Iterator[Self]:
        if call.q.dtype not in QUERY_DTYPES:
            yield cls(Torch(call.q.dtype))

    def fixes(self, call: SparseCall, /) -> Iterator[Fix[SparseCall]]:
        pool = call.unified_kv.dtype
        dtype = pool if call.kv_scales is None and pool in QUERY_DTYPES else DType.BF16
        cast = call.with_dtype("q", dtype)
        if call.kv_scales is None and pool is call.q.dtype and pool is not call.fp8:
            yield Fix(
                f"Cast q and unified_kv to {dtype}",
                cast.with_dtype("unified_kv", dtype),
                safe=True,
                note="one copy of the pool",
            )
        else:
            yield Fix(f"Cast q to {dtype}", cast, safe=True, note="one copy of q")

    @classmethod
    def example(cls) -> SparseCall:
        return VALID.with_dtype("q", DType.F32)


@dataclass(frozen=True)
class KvNotFp8(Check[SparseCall]):
    """kv_scales switches the kernel to dequantising the pool, which is only compiled for one FP8 type."""

    raises = RuntimeError
    message = "kv_scales supplied but unified_kv is {unified_kv.dtype}, expected {_FP8_DTYPE}"
    sites = _at(663, 734)
    reason = "kv_scales is given, so the pool must hold codes of {expected}, but unified_kv is {got}{hint}"
    looks_at = ("unified_kv.dtype", "kv_scales")
    requires = "unified_kv of the GPU's E4M3 type with kv_scales, or no kv_scales"
    category = "dtype"
    got: Torch
    expected: Torch
    hint: str = aside(default="")

    @classmethod
    def find(cls, call: SparseCall, /) -> Iterator[Self]:
        if call.kv_scales is not None and call.unified_kv.dtype is not call.fp8:
            other = call.unified_kv.dtype in E4M3
            hint = f"; {call.target or 'an NVIDIA GPU'} has no other E4M3" if other else ""
            yield cls(Torch(call.unified_kv.dtype), Torch(call.fp8), hint)

    def describe_expected(self, call: SparseCall, /) -> str:
        return f"unified_kv {call.fp8} with kv_scales, or no kv_scales"

    def fixes(self, call: SparseCall, /) -> Iterator[Fix[SparseCall]]:
        pool, fp8 = call.unified_kv.dtype, call.fp8
        if pool in E4M3:
            yield Fix(
                f"Convert the pool's codes to {fp8}",
                call.with_dtype("unified_kv", fp8),
                safe=True,
                note=CONVERTED[fp8],
            )
        if pool in _ONE_BYTE_CODES:
            yield Fix(
                f"View the pool's bytes as {fp8}",
                call.with_dtype("unified_kv", fp8),
                safe=True,
                note="right where the bytes are E4M3 codes, which the scales suggest",
            )
        if pool is call.q.dtype:
            yield Fix("Drop kv_scales: the pool is not quantized", call.without("kv_scales"), safe=True)
        elif pool in QUERY_DTYPES:
            yield Fix(
                f"Drop kv_scales and cast the pool to {call.q.dtype}",
                call.without("kv_scales").with_dtype("unified_kv", call.q.dtype),
                safe=True,
                note="one copy of the pool",
            )
        if pool not in (*_ONE_BYTE_CODES, *E4M3):
            quantized = call.with_dtype("unified_kv", fp8)
            yield Fix(
                f"Quantize the pool to {fp8}, one scale for {GROUP} columns",
                quantized.with_scales() if _is_pool(call) else quantized,
                safe=False,
                note="three bits of mantissa are kept",
            )

    @classmethod
    def example(cls) -> SparseCall:
        return QUANTIZED.with_dtype("unified_kv", DType.BF16)


@dataclass(frozen=True)
class ScalesDtype(Check[SparseCall]):
    """The kernel loads the scales as 32-bit floats."""

    raises = RuntimeError
    message = "kv_scales must be fp32, got {kv_scales.dtype}"
    sites = _at(668, 739)
    reason = "kv_scales is {got}; scales are read as float32"
    looks_at = ("kv_scales.dtype",)
    requires = "kv_scales float32"
    category = "dtype"
    got: Torch

    @classmethod
    def find(cls, call: SparseCall, /) -> Iterator[Self]:
        if call.kv_scales is not None and call.kv_scales.dtype is not DType.F32:
            yield cls(Torch(call.kv_scales.dtype))

    def fixes(self, call: SparseCall, /) -> Iterator[Fix[SparseCall]]:
        yield Fix(
            "Cast kv_scales to float32",
            call.with_dtype("kv_scales", DType.F32),
            safe=True,
            note="one copy of the scales",
        )

    @classmethod
    def example(cls) -> SparseCall:
        return QUANTIZED.with_dtype("kv_scales", DType.BF16)


@dataclass(frozen=True)
class DGroup(Check[SparseCall]):
    """Every 64 columns of a slot share a scale, so the width must be whole groups."""

    raises = RuntimeError
    message = "D={D_check} must be divisible by GROUP_SIZE={_FP8_GROUP_SIZE}"
    sites = _at(671, 742)
    reason = "the pool is {width} columns wide, not a multiple of the {group} that share a scale"
    looks_at = ("unified_kv.shape", "kv_scales")
    requires = "a pool width divisible by 64 with kv_scales"
    category = "divisibility"
    premises = (PoolHasNoWidth,)
    width: int
    group: int

    @classmethod
    def find(cls, call: SparseCall, /) -> Iterator[Self]:
        if call.kv_scales is not None and call.unified_kv.shape[-1] % GROUP:
            yield cls(call.unified_kv.shape[-1], GROUP)

    def fixes(self, call: SparseCall, /) -> Iterator[Fix[SparseCall]]:
        if not _is_pool(call):
            return
        queries = call.q.shape
        width = -(-max(self.width, queries[-1] if queries else 0) // GROUP) * GROUP
        padded = call.with_tensor("unified_kv", shape=(call.unified_kv.shape[0], width)).with_scales()
        if queries and queries[-1] != width:
            padded = padded.with_tensor("q", shape=(*queries[:-1], width))
        yield Fix(
            f"Pad q and the pool with zero columns to {width}",
            padded,
            safe=True,
            note=f"the result has {width} columns, those beyond the real width 0; softmax_scale stays",
        )
        yield Fix(
            f"Dequantize the pool to {call.q.dtype} and drop kv_scales",
            call.without("kv_scales").with_dtype("unified_kv", call.q.dtype),
            safe=False,
            note="twice the memory for the pool",
        )

    @classmethod
    def example(cls) -> SparseCall:
        return QUANTIZED.replace(
            q=TensorSpec((2, 16, 96), DType.BF16),
            unified_kv=TensorSpec((8, 96), FP8),
            kv_scales=TensorSpec((8, 1), DType.F32),
        )


@dataclass(frozen=True)
class ScalesShape(Check[SparseCall]):
    """The scale of slot p, column d is read at [p, d // 64]; another shape would be read out of place."""

    raises = RuntimeError
    message = (
        "kv_scales shape {tuple(kv_scales.shape)} does not match "
        "expected ({unified_kv.shape[0]}, {expected_g})"
    )
    sites = _at(676, 747)
    reason = "kv_scales is {got}; a pool of {slots} slots with {groups} groups each needs ({slots}, {groups})"
    looks_at = ("kv_scales.shape", "unified_kv.shape")
    requires = "kv_scales of shape (P, D / 64)"
    category = "shape"
    premises = (PoolHasNoWidth,)
    got: Shape
    slots: int
    groups: int

    @classmethod
    def find(cls, call: SparseCall, /) -> Iterator[Self]:
        if call.kv_scales is not None and call.kv_scales.shape != call.scale_shape:
            yield cls(call.kv_scales.shape, *call.scale_shape)

    def fixes(self, call: SparseCall, /) -> Iterator[Fix[SparseCall]]:
        scales = call.kv_scales
        if scales is None or not _is_pool(call):
            return
        wanted = call.scale_shape
        changed = rearranged(scales, wanted)
        if changed:
            title, tensor, note = changed
            yield Fix(title, call.replace(kv_scales=tensor), safe=True, note=note)
        else:
            yield Fix(
                f"Quantize the pool again, with scales {list(wanted)}",
                call.replace(kv_scales=scales.with_shape(*wanted)),
                safe=False,
                note="scales of another grouping cannot be turned into these",
            )

    @classmethod
    def example(cls) -> SparseCall:
        return QUANTIZED.with_tensor("kv_scales", shape=(2, 8))


@dataclass(frozen=True)
class KvDtype(Check[SparseCall]):
    """Without scales the pool goes into the matrix product as it is, so both sides need one type."""

    raises = RuntimeError
    message = "unified_kv dtype mismatch: kv={unified_kv.dtype}, q={q.dtype}"
    sites = _at(684, 755)
    reason = "no kv_scales is given, so the pool must be {q} as q is, but it is {kv}"
    looks_at = ("unified_kv.dtype", "q.dtype", "kv_scales")
    requires = "unified_kv of q's dtype, or float8_e4m3fn with kv_scales"
    category = "dtype"
    kv: Torch
    q: Torch

    @classmethod
    def find(cls, call: SparseCall, /) -> Iterator[Self]:
        if call.kv_scales is None and call.unified_kv.dtype is not call.q.dtype:
            yield cls(Torch(call.unified_kv.dtype), Torch(call.q.dtype))

    def fixes(self, call: SparseCall, /) -> Iterator[Fix[SparseCall]]:
        pool = call.unified_kv.dtype
        if pool is call.fp8 and _is_pool(call) and call.unified_kv.shape[-1] % GROUP == 0:
            yield Fix(
                "Pass the scales that the pool was quantized with",
                call.with_scales(),
                safe=True,
                note="casting the codes instead would drop their scales",
            )
            return
        scaled = pool.itemsize == 1
        yield Fix(
            f"{'Dequantize' if scaled else 'Cast'} the pool to {call.q.dtype}",
            call.with_dtype("unified_kv", call.q.dtype),
            safe=not scaled,
            note="multiply by the scales that the codes were made with" if scaled else "one copy of the pool",
        )
        if pool in QUERY_DTYPES:
            yield Fix(
                f"Cast q to {pool}",
                call.with_dtype("q", pool),
                safe=True,
                note="the result has this type as well",
            )

    @classmethod
    def example(cls) -> SparseCall:
        return VALID.with_dtype("unified_kv", DType.F16)


def _is_pool(call: SparseCall) -> bool:
    return call.unified_kv.ndim == 2


STAGES = (
    QNotGpu,
    QDtype,
    KvNotFp8,
    ScalesDtype,
    PoolHasNoWidth,
    DGroup,
    ScalesShape,
    KvDtype,
    *AFTER_CHECKS,
    *BEYOND,
)

OPERATIONS = (
    Operation(
        name="sparse_attn_v4_paged_decode",
        title="Sparse paged decode attention",
        summary="Attention of each query token over its own list of pool slots, key and value in one vector",
        call=SparseCall,
        stages=STAGES,
        valid=VALID,
        fit=fit,
        fill=fill,
        outputs=(),
        source=PYTHON,
        module="sglang.kernels.ops.attention.dsv4.unified_kv_kernels.paged_decode",
    ),
)
