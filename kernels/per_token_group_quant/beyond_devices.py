"""Where per_token_group_quant's tensors are: our own check beside the dispatcher's and the launcher's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from kernels.checking import Fix, aside
from kernels.dtypes import DType
from kernels.per_token_group_quant.beyond import Hazard
from kernels.per_token_group_quant.signature import VALID, QuantCall
from kernels.spec import TensorSpec

BESIDE = ("sorted_token_ids", "num_tokens_post_padded")
"""Tensors whose devices upstream's launcher does not compare."""

ROWS = ("input", "output_q", "output_s", "masked_m")


@dataclass(frozen=True)
class RowsOnHost(Hazard):
    """torch dispatches to CUDA for one tensor there, be it one that the launch does not read.

    Seen on an H200: an illegal memory access, and the process's context is lost.
    """

    message = "input is on {got}, and {argument} on {elsewhere} has the operator run there"
    reason = (
        "input and its outputs are on {got}, and torch picks the GPU's implementation for {argument}, which "
        "is on {elsewhere}: the kernel reads host memory, and the process's GPU context is lost"
    )
    looks_at = ("input.device", "sorted_token_ids.device", "num_tokens_post_padded.device")
    requires = "every tensor on one GPU"
    category = "device"
    got: str
    argument: str
    elsewhere: str
    held: tuple[str, ...] = aside()
    gpu: str = aside()

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        rows = {name: tensor for name, tensor in call.tensors() if name in ROWS}
        if {tensor.device_type for tensor in rows.values()} != {"cpu"}:
            return
        for name in BESIDE:
            tensor: TensorSpec | None = getattr(call, name)
            if tensor is not None and tensor.device_type == "cuda":
                yield cls(call.input.device, name, tensor.device_index, tuple(rows), tensor.device)
                return

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        moved = call
        for name in self.held:
            moved = moved.with_tensor(name, device=self.gpu)
        title = f"Move {' and '.join(self.held)} to the GPU"
        if call.sorted_token_ids is None:
            moved = moved.without(self.argument)
            title += f", and leave {self.argument} out, which nothing reads"
        yield Fix(title, moved, safe=True, note="one copy of each")

    @classmethod
    def example(cls) -> QuantCall:
        rows = {name: tensor for name, tensor in VALID.tensors() if name in ROWS}
        count = TensorSpec((1,), DType.I32)
        held = VALID.replace(num_tokens_post_padded=count)
        for name in rows:
            held = held.with_tensor(name, device="cpu")
        return held


ON_DEVICES = (RowsOnHost,)
