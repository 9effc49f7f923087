"""The call of sparse_attn_v4_paged_decode: its arguments, valid ones, and how a partial call is completed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

from kernels.call import Call, argument
from kernels.dtypes import DType
from kernels.spec import Shape, TensorSpec
from kernels.upstream import SGLANG, File
from kernels.values import Arange, Randint, Randn, Values

PYTHON = File(SGLANG, "python/sglang/kernels/ops/attention/dsv4/unified_kv_kernels/paged_decode.py")

QUERY_DTYPES = (DType.BF16, DType.F16)
FP8 = DType.F8_E4M3FN
E4M3 = (DType.F8_E4M3FN, DType.F8_E4M3FNUZ)
"""The FP8 types that a pool may have, each on other GPUs."""
GROUP = 64
"""Columns of the pool that share one scale."""


@dataclass(frozen=True)
class SparseCall(Call):
    """Arguments of the operation: T tokens, H heads, D head width, P pool slots, N slots listed."""

    positional: ClassVar[int] = 6

    q: TensorSpec = argument("queries, [T, H, D]; bfloat16 or float16; any strides")
    unified_kv: TensorSpec = argument(
        "pool, [P, D]: each slot is key and value at once; q's dtype, or float8_e4m3fn with kv_scales"
    )
    kv_indices: TensorSpec = argument("slots of all tokens one after the other, [N] int32; each in [0, P)")
    kv_indptr: TensorSpec = argument(
        "[T + 1] int32: token t reads kv_indices[kv_indptr[t]:kv_indptr[t + 1]]; non-decreasing"
    )
    attn_sink: TensorSpec = argument(
        "[H]: a head's logit (natural log) that only enlarges the denominator; -inf: none"
    )
    softmax_scale: float = argument("factor of the scores, usually D**-0.5")
    kv_scales: TensorSpec | None = argument(
        "[P, D / 64] float32: factor of each 64 columns of a slot; makes the pool FP8", default=None
    )
    kv_splits: int | None = argument(
        "programs that share one token's slots, a power of two; None: chosen from T and H", default=None
    )

    @property
    def fp8(self) -> DType:
        """The FP8 type that the kernel is compiled for: E4M3 as the target has it."""
        return FP8 if self.target is None else self.target.e4m3

    @property
    def scale_shape(self) -> Shape:
        """The shape upstream asks of kv_scales: the pool's slots, and its width in whole groups."""
        return self.unified_kv.shape[0], self.unified_kv.shape[-1] // GROUP

    def with_scales(self) -> SparseCall:
        """The same call with scales of the right shape and type, freshly allocated."""
        return self.replace(kv_scales=TensorSpec(self.scale_shape, DType.F32, device=self.unified_kv.device))


VALID = SparseCall(
    q=TensorSpec((2, 16, 128), DType.BF16),
    unified_kv=TensorSpec((8, 128), DType.BF16),
    kv_indices=TensorSpec((8,), DType.I32),
    kv_indptr=TensorSpec((3,), DType.I32),
    attn_sink=TensorSpec((16,), DType.F32),
    softmax_scale=128**-0.5,
)

QUANTIZED = VALID.with_dtype("unified_kv", FP8).with_scales()

_UNSIGNED = (DType.U8, DType.U16, DType.U32, DType.U64)

SLOTS_A_TOKEN = 4
"""Slots each token reads when a call says nothing of it."""


def fit(given: Mapping[str, Any]) -> SparseCall:
    """Complete a user's arguments; where given shapes contradict, the first in signature order decides."""
    tensors = {name: value for name, value in given.items() if isinstance(value, TensorSpec)}
    q, pool, scales = tensors.get("q"), tensors.get("unified_kv"), tensors.get("kv_scales")
    device = next(iter(tensors.values())).device if tensors else "cuda"

    tokens = _size(q, 0, 3, default=max(_size(tensors.get("kv_indptr"), 0, 1, default=3) - 1, 0))
    heads = _size(q, 1, 3, default=_size(tensors.get("attn_sink"), 0, 1, default=16))
    scale_width = _size(scales, 1, 2, default=2) * GROUP
    width = _size(q, -1, 1, default=_size(pool, -1, 1, default=scale_width))
    slots = _size(pool, 0, 1, default=_size(scales, 0, 2, default=8))

    pool_dtype = q.dtype if q is not None and q.dtype in QUERY_DTYPES else DType.BF16
    query_dtype = pool.dtype if pool is not None and pool.dtype in QUERY_DTYPES else DType.BF16
    target = given.get("target")
    fp8 = FP8 if target is None else target.e4m3
    completed: dict[str, Any] = {
        "q": TensorSpec((tokens, heads, width), query_dtype, device=device),
        "unified_kv": TensorSpec((slots, width), pool_dtype if scales is None else fp8, device=device),
        "kv_indices": TensorSpec((tokens * SLOTS_A_TOKEN if slots else 0,), DType.I32, device=device),
        "kv_indptr": TensorSpec((tokens + 1,), DType.I32, device=device),
        "attn_sink": TensorSpec((heads,), DType.F32, device=device),
        "softmax_scale": max(width, 1) ** -0.5,
    }
    return SparseCall(**completed | dict(given))


def fill(call: SparseCall) -> Mapping[str, Values]:
    """Queries and pool of moderate size; every token reads equally many slots, each of them in the pool."""
    slots = call.unified_kv.shape[0] if call.unified_kv.ndim else 0
    tokens = max(call.kv_indptr.numel - 1, 1)
    listed = min(call.kv_indices.numel, _largest(call.kv_indptr.dtype)) if slots else 0
    values: dict[str, Values] = {
        "q": Randn(std=0.5, seed=1),
        "unified_kv": Randn(std=64.0 if call.kv_scales is not None else 0.5, seed=2),
        "kv_indices": Randint(0, min(max(slots, 1), _largest(call.kv_indices.dtype) + 1), seed=3),
        "kv_indptr": Arange(0, listed // tokens),
        "attn_sink": Randn(seed=4),
    }
    if call.kv_scales is not None:
        # From 1/256 to twice that, every group its own, so that a scale taken from the wrong place shows.
        values["kv_scales"] = Arange(2.0**-8, 2.0**-8 / max(prod(call.kv_scales.shape), 1))
    return values


def _largest(dtype: DType) -> int:
    """Largest whole number that an index type holds."""
    return (1 << dtype.bits - (dtype not in _UNSIGNED)) - 1


def _size(tensor: TensorSpec | None, dim: int, at_least: int, *, default: int) -> int:
    """A size of a tensor that was given with at least so many dimensions, else the default."""
    return default if tensor is None or tensor.ndim < at_least else tensor.shape[dim]
