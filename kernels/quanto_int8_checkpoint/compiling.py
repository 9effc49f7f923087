"""What the linear of a quanto_int8_checkpoint call compiles."""

from __future__ import annotations

from collections.abc import Iterator

from kernels.live import torch_dtype
from kernels.offline import OVERLAPPING, SHARED_MEMORY, Variant
from kernels.quanto_int8_checkpoint import launch
from kernels.quanto_int8_checkpoint.plan import choose_plan
from kernels.quanto_int8_checkpoint.signature import QuantoCall


def variants(call: QuantoCall, target: str) -> Iterator[tuple[str, Variant]]:
    """(kernel, compilation) of the product of x with the first layer that it fits; none without x."""
    if call.x is None or not call.x.ndim or not call.x.numel:
        return
    width = call.x.shape[-1]
    fitting = (header.shape for name, header in call.checkpoint.tensors.items() if name.endswith("._data"))
    rows = next((shape[0] for shape in fitting if len(shape) == 2 and shape[1] == width), None)
    if rows is None:
        return
    dtype = torch_dtype(call.x.dtype)
    plan = choose_plan(call.x.numel // width, rows, width, dtype.itemsize, SHARED_MEMORY[target])
    yield from launch.variants(dtype, plan, pdl=target in OVERLAPPING).items()
