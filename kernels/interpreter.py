"""Triton's interpreter, corrected: what it computes silently wrong on the CPU is done by torch instead.

As shipped (3.6 to 3.9) it truncates float32 → bfloat16, does bfloat16 arithmetic on the bit patterns, rounds
and saturates float8 wrongly, and lets NaN through min and max, where a GPU returns the other operand.
`prepare()` replaces these internals; `self_test()` refuses to go on where a result differs from torch's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

VARIABLE = "TRITON_INTERPRET"


class InterpreterError(RuntimeError):
    """The interpreter cannot be used in this process."""


class WrongMode(InterpreterError):
    """triton was imported before, for compiled kernels; a process has one mode for good."""


class InterpreterUnreliable(InterpreterError):
    """An interpreted kernel's result differs from torch's."""


def prepare() -> None:
    """Choose interpreter mode for this process and install the corrections; repeated calls do nothing more.

    Call it before anything imports triton: the mode is fixed when triton's own library is decorated.
    Raises WrongMode when it comes too late.
    """
    if "triton" not in sys.modules:
        os.environ[VARIABLE] = "1"
    if not is_interpreting():
        raise WrongMode(
            "triton is already imported for compiled kernels; "
            f"set {VARIABLE}=1 or call prepare() before its import"
        )
    os.environ[VARIABLE] = "1"  # a kernel decorated from now on must take the same mode
    from triton.runtime import interpreter

    if not getattr(interpreter, "_corrected", False):
        _install(interpreter)
        interpreter._corrected = True


def is_interpreting() -> bool:
    """Whether the kernels of this process run in the interpreter; imports triton."""
    from triton.language import standard
    from triton.runtime.interpreter import InterpretedFunction

    return isinstance(standard.sum, InterpretedFunction)


def self_test() -> None:
    """Run small kernels over every 16-bit pattern and the edges of float32; `prepare()` comes first.

    Raises InterpreterUnreliable naming the first operation that differs from torch.
    """
    from triton.runtime.errors import InterpreterError as ProbeFailed

    from kernels.interpreter_probes import PROBES

    for name, differs in PROBES.items():
        try:
            difference = differs()
        except ProbeFailed as error:
            raise InterpreterUnreliable(f"triton's interpreter fails at {name}: {error}") from error
        if difference is not None:
            raise InterpreterUnreliable(f"triton's interpreter is wrong about {name}: {difference}")


def _install(interpreter: Any) -> None:
    """Replace the conversions, bfloat16 arithmetic, dot, min and max of triton's interpreter module."""
    import numpy as np
    import torch
    import triton.language as tl

    builder = interpreter.InterpreterBuilder
    handle = interpreter.TensorHandle
    torch_types = {
        tl.bfloat16: torch.bfloat16,
        tl.float16: torch.float16,
        tl.float32: torch.float32,
        tl.float64: torch.float64,
        tl.float8e4nv: torch.float8_e4m3fn,
        tl.float8e5: torch.float8_e5m2,
        tl.float8e4b8: torch.float8_e4m3fnuz,
        tl.float8e5b16: torch.float8_e5m2fnuz,
    }
    # numpy lacks these types: the interpreter keeps their bits in unsigned integers.
    bits_only = {dtype for dtype in torch_types if dtype.primitive_bitwidth == 8} | {tl.bfloat16}
    bits_of = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
    shipped_convert = interpreter._convert_float

    def to_torch(data: Any, dtype: Any) -> torch.Tensor:
        bits = np.array(data, order="C", copy=True).view(bits_of[dtype.primitive_bitwidth])
        return torch.from_numpy(bits).view(torch_types[dtype])

    def to_bits(values: torch.Tensor, dtype: Any) -> Any:
        width = dtype.primitive_bitwidth
        return values.contiguous().view(getattr(torch, f"uint{width}")).numpy()

    def to_float32(operand: Any) -> Any:
        return to_torch(operand.data, operand.dtype.scalar).float().numpy()

    def convert_float(data: Any, source: Any, target: Any, rounding_mode: Any) -> Any:
        """The bits of `data` in another floating type: to nearest even; float8 saturates."""
        toward_zero = rounding_mode == interpreter._ir.ROUNDING_MODE.RTZ
        if toward_zero or source not in torch_types or target not in torch_types:
            return shipped_convert(data, source, target, rounding_mode)
        values = to_torch(data, source)
        if target.primitive_bitwidth == 8:
            limit = torch.finfo(torch_types[target]).max
            values = values.float().clamp(-limit, limit)  # clamp keeps NaN
        return to_bits(values.to(torch_types[target]), target)

    shipped_cast = builder.cast_impl

    def cast_impl(self: Any, source: Any, target: Any) -> Any:
        of, to = source.dtype.scalar, target.scalar
        if of == to or not {of, to} & bits_only:
            return shipped_cast(self, source, target)
        if of in bits_only:
            widened = handle(to_float32(source), tl.float32)
            return widened if to == tl.float32 else cast_impl(self, widened, target)
        exact = source if of.is_floating() else handle(source.data.astype(np.float32), tl.float32)
        return handle(convert_float(exact.data, exact.dtype.scalar, to, None), to)

    def in_float32(shipped: Callable[..., Any]) -> Callable[..., Any]:
        """Compute bfloat16 operands in float32 and round once, as the GPU does; comparisons stay booleans."""

        @wraps(shipped)
        def operation(self: Any, *arguments: Any) -> Any:
            *operands, function = arguments
            if all(operand.dtype.scalar != tl.bfloat16 for operand in operands):
                return shipped(self, *arguments)
            result = function(*(to_float32(o) if o.dtype.scalar == tl.bfloat16 else o.data for o in operands))
            if result.dtype == np.bool_:
                return handle(result, tl.int1)
            return handle(
                convert_float(result.astype(np.float32), tl.float32, tl.bfloat16, None), tl.bfloat16
            )

        return operation

    def get_bf16(self: Any, value: float) -> Any:
        return cast_impl(self, self.get_fp32(value), tl.bfloat16)

    def create_dot(self: Any, a: Any, b: Any, d: Any, *_: Any) -> Any:
        """a · b + d in d's type: operands that numpy lacks are widened exactly; no tf32 rounding."""
        sides = (to_float32(side) if side.dtype.scalar in bits_only else side.data for side in (a, b))
        return handle(np.matmul(*sides, dtype=d.data.dtype) + d.data, d.dtype.scalar)

    def other_than_nan(choose: Any) -> Callable[[Any, Any], Any]:
        """min or max of two that return the operand that is not NaN; numpy's fmin keeps signalling NaN."""
        return lambda a, b: np.where(np.isnan(a), b, np.where(np.isnan(b), a, choose(a, b)))

    fmin, fmax = other_than_nan(np.minimum), other_than_nan(np.maximum)

    def create_fma(self: Any, x: Any, y: Any, z: Any) -> Any:
        return self.ternary_op(x, y, z, lambda a, b, c: a * b + c)

    def create_clampf(self: Any, value: Any, low: Any, high: Any, propagate_nan: Any) -> Any:
        if propagate_nan == tl.PropagateNan.ALL:
            return self.ternary_op(value, low, high, np.clip)
        return self.ternary_op(value, low, high, lambda x, lo, hi: fmin(fmax(x, lo), hi))

    def ignoring_nan(choose: Any, neutral: float) -> Callable[..., Any]:
        """min or max along an axis, NaN only where all are."""

        def reduction(data: Any, axis: int | None, keepdims: bool) -> Any:
            if data.dtype.kind != "f":
                return choose.reduce(data, axis=axis, keepdims=keepdims)
            of_nan = np.isnan(data)
            chosen = choose.reduce(
                np.where(of_nan, data.dtype.type(neutral), data), axis=axis, keepdims=keepdims
            )
            return np.where(of_nan.all(axis=axis, keepdims=keepdims), data.dtype.type(np.nan), chosen)

        return reduction

    replaced = {np.nanmax: ignoring_nan(np.maximum, -np.inf), np.nanmin: ignoring_nan(np.minimum, np.inf)}
    shipped_min_max = interpreter.ReduceOps.min_max

    def min_max(self: Any, operand: Any, val_reduce_op: Any, idx_reduce_op: Any = None) -> Any:
        return shipped_min_max(self, operand, replaced.get(val_reduce_op, val_reduce_op), idx_reduce_op)

    shipped_apply = interpreter.ReduceScanOpInterface.apply

    def apply(self: Any, operands: Any) -> Any:
        """Reductions and scans of bfloat16 run in float32 and round once."""
        if not isinstance(operands, tuple):
            return apply(self, (operands,))[0]
        narrow = [operand.dtype == tl.bfloat16 for operand in operands]
        semantic = interpreter.interpreter_semantic
        widened = tuple(
            semantic.cast(o, tl.float32) if is_narrow else o
            for o, is_narrow in zip(operands, narrow, strict=True)
        )
        results = shipped_apply(self, widened)
        if not any(narrow):
            return results
        return tuple(semantic.cast(r, tl.bfloat16) if r.dtype == tl.float32 else r for r in results)

    shipped_call = interpreter.GridExecutor.__call__

    @wraps(shipped_call)
    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        # A GPU overflows to inf and divides by zero without a word; numpy would warn.
        with np.errstate(all="ignore"):
            return shipped_call(self, *arguments, **options)

    shipped_patch = interpreter._patch_lang_tensor

    def patch_tensor(tensor: Any, scope: Any) -> None:
        """Loop bounds are arrays of one element, which 3.6 hands to int(); numpy 2.4 takes it amiss."""
        shipped_patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._convert_float = convert_float
    interpreter._patch_lang_tensor = patch_tensor
    interpreter.ReduceOps.min_max = min_max
    interpreter.ReduceScanOpInterface.apply = apply
    interpreter.GridExecutor.__call__ = call
    builder.cast_impl = cast_impl
    builder.binary_op = in_float32(builder.binary_op)
    builder.unary_op = in_float32(builder.unary_op)
    builder.get_bf16 = get_bf16
    builder.create_dot = create_dot
    builder.create_fma = create_fma
    builder.create_clampf = create_clampf
    builder.create_minnumf = lambda self, a, b: self.binary_op(a, b, fmin)
    builder.create_maxnumf = lambda self, a, b: self.binary_op(a, b, fmax)
