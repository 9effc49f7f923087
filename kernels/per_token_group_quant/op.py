"""per_token_group_quant on live tensors: upstream's checks, then our kernel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernels.dtypes import DType
from kernels.live import Guard, described, torch_dtype
from kernels.per_token_group_quant import reference
from kernels.per_token_group_quant.checks import STAGES
from kernels.per_token_group_quant.kernel import launch
from kernels.per_token_group_quant.signature import QuantCall
from kernels.running import Arguments, Outputs, Runner, Tolerance

_guard = Guard(QuantCall, STAGES)


def per_token_group_quant(
    input: Tensor,  # noqa: A002 (upstream's name)
    output_q: Tensor | None = None,
    output_s: Tensor | None = None,
    group_size: int = 128,
    scale_ue8m0: bool = False,
    fuse_silu_and_mul: bool = False,
    masked_m: Tensor | None = None,
    expected_m: int | None = None,
    *,
    out_dtype: torch.dtype | None = None,
    column_major_scales: bool = False,
    sorted_token_ids: Tensor | None = None,
    num_tokens_post_padded: Tensor | None = None,
    num_valid_tokens: int = 0,
    silu_and_mul_mode: str = "legacy",
) -> tuple[Tensor, Tensor]:
    """Quantise rows to 8-bit codes with one scale a group; returns (output_q, output_s).

    Arguments are those of QuantCall, on one CUDA device; outputs are allocated when both are None. Raises
    what upstream raises, and ValueError for layouts that would corrupt memory there, before anything is
    written. With the sorted layout every row is written, padding rows too: upstream leaves open which of
    those it skips.
    """
    _guard(locals())
    if output_q is None or output_s is None:
        output_q, output_s = _allocate(locals())
    launch(
        input,
        output_q,
        output_s,
        group_size,
        scale_ue8m0=scale_ue8m0,
        fuse_silu_and_mul=fuse_silu_and_mul,
        masked_m=masked_m,
        silu_and_mul_mode=silu_and_mul_mode,
    )
    return output_q, output_s


def _allocate(arguments: dict[str, Any]) -> tuple[Tensor, Tensor]:
    call = described(QuantCall, arguments).allocated()
    codes, scales = (
        torch.empty_strided(
            spec.shape, spec.strides, dtype=torch_dtype(spec.dtype), device=arguments["input"].device
        )
        for spec in (call.codes, call.scales)
    )
    return codes, scales


def _outputs(arguments: Arguments, returned: tuple[Tensor, Tensor]) -> Outputs:
    codes, scales = returned
    if arguments["output_q"] is None:
        _clear_unwritten(arguments["masked_m"], codes, scales)
    return {"output_q": codes, "output_s": scales}


def _clear_unwritten(masked_m: Tensor | None, *outputs: Tensor) -> None:
    """Zero the rows past each expert's count: allocated here, they hold whatever was there before."""
    if masked_m is None:
        return
    for expert, count in enumerate(masked_m.tolist()):
        for output in outputs:
            output[expert, max(count, 0) :] = 0


def _reference(arguments: Arguments) -> Outputs:
    codes, scales = arguments["output_q"], arguments["output_s"]
    if codes is None or scales is None:
        codes, scales = _allocate(arguments)
    reference.quantize(
        arguments["input"],
        codes,
        scales,
        arguments["group_size"],
        scale_ue8m0=arguments["scale_ue8m0"],
        fuse_silu_and_mul=arguments["fuse_silu_and_mul"],
        masked_m=arguments["masked_m"],
        silu_and_mul_mode=arguments["silu_and_mul_mode"],
    )
    return _outputs(arguments, (codes, scales))


def tolerance(name: str, call: QuantCall) -> Tolerance:
    """How far an output may be from the reference.

    Without SiLU scales are exact, UE8M0 codes too; the approximate division moves a few codes by one step.
    SiLU's fast
    exponential may move the rounding of the product, and with it an element, a scale by one unit of the
    input type, or
    an exponent by one, which shifts its group's codes by an octave of eight.
    """
    silu, packed = call.fuse_silu_and_mul, call.scale_ue8m0
    if name == "output_s":
        if not silu:
            return Tolerance()
        return Tolerance(share=0.005, step=2.0**31) if packed else Tolerance(rtol=2.0**-7)
    if silu:
        return Tolerance(share=0.01, step=8)
    if packed:
        return Tolerance()
    int8 = call.allocated().codes.dtype is DType.I8
    return Tolerance(share=0.005 if int8 else 0.003, step=1)


RUNNERS = {
    "per_token_group_quant": Runner(
        function=per_token_group_quant, outputs=_outputs, reference=_reference, tolerance=tolerance
    )
}
