"""What upstream computes from a call before it checks: numbers, views of the pools, elements described."""

from __future__ import annotations

from itertools import cycle, islice
from math import prod

from kernels.dtypes import Kind
from kernels.inkling_attn_prologue.signature import HEAD, DecodeCall, ExtendCall, PrologueCall
from kernels.spec import Shape, TensorSpec
from kernels.values import Arange, Full, Listed, Ones, Values, Zeros, as_whole, bounds, representable

INT64 = 2**63
EXACT_LIMIT = 2**16
"""Elements of a described tensor up to which they are written out."""


def whole(value: object) -> int | None:
    """What int(value) gives, as a number of 64 bits; None where there is none."""
    try:
        number = int(value)  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError):
        return None
    return number if -INT64 <= number < INT64 else None


def offsets(call: PrologueCall) -> dict[str, int]:
    """The three slices' offsets, those that are numbers."""
    found = {name: whole(getattr(call, name)) for name in ("q_off", "k_off", "v_off")}
    return {name: value for name, value in found.items() if value is not None}


def width(value: object) -> int:
    """A width that torch takes as a size; 0 for what it does not."""
    return int(value) if isinstance(value, int) else 0


def heads(call: PrologueCall) -> int:
    """H."""
    return width(call.dkv) // HEAD


def owners(call: PrologueCall) -> int:
    """B, or T in decode: how many state slots, masks and tracks the kernel reads."""
    if isinstance(call, DecodeCall):
        return tokens(call)
    return call.cache_indices.shape[0] if call.cache_indices.ndim else 0


def tokens(call: PrologueCall) -> int:
    """T."""
    return call.qkvr.shape[0] if call.qkvr.ndim else 0


def taps(call: PrologueCall) -> int:
    """W; 0 where the weights have no such dimension."""
    return call.k_weight.shape[1] if call.k_weight.ndim > 1 else 0


def stores(call: PrologueCall) -> bool:
    """Whether the pools are written."""
    return bool(whole(call.do_store))


def updates(call: PrologueCall) -> bool:
    """Whether extend updates the state after its main pass."""
    return isinstance(call, ExtendCall) and bool(whole(call.do_cache_update)) and tokens(call) > 0


def tracks(call: PrologueCall) -> bool:
    """Whether any state is copied to track slots as well."""
    if isinstance(call, DecodeCall):
        return call.track_mask is not None
    return isinstance(call, ExtendCall) and call.track_mask.numel > 0


def slot_size(pool: TensorSpec) -> int:
    """Elements of one pool slot."""
    return prod(pool.shape[1:])


def pool_rows(pool: TensorSpec, row: int) -> TensorSpec | None:
    """pool.view(-1, row); None where torch refuses it."""
    if row <= 0 or pool.numel % row:
        return None
    shape = (pool.numel // row, row)
    strides = view_strides(pool, shape)
    return None if strides is None else TensorSpec(shape, pool.dtype, strides, pool.offset, pool.device)


def view_strides(tensor: TensorSpec, shape: Shape) -> Shape | None:
    """Strides of a view of another shape with as many elements; None where it needs a copy (torch's rule)."""
    if tensor.numel == 0:
        return tensor.strides if tensor.shape == shape else TensorSpec(shape, tensor.dtype).strides
    strides = [0] * len(shape)
    target = len(shape) - 1
    chunk_stride = tensor.strides[-1] if tensor.ndim else 1
    in_chunk = in_view = 1
    for dim in reversed(range(tensor.ndim)):
        in_chunk *= tensor.shape[dim]
        ends = dim == 0 or (tensor.shape[dim - 1] != 1 and tensor.strides[dim - 1] != in_chunk * chunk_stride)
        if not ends:
            continue
        while target >= 0 and (in_view < in_chunk or shape[target] == 1):
            strides[target] = in_view * chunk_stride
            in_view *= shape[target]
            target -= 1
        if in_view != in_chunk:
            return None
        if dim > 0:
            chunk_stride = tensor.strides[dim - 1]
            in_chunk = in_view = 1
    if tensor.ndim == 0:
        return tuple(1 for _ in shape)
    return tuple(strides) if target < 0 else None


def elements(tensor: TensorSpec | None, count: int) -> list[float | int | bool] | None:
    """The first elements as described, in row-major order; None where the description leaves them open."""
    if tensor is None or tensor.values is None:
        return None
    count = min(count, tensor.numel)
    if count > EXACT_LIMIT:
        return None
    drawn = _drawn(tensor.values, count)
    if drawn is None:
        return None
    if tensor.dtype.kind is Kind.BOOL:
        return [bool(value) for value in drawn]
    return [as_whole(value) for value in drawn] if tensor.dtype.kind is Kind.INT else list(drawn)


def extremes(tensor: TensorSpec | None, count: int) -> tuple[float | int, float | int] | None:
    """(smallest, largest) of the first elements that the description proves."""
    if tensor is None or count <= 0 or tensor.numel == 0:
        return None
    exact = elements(tensor, count)
    if exact is not None:
        return min(exact), max(exact)
    proved = bounds(tensor.values, (min(count, tensor.numel),))
    if proved is None or tensor.dtype.kind is not Kind.INT:
        return proved
    return as_whole(proved[0]), as_whole(proved[1])


def _drawn(values: Values, count: int) -> list[float | int | bool] | None:
    match values:
        case Zeros():
            return [0] * count
        case Ones():
            return [1] * count
        case Full(value=value):
            return [value] * count
        case Arange(start=start, step=step):
            first, apart = representable(start), representable(step)
            return [first + apart * index for index in range(count)]
        case Listed():
            return list(islice(cycle(list(values.flat()) or [0]), count))
    return None
