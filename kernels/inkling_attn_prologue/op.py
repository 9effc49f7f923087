"""The inkling attention prologues on live tensors: upstream's checks and our own, then our kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

import torch
from torch import Tensor

from kernels.devices import runs_kernels
from kernels.inkling_attn_prologue import reference
from kernels.inkling_attn_prologue.checks import OPERATIONS, STAGES_DECODE, STAGES_EXTEND, STAGES_VERIFY
from kernels.inkling_attn_prologue.conversion import COUNTS
from kernels.inkling_attn_prologue.reference import Pool, Projection, Result
from kernels.inkling_attn_prologue.signature import DecodeCall, ExtendCall, PrologueCall, VerifyCall
from kernels.live import Guard
from kernels.running import Arguments, Outputs, Runner, Tolerance

Group = TypeVar("Group", Projection, Pool)

GROUPED = {kind: tuple(field.name for field in fields(kind)) for kind in (Projection, Pool)}
"""Names of a group's arguments."""

STATE = ("k_cache", "v_cache", "cache_indices", "cache_mask")
TRACKING = ("track_rows", "track_mask", "track_dst", "do_cache_update")
OWN = {
    "decode": (*STATE, "track_mask", "track_indices"),
    "verify": (*STATE, "k_inter", "v_inter", "draft_token_num"),
    "extend": (*STATE, "has_initial_state", "cu", "si", *TRACKING),
}
"""Arguments that the three do not share, by prologue."""

_guard_decode = Guard(DecodeCall, STAGES_DECODE)
_guard_verify = Guard(VerifyCall, STAGES_VERIFY)
_guard_extend = Guard(ExtendCall, STAGES_EXTEND)


def inkling_attn_prologue_decode(
    qkvr: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    cache_indices: Tensor,
    cache_mask: Tensor,
    k_weight: Tensor,
    v_weight: Tensor,
    q_gamma: Tensor,
    k_gamma: Tensor,
    eps: float,
    loc: Tensor,
    k_buf: Tensor,
    v_buf: Tensor,
    q_off: int,
    k_off: int,
    v_off: int,
    dq: int,
    dkv: int,
    activation: str | None = None,
    use_residual: bool = True,
    track_mask: Tensor | None = None,
    track_indices: Tensor | None = None,
    do_store: bool = True,
    mxfp8_quant: bool = False,
    sfk: Tensor | None = None,
    sfv: Tensor | None = None,
    page_size: int = 128,
    log_scaling_tau: Tensor | None = None,
) -> Result:
    """One token a sequence; returns (q_out, k_out, v_out, q_scale), writes state, pool and scale bytes.

    Arguments are those of DecodeCall. Raises what upstream raises, before anything is written. What index
    tensors hold is not looked at: as upstream's, the kernel goes wherever they point. On a CPU whose process
    interprets no kernels the reference runs.
    """
    arguments = locals()
    _guard_decode(arguments)
    return _run("decode", arguments)


def inkling_attn_prologue_verify(
    qkvr: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    cache_indices: Tensor,
    cache_mask: Tensor,
    k_weight: Tensor,
    v_weight: Tensor,
    k_inter: Tensor,
    v_inter: Tensor,
    q_gamma: Tensor,
    k_gamma: Tensor,
    eps: float,
    loc: Tensor,
    k_buf: Tensor,
    v_buf: Tensor,
    q_off: int,
    k_off: int,
    v_off: int,
    dq: int,
    dkv: int,
    draft_token_num: int,
    activation: str | None = None,
    use_residual: bool = True,
    do_store: bool = True,
    mxfp8_quant: bool = False,
    sfk: Tensor | None = None,
    sfv: Tensor | None = None,
    page_size: int = 128,
    log_scaling_tau: Tensor | None = None,
) -> Result:
    """n drafted tokens a sequence; returns (q_out, k_out, v_out, q_scale), writes windows, pool and scales.

    Arguments are those of VerifyCall. Raises as inkling_attn_prologue_decode does.
    """
    arguments = locals()
    _guard_verify(arguments)
    return _run("verify", arguments)


