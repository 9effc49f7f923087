"""What the compiled launchers refuse of scale buffers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

from kernels.checking import Fix, aside
from kernels.dtypes import DType
from kernels.inkling_attn_prologue.bound import Launched, at
from kernels.inkling_attn_prologue.launcher import Unreachable
from kernels.inkling_attn_prologue.signature import PrologueCall
from kernels.spec import Shape, TensorSpec

SCALES = ("sfk", "sfv")


def _scales(call: PrologueCall) -> Iterator[tuple[str, TensorSpec]]:
    """The scale buffers that upstream's Python lets pass, with MXFP8."""
    for name in SCALES:
        tensor: TensorSpec | None = getattr(call, name)
        if call.mxfp8_quant and tensor is not None and tensor.ndim == 5:
            yield name, tensor


@dataclass(frozen=True)
class ScalesNotUint8(Unreachable):
    """Exponents are handed over as plain bytes."""

    message = "MXFP8 scale buffers must be passed as uint8 views"
    sites = at(verify=428, decode=832, extend=1333)
    reason = "a scale buffer is not uint8"
    looks_at = ("sfk.dtype", "sfv.dtype")
    requires = "nothing of the caller"
    unreachable = "upstream's Python passes .view(torch.uint8) of the buffers it was given"


@dataclass(frozen=True)
class QueryScalesStrided(Unreachable):
    """The exponents of q lie side by side."""

    message = "MXFP8 sfq must be contiguous [T, Hq, 4]"
    sites = at(verify=432, decode=836, extend=1337)
    reason = "the result for q's scales has gaps"
    looks_at = ("mxfp8_quant",)
    requires = "nothing of the caller"
    unreachable = "upstream's Python allocates the scales of q itself, dense"


@dataclass(frozen=True)
class ScalesNotFiveDimensional(Unreachable):
    """Pages, heads, 32 tokens, groups of tokens, blocks."""

    message = "MXFP8 SFK/SFV must be 5D interleaved"
    sites = at(verify=437, decode=841, extend=1342)
    reason = "a scale buffer has not 5 dimensions"
    looks_at = ("sfk.shape", "sfv.shape")
    requires = "sfk and sfv of 5 dimensions"
    unreachable = "upstream's Python compares the whole shape, which has 5 sizes, before"


@dataclass(frozen=True)
class ScalesNotOneByte(Launched):
    """Upstream takes a byte view, in which a wider element becomes several."""

    message = "MXFP8 SFK/SFV must use [pages, Hkv, 32, page/32, 4] layout"
    sites = at(verify=438, decode=842, extend=1343)
    reason = "{names}: as bytes the last size is {last}, not 4; a scale is one byte"
    looks_at = ("sfk.dtype", "sfv.dtype", "mxfp8_quant")
    requires = "sfk and sfv of a type of one byte, float8_e8m0fnu or uint8"
    category = "dtype"
    names: str = aside()
    last: int = aside()

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        wide = {name: tensor for name, tensor in _scales(call) if tensor.itemsize > 1}
        if wide:
            last = max(tensor.shape[-1] * tensor.itemsize for tensor in wide.values())
            yield cls(" and ".join(f"{name} is {tensor.dtype}" for name, tensor in wide.items()), last)

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        cast = {
            name: replace(tensor.with_dtype(DType.U8), values=None)
            for name, tensor in _scales(call)
            if tensor.itemsize > 1
        }
        title = f"Allocate {' and '.join(cast)} as uint8, zero-filled"
        yield Fix(title, call.replace(**cast), safe=True, note="an untouched 0xFF byte would read as NaN")

    @classmethod
    def example(cls) -> PrologueCall:
        call = cls.valid.quantized()
        return call.with_dtype("sfk", DType.F32).with_dtype("sfv", DType.F32)


@dataclass(frozen=True)
class ScalesOddStrides(Launched):
    """A dimension of size 1 may have any stride for torch; this launcher compares all of them."""

    message = "MXFP8 SFK/SFV must be contiguous BlockScaledBasicChunk layout"
    sites = at(verify=443, decode=847, extend=1348)
    reason = (
        "{argument} has strides {strides}: torch calls it contiguous, but behind the first they are not "
        "row-major"
    )
    looks_at = ("sfk.strides", "sfv.strides", "mxfp8_quant")
    requires = "sfk and sfv with row-major strides, also where a size is 1"
    category = "layout"
    premises = (ScalesNotOneByte,)
    argument: str = aside()
    strides: Shape = aside()

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        for name, tensor in _scales(call):
            _, _, rows, groups, blocks = tensor.shape
            expected = (rows * groups * blocks, groups * blocks, blocks, 1)
            if tensor.is_contiguous and tensor.strides[1:] != expected:
                yield cls(name, tensor.strides)

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        dense = {name: tensor.contiguous() for name, tensor in _scales(call)}
        yield Fix("Allocate the scale buffers dense", call.replace(**dense), safe=True)

    @classmethod
    def example(cls) -> PrologueCall:
        call = cls.valid.quantized()
        assert call.sfk is not None
        page, _, *rest = call.sfk.strides
        return call.with_tensor("sfk", strides=(page, page + 1, *rest))
