"""How the launcher of per_token_group_quant matches input, codes and scales, in its order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from kernels.checking import Fix
from kernels.launching import WrongDevice, WrongDims, WrongSize, WrongStride
from kernels.per_token_group_quant.repairs import divides
from kernels.per_token_group_quant.signature import (
    LAUNCHER,
    VALID,
    QuantCall,
)
from kernels.spec import TensorSpec
from kernels.upstream import Site


def sites_of(flat: tuple[int, int], masked: tuple[int, int] | None = None) -> tuple[Site, ...]:
    return tuple(LAUNCHER.at("run", *lines) for lines in (flat, masked) if lines is not None)


class Launched:
    """Mixed into matches: the flat launcher reports from the first site, the masked one from the second."""

    @classmethod
    def variant(cls, call: QuantCall, /) -> int:
        return int(call.masked)


@dataclass(frozen=True)
class InputDims(Launched, WrongDims[QuantCall]):
    """Rows are [T, H]; per expert, [E, P, H]."""

    tensor = "input"
    sites = sites_of((487, 538), (481, 532))
    looks_at = ("input.shape", "masked_m")
    requires = "input of 2 dimensions, or 3 with masked_m"

    @classmethod
    def causes(cls, call: QuantCall, tensor: TensorSpec, /) -> Iterator[tuple[Any, ...]]:
        yield from _dims(call, tensor)

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        changed, wanted = call, 2 + call.masked
        for name in ("input", "output_q", "output_s"):
            tensor = getattr(call, name)
            if tensor is not None and tensor.ndim > wanted and tensor.is_contiguous:
                extra = tensor.ndim - wanted + 1
                merged = 1
                for size in tensor.shape[:extra]:
                    merged *= size
                changed = changed.with_tensor(name, shape=(merged, *tensor.shape[extra:]))
        if changed is not call:
            yield Fix(
                "View the leading dimensions as one", changed, safe=True, note="a view; nothing is copied"
            )

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.with_tensor("input", shape=(2, 2, 256))


@dataclass(frozen=True)
class InputColumnStride(Launched, WrongStride[QuantCall]):
    """Vectorised loads need a row's elements side by side."""

    tensor = "input"
    sites = sites_of((487, 538), (481, 532))
    looks_at = ("input.strides",)
    requires = "last stride of input 1"
    premises = (InputDims,)

    @classmethod
    def causes(cls, call: QuantCall, tensor: TensorSpec, /) -> Iterator[tuple[Any, ...]]:
        yield from _column_stride(tensor)

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        yield dense(call, "input")

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.with_tensor("input", strides=(512, 2))


@dataclass(frozen=True)
class CodesDims(Launched, WrongDims[QuantCall]):
    """Codes have the input's dimensions."""

    tensor = "output_q"
    sites = sites_of((488, 539), (482, 533))
    looks_at = ("output_q.shape", "masked_m")
    requires = "output_q of 2 dimensions, or 3 with masked_m"

    @classmethod
    def causes(cls, call: QuantCall, tensor: TensorSpec, /) -> Iterator[tuple[Any, ...]]:
        yield from _dims(call, tensor)

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        yield like_input(call, "output_q", call.hidden)

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.with_tensor("output_q", shape=(4, 1, 256))


@dataclass(frozen=True)
class CodesRows(Launched, WrongSize[QuantCall]):
    """Every input row has a row of codes."""

    tensor = "output_q"
    sites = CodesDims.sites
    looks_at = ("output_q.shape", "input.shape")
    requires = "as many rows in output_q as in input"
    premises = (InputDims, CodesDims)

    @classmethod
    def causes(cls, call: QuantCall, tensor: TensorSpec, /) -> Iterator[tuple[Any, ...]]:
        yield from _rows(call, tensor)

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        yield like_input(call, "output_q", call.codes.shape[-1])

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.with_tensor("output_q", shape=(5, 256))


@dataclass(frozen=True)
class CodesColumnStride(Launched, WrongStride[QuantCall]):
    """Vectorised stores need a row's codes side by side."""

    tensor = "output_q"
    sites = CodesDims.sites
    looks_at = ("output_q.strides",)
    requires = "last stride of output_q 1"
    premises = (CodesDims,)

    @classmethod
    def causes(cls, call: QuantCall, tensor: TensorSpec, /) -> Iterator[tuple[Any, ...]]:
        yield from _column_stride(tensor)

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        yield dense(call, "output_q")

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.with_tensor("output_q", strides=(512, 2))