def inkling_attn_prologue_extend(
    qkvr: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    cache_indices: Tensor,
    cache_mask: Tensor,
    has_initial_state: Tensor,
    cu: Tensor,
    si: Tensor,
    k_weight: Tensor,
    v_weight: Tensor,
    track_rows: Tensor,
    track_mask: Tensor,
    track_dst: Tensor,
    q_gamma: Tensor,
    k_gamma: Tensor,
    eps: float,
    loc: Tensor,
    k_buf: Tensor,
    v_buf: Tensor,
    q_off: int,
    k_off: int,
    v_off: int,
    dq: int,
    dkv: int,
    activation: str | None = None,
    use_residual: bool = True,
    do_store: bool = True,
    mxfp8_quant: bool = False,
    sfk: Tensor | None = None,
    sfv: Tensor | None = None,
    page_size: int = 128,
    do_cache_update: bool = True,
    log_scaling_tau: Tensor | None = None,
) -> Result:
    """Sequences of any length; returns (q_out, k_out, v_out, q_scale), writes state, pool and scale bytes.

    Arguments are those of ExtendCall. Raises as inkling_attn_prologue_decode does.
    """
    arguments = locals()
    _guard_extend(arguments)
    return _run("extend", arguments)


def _run(kind: str, arguments: Arguments) -> Result:
    """Our kernel where this process runs kernels, else the reference."""
    if not runs_kernels(arguments["qkvr"].device):
        return _referred(kind, arguments)
    from kernels.inkling_attn_prologue import launch  # imports triton, whose mode is fixed by that

    return _called(getattr(launch, kind), arguments, OWN[kind])


def _referred(kind: str, arguments: Arguments) -> Result:
    return _called(getattr(reference, kind), arguments, OWN[kind])


def _called(function: Callable[..., Result], arguments: Arguments, own: tuple[str, ...]) -> Result:
    """Call it with the arguments in groups, counts as int() makes them."""
    counts = {name: int(arguments[name]) for name in COUNTS if name in arguments}
    arguments = arguments | counts
    with torch.no_grad():
        return function(
            _group(Projection, arguments),
            _group(Pool, arguments),
            **{name: arguments[name] for name in own},
        )


def _group(kind: type[Group], arguments: Arguments) -> Group:
    return kind(**{name: arguments[name] for name in GROUPED[kind]})


def _outputs(written: tuple[str, ...]) -> Callable[[Arguments, Any], Outputs]:
    """What the function returned, and the arguments it may have written."""

    def outputs(arguments: Arguments, returned: Any) -> Outputs:
        named = dict(zip(("q_out", "k_out", "v_out", "q_scale"), returned, strict=True))
        named |= {name: arguments[name] for name in written}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    return outputs


def _reference(kind: str, written: tuple[str, ...]) -> Callable[[Arguments], Outputs]:
    outputs = _outputs(written)
    return lambda arguments: outputs(arguments, _referred(kind, arguments))


def tolerance(name: str, call: PrologueCall) -> Tolerance:
    """State, windows and scale bytes are exact; other results may be a step of their type off."""
    if name in ("k_cache", "v_cache", "k_inter", "v_inter", "q_scale", "sfk", "sfv"):
        return Tolerance()
    if call.mxfp8_quant and name in ("q_out", "k_buf", "v_buf"):
        return Tolerance(share=0.001, step=1)
    return Tolerance(rtol=2.0**-7)


_FUNCTIONS: dict[str, Callable[..., Result]] = {
    "decode": inkling_attn_prologue_decode,
    "verify": inkling_attn_prologue_verify,
    "extend": inkling_attn_prologue_extend,
}

RUNNERS = {
    operation.name: Runner(
        function=function,
        outputs=_outputs(operation.outputs),
        reference=_reference(kind, operation.outputs),
        tolerance=tolerance,
    )
    for operation, (kind, function) in zip(OPERATIONS, _FUNCTIONS.items(), strict=True)
}
