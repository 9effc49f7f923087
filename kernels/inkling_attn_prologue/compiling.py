"""What a call of one of the prologues compiles."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from kernels.inkling_attn_prologue.launch import variant
from kernels.inkling_attn_prologue.signature import DecodeCall, ExtendCall, PrologueCall
from kernels.offline import OVERLAPPING, Variant

HEAD = 128


def variants(call: PrologueCall, target: str) -> Iterator[tuple[str, Variant]]:
    """(kernel, compilation) of a call that passes its checks; extend has a second one for the state."""
    tokens = call.qkvr.shape[0]
    if not tokens:
        return
    kind = (
        "extend" if isinstance(call, ExtendCall) else "decode" if isinstance(call, DecodeCall) else "verify"
    )
    track = getattr(call, "track_mask", None)
    tracked = track is not None and track.numel > 0
    sized = partial(
        variant,
        tokens=tokens,
        q_heads=call.dq // HEAD,
        heads=call.dkv // HEAD,
        taps=call.k_weight.shape[1],
        pdl=target in OVERLAPPING,
    )
    yield (
        f"{kind}_kernel",
        sized(
            kind,
            mxfp8=call.mxfp8_quant,
            silu=call.activation in ("silu", "swish"),
            track=tracked and kind == "decode",
            tau=call.log_scaling_tau is not None,
        ),
    )
    if isinstance(call, ExtendCall) and call.do_cache_update:
        yield "state_kernel", sized("state", track=tracked)