class OnInputsDevice(Launched, WrongDevice[QuantCall]):
    """Matched after the input, whose device the launcher recorded."""

    @classmethod
    def causes(cls, call: QuantCall, tensor: TensorSpec, /) -> Iterator[tuple[Any, ...]]:
        if tensor.device_index != call.input.device_index:
            yield call.input.device_index, tensor.device_index

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        if self.got.startswith("cuda") and call.input.device == "cpu":
            yield Fix(
                "Move the input to the GPU", call.with_tensor("input", device=self.found.device), safe=True
            )
        else:
            moved = call.with_tensor(self.tensor, device=call.input.device)
            yield Fix(f"Move {self.tensor} to the input's device", moved, safe=True)


@dataclass(frozen=True)
class CodesDevice(OnInputsDevice):
    """One launch, one device."""

    tensor = "output_q"
    sites = CodesDims.sites
    looks_at = ("output_q.device", "input.device")
    requires = "output_q on the input's device"

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.with_tensor("input", device="cpu")


@dataclass(frozen=True)
class ScalesDims(Launched, WrongDims[QuantCall]):
    """Scales have the input's dimensions."""

    tensor = "output_s"
    sites = sites_of((489, 540), (483, 534))
    looks_at = ("output_s.shape", "masked_m")
    requires = "output_s of 2 dimensions, or 3 with masked_m"

    @classmethod
    def causes(cls, call: QuantCall, tensor: TensorSpec, /) -> Iterator[tuple[Any, ...]]:
        yield from _dims(call, tensor)

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        if call.output_q is not None and divides(call.group_size):
            yield like_input(call, "output_s", call.scale_columns)

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.with_tensor("output_s", shape=(4, 1, 2))


@dataclass(frozen=True)
class ScalesRows(Launched, WrongSize[QuantCall]):
    """Every input row has a row of scales."""

    tensor = "output_s"
    sites = ScalesDims.sites
    looks_at = ("output_s.shape", "input.shape")
    requires = "as many rows in output_s as in input"
    premises = (InputDims, ScalesDims)

    @classmethod
    def causes(cls, call: QuantCall, tensor: TensorSpec, /) -> Iterator[tuple[Any, ...]]:
        yield from _rows(call, tensor)

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        yield like_input(call, "output_s", call.scales.shape[-1])

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.with_tensor("output_s", shape=(3, 2))


@dataclass(frozen=True)
class ScalesDevice(OnInputsDevice):
    """One launch, one device."""

    tensor = "output_s"
    sites = ScalesDims.sites
    looks_at = ("output_s.device", "input.device")
    requires = "output_s on the input's device"

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.with_tensor("output_s", device="cuda:1")


def _dims(call: QuantCall, tensor: TensorSpec) -> Iterator[tuple[int, int]]:
    if tensor.ndim != 2 + call.masked:
        yield 2 + call.masked, tensor.ndim


def _rows(call: QuantCall, tensor: TensorSpec) -> Iterator[tuple[int, str, int, int]]:
    names = ("num_experts", "num_tokens") if call.masked else ("num_tokens",)
    for dim, name in enumerate(names):
        if tensor.shape[dim] != call.input.shape[dim]:
            yield dim, name, call.input.shape[dim], tensor.shape[dim]


def _column_stride(tensor: TensorSpec) -> Iterator[tuple[int, int, int]]:
    if tensor.shape[-1] != 1 and tensor.strides[-1] != 1:
        yield tensor.ndim - 1, 1, tensor.strides[-1]


def dense(call: QuantCall, name: str) -> Fix[QuantCall]:
    dense = replace(getattr(call, name), strides=(), offset=0)
    return Fix(
        f"Make {name} contiguous", call.replace(**{name: dense}), safe=True, note=f"one copy of {name}"
    )


def like_input(call: QuantCall, name: str, columns: int) -> Fix[QuantCall]:
    shape = (*call.input.shape[:-1], columns)
    return Fix(f"Allocate {name} as {list(shape)}", call.with_tensor(name, shape=shape), safe=True)
