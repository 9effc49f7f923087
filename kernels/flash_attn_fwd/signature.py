"""The call of flash_attn_fwd: FP8 attention with block scales, and a valid one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kernels.call import Call, argument
from kernels.dtypes import DType
from kernels.spec import TensorSpec
from kernels.upstream import SGLANG, File, Site
from kernels.values import Arange, Full, Randn, Values, Zeros

FOLDER = "python/sglang/kernels/ops/attention/flash_attn/cute"
INTERFACE = File(SGLANG, f"{FOLDER}/interface.py")
KERNEL = File(SGLANG, f"{FOLDER}/flash_fwd_sm100.py")
MODULE = "sglang.kernels.ops.attention.flash_attn.cute.interface"
FUNCTION = "_flash_attn_fwd"

BLOCK = 32
"""Elements of the head dimension that share one scale."""

QUANTIZED = DType.F8_E4M3FN
SCALE = DType.F8_E8M0
HALVES = (DType.F16, DType.BF16)


def at(*lines: int) -> tuple[Site, ...]:
    """Where the interface asserts; the pinned commit's lines are not known."""
    return tuple(INTERFACE.at(FUNCTION, None, line) for line in lines)


@dataclass(frozen=True)
class AttentionCall(Call):
    """Arguments of the forward pass. B sequences, S tokens, H heads of D elements; Hk heads of K and V."""

    positional = 3

    q: TensorSpec = argument("queries [B, S, H, D], or [tokens, H, D] with cu_seqlens_q")
    k: TensorSpec = argument("keys [B, S, Hk, D], or [pages, page size, Hk, D] with page_table")
    v: TensorSpec = argument("values [B, S, Hk, D], or [pages, page size, Hk, D] with page_table")
    cu_seqlens_q: TensorSpec | None = argument("first token of each sequence, int32 [B + 1]", default=None)
    cu_seqlens_k: TensorSpec | None = argument("first key of each sequence, int32 [B + 1]", default=None)
    seqused_q: TensorSpec | None = argument("tokens used of each sequence, int32 [B]", default=None)
    seqused_k: TensorSpec | None = argument("keys used of each sequence, int32 [B]", default=None)
    page_table: TensorSpec | None = argument("pages of each sequence, int32 [B, pages]", default=None)
    learnable_sink: TensorSpec | None = argument("a logit for each head, bfloat16 [H]", default=None)
    _arch: int | None = argument(
        "compute capability · 10; the device's own, or the target's, if None", default=None
    )
    q_descale: TensorSpec | None = argument("a scale of FP8 q for each head, float32 [B, Hk]", default=None)
    k_descale: TensorSpec | None = argument("a scale of FP8 k for each head, float32 [B, Hk]", default=None)
    v_descale: TensorSpec | None = argument("a scale of FP8 v for each head, float32 [B, Hk]", default=None)
    sfq: TensorSpec | None = argument("UE8M0 scales of q, one for 32 elements [B, S, H, D/32]", default=None)
    sfk: TensorSpec | None = argument("UE8M0 scales of k, one for 32 elements", default=None)
    sfv: TensorSpec | None = argument("UE8M0 scales of v, one for 32 elements", default=None)
    qk_sf_vec_size: int | None = argument("elements that a scale of q and k is for: 32", default=None)
    v_sf_vec_size: int | None = argument("elements that a scale of v is for: 32", default=None)
    assertions: bool = argument(
        "whether assert statements are run: not under python -O, nor when the kernel class is used directly",
        default=True,
    )

    @property
    def scales_qk(self) -> bool:
        """Whether q and k have block scales, by upstream's sign: sfq."""
        return self.sfq is not None

    @property
    def scales_v(self) -> bool:
        """Whether v has block scales: sfv."""
        return self.sfv is not None

    @property
    def is_fp8(self) -> bool:
        """Whether v is of an FP8 type, which decides for the whole call."""
        return self.v.dtype in (DType.F8_E4M3FN, DType.F8_E5M2)

    @property
    def generation(self) -> int | None:
        """The first number of the compute capability: that of _arch, else of the target; None where neither
        is known.
        """
        found: object = self._arch
        if found is None and self.target is not None:
            found = self.target.capability
        return found // 10 if isinstance(found, int) else None

    def upstream_arguments(self) -> tuple[list[Any], dict[str, Any]]:
        """All but `assertions`, which is no argument of upstream's."""
        return [], {name: value for name, value in self.stated() if name != "assertions"}

    def to_call(self, function: str) -> str:
        """Upstream's call: `assertions` is no argument of it."""
        named = [name for name, _ in self.stated() if name not in ("q", "k", "v", "assertions")]
        written = [f"{name}={value}" for name, value in ((name, self._written(name)) for name in named)]
        return f"{function}({', '.join(['q', 'k', 'v', *written])})"

    def _written(self, name: str) -> str:
        value = getattr(self, name)
        return name if isinstance(value, TensorSpec) else repr(value)


def scales_of(tensor: TensorSpec) -> TensorSpec:
    """Block scales for a tensor, a scale for each 32 elements of a head."""
    blocks = tensor.shape[-1] // BLOCK if tensor.shape else 0
    return replace(tensor.with_shape(*tensor.shape[:-1], blocks), dtype=SCALE)


def like(dtype: DType) -> TensorSpec:
    """q, k or v of the examples."""
    return TensorSpec((1, 256, 1, 128), dtype)


VALID = AttentionCall(
    q=like(QUANTIZED),
    k=like(QUANTIZED),
    v=like(DType.BF16),
    sfq=scales_of(like(QUANTIZED)),
    sfk=scales_of(like(QUANTIZED)),
    qk_sf_vec_size=BLOCK,
)

PLAIN = AttentionCall(q=like(DType.BF16), k=like(DType.BF16), v=like(DType.BF16))

FULL = VALID.replace(v=like(QUANTIZED), sfv=scales_of(like(QUANTIZED)), v_sf_vec_size=BLOCK)


def fit(given: Mapping[str, Any]) -> AttentionCall:
    """Complete a user's arguments: q, k and v like those that are given, in bfloat16 where none is."""
    arguments = dict(given)
    known = next((arguments[name] for name in ("q", "k", "v") if name in arguments), like(DType.BF16))
    for name in ("q", "k", "v"):
        if name not in arguments:
            arguments[name] = replace(known, values=None)
    return AttentionCall(**arguments)


def fill(call: AttentionCall) -> Mapping[str, Values]:
    """Normal q, k and v, scales of 1, whole sequences."""
    values: dict[str, Values] = {}
    for name, tensor in call.tensors():
        if name.startswith("sf"):
            values[name] = Full(127)
        elif name.endswith("descale"):
            values[name] = Full(1.0)
        elif name.startswith("cu_seqlens"):
            values[name] = Arange(0, call.q.shape[0] if call.q.shape else 1)
        else:
            values[name] = Zeros() if tensor.dtype is DType.I32 else Randn()
    return values
