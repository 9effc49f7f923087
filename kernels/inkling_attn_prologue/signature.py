"""The calls of the three inkling attention prologues: decode, verify, extend.

T tokens, B sequences, N slots of the convolution state, S slots of the KV pool, W convolution width,
n drafted tokens a sequence; Hq = dq / 128 query heads, H = dkv / 128 key and value heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from kernels.call import Call, argument
from kernels.dtypes import DType
from kernels.spec import TensorSpec
from kernels.upstream import SGLANG, File
from kernels.values import Zeros

PYTHON = File(SGLANG, "python/sglang/kernels/ops/attention/inkling_attn_prologue.py")

HEAD = 128
"""Width of a head."""
BLOCK = 32
"""Elements of a head that share one MXFP8 scale, and tokens of a page that share one row of scale bytes."""

QKVR = (
    "rows of the packed projection, [T, ..] bfloat16; q, k and v are found at q_off, k_off and v_off, which "
    "count from its first element and may lie beyond its own width"
)
CACHE = "convolution state of {}, [N, W - 1, >= dkv] bfloat16; last stride 1{}"
INDICES = "state slot of each {}, integers; -1: padding, which keeps no state"
MASK = "[{}] bool: whether a {}'s state takes part in the convolution"
WEIGHT = "convolution taps of {}, [>= dkv, W] bfloat16"
GAMMA = "[128] bfloat16: factor of the {} heads' norm"
EPS = "added to the mean square before its root"
LOC = "[T] int64: pool slot of each token; negative: not stored"
POOL = "{} pool, [S, H, 128]; bfloat16, or float8_e4m3fn with mxfp8_quant; written with do_store"
OFFSET = "elements from qkvr's first to the {} slice; a multiple of 8"
DQ = "width of all query heads: a multiple of 128"
DKV = "width of all key heads, and of all value heads: a multiple of 128"
ACTIVATION = "silu or swish; anything else: none"
RESIDUAL = "add the convolution's input to its output"
STORE = "write k and v into the pool"
MXFP8 = "quantize q, and what is stored, to FP8 with one power-of-two scale for 32 elements"
SCALES = (
    "scale bytes of the {} pool, [S / page_size, H, 32, page_size / 32, 4], one byte each; written with "
    "mxfp8_quant"
)
PAGE = "pool slots a page: 32, 64, 96, 128 ..; read with mxfp8_quant only"
TAU = "[T]: factor of each token's q after its norm"


class PrologueCall(Call):
    """What the three calls have in common; each lists its arguments in upstream's own order."""

    qkvr: TensorSpec
    k_cache: TensorSpec
    v_cache: TensorSpec
    cache_indices: TensorSpec
    cache_mask: TensorSpec
    k_weight: TensorSpec
    v_weight: TensorSpec
    q_gamma: TensorSpec
    k_gamma: TensorSpec
    eps: float
    loc: TensorSpec
    k_buf: TensorSpec
    v_buf: TensorSpec
    q_off: int
    k_off: int
    v_off: int
    dq: int
    dkv: int
    activation: str | None
    use_residual: bool
    do_store: bool
    mxfp8_quant: bool
    sfk: TensorSpec | None
    sfv: TensorSpec | None
    page_size: int
    log_scaling_tau: TensorSpec | None

    @property
    def scale_shape(self) -> tuple[int, ...]:
        """The shape upstream computes for sfk and sfv; page_size must not be 0."""
        pages, heads = self.k_buf.shape[0] // self.page_size, self.dkv // HEAD
        return pages, heads, BLOCK, self.page_size // BLOCK, HEAD // BLOCK

    def quantized(self) -> Self:
        """The same call with MXFP8: an FP8 pool and scale buffers of its own, zero-filled."""
        scales = self.new_scales()
        return self.replace(
            k_buf=self.k_buf.with_dtype(DType.F8_E4M3FN),
            v_buf=self.v_buf.with_dtype(DType.F8_E4M3FN),
            mxfp8_quant=True,
            sfk=scales,
            sfv=scales,
        )

    def new_scales(self) -> TensorSpec:
        """A scale buffer for this call; zero-filled, since a byte 0xFF that nobody wrote reads as NaN."""
        return TensorSpec(self.scale_shape, DType.U8, device=self.k_buf.device, values=Zeros())


@dataclass(frozen=True)
class DecodeCall(PrologueCall):
    """Arguments of inkling_attn_prologue_decode: one token a sequence, B = T."""

    positional: ClassVar[int] = 18

    qkvr: TensorSpec = argument(QKVR)
    k_cache: TensorSpec = argument(CACHE.format("k", "; shifted by one token"))
    v_cache: TensorSpec = argument(CACHE.format("v", "; shifted by one token"))
    cache_indices: TensorSpec = argument(f"[T], {INDICES.format('token')}")
    cache_mask: TensorSpec = argument(MASK.format("T", "token"))
    k_weight: TensorSpec = argument(WEIGHT.format("k"))
    v_weight: TensorSpec = argument(WEIGHT.format("v"))
    q_gamma: TensorSpec = argument(GAMMA.format("query"))
    k_gamma: TensorSpec = argument(GAMMA.format("key"))
    eps: float = argument(EPS)
    loc: TensorSpec = argument(LOC)
    k_buf: TensorSpec = argument(POOL.format("k"))
    v_buf: TensorSpec = argument(POOL.format("v"))
    q_off: int = argument(OFFSET.format("q"))
    k_off: int = argument(OFFSET.format("k"))
    v_off: int = argument(OFFSET.format("v"))
    dq: int = argument(DQ)
    dkv: int = argument(DKV)
    activation: str | None = argument(ACTIVATION, default=None)
    use_residual: bool = argument(RESIDUAL, default=True)
    track_mask: TensorSpec | None = argument(
        "[T] bool: whose new state is copied to its track slot as well", default=None
    )
    track_indices: TensorSpec | None = argument("[T] int64: track slot of each token", default=None)
    do_store: bool = argument(STORE, default=True)
    mxfp8_quant: bool = argument(MXFP8, default=False)
    sfk: TensorSpec | None = argument(SCALES.format("k"), default=None)
    sfv: TensorSpec | None = argument(SCALES.format("v"), default=None)
    page_size: int = argument(PAGE, default=128)
    log_scaling_tau: TensorSpec | None = argument(TAU, default=None)


