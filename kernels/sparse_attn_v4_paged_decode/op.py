"""sparse_attn_v4_paged_decode on live tensors: upstream's checks and our own, then our kernel."""

from __future__ import annotations

from torch import Tensor

from kernels.devices import runs_kernels
from kernels.dtypes import DType
from kernels.live import Guard
from kernels.running import Arguments, Outputs, Runner, Tolerance
from kernels.sparse_attn_v4_paged_decode import reference
from kernels.sparse_attn_v4_paged_decode.checks import STAGES
from kernels.sparse_attn_v4_paged_decode.signature import SparseCall

_guard = Guard(SparseCall, STAGES)


def sparse_attn_v4_paged_decode(
    q: Tensor,
    unified_kv: Tensor,
    kv_indices: Tensor,
    kv_indptr: Tensor,
    attn_sink: Tensor,
    softmax_scale: float,
    kv_scales: Tensor | None = None,
    kv_splits: int | None = None,
) -> Tensor:
    """Attention of each token over its own list of pool slots; [T, H, D] like q. No input is changed.

    Arguments are those of SparseCall, on one CUDA device. Raises what upstream raises, and ValueError for
    layouts that crash or corrupt there. What the index lists hold is not looked at beforehand, since that
    would wait for the GPU: as upstream's, the kernel reads whatever slots they name. On a CPU whose process
    interprets no kernels the reference runs. `kv_splits` divides the work among programs and changes the
    result by rounding alone, so the reference has no use for it.
    """
    arguments = locals()
    _guard(arguments)
    if not runs_kernels(q.device):
        return _reference(arguments)["out"]
    # This imports triton, whose mode is fixed by that.
    from kernels.sparse_attn_v4_paged_decode.launch import launch

    return launch(**arguments)


def _outputs(_: Arguments, returned: Tensor) -> Outputs:
    return {"out": returned}


def _reference(arguments: Arguments) -> Outputs:
    inputs = {name: value for name, value in arguments.items() if name != "kv_splits"}
    return {"out": reference.decode(**inputs)}


def tolerance(_: str, call: SparseCall) -> Tolerance:
    """About two steps of the result's type: sums are formed in another order."""
    return Tolerance(atol=1e-3, rtol=2e-3) if call.q.dtype is DType.F16 else Tolerance(atol=5e-3, rtol=1.6e-2)


RUNNERS = {
    "sparse_attn_v4_paged_decode": Runner(
        function=sparse_attn_v4_paged_decode,
        outputs=_outputs,
        reference=_reference,
        tolerance=tolerance,
    )
}