@dataclass(frozen=True)
class VerifyCall(PrologueCall):
    """Arguments of inkling_attn_prologue_verify: n drafted tokens a sequence, T = B · n."""

    positional: ClassVar[int] = 21

    qkvr: TensorSpec = argument(QKVR)
    k_cache: TensorSpec = argument(CACHE.format("k", ""))
    v_cache: TensorSpec = argument(CACHE.format("v", ""))
    cache_indices: TensorSpec = argument(f"[B], {INDICES.format('sequence')}")
    cache_mask: TensorSpec = argument(MASK.format("B", "sequence"))
    k_weight: TensorSpec = argument(WEIGHT.format("k"))
    v_weight: TensorSpec = argument(WEIGHT.format("v"))
    k_inter: TensorSpec = argument("[B, n, W - 1, >= dkv] bfloat16: k's state after each token; written")
    v_inter: TensorSpec = argument("[B, n, W - 1, >= dkv] bfloat16: v's state after each token; written")
    q_gamma: TensorSpec = argument(GAMMA.format("query"))
    k_gamma: TensorSpec = argument(GAMMA.format("key"))
    eps: float = argument(EPS)
    loc: TensorSpec = argument(LOC)
    k_buf: TensorSpec = argument(POOL.format("k"))
    v_buf: TensorSpec = argument(POOL.format("v"))
    q_off: int = argument(OFFSET.format("q"))
    k_off: int = argument(OFFSET.format("k"))
    v_off: int = argument(OFFSET.format("v"))
    dq: int = argument(DQ)
    dkv: int = argument(DKV)
    draft_token_num: int = argument("tokens of each sequence")
    activation: str | None = argument(ACTIVATION, default=None)
    use_residual: bool = argument(RESIDUAL, default=True)
    do_store: bool = argument(STORE, default=True)
    mxfp8_quant: bool = argument(MXFP8, default=False)
    sfk: TensorSpec | None = argument(SCALES.format("k"), default=None)
    sfv: TensorSpec | None = argument(SCALES.format("v"), default=None)
    page_size: int = argument(PAGE, default=128)
    log_scaling_tau: TensorSpec | None = argument(TAU, default=None)


@dataclass(frozen=True)
class ExtendCall(PrologueCall):
    """Arguments of inkling_attn_prologue_extend: sequences of any length, one after the other."""

    positional: ClassVar[int] = 24

    qkvr: TensorSpec = argument(QKVR)
    k_cache: TensorSpec = argument(CACHE.format("k", "; set to the last tokens of its sequence"))
    v_cache: TensorSpec = argument(CACHE.format("v", "; set to the last tokens of its sequence"))
    cache_indices: TensorSpec = argument(f"[B], {INDICES.format('sequence')}")
    cache_mask: TensorSpec = argument(MASK.format("B", "sequence"))
    has_initial_state: TensorSpec = argument(
        "[B] bool: whether a short sequence keeps rows of its old state in the new one"
    )
    cu: TensorSpec = argument("[B + 1] int64: first token of each sequence, then T; non-decreasing from 0")
    si: TensorSpec = argument("[T] int32: sequence of each token")
    k_weight: TensorSpec = argument(WEIGHT.format("k"))
    v_weight: TensorSpec = argument(WEIGHT.format("v"))
    track_rows: TensorSpec = argument("[B, W - 1] int64: tokens copied to a track slot; empty: no tracking")
    track_mask: TensorSpec = argument("[B] bool: which sequences are tracked; empty: none")
    track_dst: TensorSpec = argument("[B] int64: track slot of each sequence")
    q_gamma: TensorSpec = argument(GAMMA.format("query"))
    k_gamma: TensorSpec = argument(GAMMA.format("key"))
    eps: float = argument(EPS)
    loc: TensorSpec = argument(LOC)
    k_buf: TensorSpec = argument(POOL.format("k"))
    v_buf: TensorSpec = argument(POOL.format("v"))
    q_off: int = argument(OFFSET.format("q"))
    k_off: int = argument(OFFSET.format("k"))
    v_off: int = argument(OFFSET.format("v"))
    dq: int = argument(DQ)
    dkv: int = argument(DKV)
    activation: str | None = argument(ACTIVATION, default=None)
    use_residual: bool = argument(RESIDUAL, default=True)
    do_store: bool = argument(STORE, default=True)
    mxfp8_quant: bool = argument(MXFP8, default=False)
    sfk: TensorSpec | None = argument(SCALES.format("k"), default=None)
    sfv: TensorSpec | None = argument(SCALES.format("v"), default=None)
    page_size: int = argument(PAGE, default=128)
    do_cache_update: bool = argument("update the state, and copy what is tracked", default=True)
    log_scaling_tau: TensorSpec | None = argument(TAU, default=None)
